// Convolutions and batch norms by cuDNN, and gradients of embeddings. How large a workspace of a convolution is, Python says once for each kind of call
// (kernels/convolution.py). Recorded on an H200 with torch 2.11 and cuDNN 9.19.
#pragma once

#include "card_kernels.h"

#include <ATen/ops/sum_ops.h>

#include <map>

namespace cudamem {

// Whether channels are next to each other in memory; if they are in any input, cuDNN computes in that order.
inline bool is_last(const at::Tensor& tensor) {
  const int64_t dims = tensor.dim();
  if (dims != 4 && dims != 5) return false;
  int64_t least = 0;
  const auto follows = [&](int64_t dim) {
    const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
    if (size == 0 || stride < least || (dim == 0 && least == tensor.stride(1))) return false;
    least = stride * size;
    return true;
  };
  if (!follows(1)) return false;
  for (int64_t dim = dims - 1; dim > 1; --dim) {
    if (!follows(dim)) return false;
  }
  return follows(0);
}

inline c10::OperatorHandle operator_of(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

inline at::Tensor maybe(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }
inline c10::IValue or_none(const at::Tensor& tensor) { return tensor.defined() ? c10::IValue(tensor) : c10::IValue(); }

inline at::Tensor empty_on_card(c10::IntArrayRef size, at::ScalarType type) {
  return at::detail::empty_generic(size, &allocator_of_card(), kCardKeys, type, {});
}

inline at::MemoryFormat format_of(bool last, size_t dims) {
  if (!last) return at::MemoryFormat::Contiguous;
  return dims == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
}

inline at::Tensor empty_in_order(const at::Tensor& near, c10::IntArrayRef size, bool last) {
  return at::detail::empty_generic(size, &allocator_of_card(), kCardKeys, near.scalar_type(), format_of(last, size.size()));
}

// Memory for a copy of a tensor in the order that cuDNN computes in; undefined if it is in that order.
inline at::Tensor in_order(const at::Tensor& tensor, bool last) {
  const bool is = tensor.is_contiguous(format_of(last, static_cast<size_t>(tensor.dim())));
  return is ? at::Tensor() : empty_in_order(tensor, tensor.sizes(), last);
}

// What Python says of a kind of call: asked once.
using Key = std::vector<int64_t>;
inline void add(Key& key, c10::IntArrayRef values) {
  key.push_back(static_cast<int64_t>(values.size()));
  key.insert(key.end(), values.begin(), values.end());
}
inline std::vector<int64_t> ask_once(const c10::OperatorHandle& ask, Key key, Stack stack) {
  static auto& known = *new std::map<Key, std::vector<int64_t>>;
  static auto& mutex = *new std::mutex;
  key.push_back(reinterpret_cast<int64_t>(&ask.operator_name()));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  ask.redispatchBoxed(kCardKeys, &stack);
  const std::lock_guard<std::mutex> lock(mutex);
  return known[key] = stack.back().toIntVector();
}

// How a convolution is called: six arguments of its operator.
class Convolution {
 public:
  Convolution(const at::Tensor& x, const at::Tensor& weight, const Taken& given, size_t first)
      : last(is_last(x) || is_last(weight)),
        x_(x),
        weight_(weight),
        transposed_(given[first + 3].toBool()),
        groups_(integer(given[first + 5])) {
    for (const size_t at : {0, 1, 2, 4}) how_.push_back(integers(given[first + at]));
  }

  const bool last;

  std::vector<int64_t> result() const {
    std::vector<int64_t> found = {x_.size(0), transposed_ ? weight_.size(1) * groups_ : weight_.size(0)};
    for (int64_t dim = 2; dim < x_.dim(); ++dim) {
      const auto each = [&](size_t at) { return how_[at].size() > 1 ? how_[at][static_cast<size_t>(dim - 2)] : how_[at][0]; };
      const int64_t stride = each(0), around = 2 * each(1), kernel = each(2) * (weight_.size(dim) - 1) + 1;
      found.push_back(transposed_ ? (x_.size(dim) - 1) * stride - around + kernel + each(3)
                                  : (x_.size(dim) + around - kernel) / stride + 1);
    }
    return found;
  }

  // Bytes that it and its two gradients need while they are computed.
  std::vector<int64_t> workspaces(const at::Tensor& result) const {
    static const auto ask = operator_of("cudamem_card::convolution_workspaces");
    Key key = {static_cast<int64_t>(x_.scalar_type()), last, transposed_, groups_};
    for (const c10::IntArrayRef each : {x_.sizes(), weight_.sizes(), result.sizes()}) add(key, each);
    for (const auto& each : how_) add(key, each);
    return ask_once(ask, std::move(key), {x_, weight_, result, how_[0], how_[1], how_[2], transposed_, how_[3], groups_, last});
  }

 private:
  const at::Tensor &x_, &weight_;
  const bool transposed_;
  const int64_t groups_;
  std::vector<std::vector<int64_t>> how_;
};

// Runs the CPU's kernel of an operator, and gives the results that have memory the values of its results.
inline void compute_into(const c10::OperatorHandle& op, Stack stack, c10::ArrayRef<at::Tensor> results) {
  const InsideKernel guard;
  for (c10::IValue& value : stack) {
    if (value.isTensor()) value = host(value.toTensor());
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (size_t at = 0; at < results.size(); ++at) {
    const at::Tensor& value = stack[stack.size() - op.schema().returns().size() + at].toTensor();
    if (results[at].defined()) host(results[at]).copy_(value);
  }
}

inline void convolution(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor x = given.self(), weight = given[1].toTensor();
  const OnCard on(x.device());
  const Convolution how(x, weight, given, 3);
  at::Tensor held = in_order(x, how.last);
  const at::Tensor out = empty_in_order(x, how.result(), how.last);
  passing({how.workspaces(out)[0]});
  held.reset();
  if (has_values()) compute_into(op, given.all(), out);
  given.leave(out);
}

inline void convolution_backward(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor grad = given.self(), x = given[1].toTensor(), weight = given[2].toTensor();
  const OnCard on(x.device());
  const Convolution how(x, weight, given, 4);
  const auto wanted = given[10].toBoolList();
  std::array<at::Tensor, 3> found;
  {
    const std::array<at::Tensor, 2> held = {in_order(grad, how.last), in_order(x, how.last)};
    const auto workspaces = how.workspaces(grad);
    for (const size_t at : {0, 1}) {
      if (!wanted.get(at)) continue;
      const at::Tensor& like = at ? weight : x;
      found[at] = empty_in_order(like, like.sizes(), how.last);
      passing({workspaces[at + 1]});
    }
  }
  if (wanted.get(2)) {
    std::vector<int64_t> dims = {0};
    for (int64_t dim = 2; dim < grad.dim(); ++dim) dims.push_back(dim);
    const c10::impl::ExcludeDispatchKeyGuard guard(kAboveKernels);  // else it would be summed up in full precision
    found[2] = at::_ops::sum_dim_IntList::call(grad, dims, false, {});
  }
  if (has_values() && (wanted.get(0) || wanted.get(1))) {
    Stack all = given.all();
    all[10] = c10::List<bool>({wanted.get(0), wanted.get(1), false});
    compute_into(op, std::move(all), {found[0], found[1]});
  }
  given.leave_all(found);
}

// --- batch norms ---

// Bytes of the workspace for a batch norm of channels that are next to each other: a number for each channel of 64 rows (96
// in backward) is kept twice, and some for each block of threads.
inline int64_t channel_sums_size(const at::Tensor& x, bool forward) {
  const int64_t channels = x.size(1), rows = x.numel() / std::max<int64_t>(channels, 1), columns = (channels + 63) / 64;
  const int64_t parts = forward ? (rows + 63) / 64 : (rows + 95) / 96;
  return 4 * (2 * parts * channels + 2 * processors + columns + (forward ? parts * columns + 4 : 0));
}

inline at::Tensor empty_like(const at::Tensor& tensor) { return at::_ops::empty_like::call(tensor, {}, {}, {}, {}, {}); }

inline void batch_norm(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor x = given.self(), weight = given[1].toTensor();
  const bool training = given[5].toBool();
  const OnCard on(x.device());
  const at::Tensor out = empty_like(x);
  const auto kept = [&] { return empty_on_card({training ? x.size(1) : 0}, weight.scalar_type()); };
  const at::Tensor mean = kept(), scale = kept();
  if (training && !x.is_contiguous()) passing({channel_sums_size(x, true)});
  const at::Tensor reserve = empty_on_card({0}, at::kByte);
  if (has_values()) {
    static const auto on_host = operator_of("aten::native_batch_norm", "out");
    Stack all = given.all();
    for (const at::Tensor& each : {out, mean, scale}) all.push_back(each);
    compute_into(on_host, std::move(all), {});
  }
  const std::array<at::Tensor, 4> found = {out, mean, scale, reserve};
  given.leave_all(found);
}

inline void batch_norm_backward(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor x = given.self(), grad = given[1].toTensor(), weight = given[2].toTensor();
  const OnCard on(x.device());
  std::array<at::Tensor, 3> found;
  {
    const at::Tensor held = grad.strides() == x.strides() ? at::Tensor() : empty_like(x);
    found = {empty_like(x), empty_like(weight), empty_like(weight)};
    if (!x.is_contiguous()) passing({channel_sums_size(x, false)});
  }
  if (has_values()) {
    static const auto on_host = operator_of("aten::native_batch_norm_backward");
    const c10::List<bool> all({true, true, true});
    compute_into(on_host, {grad, x, weight, given[3], given[4], given[5], given[6], true, given[7], all}, found);
  }
  given.leave_all(found);
}

// --- embeddings ---

// The gradient of all rows. Many indices are sorted first (kernels/indexing.py).
inline void embedding_backward(const c10::OperatorHandle& op, Stack* stack) {
  constexpr int64_t kFew = 3072;
  Taken given(op, stack);
  const at::Tensor grad = given.self(), indices = given[1].toTensor();
  if (indices.numel() > kFew || given[4].toBool()) {
    static const auto by_order = operator_of("cudamem_card::embedding_backward_by_order");
    by_order.redispatchBoxed(kCardKeys, stack);
    return;
  }
  const OnCard on(grad.device());
  at::Tensor out;
  {
    const auto copied = [](const at::Tensor& each) {
      return each.is_contiguous() ? at::Tensor() : empty_on_card(each.sizes(), each.scalar_type());
    };
    const std::array<at::Tensor, 2> held = {copied(grad), copied(indices)};
    out = empty_on_card({integer(given[2]), grad.size(-1)}, grad.scalar_type());
  }
  if (has_values()) compute_into(op, given.all(), out);
  given.leave(out);
}

inline void register_cudnn(Registered& registered) {
  registered.put("aten::embedding_dense_backward", boxed<&embedding_backward>());
  registered.put("aten::convolution", boxed<&convolution>());
  registered.put("aten::convolution_backward", boxed<&convolution_backward>());
  registered.put("aten::cudnn_batch_norm", boxed<&batch_norm>());
  registered.put("aten::cudnn_batch_norm_backward", boxed<&batch_norm_backward>());
}

}  // namespace cudamem
