// The C++ part of the recorder of cards, which uses more of torch's headers than the CPU recorder: the stacks of CUDA's
// memory history, and whether pinned memory has changed. It compiles without CUDA.
#include <pthread.h>

#include <algorithm>

#include "card_stacks.h"
#include "host_counters.h"
#include "python_functions.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cudamem;

namespace {

void before_fork() { gathering.mutex.lock(); }
void after_fork() { gathering.mutex.unlock(); }
const int at_fork = pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

// Called once, before anything is switched on.
EXPORT void cudamem_add_unwinder(const Python* python) {
  gathering.python = *python;
  Traceback::addPythonUnwinder(new Unwinder);
}

// Sets whether stacks are gathered from now on, and the code objects before whose frames they end. Needs the GIL.
EXPORT void cudamem_gather(int32_t on, const uint64_t* stops, uint32_t count) {
  for (uint32_t i = 0; i < kStopCodes; ++i) gathering.stops[i].store(i < count ? stops[i] : 0);
  if (on) gathering.code_watch.start(gathering.python.free_slot, [](void* code) { free_code(gathering, code); });
  gathering.on.store(on != 0, std::memory_order_release);
}

// Sets whether stacks as text end with a frame `<grad mode>`, `on` or `off`: the mode of the allocating thread.
EXPORT void cudamem_tell_grad_mode(int32_t on) { gathering.tells_grad_mode.store(on != 0, std::memory_order_relaxed); }

// Returns how many distinct stacks are kept.
EXPORT uint64_t cudamem_kept_stacks() {
  const StacksLock lock(gathering.mutex);
  return gathering.stacks.size();
}

// Drops the stacks that no record has; returns how many are kept. Needs the GIL.
EXPORT uint64_t cudamem_trim_kept_stacks() {
  StackSet<Held, kMost>::Gone gone;
  uint64_t left;
  {
    const StacksLock lock(gathering.mutex);
    gone = gathering.stacks.take_unless([](const Kept& kept) { return kept.holders != 0; });
    left = gathering.stacks.size();
  }
  gone.drop(gathering.python);
  return left;
}

namespace {

// The code objects before whose frames stacks end, and above how many kept stacks unused ones are dropped.
struct Start {
  uint64_t stops[kStopCodes];
  uint32_t count;
  uint64_t most;
};

// Gathers stacks from now on.
Object* start(Object* self, Object* const*, ssize_t) {
  const Start& how = *Keeping<Start>::of(self);
  if (cudamem_kept_stacks() >= how.most) cudamem_trim_kept_stacks();
  cudamem_gather(1, how.stops, how.count);
  return none();
}

// Whether pinned memory is unchanged since the last call, 1 or 0; 0 if torch does not show it. CUDA must be initialised.
Object* host_is_still(Object* self, Object* const*, ssize_t) {
  return PyLong_FromLongLong(static_cast<HostReader&>(*Keeping<Source>::of(self)).is_still());
}

// Others have reset the peaks of pinned memory: Python must read until the test has ended.
Object* host_was_reset(Object* self, Object* const*, ssize_t) {
  static_cast<HostReader&>(*Keeping<Source>::of(self)).others_reset = true;
  return none();
}

Method start_methods[] = {method("start", &start)};
Method host_methods[] = {method("host_is_still", &host_is_still), method("host_was_reset", &host_was_reset)};

}  // namespace

// The function `start`, in a tuple.
EXPORT Object* cudamem_start_functions(const uint64_t* stops, uint32_t count, uint64_t most) {
  auto* const how = new Start{{}, std::min(count, kStopCodes), most};
  std::copy_n(stops, how->count, how->stops);
  return Keeping<Start>::functions(start_methods, 1, how);
}

// The functions `host_is_still` and `host_was_reset`, and the source of readings.
EXPORT Object* cudamem_host_functions() {
  return Keeping<Source>::functions(host_methods, 2, new HostReader, true);
}
