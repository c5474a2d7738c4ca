// The reader of stacks without torch, for Pythons that have none.
#include <mutex>

#include "../../cudamem_testing/recorders/cpu_mutex.h"
#include "../../cudamem_testing/recorders/cpu_stacks.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cudamem;

namespace {

using Lock = std::lock_guard<BriefMutex>;

struct {
  BriefMutex mutex;
  Python python;
  StackTable stacks;
  CodeWatch code_watch;
} own;
std::atomic<uint64_t> stops[kStopCodes];

}  // namespace

EXPORT void alone_start(const Python* given) {
  own.python = *given;
  own.code_watch.start(own.python.free_slot, [](void* code) { free_code(own, code); });
}

// The number of the calling thread's stack. It may be called without the GIL.
EXPORT uint32_t alone_note() {
  Walk<kDepth> stack;
  if (!walk(own.python, stops, &stack)) return 0;
  const Lock lock(own.mutex);
  return own.stacks.note(stack);
}

EXPORT uint32_t alone_stack(uint32_t id, Frame* out) {
  const Lock lock(own.mutex);
  const auto* stack = own.stacks.get(id);
  if (!stack) return 0;
  for (uint32_t i = 0; i < stack->depth; ++i) {
    out[i] = stack->frames[i];
    own.python.keep(reinterpret_cast<void*>(out[i].code));
  }
  return stack->depth;
}

EXPORT uint64_t alone_forget() {
  StackTable::Gone gone;
  {
    const Lock lock(own.mutex);
    gone = own.stacks.take_unmarked();
  }
  return gone.drop(own.python);
}
