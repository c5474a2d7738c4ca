// Python stacks for CUDA's memory history, without the GIL and without an object for every frame.
//
// torch asks the first of its unwinders for the Python frames of each allocation that it records, and the next one
// where that gives none. Its own takes the GIL, makes a frame object of every frame and counts a reference to each code
// object, up and down: thirty frames below pytest that is more than the allocation itself costs. This one walks the
// suspended frames (cpu_stacks.h) up to the harness that calls the test, and keeps the code of every distinct stack alive
// for as long as a record has it. It gives what torch's gives, frame for frame, and nothing wherever it cannot: then
// torch's own is asked as before. An unwinder stays for the life of the process; switched off it gives nothing.
//
// torch asks outside the allocator's lock. What is dropped here may be dropped under it, so that takes no GIL.
#pragma once

#include <torch/csrc/profiler/combined_traceback.h>

#include <mutex>
#include <unordered_map>

#include "cpu_mutex.h"
#include "cpu_stacks.h"

namespace cudamem {
constexpr uint32_t kMost = 256;     // frames; of a deeper stack torch's own unwinder is asked
constexpr int kWholeStack = -1;     // in the place of a position: the code is a `Kept`

using Traceback = torch::CapturedTraceback;
using StacksLock = std::lock_guard<BriefMutex>;

// `holders` are the records that have a stack.
struct Held {
  uint64_t holders;
};
using Kept = StackSet<Held, kMost>::Stack;

struct Gathering {
  std::atomic<bool> on{false};
  std::atomic<uint64_t> stops[kStopCodes] = {};
  BriefMutex mutex;
  Python python = {};
  StackSet<Held, kMost> stacks;
};

// Never destroyed: records may go after static destructors have run.
inline Gathering& gathering = *new Gathering;

// The stack that is kept of this one, for one more record; null where none is.
inline Kept* held(const Walk<kMost>& stack) {
  const StacksLock lock(gathering.mutex);
  Kept* kept = gathering.stacks.find(stack);
  if (kept) ++kept->holders;
  return kept;
}

// The same for one that is new. The thread runs below Python frames, so nobody who waits for it has the GIL.
inline Kept* held_anew(const Walk<kMost>& stack) {
  const int gil = gathering.python.take_gil();
  for (uint32_t i = 0; i < stack.depth; ++i) gathering.python.keep(reinterpret_cast<void*>(stack.frames[i].code));
  Kept* kept;
  bool known;
  {
    const StacksLock lock(gathering.mutex);
    kept = gathering.stacks.find(stack);  // another thread may have been first
    known = kept != nullptr;
    if (!known) kept = gathering.stacks.insert(stack);
    if (kept) ++kept->holders;
  }
  if (known || !kept) {
    for (uint32_t i = 0; i < stack.depth; ++i) gathering.python.drop(reinterpret_cast<void*>(stack.frames[i].code));
  }
  gathering.python.give_gil(gil);
  return kept;
}

// What not every torch has; asked for by a template so that it is looked up only where it is there.
template <typename Unwinder>
auto forward_of(Unwinder* unwinder, int) -> decltype(unwinder->gatherForwardTraceback()) {
  return unwinder->gatherForwardTraceback();
}
template <typename Unwinder>
std::vector<std::string> forward_of(Unwinder*, long) {
  return {};
}

class Unwinder final : public Traceback::Python {
 public:
  // One frame that stands for all of a stack.
  std::vector<Traceback::PyFrame> gather() override {
    Walk<kMost> stack;
    if (!gathering.on.load(std::memory_order_acquire) || !walk(gathering.python, gathering.stops, &stack)) return {};
    if (stack.depth == kMost) return {};  // there may be more
    Kept* kept = held(stack);
    if (!kept && !(kept = held_anew(stack))) return {};
    return {{kept, kWholeStack}};
  }

  void release(std::vector<Traceback::PyFrame>& frames) override {
    const StacksLock lock(gathering.mutex);
    for (const auto& frame : frames) --static_cast<Kept*>(frame.code)->holders;
  }

  // Many records have the same stack; each is put into words once.
  void appendSymbolized(const std::vector<Traceback::PyFrame>& stacks, torch::SymbolizedTracebacks& into) override {
    std::vector<Traceback::PyFrame> frames;
    std::unordered_map<const void*, size_t> start;
    for (const auto& stack : stacks) {
      if (!start.emplace(stack.code, frames.size()).second) continue;
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
    for (const auto& stack : stacks) {
      auto& whole = into.tracebacks.emplace_back();
      const auto first = words.begin() + static_cast<std::ptrdiff_t>(start[stack.code]);
      for (auto each = first; each != first + static_cast<const Kept*>(stack.code)->depth; ++each) {
        whole.insert(whole.end(), each->begin(), each->end());
      }
    }
  }

  // No record owns a reference, so the collector has nothing to see.
  int traverse(std::vector<Traceback::PyFrame>&, Traceback::visitproc, void*) override { return 0; }
  int clear(std::vector<Traceback::PyFrame>&) override { return 0; }

  // Members of newer versions of torch.
  bool canGather() { return gathering.python.this_thread_state && gathering.python.this_thread_state(); }
  std::vector<std::string> gatherForwardTraceback() { return forward_of(next_, 0); }
};

}  // namespace cudamem
