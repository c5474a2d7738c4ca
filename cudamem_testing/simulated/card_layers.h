// Recurrent layers by cuDNN, which is one operator for all of them: weights in one buffer, a reserve for backward, and
// workspaces. How large they are, Python says once for each kind of call (kernels/layers.py). LSTM layers are computed by
// oneDNN, with which torch computes them on the CPU; others in single steps (kernels/recurrent.py).
#pragma once

#include <ATen/ops/cat_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <ATen/ops/randint_ops.h>
#include <c10/core/GradMode.h>

#include "card_attention.h"
#include "card_cudnn.h"
#include "card_recurrent.h"

namespace at::detail {  // torch's header for it takes long to compile
TORCH_API Generator createCPUGenerator(uint64_t seed);
}  // namespace at::detail

namespace cudamem {

// How layers are called: nine arguments of their operators.
struct Layers {
  Layers(const Taken& given, size_t first)
      : how(given.part(first, 9)),
        mode(given[first].toInt()),
        hidden(integer(given[first + 1])),
        projected(integer(given[first + 2])),
        number(given[first + 3].toInt()),
        batch_first(given[first + 4].toBool()),
        train(given[first + 6].toBool()),
        dropout(train && number > 1 ? given[first + 5].toDouble() : 0),
        drops(given[first + 5].toDouble() > 0),
        ways(given[first + 7].toBool() ? 2 : 1),
        batch_sizes(integers(given[first + 8])) {}

  // Of the result, with steps first.
  std::vector<int64_t> shape(const at::Tensor& x) const {
    const int64_t out = ways * (projected ? projected : hidden);
    if (!batch_sizes.empty()) return {x.size(0), out};
    return {x.size(batch_first ? 1 : 0), x.size(batch_first ? 0 : 1), out};
  }

  struct Sizes {
    int64_t forward, backward, reserve;
  };
  // Bytes of both workspaces and of the reserve.
  Sizes sizes(const at::Tensor& x, const std::vector<at::Tensor>& weights) const {
    static const auto ask = operator_of("cudamem_card::recurrent_sizes");
    Key key = {static_cast<int64_t>(x.scalar_type()), mode, hidden, projected, number, batch_first, train, drops, ways};
    add(key, x.sizes());
    add(key, batch_sizes);
    for (const at::Tensor& each : weights) add(key, each.sizes());
    Stack stack = {x, weights};
    stack.insert(stack.end(), how.begin(), how.end());
    const std::vector<int64_t> found = ask_once(ask, std::move(key), std::move(stack));
    return {found.at(0), found.at(1), found.at(2)};
  }

  // Whether oneDNN has them: with biases, without projections, of sequences of one length.
  bool are_of_library(const at::Tensor& x, int64_t stride) const {
    static const bool has_library = c10::Dispatcher::singleton().findSchema({"aten::mkldnn_rnn_layer_backward", ""}) && at::Context::hasMKLDNN();
    const bool even = batch_sizes.empty() || batch_sizes.front() == batch_sizes.back();
    return mode == kLstm && stride == 4 && even && x.scalar_type() == at::kFloat && has_library;
  }

  const Stack how;
  const int64_t mode, hidden, projected, number;
  const bool batch_first, train;
  const double dropout;
  const bool drops;
  const int64_t ways;
  const std::vector<int64_t> batch_sizes;
};

// LSTM layers by oneDNN, on tensors of the CPU.
class Lstm {
 public:
  // What it gives for one layer in one direction: output, last state, last cell, and what its backward needs.
  using Found = std::array<at::Tensor, 4>;
  using All = std::vector<Found>;

  Lstm(const Layers& layers, const at::Tensor& x, const std::vector<at::Tensor>& weights, const at::Tensor& hx, const at::Tensor& cx, int64_t seed)
      : layers_(layers), x_(sequences(host(x))), hx_(host(hx)), cx_(host(cx)), seed_(seed) {
    for (const at::Tensor& each : weights) weights_.push_back(host(each));
  }

  // Steps first, whatever is first in rows.
  at::Tensor sequences(const at::Tensor& rows) const {
    const auto& sizes = layers_.batch_sizes;
    if (!sizes.empty()) return rows.view({static_cast<int64_t>(sizes.size()), sizes.front(), -1});
    return layers_.batch_first ? rows.transpose(0, 1) : rows;
  }

  All forward(bool for_backward) const {
    const c10::AutoGradMode mode(for_backward);
    All all;
    for (int64_t layer = 0; layer < layers_.number; ++layer) {
      const at::Tensor given = input(all, layer);
      for (int64_t way = 0; way < layers_.ways; ++way) {
        const int64_t at = layer * layers_.ways + way;
        const auto found = at::_ops::mkldnn_rnn_layer::call(
            given, weight(at, 0), weight(at, 1), weight(at, 2), weight(at, 3), hx_.select(0, at), cx_.select(0, at), way == 1, {},
            kLstm, layers_.hidden, layers_.number, true, false, false, for_backward);
        all.push_back(std::apply([](const auto&... each) { return Found{each...}; }, found));
      }
    }
    return all;
  }

  // What all directions of a layer give.
  at::Tensor output(const All& all, int64_t layer) const {
    const auto at = static_cast<size_t>(layer * layers_.ways);
    return layers_.ways == 1 ? all[at][0] : at::_ops::cat::call(std::vector<at::Tensor>{all[at][0], all[at + 1][0]}, 2);
  }

  // Fills gradients: of the input, steps first; of first states and cells; and of all weights, one after the other.
  void backward(const All& all, const at::Tensor& grad, const at::Tensor& grad_last, const at::Tensor& grad_cell,
                const at::Tensor& into_x, const at::Tensor& into_hx, const at::Tensor& into_cx, at::Tensor flat) const {
    std::vector<at::Tensor> of_weights(weights_.size());
    const at::Tensor result = output(all, layers_.number - 1);
    at::Tensor above = grad.defined() ? sequences(grad) : result.new_zeros(result.sizes());
    for (int64_t layer = layers_.number - 1; layer >= 0; --layer) {
      const at::Tensor given = input(all, layer);
      at::Tensor below;
      for (int64_t way = 0; way < layers_.ways; ++way) {
        const int64_t at = layer * layers_.ways + way;
        const Found& found = all[static_cast<size_t>(at)];
        const at::Tensor own = layers_.ways == 1 ? above : above.narrow(2, way * layers_.hidden, layers_.hidden);
        const at::Tensor hx = hx_.select(0, at), cx = cx_.select(0, at);
        const auto end = [&](const at::Tensor& ends) { return ends.defined() ? ends.select(0, at) : hx.new_zeros(hx.sizes()); };
        const auto [of_x, w0, w1, w2, w3, of_hx, of_cx] = at::_ops::mkldnn_rnn_layer_backward::call(
            given, weight(at, 0), weight(at, 1), weight(at, 2), weight(at, 3), hx, cx, found[0], found[1], found[2],
            own.contiguous(), end(grad_last), end(grad_cell), way == 1, kLstm, layers_.hidden, layers_.number, true, true, false,
            {}, false, found[3]);
        below = below.defined() ? below.add(of_x) : of_x;
        into_hx.select(0, at).copy_(of_hx);
        into_cx.select(0, at).copy_(of_cx);
        auto place = of_weights.begin() + 4 * at;
        for (const at::Tensor* const each : {&w0, &w1, &w2, &w3}) *place++ = each->reshape({-1});
      }
      above = dropped(below, layer);
    }
    into_x.copy_(above.view(into_x.sizes()));
    at::_ops::cat_out::call(of_weights, 0, flat);
  }

 private:
  at::Tensor input(const All& all, int64_t layer) const {
    return dropped(layer ? output(all, layer - 1) : x_, layer).contiguous();
  }

  const at::Tensor& weight(int64_t at, size_t number) const { return weights_[static_cast<size_t>(4 * at) + number]; }

  // The input of a layer, or its gradient, after dropout.
  at::Tensor dropped(const at::Tensor& rows, int64_t layer) const {
    if (!layer || !layers_.dropout) return rows;
    const double stays = 1 - layers_.dropout;
    const auto drawn = at::detail::createCPUGenerator(static_cast<uint64_t>(seed_ + layer));
    const at::Tensor mask = at::_ops::empty_like::call(rows, {}, {}, {}, {}, {}).bernoulli_(stays, drawn);
    return rows.mul(mask.mul_(stays > 0 ? 1 / stays : 0));
  }

  const Layers& layers_;
  const at::Tensor x_, hx_, cx_;
  const int64_t seed_;
  std::vector<at::Tensor> weights_;
};

// Beside the memory of a reserve: what oneDNN keeps for backward is larger than that.
struct KeptByLibrary {
  c10::DataPtr memory;
  Lstm::All all;

  static void drop(void* kept) { delete static_cast<KeptByLibrary*>(kept); }
  static void put(const c10::Storage& reserve, Lstm::All all) {
    auto* const kept = new KeptByLibrary{{}, std::move(all)};
    c10::DataPtr& memory = const_cast<c10::Storage&>(reserve).mutable_data_ptr();
    kept->memory = std::move(memory);
    memory = c10::DataPtr(kept->memory.get(), kept, &drop, kept->memory.device());
  }
  static const Lstm::All* of(const c10::Storage& reserve) {
    const auto* const kept = reserve.data_ptr().cast_context<KeptByLibrary>(&drop);
    return kept ? &kept->all : nullptr;
  }
};

inline int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  int64_t number = 0;
  for (const at::Tensor& each : tensors) number += each.numel();
  return number;
}

inline void layers_forward(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor x = given.self(), hx = given[4].toTensor(), cx = maybe(given[5]);
  const std::vector<at::Tensor> weights = given[1].toTensorVector();
  const OnCard on(x.device());
  const Layers layers(given, 6);
  const auto type = x.scalar_type();
  const int64_t number = elements_of(weights);
  const auto sizes = layers.sizes(x, weights);
  at::Tensor buffer = maybe(given[3]);
  if (!buffer.defined()) {  // they may lie in one buffer already
    const bool whole = static_cast<int64_t>(weights[0].storage().nbytes()) == number * static_cast<int64_t>(x.itemsize());
    buffer = whole ? weights[0].detach() : empty_on_card({number}, type);
  }
  at::Tensor held = layers.batch_first ? empty_on_card(x.sizes(), type) : at::Tensor();
  at::Tensor out = empty_on_card(layers.shape(x), type);
  const at::Tensor last = empty_like(hx), cell = cx.defined() ? empty_like(cx) : empty_on_card({0}, type);
  at::Tensor workspace = empty_on_card({sizes.forward}, at::kByte);
  const at::Tensor reserve = empty_on_card({sizes.reserve}, at::kByte);
  workspace.reset();
  held.reset();
  if (layers.batch_first) out = out.transpose(0, 1);
  if (has_values()) {
    int64_t seed = 0;
    if (layers.drops && sizes.reserve) {  // it stays in the reserve until backward
      seed = host(at::_ops::randint::call(int64_t{1} << 62, {}, at::kLong, {}, x.device(), {})).item().toLong();
      std::memcpy(reserve.mutable_data_ptr(), &seed, sizeof seed);
    }
    const InsideKernel guard;
    if (layers.are_of_library(x, given[2].toInt())) {
      const bool for_backward = layers.train && c10::GradMode::is_enabled();
      const Lstm lstm(layers, x, weights, hx, cx, seed);
      Lstm::All all = lstm.forward(for_backward);
      lstm.sequences(host(out)).copy_(lstm.output(all, layers.number - 1));
      for (size_t at = 0; at < all.size(); ++at) {
        host(last).select(0, static_cast<int64_t>(at)).copy_(all[at][1]);
        host(cell).select(0, static_cast<int64_t>(at)).copy_(all[at][2]);
      }
      if (for_backward) KeptByLibrary::put(reserve.storage(), std::move(all));
    } else {
      static const auto by_steps = operator_of("cudamem_card::recurrent_steps");
      Stack all = {x, weights, given[2], hx, or_none(cx), out, last, cell, reserve};
      all.insert(all.end(), layers.how.begin(), layers.how.end());
      by_steps.redispatchBoxed(kCardKeys, &all);
    }
  }
  const std::array<at::Tensor, 5> found = {out, last, cell, reserve, buffer};
  given.leave_all(found);
}

inline void layers_backward(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor x = given.self(), hx = given[4].toTensor(), cx = maybe(given[5]), out = given[6].toTensor();
  const at::Tensor grad = maybe(given[7]), grad_last = maybe(given[8]), grad_cell = maybe(given[9]), reserve = given[20].toTensor();
  const std::vector<at::Tensor> weights = given[1].toTensorVector();
  const OnCard on(x.device());
  const Layers layers(given, 10);
  const auto sizes = layers.sizes(x, weights);
  std::vector<at::Tensor> zeros, held;
  if (!grad_last.defined()) zeros.push_back(empty_like(hx));
  if (cx.defined() && !grad_cell.defined()) zeros.push_back(empty_like(hx));
  if (layers.batch_first) held = {empty_like(x), empty_like(out)};
  const at::Tensor steps_first = empty_on_card(layers.batch_first ? x.transpose(0, 1).sizes() : x.sizes(), x.scalar_type());
  const at::Tensor into_hx = empty_like(hx), into_cx = cx.defined() ? empty_like(cx) : at::Tensor();
  passing({sizes.backward});
  while (!held.empty()) held.pop_back();
  at::Tensor again = layers.batch_first ? empty_like(x) : at::Tensor();
  const at::Tensor flat = empty_on_card({elements_of(weights)}, x.scalar_type());
  passing({sizes.backward});
  again.reset();
  while (!zeros.empty()) zeros.pop_back();
  if (has_values()) {
    const InsideKernel guard;
    if (layers.are_of_library(x, given[2].toInt())) {
      int64_t seed = 0;
      if (layers.drops && sizes.reserve) std::memcpy(&seed, reserve.const_data_ptr(), sizeof seed);
      const Lstm lstm(layers, x, weights, hx, cx, seed);
      const Lstm::All* const kept = KeptByLibrary::of(reserve.storage());  // a copy of a reserve has none
      lstm.backward(kept ? *kept : lstm.forward(true), host(grad), host(grad_last), host(grad_cell), host(steps_first), host(into_hx), host(into_cx), host(flat));
    } else {
      static const auto by_steps = operator_of("cudamem_card::recurrent_steps_backward");
      Stack all = {x, weights, given[2], hx, or_none(cx), out, or_none(grad), or_none(grad_last), or_none(grad_cell), reserve,
                   steps_first, into_hx, or_none(into_cx), flat};
      all.insert(all.end(), layers.how.begin(), layers.how.end());
      by_steps.redispatchBoxed(kCardKeys, &all);
    }
  }
  std::vector<at::Tensor> into_weights;
  int64_t place = 0;
  for (const at::Tensor& each : weights) {
    into_weights.push_back(flat.narrow(0, place, each.numel()).view(each.sizes()));
    place += each.numel();
  }
  const std::array<at::Tensor, 3> found = {layers.batch_first ? steps_first.transpose(0, 1) : steps_first, into_hx, into_cx};
  given.leave_all(found);
  stack->push_back(into_weights);
}

}  // namespace cudamem
