// How long the callbacks of one collection may take, in milliseconds of the thread's processor time.
#pragma once

#include <ctime>

#include <cstddef>
#include <cstdint>

// All of them together: for garbage whose kinds are known, and for other garbage. (`kNoLimit`: there is time.)
constexpr double kKnown = 1, kNew = 10, kNoLimit = 1e9;
// Until when known garbage is listed; when its blocks are read until then, how much of the rest is left to find out later
// which of them were freed; and until when garbage without tensors, or with new ones, is listed.
constexpr double kListKnown = 0.45, kReadKnown = 0.9, kFinding = 0.4, kListPlain = 0.75, kList = 4;
// Until when new garbage is read: what it refers to, its blocks and parts, then in Python what keeps its storages, and the
// cycles. One of these takes 1 to 2 ms. Later come only dictionaries that reading made, and what was freed.
constexpr double kReferences = 4, kParts = 5, kKeepers = 6, kCycles = 7;
// So many objects are read at most: a model as large as GPT-2 has 22,000 and a hundred thousand references. Of a young
// collection with more than `kFew` known objects, older objects are not searched for.
constexpr size_t kMostObjects = 25'000, kFew = 1'000;

class Stopwatch {
 public:
  // `before` is what passed before it starts.
  explicit Stopwatch(double before = 0) : start_(now() - before / pace) {}
  double passed() const { return pace * (now() - start_); }

  static inline double pace = 1;  // how fast time passes: tests that are not about time have more of it

 private:
  static double now() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  }
  double start_;
};

// A moment at which a loop stops. Asking the clock takes up to half a microsecond, so it is asked once in some steps.
class Limit {
 public:
  Limit(const Stopwatch& time, double end, uint32_t steps = 64) : time_(time), end_(end), steps_(steps) {}
  bool is_over() {
    if (is_over_ || ++step_ < steps_) return is_over_;
    step_ = 0;
    return is_over_ = time_.passed() > end_;
  }

 private:
  const Stopwatch& time_;
  const double end_;
  const uint32_t steps_;
  uint32_t step_ = 0;
  bool is_over_ = false;
};

// The collection that is read in a hurry, if there is one: then loops deep inside stop at the end of a stage.
class Hurry {
 public:
  struct TooLong {};

  explicit Hurry(const Stopwatch* time) { time_ = time, is_late_ = false; }
  ~Hurry() { time_ = nullptr, is_late_ = false; }
  Hurry(const Hurry&) = delete;
  Hurry& operator=(const Hurry&) = delete;

  static void stage(double end) { end_ = end; }
  // Some steps of a loop, of about ten nanoseconds each. Throws `TooLong` when the stage is over.
  static void check(uint32_t steps = 1) {
    if (!time_ || (step_ += steps) < 1024) return;
    step_ = 0;
    if (time_->passed() > end_) throw TooLong();
  }
  // Calls a function; returns whether there was time for it.
  template <typename Function>
  static bool has_time_for(Function function) {
    try {
      function();
    } catch (const TooLong&) {
      is_late_ = true;
    }
    return !is_late_;
  }
  static bool is_late() { return is_late_; }
  // Milliseconds until the end of the last stage, at most all of them.
  static double left() { return time_ ? kCycles - time_->passed() : kCycles; }

 private:
  static inline const Stopwatch* time_ = nullptr;
  static inline double end_ = 0;
  static inline uint32_t step_ = 0;
  static inline bool is_late_ = false;
};
