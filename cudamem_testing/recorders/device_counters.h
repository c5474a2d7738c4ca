// The counters of a device, through c10's common interface of caching allocators (torch 2.9); it compiles without CUDA. A
// reading takes about a microsecond, much less than torch's Python function, which builds nested dictionaries.
#pragma once

#include <c10/core/Allocator.h>
#if __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <cstdint>
#include <type_traits>

namespace c10 {
struct DeviceAllocator;  // incomplete in versions of torch without it
}

namespace cudamem {

constexpr int kPeaks = 29;  // nine statistics for three pools each, and two that are not split

struct DeviceReading {
  int64_t allocated, allocated_peak, requested, requested_peak, reserved, reserved_peak, active, active_peak;
  int64_t allocations, segments, retries, blocks, allocated_total;
  int64_t peaks[kPeaks];
  bool more_peaks;  // the device has peaks that are not among these

  // Whether the peaks equal the current levels, so that there is nothing to reset.
  bool at_rest() const {
    return allocated == allocated_peak && requested == requested_peak && reserved == reserved_peak &&
           active == active_peak;
  }

};

// Newer versions of torch also count each private pool.
template <typename Stats>
auto has_private_pools(const Stats& stats, int) -> decltype(!stats.reserved_bytes_by_private_pools.empty()) {
  return !stats.reserved_bytes_by_private_pools.empty();
}
template <typename Stats>
bool has_private_pools(const Stats&, long) {
  return false;
}

// `Allocator` is a parameter so that its members are looked up only where it is complete.
template <typename Allocator, typename = void>
struct DeviceCounters {
  static constexpr bool kInTorch = false;
  bool find(int32_t, int32_t) { return false; }
  bool is_same(const DeviceCounters&) const { return false; }
  DeviceReading read() const { return {}; }
  void reset() const {}
};

template <typename Allocator>
struct DeviceCounters<Allocator, std::void_t<decltype(sizeof(Allocator))>> {
  static constexpr bool kInTorch = true;
  Allocator* allocator = nullptr;
  c10::DeviceIndex index = 0;

  bool find(int32_t type, int32_t number) {
    allocator = dynamic_cast<Allocator*>(c10::GetAllocator(static_cast<c10::DeviceType>(type)));
    index = static_cast<c10::DeviceIndex>(number);
    return allocator != nullptr;
  }

  bool is_same(const DeviceCounters& other) const { return allocator == other.allocator && index == other.index; }

  // Throws if the allocator keeps no statistics or has no such device.
  DeviceReading read() const {
    const auto stats = allocator->getDeviceStats(index);
    DeviceReading found = {
        stats.allocated_bytes[0].current, stats.allocated_bytes[0].peak, stats.requested_bytes[0].current,
        stats.requested_bytes[0].peak,    stats.reserved_bytes[0].current, stats.reserved_bytes[0].peak,
        stats.active_bytes[0].current,    stats.active_bytes[0].peak,    stats.allocation[0].allocated,
        stats.segment[0].allocated,       stats.num_alloc_retries,       stats.allocation[0].current,
        stats.allocated_bytes[0].allocated};
    int at = 0;
    for (const auto* each : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                             &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                             &stats.inactive_split_bytes, &stats.requested_bytes}) {
      for (int pool = 0; pool < 3; ++pool) found.peaks[at++] = (*each)[pool].peak;
    }
    found.peaks[at++] = stats.oversize_allocations.peak;
    found.peaks[at++] = stats.oversize_segments.peak;
    found.more_peaks = has_private_pools(stats, 0);
    return found;
  }

  void reset() const { allocator->resetPeakStats(index); }
};

}  // namespace cudamem
