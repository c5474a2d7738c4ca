// How long a collection may be read, in milliseconds of the thread's processor time, and how much of it at least.
#pragma once

#include <ctime>

#include <cstddef>

// Garbage whose kinds are known; reading what new garbage refers to; all of it, with Python's part.
constexpr double kForKnown = 0.8, kForReferences = 6, kNoLimit = 1e9;
// So many objects are read at most: a model as large as GPT-2 has 22,000 and a hundred thousand references. So many
// references and tensors are read however long it takes, so that what is read of ordinary garbage does not depend on the
// load of the machine. Of a young collection with more than `kFew` known objects, older objects are not searched for.
constexpr size_t kMostObjects = 25'000, kFewReferences = 120'000, kFewOfKnown = 16'000, kFewTensors = 1'000, kFew = 3'000;

class Stopwatch {
 public:
  Stopwatch() : start_(now()) {}
  double passed() const { return now() - start_; }

 private:
  static double now() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  }
  double start_;
};
