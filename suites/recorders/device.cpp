// A device (PrivateUse1) whose caching allocator has counters and no memory: what is read in C++ without a card.
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr int kCards = 2;
constexpr int kPlaces = 29;

struct Card {
  DeviceStats stats;
  int resets = 0;

  // Those that have a peak: nine for all, small and large blocks, and two that are not split.
  Stat& at(int place) {
    StatArray* const split[] = {&stats.allocation,      &stats.segment,        &stats.active,
                                &stats.inactive_split,  &stats.allocated_bytes, &stats.reserved_bytes,
                                &stats.active_bytes,    &stats.inactive_split_bytes, &stats.requested_bytes};
    if (place < 27) return (*split[place / 3])[place % 3];
    return place == 27 ? stats.oversize_allocations : stats.oversize_segments;
  }

  void change(int place, int64_t by) {
    if (by > 0) at(place).increase(static_cast<size_t>(by));
    if (by < 0) at(place).decrease(static_cast<size_t>(-by));
  }
};

struct Device final : c10::DeviceAllocator {
  Card cards[kCards];

  Card& card(c10::DeviceIndex index) {
    TORCH_CHECK(index >= 0 && index < kCards, "invalid device");
    return cards[index];
  }
  c10::DataPtr allocate(size_t) override { TORCH_CHECK(false, "no memory"); }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    std::memcpy(target, source, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex index) override { return card(index).stats; }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    for (int place = 0; place < kPlaces; ++place) card(index).at(place).reset_accumulated();
    card(index).stats.num_alloc_retries = 0;
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    ++card(index).resets;
    for (int place = 0; place < kPlaces; ++place) card(index).at(place).reset_peak();
  }
};

Device& device = *new Device;

// Newer torch counts private pools, too.
template <typename Stats>
auto add_private_pool(Stats& stats, int) -> decltype(stats.reserved_bytes_by_private_pools.empty()) {
  stats.reserved_bytes_by_private_pools[c10::MempoolId_t{0, 1}][0].increase(1);
  return true;
}
template <typename Stats>
bool add_private_pool(Stats&, long) {
  return false;
}

}  // namespace

EXPORT void device_register() { c10::SetAllocator(c10::DeviceType::PrivateUse1, &device); }
EXPORT void device_forget() {
  for (Card& card : device.cards) card = Card();
}
EXPORT void device_change(int card, int place, int64_t by) { device.cards[card].change(place, by); }
EXPORT void device_set_retries(int card, int number) { device.cards[card].stats.num_alloc_retries = number; }
EXPORT int device_add_private_pool(int card) { return add_private_pool(device.cards[card].stats, 0); }
EXPORT void device_reset_peaks(int card) { device.resetPeakStats(static_cast<c10::DeviceIndex>(card)); }
EXPORT void device_reset_counts(int card) { device.resetAccumulatedStats(static_cast<c10::DeviceIndex>(card)); }
// The place of a statistic by its name and pool, by what changes when it does.
EXPORT int device_place(const char* name, const char* pool) {
  Card card;
  DeviceStats& stats = card.stats;
  const std::pair<const char*, StatArray*> split[] = {
      {"allocation", &stats.allocation},
      {"segment", &stats.segment},
      {"active", &stats.active},
      {"inactive_split", &stats.inactive_split},
      {"allocated_bytes", &stats.allocated_bytes},
      {"reserved_bytes", &stats.reserved_bytes},
      {"active_bytes", &stats.active_bytes},
      {"inactive_split_bytes", &stats.inactive_split_bytes},
      {"requested_bytes", &stats.requested_bytes}};
  const std::pair<const char*, c10::CachingAllocator::StatType> pools[] = {
      {"all", c10::CachingAllocator::StatType::AGGREGATE},
      {"small_pool", c10::CachingAllocator::StatType::SMALL_POOL},
      {"large_pool", c10::CachingAllocator::StatType::LARGE_POOL}};
  const Stat* wanted = nullptr;
  for (const auto& [stat, array] : split) {
    for (const auto& [part, type] : pools) {
      if (!std::strcmp(name, stat) && !std::strcmp(pool, part)) wanted = &(*array)[static_cast<size_t>(type)];
    }
  }
  if (!std::strcmp(name, "oversize_allocations")) wanted = &stats.oversize_allocations;
  if (!std::strcmp(name, "oversize_segments")) wanted = &stats.oversize_segments;
  for (int place = 0; place < kPlaces; ++place) {
    if (&card.at(place) == wanted) return place;
  }
  return -1;
}
EXPORT int device_resets(int card) { return device.cards[card].resets; }

// Copies current, peak, allocated and freed of every place; returns the retries.
EXPORT int64_t device_statistics(int card, int64_t* out) {
  for (int place = 0; place < kPlaces; ++place) {
    const Stat& stat = device.cards[card].at(place);
    for (const int64_t value : {stat.current, stat.peak, stat.allocated, stat.freed}) *out++ = value;
  }
  return device.cards[card].stats.num_alloc_retries;
}
