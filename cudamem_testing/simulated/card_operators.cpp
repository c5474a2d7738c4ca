// Operators of simulated cards: registered with torch's dispatcher, and removed again.
#include "card_attend.h"
#include "card_attention.h"
#include "card_cudnn.h"
#include "card_host_kernels.h"
#include "card_layers.h"
#include "card_kernels.h"
#include "card_recurrent.h"
#include "card_typed_calls.h"

namespace cudamem {

namespace {
Registered& registered = *new Registered;
}

template <typename Function>
void put_typed(const char* name, Function* kernel) {
  registered.put(std::string("aten::") + name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
}

// Every type takes long to compile.
using At = const at::Tensor&;
using MaybeAt = const std::optional<at::Tensor>&;
using Number = const c10::Scalar&;
using MaybeDims = c10::OptionalIntArrayRef;
using Two = std::tuple<at::Tensor, at::Tensor>;
template void put_typed(const char*, at::Tensor (*)(At));
template void put_typed(const char*, at::Tensor (*)(At, At));
template void put_typed(const char*, at::Tensor (*)(At, Number));
template void put_typed(const char*, at::Tensor (*)(At, At, Number));
template void put_typed(const char*, at::Tensor (*)(At, At, At, Number, Number));
template void put_typed(const char*, at::Tensor (*)(At, At, int64_t));
template void put_typed(const char*, at::Tensor (*)(At, MaybeDims, bool, MaybeType));
template void put_typed(const char*, at::Tensor (*)(At, int64_t, bool));
template void put_typed(const char*, at::Tensor (*)(At, At, At, MaybeAt, int64_t, int64_t, At));
template void put_typed(const char*, Two (*)(At, At, MaybeAt, int64_t, int64_t));

void put_operators() {
  using c10::DispatchKey;
  registered.put_everywhere(DispatchKey::CUDA, boxed<&fall_back>());
  register_kernels(registered);
  register_cudnn(registered);
  registered.put("aten::_scaled_dot_product_efficient_attention", boxed<&efficient>());
  registered.put("aten::_scaled_dot_product_efficient_attention_backward", boxed<&efficient_backward>());
  registered.put("aten::_cudnn_rnn", boxed<&layers_forward>());
  registered.put("aten::_cudnn_rnn_backward", boxed<&layers_backward>());
  put_structured();
  register_on_host(registered);
  registered.put_everywhere(DispatchKey::SparseCUDA, boxed<&no_sparse>());
  registered.put_everywhere(DispatchKey::SparseCsrCUDA, boxed<&no_sparse>());
  registered.put_everywhere(DispatchKey::NestedTensorCUDA, boxed<&no_nested>());
  if (c10::Dispatcher::singleton().findSchema({"c10d::allreduce_", ""})) {
    struct : c10::WarningHandler {
      void process(const c10::Warning&) override {}
    } silent;  // torch warns about each of its kernels that is replaced
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    for (const char* name : {"allreduce_", "allreduce_coalesced_", "broadcast_", "allgather_", "_allgather_base_",
                             "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_", "reduce_scatter_",
                             "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_",
                             "alltoall_", "alltoall_base_", "send", "recv_", "recv_any_source_"}) {
      registered.put(std::string("c10d::") + name, boxed<&no_collectives>());
    }
  }
  static Registered* const own = [] {
    auto* const made = new Registered;
    made->define("cudamem_card::on_host(Tensor tensor) -> Tensor");
    made->put("cudamem_card::on_host", boxed<&on_host>(), std::nullopt);
    made->define(
        "cudamem_card::convolution_workspaces(Tensor x, Tensor weight, Tensor result, int[] stride, int[] padding, "
        "int[] dilation, bool transposed, int[] output_padding, int groups, bool last) -> int[]");
    const std::string how = "int mode, int hidden, int projected, int layers, bool batch_first, float dropout, bool train, "
                            "bool both_ways, int[] batch_sizes";
    const std::string given = "Tensor x, Tensor[] weights, int stride, Tensor hx, Tensor? cx, Tensor out, ";
    made->define("cudamem_card::recurrent_sizes(Tensor x, Tensor[] weights, " + how + ") -> int[]");
    made->define("cudamem_card::recurrent_steps(" + given + "Tensor last, Tensor cell, Tensor reserve, " + how + ") -> ()");
    made->define("cudamem_card::recurrent_steps_backward(" + given + "Tensor? grad, Tensor? grad_last, Tensor? grad_cell, Tensor reserve, "
                  "Tensor into_x, Tensor into_hx, Tensor? into_cx, Tensor flat, " + how + ") -> ()");
    const std::string attended = "Tensor seed, Tensor query, Tensor key, Tensor value, Tensor? bias, float dropout, bool causal, float? scale) -> ()";
    const std::string gradients = "(Tensor into_query, Tensor into_key, Tensor into_value, Tensor? into_bias, Tensor grad, Tensor out, Tensor sums, ";
    for (const char* end : {"", "_written_out"}) {
      made->define("cudamem_card::attend" + std::string(end) + "(Tensor out, Tensor sums, " + attended);
      made->define("cudamem_card::attend_backward" + std::string(end) + gradients + attended);
    }
    made->put("cudamem_card::attend", boxed<&attend>(), std::nullopt);
    made->put("cudamem_card::attend_backward", boxed<&attend_backward>(), std::nullopt);
    made->define(
        "cudamem_card::embedding_backward_by_order(Tensor grad, Tensor indices, int number, int padding, "
        "bool scale_by_frequency) -> Tensor");
    made->define("cudamem_card::all_on_host(Tensor[] tensors) -> Tensor[]");
    made->put("cudamem_card::all_on_host", boxed<&all_on_host>(), std::nullopt);
    return made;
  }();
  (void)own;
}

void take_operators_out() { registered.clear(); }

void choose_kernels(bool hopper, bool ampere) {
  choose_recurrent(true);
  choose_attention(hopper, ampere);
}
void forget_kernels() {
  choose_recurrent(false);
  forget_attention();
}

}  // namespace cudamem
