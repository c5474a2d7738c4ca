// What the tests of the CPU recorder need from C++: threads that Python never saw, and a foreign allocator.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::vector<c10::DataPtr> kept;

struct Foreign final : c10::Allocator {
  c10::Allocator* inner = nullptr;
  c10::DataPtr allocate(size_t size) override { return inner->allocate(size); }
  c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    inner->copy_data(target, source, count);
  }
};

Foreign& foreign = *new Foreign;

std::atomic<bool> held, done;
std::mutex mutex;
std::vector<c10::DataPtr> cache;

}  // namespace

// Allocates from a C++ thread while the caller waits for it.
EXPORT void helper_allocate(size_t size, int keep) {
  std::thread([size, keep] {
    auto data = c10::GetCPUAllocator()->allocate(size);
    if (keep) kept.push_back(std::move(data));
  }).join();
}

EXPORT void helper_drop() { kept.clear(); }

// A block whose deleter was bypassed: the recorder never hears of its free.
EXPORT void* helper_raw_allocate(size_t size) { return c10::GetCPUAllocator()->raw_allocate(size); }
EXPORT void helper_raw_free(void* pointer) { c10::GetCPUAllocator()->raw_deallocate(pointer); }

EXPORT void helper_put_foreign_on_top() {
  foreign.inner = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&foreign, 0);
}
EXPORT int helper_foreign_is_on_top() { return c10::GetCPUAllocator() == &foreign; }
EXPORT void helper_take_foreign_away() { c10::SetCPUAllocator(foreign.inner, 0); }

// To be called without the GIL: allocates one block to keep and one to free as soon as another thread holds the GIL.
EXPORT void helper_allocate_when_held(size_t size) {
  while (!held) std::this_thread::yield();
  auto data = c10::GetCPUAllocator()->allocate(size);
  (void)c10::GetCPUAllocator()->allocate(size + 1);
  kept.push_back(std::move(data));
  done = true;
}

// To be called with the GIL, which it holds until the other thread is done: whether that was within so many seconds.
EXPORT int helper_hold(int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  held = true;
  while (!done && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  held = false;
  return done.exchange(false);
}

// A cache under a mutex, as extensions have: filled without the GIL, as long kernels do; looked at with it.
EXPORT void helper_fill(size_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  cache.clear();
  cache.push_back(c10::GetCPUAllocator()->allocate(size));
}

EXPORT size_t helper_look() {
  const std::lock_guard<std::mutex> lock(mutex);
  return cache.size();
}
