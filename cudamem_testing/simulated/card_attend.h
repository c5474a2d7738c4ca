// The values of attention kernels, and the memory-efficient kernel, which is chosen in full precision; the others are in
// kernels/attention.py. Recorded on an H200 with torch 2.11.
#pragma once

#include "card_cudnn.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>

namespace cudamem {

inline std::optional<at::Tensor> host_if_any(const c10::IValue& value) {
  const at::Tensor tensor = maybe(value);
  return tensor.defined() ? std::optional<at::Tensor>(host(tensor)) : std::nullopt;
}

// Whether the CPU has a kernel for it: the same number of heads, all as wide, and nothing dropped.
inline bool is_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
                     double dropout) {
  return dropout == 0 && q.size(1) == k.size(1) && q.size(3) == v.size(3) &&
         (!bias || (bias->scalar_type() == q.scalar_type() && bias->dim() == q.dim()));
}

// The sums of the rows of a query, of which a card's kernel keeps some more.
inline at::Tensor sums_of_rows(const at::Tensor& sums, const at::Tensor& query) {
  return sums.view({query.size(0), query.size(1), -1}).narrow(2, 0, query.size(2));
}

// Computes attention into memory of a card: result, sums, seed, query, key, value, bias, dropout, causal, scale.
inline void attend(const c10::OperatorHandle&, Stack* stack) {
  static const auto written_out = operator_of("cudamem_card::attend_written_out");
  Stack all(stack->end() - 10, stack->end());
  stack->resize(stack->size() - 10);
  if (!has_values()) return;
  const InsideKernel guard;
  const at::Tensor sums = host(all[1].toTensor()), q = host(all[3].toTensor()), k = host(all[4].toTensor()), v = host(all[5].toTensor());
  const auto bias = host_if_any(all[6]);
  if (!is_fused(q, k, v, bias, all[7].toDouble())) {
    written_out.redispatchBoxed(kCardKeys, &all);
    return;
  }
  const auto [result, logsumexp] = at::_ops::_scaled_dot_product_flash_attention_for_cpu::call(
      q, k, v, 0.0, all[8].toBool(), bias, all[9].toOptional<double>());
  host(all[0].toTensor()).copy_(result);
  if (sums.numel()) sums_of_rows(sums, q).copy_(logsumexp);
}

// Gradients of query, key, value and bias; gradient, result, sums, seed, query, key, value, bias, dropout, causal, scale.
inline void attend_backward(const c10::OperatorHandle&, Stack* stack) {
  static const auto written_out = operator_of("cudamem_card::attend_backward_written_out");
  Stack all(stack->end() - 15, stack->end());
  stack->resize(stack->size() - 15);
  if (!has_values()) return;
  const InsideKernel guard;
  const at::Tensor q = host(all[8].toTensor()), k = host(all[9].toTensor()), v = host(all[10].toTensor());
  const auto bias = host_if_any(all[11]);
  if (all[3].isTensor() || !is_fused(q, k, v, bias, all[12].toDouble())) {
    written_out.redispatchBoxed(kCardKeys, &all);
    return;
  }
  const auto [of_q, of_k, of_v] = at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward::call(
      host(all[4].toTensor()), q, k, v, host(all[5].toTensor()), sums_of_rows(host(all[6].toTensor()), q), 0.0,
      all[13].toBool(), bias, all[14].toOptional<double>());
  size_t at = 0;
  for (const at::Tensor* const each : {&of_q, &of_k, &of_v}) host(all[at++].toTensor()).copy_(*each);
}

inline int64_t rounded_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

inline void efficient(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor query = given.self(), value = given[2].toTensor();
  const OnCard on(query.device());
  const auto type = query.scalar_type();
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2), width = value.size(3);
  const at::Tensor out = empty_on_card({batch, length, heads, width}, type).transpose(1, 2);
  const at::Tensor sums = empty_on_card({batch, heads, given[4].toBool() ? rounded_up(length, 32) : 0}, at::kFloat);
  if (type != at::kFloat && width > 128) passing({4 * out.numel()});  // the result is added up in full precision
  const auto number = [] { return at::detail::empty_cpu({}, at::kLong).zero_(); };
  const at::Tensor seed = number(), offset = number();
  Stack all = {out, sums, seed, query, given[1], value, given[3], given[5], given[6], given[7]};
  attend(op, &all);
  const std::array<at::Tensor, 4> found = {out, sums, seed, offset};
  given.leave_all(found);
}

// Bytes of the workspace for one head: the query's gradient in tiles of 64 columns, each with a lock. In half precision
// wide heads add up the gradients of key and value in full precision, too.
inline int64_t efficient_workspace(int64_t length, int64_t keys, int64_t width, int64_t value_width, bool half) {
  const int64_t rows = width <= 64 ? 64 : 128;
  const int64_t tiles = rounded_up(length, rows) / rows * (rounded_up(width, 64) / 64);
  return tiles * (4 * rows * 64 + 16) + (half && width > 128 ? 4 * rounded_up(keys, rows) * (width + value_width) : 0);
}

inline void efficient_backward(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor grad = given.self(), query = given[1].toTensor(), key = given[2].toTensor(), value = given[3].toTensor();
  const at::Tensor bias = maybe(given[4]), out = given[5].toTensor();
  const OnCard on(query.device());
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2), width = query.size(3);
  const bool half = query.itemsize() == 2;
  std::array<at::Tensor, 4> found;
  {
    at::Tensor held;
    if (!grad.transpose(1, 2).is_contiguous()) held = empty_on_card(grad.sizes(), grad.scalar_type());
    size_t at = 0;
    for (const at::Tensor* const each : {&query, &key, &value}) {  // heads are next to each other for each position
      found[at++] = empty_on_card(each->transpose(1, 2).sizes(), each->scalar_type()).transpose(1, 2);
    }
    if (bias.defined() && given[10].toBoolList().get(3)) found[3] = empty_like(bias);
    // The sum of gradient times result; for half precision the kernel finds it.
    if (!half) passing({4 * out.numel(), 4 * batch * heads * length, 4 * batch * heads * length});
    const at::Tensor delta = empty_on_card({batch, heads, length}, at::kFloat);
    passing({batch * heads * efficient_workspace(length, key.size(2), width, value.size(3), half)});
    held.reset();
  }
  Stack all = {found[0], found[1], found[2], or_none(found[3]), grad, out, given[6], given[7], query, key, value, given[4],
               given[9], given[11], given[12]};
  attend_backward(op, &all);
  given.leave_all(found);
}

}  // namespace cudamem
