// How long the callbacks of one collection may take, in milliseconds of the thread's processor time.
#pragma once

#include <ctime>

#include <cstddef>
#include <cstdint>

// All of them together: for garbage whose kinds are known, and for other garbage, with Python's part.
constexpr double kKnown = 1, kNew = 10, kNoLimit = 1e9;
// Until when known garbage is listed; when its blocks are read until then, how much of the rest is left to find out later
// which of them were freed; and until when garbage without tensors, or with new ones, is listed.
constexpr double kListKnown = 0.45, kReadKnown = 0.9, kFinding = 0.4, kListPlain = 0.9, kList = 4;
// Reading what new garbage refers to.
constexpr double kForReferences = 6;
// So many objects are read at most: a model as large as GPT-2 has 22,000 and a hundred thousand references. So many
// references of new garbage are read however long it takes, so that what is read of ordinary garbage does not depend on
// the load of the machine. Of a young collection with more than `kFew` known objects, older objects are not searched for.
constexpr size_t kMostObjects = 25'000, kFewReferences = 120'000, kFew = 3'000;

class Stopwatch {
 public:
  // `before` is what passed before it starts.
  explicit Stopwatch(double before = 0) : start_(now() - before) {}
  double passed() const { return now() - start_; }

 private:
  static double now() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  }
  double start_;
};

// A moment at which a loop stops. Asking the clock takes up to half a microsecond, so it is asked once in 64 steps.
class Limit {
 public:
  Limit(const Stopwatch& time, double end) : time_(time), end_(end) {}
  bool is_over() { return is_over_ || (!(++steps_ & 63) && (is_over_ = time_.passed() > end_)); }

 private:
  const Stopwatch& time_;
  const double end_;
  uint32_t steps_ = 0;
  bool is_over_ = false;
};
