// The CPU recorder with another thread at every moment at which one could come in between: whenever its mutex is given
// back, a second block is allocated, as a thread that waited for the mutex would do.
#include "../../cudamem_testing/recorders/cpu_mutex.h"

namespace cudamem {

struct Others {
  bool wait = false;
  size_t size = 0;
  int32_t came = 0, refused = 0;
  void come();
};

thread_local Others others;

class CrowdedMutex {
 public:
  void lock() { mutex_.lock(); }
  void unlock() {
    mutex_.unlock();
    if (others.wait) others.come();
  }

 private:
  BriefMutex mutex_;
};

}  // namespace cudamem

#define BriefMutex CrowdedMutex
#include "../../cudamem_testing/recorders/cpu_recorder.cpp"
#undef BriefMutex

void Others::come() {
  wait = false;  // they do not meet each other
  const bool gather = shared.gather.exchange(false);  // nor keep the stack first
  ++came;
  try {
    recorder.allocate(size);
  } catch (const c10::OutOfMemoryError&) {
    ++refused;
  }
  shared.gather.store(gather);
  wait = true;
}

// From here on others of the calling thread wait for room for so many bytes each, and go at once.
EXPORT void others_wait(size_t size) { others = {true, size, 0, 0}; }

// They go away. How often they came, and how often they were refused.
EXPORT void others_leave(int32_t* came_and_refused) {
  others.wait = false;
  came_and_refused[0] = others.came;
  came_and_refused[1] = others.refused;
}
