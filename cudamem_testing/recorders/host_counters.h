// Whether the counters of pinned memory have changed, through ATen's interface of host allocators (torch 2.8). If they
// have, their values are read through Python: pinned memory seldom changes, and this check runs at every boundary.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "source.h"

namespace at {
struct HostAllocator;  // incomplete in versions of torch without it
HostAllocator* getHostAllocator(DeviceType);
}

namespace cudamem {

// Bytes in use, bytes that the allocator keeps, and requests; each with its peak.
struct HostReading {
  int64_t held, held_peak, kept, kept_peak, requests, allocations;
  bool operator==(const HostReading& other) const { return std::memcmp(this, &other, sizeof other) == 0; }
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
  static bool read(HostReading*) { return false; }
};

template <typename Allocator>
struct HostCounters<Allocator, std::void_t<decltype(sizeof(Allocator))>> {
  static bool read(HostReading* now) {
    Allocator* const allocator = at::getHostAllocator(at::kCUDA);
    if (!allocator) return false;
    *now = host_reading(allocator->get_stats(), 0);
    return true;
  }
};

// Whether pinned memory is as it was. CUDA must be initialised.
struct HostReader : Source {
  HostReading last{}, at_boundary{};
  bool others_reset = false;  // peaks, since the test began

  // Whether it is unchanged since the last call; false if torch does not show it.
  bool is_still() {
    HostReading now;
    if (!take(&now)) return false;
    const bool still = now == last;
    last = now;
    return still;
  }

  // Only in a test in which nothing has changed so far: Python adds what others have reset to the rest.
  bool read(bool first, Numbers* numbers) override {
    if (first) others_reset = false;
    HostReading now;
    if (others_reset || !take(&now) || now.held != now.held_peak || now.kept != now.kept_peak) return false;
    if (!first && !(now == at_boundary)) return false;
    at_boundary = now;
    *numbers = {{now.held, now.held_peak, kNotKnown, kNotKnown, now.kept, now.kept_peak, kNotKnown, kNotKnown,
                 now.allocations, kNotKnown, kNotKnown, now.requests}};
    return true;
  }

 private:
  static bool take(HostReading* now) {
    try {
      return HostCounters<at::HostAllocator>::read(now);
    } catch (...) {
      return false;
    }
  }
};

}  // namespace cudamem
