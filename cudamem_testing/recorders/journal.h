// Journals: readings of the counters that one call takes and stores, for callers that read at every operator.
//
// A note costs a fraction of a microsecond, because nothing is passed to Python before the end. Every call keeps the GIL,
// which guards the journals; the recorder's mutex guards the ledger, and a device's allocator has its own.
//
// A device's allocator has one set of peaks: those that a note resets are merged into every other journal of the device,
// and into `highest`, which the caller passes on to all other readers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "device_counters.h"

namespace cudamem {

constexpr int64_t kUnknown = -1;

struct Note {
  int64_t allocated, peak, allocated_total, allocations, active, reserved, retries;
};

struct Journal {
  int slot = -1;  // of the ledger; below 0 for a device
  DeviceCounters<c10::DeviceAllocator> counters;
  int64_t pending = 0;  // the peak that others reset since the last note
  int64_t highest[kPeaks] = {};
  std::vector<Note> notes;

  // The current counters of the device, its peaks merged into the kept ones; those of the allocator stay.
  DeviceReading fold() {
    const DeviceReading found = counters.read();
    for (int i = 0; i < kPeaks; ++i) highest[i] = std::max(highest[i], found.peaks[i]);
    pending = std::max(pending, found.allocated_peak);
    return found;
  }

  void take_highest(int64_t* out) {
    std::memcpy(out, highest, sizeof(highest));
    std::fill(highest, highest + kPeaks, 0);
  }
};

class Journals {
 public:
  static constexpr int kMost = 64;

  int32_t add(std::unique_ptr<Journal> journal) {
    for (int i = 0; i < kMost; ++i) {
      if (open_[i]) continue;
      open_[i] = std::move(journal);
      return i;
    }
    return -1;
  }

  Journal* get(int32_t handle) { return handle >= 0 && handle < kMost ? open_[handle].get() : nullptr; }
  void close(int32_t handle) { open_[handle].reset(); }

  Note note_device(Journal& journal) {
    const DeviceReading found = journal.fold();
    const Note note = {found.allocated,   journal.pending, found.allocated_total, found.allocations,
                       found.active,      found.reserved,  found.retries};
    journal.counters.reset();
    for (const auto& other : open_) {
      if (other && other->slot < 0 && other->counters.is_same(journal.counters)) {
        other->pending = std::max(other->pending, found.allocated_peak);
      }
    }
    journal.pending = 0;
    return note;
  }

 private:
  std::unique_ptr<Journal> open_[kMost];
};

}  // namespace cudamem
