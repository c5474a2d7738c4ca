// Records of stacks as torch makes them for the history of a card, from threads that do not hold the GIL.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace torch {
struct CapturedTraceback {  // of torch's header, which takes long to compile, what is needed
  static std::shared_ptr<CapturedTraceback> gather(bool python, bool script, bool cpp);
};
}  // namespace torch

namespace {

std::atomic<bool> held, done;
std::vector<std::shared_ptr<torch::CapturedTraceback>> kept;

void gather() {
  kept.push_back(torch::CapturedTraceback::gather(true, false, false));
  done = true;
}

int wait(int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done.exchange(false);
}

}  // namespace

// To be called without the GIL: makes a record as soon as another thread holds the GIL.
EXPORT void gather_when_held() {
  while (!held) std::this_thread::yield();
  gather();
}

// To be called with the GIL, which it holds until the other thread is done: whether that was within so many seconds.
EXPORT int hold(int seconds) {
  held = true;
  const int in_time = wait(seconds);
  held = false;
  return in_time;
}

// The same with a thread that Python does not know.
EXPORT int gather_in_a_cpp_thread(int seconds) {
  std::thread(gather).detach();
  return wait(seconds);
}

EXPORT void drop() { kept.clear(); }
