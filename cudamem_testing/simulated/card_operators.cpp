// Operators of simulated cards: registered with torch's dispatcher, and removed again. Stacks are here too, because they
// need the same headers of torch.
#include <torch/csrc/profiler/combined_traceback.h>

#include "card_kernels.h"

namespace cudamem {

namespace {
std::vector<std::unique_ptr<torch::Library>>& libraries = *new std::vector<std::unique_ptr<torch::Library>>;
}

void put_operators() {
  using torch::Library;
  libraries.push_back(std::make_unique<Library>(Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__, __LINE__));
  libraries.back()->fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  libraries.push_back(std::make_unique<Library>(Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__));
  register_kernels(*libraries.back());
  for (const auto key : {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA}) {
    libraries.push_back(std::make_unique<Library>(Library::IMPL, "_", key, __FILE__, __LINE__));
    libraries.back()->fallback(torch::CppFunction::makeFromBoxedFunction<&no_sparse>());
  }
  libraries.push_back(std::make_unique<Library>(Library::IMPL, "_", c10::DispatchKey::NestedTensorCUDA, __FILE__, __LINE__));
  libraries.back()->fallback(torch::CppFunction::makeFromBoxedFunction<&no_nested>());
  if (c10::Dispatcher::singleton().findSchema({"c10d::allreduce_", ""})) {
    struct : c10::WarningHandler {
      void process(const c10::Warning&) override {}
    } silent;  // torch warns about each of its kernels that is replaced
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    libraries.push_back(std::make_unique<Library>(Library::IMPL, "c10d", c10::DispatchKey::CUDA, __FILE__, __LINE__));
    for (const char* name : {"allreduce_", "allreduce_coalesced_", "broadcast_", "allgather_", "_allgather_base_",
                             "allgather_coalesced_", "allgather_into_tensor_coalesced_", "reduce_", "reduce_scatter_",
                             "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_",
                             "alltoall_", "alltoall_base_", "send", "recv_", "recv_any_source_"}) {
      libraries.back()->impl(name, torch::CppFunction::makeFromBoxedFunction<&no_collectives>());
    }
  }
  static Library* const own = [] {
    auto* const made = new Library(Library::DEF, "cudamem_card", {}, __FILE__, __LINE__);
    made->def("on_host(Tensor tensor) -> Tensor", torch::CppFunction(on_host));
    return made;
  }();
  (void)own;
}

void take_operators_out() { libraries.clear(); }

void set_kernels(const KernelSettings& settings) {
  workspaces.blas = settings.blas;
  workspaces.light = settings.light;
  processors = settings.processors;
}
void clear_workspaces() { workspaces.clear(); }

Context gather_stack() { return torch::CapturedTraceback::gather(true, false, false); }

Frames frames_of(const std::vector<Context>& stacks) {
  std::vector<torch::CapturedTraceback*> given;
  for (const Context& each : stacks) given.push_back(static_cast<torch::CapturedTraceback*>(each.get()));
  torch::SymbolizedTracebacks symbols = torch::symbolize(given);
  Frames found;
  for (auto& frame : symbols.all_frames) {
    found.files.push_back(std::move(frame.filename));
    found.functions.push_back(std::move(frame.funcname));
    found.lines.push_back(static_cast<int64_t>(frame.lineno));
  }
  found.stacks = std::move(symbols.tracebacks);
  return found;
}

}  // namespace cudamem

extern "C" __attribute__((visibility("default"))) int64_t cudamem_card_radix_sort(int64_t count, int64_t key, int64_t value) {
  return cudamem::radix_sort_bytes(count, key, value);
}
