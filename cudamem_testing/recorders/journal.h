// Journals: readings of the counters that one call takes and keeps, for callers who read at every operator.
//
// A note costs a fraction of a microsecond, for nothing is handed to Python before the end. Every call here keeps the
// GIL, which guards the journals; the ledger has the recorder's mutex, a device's allocator one of its own.
//
// Counters of a device come through c10's common interface of caching allocators (torch 2.9), so nothing of CUDA is
// needed to compile this. The allocator has one set of peaks for everybody: what a note resets is folded into every
// other journal of the device, and into `highest`, which the caller hands to whoever else counts on them.
#pragma once

#include <c10/core/Allocator.h>
#if __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace c10 {
struct DeviceAllocator;  // incomplete where torch has none yet
}

namespace cudamem {

constexpr int64_t kUnknown = -1;
constexpr int kPeaks = 29;  // nine statistics for three pools each, and two that are not split

struct Note {
  int64_t allocated, peak, allocated_total, allocations, active, reserved, retries;
};

// The counters of one device; `Allocator` is a parameter so that its members are looked up only where it is complete.
template <typename Allocator, typename = void>
struct DeviceCounters {
  bool open(int32_t, int32_t) { return false; }
  bool is_same(const DeviceCounters&) const { return false; }
  void read(Note*, int64_t*) const {}
  void reset() const {}
};

template <typename Allocator>
struct DeviceCounters<Allocator, std::void_t<decltype(sizeof(Allocator))>> {
  Allocator* allocator = nullptr;
  c10::DeviceIndex index = 0;

  bool open(int32_t type, int32_t number) {
    allocator = dynamic_cast<Allocator*>(c10::GetAllocator(static_cast<c10::DeviceType>(type)));
    index = static_cast<c10::DeviceIndex>(number);
    if (!allocator) return false;
    (void)allocator->getDeviceStats(index);  // throws where there are none
    return true;
  }

  bool is_same(const DeviceCounters& other) const { return allocator == other.allocator && index == other.index; }

  void read(Note* note, int64_t* peaks) const {
    const auto stats = allocator->getDeviceStats(index);
    *note = {stats.allocated_bytes[0].current, stats.allocated_bytes[0].peak, stats.allocated_bytes[0].allocated,
             stats.allocation[0].allocated,    stats.active_bytes[0].current, stats.reserved_bytes[0].current,
             stats.num_alloc_retries};
    int at = 0;
    for (const auto* each : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                             &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                             &stats.inactive_split_bytes, &stats.requested_bytes}) {
      for (int pool = 0; pool < 3; ++pool) peaks[at++] = (*each)[pool].peak;
    }
    peaks[at++] = stats.oversize_allocations.peak;
    peaks[at++] = stats.oversize_segments.peak;
  }

  void reset() const { allocator->resetPeakStats(index); }
};

struct Journal {
  int slot = -1;  // of the ledger; below 0 for a device
  DeviceCounters<c10::DeviceAllocator> counters;
  int64_t pending = 0;  // the peak that others reset since the last note
  int64_t highest[kPeaks] = {};
  std::vector<Note> notes;

  // What the device counts now, its peaks folded into what is kept; the allocator's own stay.
  Note fold() {
    Note note;
    int64_t peaks[kPeaks];
    counters.read(&note, peaks);
    for (int i = 0; i < kPeaks; ++i) highest[i] = std::max(highest[i], peaks[i]);
    pending = std::max(pending, note.peak);
    return note;
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

  Note read_device(Journal& journal) {
    Note note = journal.fold();
    const int64_t lost = note.peak;
    note.peak = journal.pending;
    journal.counters.reset();
    for (const auto& other : open_) {
      if (other && other->slot < 0 && other->counters.is_same(journal.counters)) {
        other->pending = std::max(other->pending, lost);
      }
    }
    journal.pending = 0;
    return note;
  }

 private:
  std::unique_ptr<Journal> open_[kMost];
};

}  // namespace cudamem
