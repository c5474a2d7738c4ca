// What every test on a card calls, as builtin functions: they read a device's counters. Included by cpu_recorder.cpp.
#pragma once

#include <algorithm>
#include <exception>

#include "device_counters.h"
#include "python_functions.h"
#include "source.h"

namespace cudamem {
namespace {

// Reads one device as counters.
struct DeviceReader : CountedSource {
  enum Outcome { kUnread, kAtRest, kReset };

  int32_t device_type, index;
  int64_t told[kPeaks] = {};  // the highest peaks that were reported
  bool alone = false;         // no other code resets the peaks, and nothing has to be added to the counters

  DeviceReader(int32_t device_type, int32_t index, Object* type)
      : CountedSource(type), device_type(device_type), index(index) {}
  static DeviceReader& of(Object* self) { return static_cast<DeviceReader&>(*Keeping<Source>::of(self)); }

  bool has_news(const DeviceReading& now) const {
    for (int at = 0; at < kPeaks; ++at) {
      if (now.peaks[at] > told[at]) return true;
    }
    return false;
  }

  // Reads the counters, and resets the peaks if one is above the current level. `kUnread`: torch's own function must be
  // called, or, if `quiet`, a peak is higher than reported; then nothing was reset.
  Outcome take(bool quiet, DeviceReading* now) const {
    DeviceCounters<c10::DeviceAllocator> device;
    try {
      if (!device.find(device_type, index)) return kUnread;
      *now = device.read();
      if (now->at_rest()) return kAtRest;
      if (now->more_peaks || (quiet && has_news(*now))) return kUnread;
      device.reset();
    } catch (const std::exception&) {
      return kUnread;
    }
    return kReset;
  }

  static Numbers numbers_of(const DeviceReading& now) {
    return {{now.allocated, now.allocated_peak, now.requested, now.requested_peak, now.reserved, now.reserved_peak,
             now.active, now.active_peak, now.allocations, now.segments, now.retries, now.blocks}};
  }

  bool read(bool, Numbers* numbers) override {
    DeviceReading now;
    drop();
    if (!alone || take(true, &now) == kUnread) return false;
    *numbers = numbers_of(now);
    return true;
  }
};

// For the only one who resets the device's peaks: the counters, the same object if nothing has changed. `None` where `read`
// has more to say, or cannot read: then nothing was reset.
Object* read_alone(Object* self, Object* const*, ssize_t) {
  DeviceReader& reader = DeviceReader::of(self);
  DeviceReading now;
  const DeviceReader::Outcome outcome = reader.take(true, &now);
  if (outcome != DeviceReader::kAtRest) reader.drop();  // another peak, perhaps of the same height
  return outcome == DeviceReader::kUnread ? none() : reader.counted(DeviceReader::numbers_of(now));
}

// The counters, always a new object, and the peaks if they were reset and one is higher than reported, or the argument is
// true: otherwise an empty tuple. `None` if torch's own function must be called: then nothing was reset.
Object* read_device(Object* self, Object* const* arguments, ssize_t) {
  DeviceReader& reader = DeviceReader::of(self);
  const bool every = PyLong_AsLongLong(arguments[0]) != 0;
  reader.drop();
  DeviceReading now;
  const DeviceReader::Outcome outcome = reader.take(false, &now);
  if (outcome == DeviceReader::kUnread) return none();
  const bool reports = outcome == DeviceReader::kReset && (every || reader.has_news(now));
  Object* const both = PyTuple_New(2);
  Object* const peaks = PyTuple_New(reports ? kPeaks : 0);
  if (!both || !peaks) return nullptr;
  for (int at = 0; reports && at < kPeaks; ++at) {
    reader.told[at] = std::max(reader.told[at], now.peaks[at]);
    PyTuple_SetItem(peaks, at, PyLong_FromLongLong(now.peaks[at]));
  }
  PyTuple_SetItem(both, 0, new_counters(reader.type, DeviceReader::numbers_of(now).of));
  PyTuple_SetItem(both, 1, peaks);
  return both;
}

// Forgets what was reported, so that the next peaks are reported again.
Object* forget_told(Object* self, Object* const*, ssize_t) {
  DeviceReader& reader = DeviceReader::of(self);
  std::fill(reader.told, reader.told + kPeaks, 0);
  return none();
}

// Sets whether the reader is alone, which the readings at boundaries ask.
Object* set_alone(Object* self, Object* const* arguments, ssize_t) {
  DeviceReader::of(self).alone = PyLong_AsLongLong(arguments[0]) != 0;
  return none();
}

Method device_methods[] = {method("read_alone", &read_alone), method("read", &read_device),
                           method("forget", &forget_told), method("set_alone", &set_alone)};

}  // namespace
}  // namespace cudamem

// The functions `read_alone`, `read`, `forget` and `set_alone` for a device of a c10::DeviceType, whose counters are of the
// class `type`, and its source.
EXPORT Object* cudamem_device_functions(int32_t device_type, int32_t index, Object* type) {
  using namespace cudamem;
  return Keeping<Source>::functions(device_methods, 4, new DeviceReader(device_type, index, type), true);
}
