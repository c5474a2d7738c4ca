// Python stacks for CUDA's memory history, without the GIL and without an object for every frame.
//
// For each allocation that torch records it calls the first of its unwinders for the Python frames, and the next one if
// that returns none. Torch's own waits for the GIL, makes an object of every frame and changes the reference count of each
// code object twice: thirty frames below pytest this costs more than the allocation. This one walks the suspended frames
// (cpu_stacks.h) up to the harness that calls the test, and keeps the code of every distinct stack alive while a record
// has it. Switched on, it always returns a stack, so that torch's own is never called: an empty one for a thread without
// Python frames, the innermost frames of a deep one. An unwinder stays until the process ends; switched off it returns
// nothing.
//
// With each stack it keeps whether the thread's grad mode was on, for snapshots that request it.
//
// torch calls it outside of the allocator's lock. Stacks may be dropped with that lock held.
#pragma once

#include <c10/core/GradMode.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <mutex>
#include <unordered_map>

#include "cpu_mutex.h"
#include "cpu_stacks.h"

namespace cudamem {
constexpr uint32_t kMost = 256;  // the innermost frames
// Instead of a position: the code is a `Kept`, or null for an empty stack of a thread without or with grad mode.
constexpr int kWholeStack[] = {-1, -2};

using Traceback = torch::CapturedTraceback;
using StacksLock = std::lock_guard<BriefMutex>;

// `holders` counts the records that have a stack.
struct Held {
  uint64_t holders;
};
using Kept = StackSet<Held, kMost>::Stack;

struct Gathering {
  std::atomic<bool> on{false};
  std::atomic<bool> tells_grad_mode{false};  // by a last frame of each stack as text
  std::atomic<uint64_t> stops[kStopCodes] = {};
  BriefMutex mutex;
  Python python = {};
  CodeWatch code_watch;
  StackSet<Held, kMost> stacks;
};

// Never destroyed: records may be freed after static destructors have run.
inline Gathering& gathering = *new Gathering;

// The kept copy of a stack, for one more record; null if there is no memory.
inline Kept* held(const Walk<kMost>& stack) {
  const StacksLock lock(gathering.mutex);
  Kept* kept = gathering.stacks.find(stack);
  if (!kept) kept = gathering.stacks.insert(stack);
  if (kept) ++kept->holders;
  return kept;
}

class Unwinder final : public Traceback::Python {
 public:
  // One frame that represents a whole stack.
  std::vector<Traceback::PyFrame> gather() override {
    if (!canGather()) return {};
    Walk<kMost> stack;
    Kept* const kept = walk(gathering.python, gathering.stops, &stack) ? held(stack) : nullptr;
    return {{kept, kWholeStack[c10::GradMode::is_enabled()]}};
  }

  void release(std::vector<Traceback::PyFrame>& frames) override {
    const StacksLock lock(gathering.mutex);
    for (const auto& frame : frames) {
      if (frame.code) --static_cast<Kept*>(frame.code)->holders;
    }
  }

  // Many records have the same stack; its text is made once.
  void appendSymbolized(const std::vector<Traceback::PyFrame>& stacks, torch::SymbolizedTracebacks& into) override {
    std::vector<Traceback::PyFrame> frames;
    std::unordered_map<const void*, size_t> start;
    for (const auto& stack : stacks) {
      if (!stack.code || !start.emplace(stack.code, frames.size()).second) continue;
      const auto* kept = static_cast<const Kept*>(stack.code);
      for (uint32_t i = 0; i < kept->depth; ++i) {
        const Frame& frame = kept->frames[i];
        frames.push_back({reinterpret_cast<void*>(frame.code), static_cast<int>(frame.position)});
      }
    }
    const auto before = static_cast<std::ptrdiff_t>(into.tracebacks.size());
    next_->appendSymbolized(frames, into);
    const std::vector<std::vector<uint64_t>> words(into.tracebacks.begin() + before, into.tracebacks.end());
    into.tracebacks.resize(before);
    const bool tells_grad_mode = gathering.tells_grad_mode.load(std::memory_order_relaxed);
    const uint64_t grad_modes = into.all_frames.size();
    if (tells_grad_mode) {
      for (const char* mode : {"off", "on"}) into.all_frames.push_back({"<grad mode>", mode, 0});
    }
    for (const auto& stack : stacks) {
      auto& whole = into.tracebacks.emplace_back();
      if (stack.code) {
        const auto first = words.begin() + static_cast<std::ptrdiff_t>(start[stack.code]);
        for (auto each = first; each != first + static_cast<const Kept*>(stack.code)->depth; ++each) {
          whole.insert(whole.end(), each->begin(), each->end());
        }
      }
      if (tells_grad_mode) whole.push_back(grad_modes + (stack.lasti == kWholeStack[1]));
    }
  }

  // No record owns a reference, so the collector has nothing to visit.
  int traverse(std::vector<Traceback::PyFrame>&, Traceback::visitproc, void*) override { return 0; }
  int clear(std::vector<Traceback::PyFrame>&) override { return 0; }

  // Members of newer versions of torch. Records here have no traceback of the forward pass (anomaly mode).
  bool canGather() { return gathering.on.load(std::memory_order_acquire); }
  std::vector<std::string> gatherForwardTraceback() { return {}; }
};

}  // namespace cudamem
