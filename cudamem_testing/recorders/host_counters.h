// Whether the counters of pinned memory have changed, through ATen's interface of host allocators (torch 2.8). If they
// have, their values are read through Python: pinned memory seldom changes, and this check runs at every boundary.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace at {
struct HostAllocator;  // incomplete in versions of torch without it
HostAllocator* getHostAllocator(DeviceType);
}

namespace cudamem {

// Bytes in use, bytes that the allocator keeps, and requests; each with its peak.
struct HostReading {
  int64_t held, held_peak, kept, kept_peak, requests, allocations;
};

// Names of torch 2.10 and later, and those before.
template <typename Stats>
auto host_reading(const Stats& stats, int) -> decltype(HostReading{stats.active_bytes.current}) {
  return {stats.active_bytes.current,    stats.active_bytes.peak,       stats.allocated_bytes.current,
          stats.allocated_bytes.peak,    stats.active_requests.current, stats.active_requests.allocated};
}
template <typename Stats>
HostReading host_reading(const Stats& stats, long) {
  return {stats.allocated_bytes.current, stats.allocated_bytes.peak, stats.reserved_bytes.current,
          stats.reserved_bytes.peak,     stats.allocation.current,   stats.allocation.allocated};
}

// `Allocator` is a parameter so that its members are looked up only where it is complete.
template <typename Allocator, typename = void>
struct HostCounters {
  static bool is_still(HostReading*) { return false; }
};

template <typename Allocator>
struct HostCounters<Allocator, std::void_t<decltype(sizeof(Allocator))>> {
  static bool is_still(HostReading* last) {
    Allocator* const allocator = at::getHostAllocator(at::kCUDA);
    if (!allocator) return false;
    const HostReading now = host_reading(allocator->get_stats(), 0);
    if (std::memcmp(last, &now, sizeof now) == 0) return true;
    *last = now;
    return false;
  }
};

}  // namespace cudamem
