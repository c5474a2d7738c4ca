// Stacks of Python for the records of an allocator, as torch gathers them. Its header takes long to compile and declares much
// more; `doctor` checks that it still declares this.
#pragma once

#include <torch/csrc/profiler/unwind/unwind.h>

#include "card_backward.h"
#include "card_parts.h"

namespace torch {

struct TORCH_API SymbolizedTracebacks {
  std::vector<unwind::Frame> all_frames;
  std::vector<std::vector<uint64_t>> tracebacks;
};
struct TORCH_API CapturedTraceback {
  static std::shared_ptr<CapturedTraceback> gather(bool python, bool script, bool cpp);
};
TORCH_API SymbolizedTracebacks symbolize(const std::vector<CapturedTraceback*>& to_symbolize);

}  // namespace torch

namespace cudamem {

struct Gathered {
  std::shared_ptr<torch::CapturedTraceback> frames;
  bool ends_before_engine;
};

inline Context gather_stack() {
  return std::make_shared<Gathered>(Gathered{torch::CapturedTraceback::gather(true, false, false), runs_own_passes()});
}

inline bool ends_before_engine(const Context& stack) { return static_cast<Gathered*>(stack.get())->ends_before_engine; }

inline torch::SymbolizedTracebacks frames_of(const std::vector<Context>& stacks) {
  std::vector<torch::CapturedTraceback*> given;
  for (const Context& each : stacks) given.push_back(static_cast<Gathered*>(each.get())->frames.get());
  return torch::symbolize(given);
}

}  // namespace cudamem
