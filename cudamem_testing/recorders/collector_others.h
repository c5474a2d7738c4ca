// What other threads meet while garbage is read.
//
// Reading runs Python code, which may hand over the interpreter's lock at any bytecode (as torch does to free a tensor),
// and Python collects nothing while a collection is under way: `gc.collect()` in another thread would return at once
// with nothing done. So that call waits until the collection is over. Its entry in the table of methods is changed only
// meanwhile.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "collector_python.h"

class Others {
 public:
  // `collect` is `gc.collect`. Where it is not as expected, other threads do not wait.
  static void begin(Object* collect) {
    if (collect->type != &PyCFunction_Type) return;
    Method* const method = reinterpret_cast<BuiltinFunction*>(collect)->method;
    if (method->flags != (kFastCall | kKeywords) || std::strcmp(method->name, "collect") != 0) return;
    entry_ = method;
    original_ = method->call;
  }

  // They wait while it exists, and longer if asked to: until another one is gone. The collector does not nest.
  Others() {
    forked();
    reader_ = PyThread_get_thread_ident();
    if (entry_ && entry_->call == original_) entry_->call = &collect;
  }
  void wait_longer() { longer_ = true; }
  ~Others() {
    if (!longer_) release();
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

 private:
  struct Gate {
    std::mutex mutex;
    std::condition_variable over;
  };

  // A collection takes milliseconds. A caller with a lock that it wants is let through, and if its end is never seen.
  static constexpr std::chrono::seconds kLongest{2};

  static Object* collect(Object* module, Object* const* arguments, ssize_t count, Object* names) {
    const auto end = std::chrono::steady_clock::now() + kLongest;
    if (forked()) release();
    // Again after each: another collection may be under way when this thread has the interpreter's lock.
    while (reader_ && reader_ != PyThread_get_thread_ident()) {
      bool is_over;
      void* const thread = PyEval_SaveThread();
      {
        Gate* const gate = gate_;
        std::unique_lock<std::mutex> lock(gate->mutex);
        is_over = gate->over.wait_until(lock, end, [] { return reader_ == 0; });
      }
      PyEval_RestoreThread(thread);
      if (!is_over) release();
    }
    return original_(module, arguments, count, names);
  }

  // Whether this process was forked since this was asked last: a reader may not be in it, nor who holds the mutex.
  static bool forked() {
    const pid_t now = getpid();
    if (process_ == now) return false;
    process_ = now;
    gate_ = new Gate;
    return true;
  }

  // With the interpreter's lock.
  static void release() {
    if (entry_ && entry_->call == &collect) entry_->call = original_;
    {
      const std::lock_guard<std::mutex> lock(gate_->mutex);
      reader_ = 0;
    }
    gate_->over.notify_all();
  }

  bool longer_ = false;
  static inline Gate* gate_ = nullptr;  // never destroyed: a thread may wait when the process ends
  static inline Method* entry_ = nullptr;
  static inline FastCall original_ = nullptr;
  static inline std::atomic<unsigned long> reader_{0};
  static inline pid_t process_ = 0;
};
