// How many collections there were in this process, also before anything was watched.
//
// `gc.get_stats` tells it, and makes a dictionary for each generation. CPython keeps the numbers close behind the list of
// the youngest generation (up to 3.14), so they are read there if they are found: nine numbers that are the same as those
// of that function. Where they are not, the function is called each time.
#pragma once

#include <cstring>

#include "collector_python.h"

class Collections {
 public:
  // Of all generations, and of all but the youngest.
  struct Count {
    int64_t every, older;
  };

  // `get_stats` is that function.
  void begin(Object* get_stats) {
    get_stats_ = get_stats;
    for (int i = 0; i < kFields; ++i) names_[i] = PyUnicode_FromString(kNames[i]);
  }

  Count count() {
    if (!found_ || !reads_) ask();
    const int64_t* const numbers = found_ && reads_ ? found_ : told_;
    const int64_t older = numbers[kFields] + numbers[2 * kFields];
    return {numbers[0] + older, older};
  }

  // Whether the numbers are found. From now on they are read, or the function is called all the same.
  bool set_reads(bool reads) {
    reads_ = reads;
    return found_;
  }

 private:
  static constexpr int kFields = 3, kNumbers = 3 * kFields;
  static constexpr const char* kNames[kFields] = {"collections", "collected", "uncollectable"};
  static constexpr int kWindow = 32;  // words from the list of the youngest generation on

  // Keeps what the function returns, and looks for it. No collection starts meanwhile, although this makes objects.
  void ask() {
    const int enabled = PyGC_Disable();
    Object* const stats = PyObject_CallNoArgs(get_stats_);
    if (stats && PyList_Size(stats) * kFields == kNumbers) {
      for (int i = 0; i < kNumbers; ++i) {
        Object* const number = PyDict_GetItem(PyList_GetItem(stats, i / kFields), names_[i % kFields]);
        told_[i] = number ? PyLong_AsLong(number) : 0;
      }
      find();
    }
    if (stats) Py_DecRef(stats);
    PyErr_Clear();
    if (enabled) PyGC_Enable();
  }

  // With few collections other numbers may be the same.
  void find() {
    if (told_[0] == 0 || told_[kFields] == 0) return;
    Object* const youngest = PyList_New(0);  // the last one in its list
    if (!youngest) return;
    const uintptr_t head = link_of(youngest)->after & ~kFlags;
    const bool is_head = head && (reinterpret_cast<Link*>(head)->before & ~kFlags) == reinterpret_cast<uintptr_t>(link_of(youngest));
    // Some builds put the list itself between two words; the numbers are words everywhere.
    const int64_t* const words = reinterpret_cast<const int64_t*>((head + 7) & ~uintptr_t{7});
    for (int i = 0; is_head && i < kWindow && !found_; ++i) {
      if (std::memcmp(words + i, told_, sizeof(told_)) == 0) found_ = words + i;
    }
    Py_DecRef(youngest);
  }

  Object* get_stats_ = nullptr;
  Object* names_[kFields] = {};
  int64_t told_[kNumbers] = {};
  const int64_t* found_ = nullptr;
  bool reads_ = true;
};
