// What other threads meet while garbage is read.
//
// Reading runs Python code, which may hand over the interpreter's lock at any bytecode (as torch does to free a tensor),
// and Python collects nothing while a collection is under way: `gc.collect()` in another thread would return at once
// with nothing done. So that call waits until the collection is over. Its entry in the table of methods is changed only
// meanwhile.
#pragma once

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
    reader_ = PyThread_get_thread_ident();
    if (entry_ && entry_->call == original_) entry_->call = &collect;
  }
  void wait_longer() { longer_ = true; }
  ~Others() {
    if (longer_) return;
    if (entry_ && entry_->call == &collect) entry_->call = original_;
    {
      const std::lock_guard<std::mutex> lock(mutex());
      reader_ = 0;
    }
    over().notify_all();
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;

 private:
  // A collection takes milliseconds. A caller with a lock that it wants is let through, and if its end is never seen.
  static constexpr std::chrono::seconds kLongest{2};

  static Object* collect(Object* module, Object* const* arguments, ssize_t count, Object* names) {
    const auto end = std::chrono::steady_clock::now() + kLongest;
    // Again after each: another collection may be under way when this thread has the interpreter's lock.
    while (reader_ && reader_ != PyThread_get_thread_ident() && std::chrono::steady_clock::now() < end) {
      void* const thread = PyEval_SaveThread();
      {
        std::unique_lock<std::mutex> lock(mutex());
        over().wait_until(lock, end, [] { return reader_ == 0; });
      }
      PyEval_RestoreThread(thread);
    }
    return original_(module, arguments, count, names);
  }

  // Never destroyed: a thread may wait when the process ends.
  static std::mutex& mutex() {
    static std::mutex* const made = new std::mutex;
    return *made;
  }
  static std::condition_variable& over() {
    static std::condition_variable* const made = new std::condition_variable;
    return *made;
  }

  bool longer_ = false;
  static inline Method* entry_ = nullptr;
  static inline FastCall original_ = nullptr;
  static inline std::atomic<unsigned long> reader_{0};
};
