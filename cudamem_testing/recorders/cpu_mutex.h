// The mutex of the CPU recorder.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace cudamem {

// A mutex for sections of some ten nanoseconds: one atomic operation to lock, a plain store to unlock. A thread that waits
// longer (the table grows, a reader copies) yields.
class BriefMutex {
 public:
  void lock() {
    for (uint32_t tries = 0; taken_.exchange(true, std::memory_order_acquire);) {
      while (taken_.load(std::memory_order_relaxed)) {
        if (++tries > 2 * kSpins) {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        } else if (tries > kSpins) {
          std::this_thread::yield();
        }
      }
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  static constexpr uint32_t kSpins = 128;
  std::atomic<bool> taken_{false};
};

}  // namespace cudamem
