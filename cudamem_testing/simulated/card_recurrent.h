// Recurrent layers: torch's functions for them use cuDNN's implementation, which is one operator (kernels/recurrent.py).
#pragma once

#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_rnn_ops.h>

namespace at::autocast {  // torch's header for these takes seconds to compile
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
}  // namespace at::autocast

namespace cudamem {

enum Recurrent : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> run_layers(
    int64_t mode, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx, at::TensorList params,
    bool biases, int64_t layers, double dropout, bool train, bool both_ways, bool batch_first,
    const at::Tensor& batch_sizes = at::Tensor()) {
  // Autocast computes these layers in half precision, whatever type is chosen, with the weights cast into one buffer.
  const bool cast = at::autocast::is_autocast_enabled(at::kCUDA) && params[0].scalar_type() != at::kHalf;
  const auto casted = [&](const at::Tensor& each) {
    return cast && each.defined() && each.is_floating_point() ? each.to(at::kHalf) : each;
  };
  std::vector<at::Tensor> weights(params.begin(), params.end());
  std::optional<at::Tensor> none, buffer;
  if (cast) {
    int64_t whole = 0, at = 0;
    for (const at::Tensor& each : params) whole += each.numel();
    buffer = params[0].detach().new_empty({whole}, params[0].options().dtype(at::kHalf).requires_grad(false));
    for (at::Tensor& each : weights) {
      at::Tensor place = buffer->new_empty({0});
      place.set_(buffer->storage(), at, each.sizes(), {});
      at += each.numel();
      each = place.copy_(each);
    }
  }
  const std::optional<at::Tensor> cell = cx.defined() ? std::optional<at::Tensor>(casted(cx)) : none;
  const at::Tensor state = casted(hx), values = casted(input);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const bool projected = cx.defined() && cx.size(2) != hx.size(2);
  std::vector<c10::SymInt> sizes;  // the sizes of the steps of a packed sequence, on the host
  if (batch_sizes.defined()) {
    const auto* const from = batch_sizes.const_data_ptr<int64_t>();
    sizes.assign(from, from + batch_sizes.numel());
  }
  auto [output, last, last_cell, reserve, kept] = at::_ops::_cudnn_rnn::call(
      values, weights, (biases ? 4 : 2) + projected, buffer, state, cell, mode,
      projected ? cx.size(2) : hx.size(2), projected ? hx.size(2) : 0, layers, batch_first, dropout, train, both_ways,
      sizes, none);
  return {output, last, last_cell};
}

template <int64_t mode>
void layers_of(at::Tensor& output, at::Tensor& last, const at::Tensor& input, const at::Tensor& hx,
               at::TensorList params, bool biases, int64_t layers, double dropout, bool train, bool both_ways,
               bool batch_first) {
  at::Tensor none;
  std::tie(output, last, none) =
      run_layers(mode, input, hx, at::Tensor(), params, biases, layers, dropout, train, both_ways, batch_first);
}

inline void lstm_layers(at::Tensor& output, at::Tensor& last, at::Tensor& cell, const at::Tensor& input,
                        at::TensorList hx, at::TensorList params, bool biases, int64_t layers, double dropout,
                        bool train, bool both_ways, bool batch_first) {
  std::tie(output, last, cell) =
      run_layers(kLstm, input, hx[0], hx[1], params, biases, layers, dropout, train, both_ways, batch_first);
}

template <int64_t mode>
void packed_layers_of(at::Tensor& output, at::Tensor& last, const at::Tensor& input, const at::Tensor& batch_sizes,
                      const at::Tensor& hx, at::TensorList params, bool biases, int64_t layers, double dropout, bool train,
                      bool both_ways) {
  at::Tensor none;
  std::tie(output, last, none) =
      run_layers(mode, input, hx, at::Tensor(), params, biases, layers, dropout, train, both_ways, false, batch_sizes);
}

inline void packed_lstm_layers(at::Tensor& output, at::Tensor& last, at::Tensor& cell, const at::Tensor& input,
                               const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params, bool biases,
                               int64_t layers, double dropout, bool train, bool both_ways) {
  std::tie(output, last, cell) =
      run_layers(kLstm, input, hx[0], hx[1], params, biases, layers, dropout, train, both_ways, false, batch_sizes);
}

inline void choose_recurrent(bool here) {
  using namespace at::native;
  lstm_cudnn_stub.set_cuda_dispatch_ptr(here ? &lstm_layers : nullptr);
  gru_cudnn_stub.set_cuda_dispatch_ptr(here ? &layers_of<kGru> : nullptr);
  rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(here ? &layers_of<kTanh> : nullptr);
  rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(here ? &layers_of<kRelu> : nullptr);
  lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(here ? &packed_lstm_layers : nullptr);
  gru_packed_cudnn_stub.set_cuda_dispatch_ptr(here ? &packed_layers_of<kGru> : nullptr);
  rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(here ? &packed_layers_of<kTanh> : nullptr);
  rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(here ? &packed_layers_of<kRelu> : nullptr);
}

}  // namespace cudamem
