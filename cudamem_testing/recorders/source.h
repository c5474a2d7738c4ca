// Sources of readings: what native code can read of a device without Python.
#pragma once

#include <cstring>

#include "python_functions.h"

namespace cudamem {

// The numbers of the class `Counters`, in their order; `kNotKnown` for those that are not known.
constexpr int kNumbers = 12;
struct Numbers {
  enum Place { kAllocated = 0, kAllocatedPeak = 1, kReserved = 4, kReservedPeak = 5, kAllocations = 8, kBlocks = 11 };
  long long of[kNumbers];
  bool operator==(const Numbers& other) const { return std::memcmp(of, other.of, sizeof of) == 0; }
};

// The counters of one device, where nothing has to be added to them in Python.
struct Source {
  virtual ~Source() = default;
  // Reads the counters, with the peaks since the last reading, and resets the peaks; `first` at the beginning of a test.
  // Returns false, and has reset nothing, if Python must read.
  virtual bool read(bool first, Numbers* now) = 0;
};

// A source whose readings Python can also get as objects of the class `Counters`.
struct CountedSource : Source {
  Object* const type;  // the class

  explicit CountedSource(Object* type) : type(type) { Py_IncRef(type); }
  ~CountedSource() override {
    drop();
    Py_DecRef(type);
  }
  CountedSource(const CountedSource&) = delete;
  CountedSource& operator=(const CountedSource&) = delete;

  // A new reference to counters of these numbers: to the last ones, if they were made of the same.
  Object* counted(const Numbers& numbers) {
    if (!counters || !(numbers == last)) {
      Object* const made = new_counters(type, numbers.of);  // may collect garbage, and a finalizer may read
      if (!made) return nullptr;
      drop();
      last = numbers;
      counters = made;
    }
    Py_IncRef(counters);
    return counters;
  }

  // The next counters are another object.
  void drop() {
    Object* const dropped = counters;
    counters = nullptr;
    if (dropped) Py_DecRef(dropped);
  }

 private:
  Object* counters = nullptr;
  Numbers last = {};  // what they were made of
};

}  // namespace cudamem
