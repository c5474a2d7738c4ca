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

}  // namespace cudamem
