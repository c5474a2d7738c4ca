// A device (PrivateUse1) whose caching allocator has counters and no memory: what journals read without a card.
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Device final : c10::DeviceAllocator {
  c10::CachingDeviceAllocator::DeviceStats stats;
  int resets = 0;

  c10::DataPtr allocate(size_t) override { TORCH_CHECK(false, "no memory"); }
  void copy_data(void* target, const void* source, std::size_t count) const override {
    std::memcpy(target, source, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    TORCH_CHECK(index == 0, "invalid device");
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    ++resets;
    for (auto* each : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      for (auto& pool : *each) pool.reset_peak();
    }
    stats.oversize_segments.reset_peak();
  }
};

Device& device = *new Device;

}  // namespace

EXPORT void device_register() { c10::SetAllocator(c10::DeviceType::PrivateUse1, &device); }

// A block of so many bytes, below 0 a free; it is counted in the pool for small requests, too.
EXPORT void device_allocate(int64_t size) {
  for (auto* each :
       {&device.stats.allocated_bytes, &device.stats.active_bytes, &device.stats.requested_bytes}) {
    for (int pool : {0, 1}) {
      if (size > 0) (*each)[pool].increase(static_cast<size_t>(size));
      else (*each)[pool].decrease(static_cast<size_t>(-size));
    }
  }
  if (size > 0) {
    device.stats.allocation[0].increase(1);
    device.stats.reserved_bytes[0].increase(2 * static_cast<size_t>(size));
    device.stats.oversize_segments.increase(1);
    ++device.stats.num_alloc_retries;
  }
}

EXPORT int device_resets() { return device.resets; }
EXPORT int64_t device_peak() { return device.stats.allocated_bytes[0].peak; }
