// The hooks with which torch's CPU code calls a CUDA build: devices, random numbers, pinned memory.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <new>

#include "card_allocator.h"

namespace cudamem {

// The random numbers of a card come from a generator of the CPU, whose kernels use them.
struct CardGenerator final : c10::GeneratorImpl {
  CardGenerator(c10::DeviceIndex card, at::Generator on_host)
      : c10::GeneratorImpl(c10::Device(c10::DeviceType::CUDA, card), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        host(std::move(on_host)) {}

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override {
    at::Generator made = host;
    return made.seed();
  }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  CardGenerator* clone_impl() const override { return new CardGenerator(device_.index(), host.clone()); }

  at::Generator host;

 private:
  uint64_t offset_ = 0;
};

inline at::Generator new_generator(c10::DeviceIndex card) {
  return at::make_generator<CardGenerator>(card, at::detail::createCPUGenerator(c10::default_rng_seed_val));
}

inline std::array<at::Generator, kMostCards>& generators = *new std::array<at::Generator, kMostCards>;
inline std::atomic<int> next_default{-1};  // the card whose default generator the next new one becomes

// Pinned memory: sizes are powers of two; freed blocks are kept.
class PinnedMemory final : public IfComplete<at::HostAllocator, c10::Allocator> {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (!size) return {nullptr, nullptr, nullptr, c10::Device(c10::DeviceType::CPU)};
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t whole = 1;
    while (whole < size) whole *= 2;
    void* at = nullptr;
    auto& cached = free_[whole];
    if (!cached.empty()) {
      at = cached.back();
      cached.pop_back();
    } else {
      at = ::operator new(whole, std::align_val_t{4096});
      allocations_.add(1);
      bytes_.add(static_cast<int64_t>(whole));
      ++driver_allocations_;
    }
    held_[static_cast<char*>(at)] = whole;
    active_.add(1);
    active_bytes_.add(static_cast<int64_t>(whole));
    return {at, at, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }

  bool record_event(void*, void*, c10::Stream) { return true; }
  void empty_cache() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [size, blocks] : free_) {
      for (void* at : blocks) {
        ::operator delete(at, std::align_val_t{4096});
        allocations_.add(-1);
        bytes_.add(-static_cast<int64_t>(size));
        ++driver_frees_;
      }
      blocks.clear();
    }
  }
  at::HostStats get_stats() {
    const std::lock_guard<std::mutex> lock(mutex_);
    at::HostStats found;
    fill(found, 0);
    found.num_host_alloc = driver_allocations_;
    found.num_host_free = driver_frees_;
    return found;
  }
  // Counters of requests, their bytes, allocations and theirs, then how many allocations and frees the driver did.
  void put(int64_t* into) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Count* count : {&active_, &active_bytes_, &allocations_, &bytes_}) {
      for (const int64_t value : {count->current, count->peak, count->allocated, count->freed}) *into++ = value;
    }
    *into++ = driver_allocations_;
    *into++ = driver_frees_;
  }
  void reset_accumulated_stats() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Count* count : {&active_, &active_bytes_, &allocations_, &bytes_}) count->reset_sums();
    driver_allocations_ = driver_frees_ = 0;
  }
  void reset_peak_stats() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Count* count : {&active_, &active_bytes_, &allocations_, &bytes_}) count->reset_peak();
  }

  bool holds(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const place = static_cast<const char*>(at);
    auto found = held_.upper_bound(const_cast<char*>(place));
    if (found == held_.begin()) return false;
    --found;
    return place < found->first + found->second;
  }

 private:
  static void give_back(void* at);

  void take_back(void* at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = held_.find(static_cast<char*>(at));
    if (found == held_.end()) return;
    free_[found->second].push_back(at);
    active_.add(-1);
    active_bytes_.add(-static_cast<int64_t>(found->second));
    held_.erase(found);
  }

  template <typename Stat>
  static void copy(const Count& from, Stat& into) {
    into.current = from.current;
    into.peak = from.peak;
    into.allocated = from.allocated;
    into.freed = from.freed;
  }
  // The names of torch 2.10 and later, and those before.
  template <typename Stats>
  auto fill(Stats& stats, int) -> decltype(void(stats.active_bytes)) {
    copy(active_, stats.active_requests);
    copy(active_bytes_, stats.active_bytes);
    copy(allocations_, stats.allocations);
    copy(bytes_, stats.allocated_bytes);
  }
  template <typename Stats>
  void fill(Stats& stats, long) {
    copy(active_, stats.allocation);
    copy(active_bytes_, stats.allocated_bytes);
    copy(allocations_, stats.segment);
    copy(bytes_, stats.reserved_bytes);
  }

  std::mutex mutex_;
  std::map<char*, size_t> held_;
  std::map<size_t, std::vector<void*>> free_;
  Count active_, active_bytes_, allocations_, bytes_;
  int64_t driver_allocations_ = 0, driver_frees_ = 0;
};

inline PinnedMemory& pinned = *new PinnedMemory;
// Names it to torch; older versions ask the hooks for it.
template <typename Allocator>
void name_host_allocator(Allocator* allocator) {
  if constexpr (IsComplete<at::HostAllocator>::value) setHostAllocator(c10::DeviceType::CUDA, allocator, 1);
}
inline void PinnedMemory::give_back(void* at) { pinned.take_back(at); }

// It has no members, because it temporarily replaces torch's own object. Functions are not marked as overriding: one that
// this version of torch does not have is never called.
struct CardHooks final : at::CUDAHooksInterface {
  using DeviceIndex = c10::DeviceIndex;

  static DeviceIndex index_of(DeviceIndex card) { return card < 0 ? current.card : card; }

  void init() const {}
  const at::Generator& getDefaultGenerator(DeviceIndex card) const {
    card = index_of(card);
    check_card(card);
    at::Generator& found = generators[static_cast<size_t>(card)];
    if (!found.defined()) found = new_generator(card);
    return found;
  }
  at::Generator getNewGenerator(DeviceIndex card) const {
    at::Generator made = new_generator(index_of(card));
    const int wanted = next_default.exchange(-1);
    if (wanted >= 0) generators[static_cast<size_t>(wanted)] = made;
    return made;
  }
  c10::Device getDeviceFromPtr(void* data) const {
    const Found found = find_block(data);
    TORCH_CHECK(found.block, "the pointer is not to memory of a simulated card");
    return c10::Device(c10::DeviceType::CUDA, static_cast<DeviceIndex>(found.card));
  }
  bool isPinnedPtr(const void* data) const { return pinned.holds(data); }
  bool hasCUDA() const { return true; }
  bool hasCUDART() const { return true; }
  bool hasMAGMA() const { return true; }
  bool hasCuDNN() const { return true; }
  bool hasCuSOLVER() const { return true; }
  bool hasCuBLASLt() const { return true; }
  bool isBuilt() const { return true; }
  bool isAvailable() const { return streams.cards > 0; }
  bool hasPrimaryContext(DeviceIndex) const { return true; }
  DeviceIndex current_device() const { return current.card; }
  c10::Allocator* getPinnedMemoryAllocator() const { return &pinned; }
  c10::Allocator* getCUDADeviceAllocator() const { return &allocator; }
  bool compiledWithCuDNN() const { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const { return true; }
  bool supportsBFloat16RNNWithCuDNN() const { return true; }
  long versionCuDNN() const { return 91900; }
  long versionRuntimeCuDNN() const { return 91900; }
  long versionCUDART() const { return 13000; }
  std::string showConfig() const { return "simulated card"; }
  double batchnormMinEpsilonCuDNN() const { return 0; }
  int64_t cuFFTGetPlanCacheMaxSize(DeviceIndex) const { return 4096; }
  void cuFFTSetPlanCacheMaxSize(DeviceIndex, int64_t) const {}
  int64_t cuFFTGetPlanCacheSize(DeviceIndex) const { return 0; }
  void cuFFTClearPlanCache(DeviceIndex) const {}
  int getNumGPUs() const { return streams.cards; }
  void deviceSynchronize(DeviceIndex) const { streams.wait(); }
  DeviceIndex deviceCount() const { return static_cast<DeviceIndex>(streams.cards.load()); }
  void setCurrentDevice(DeviceIndex card) const {
    check_card(card);
    current.card = card;
  }
  DeviceIndex getCurrentDevice() const { return current.card; }
  DeviceIndex exchangeDevice(DeviceIndex card) const {
    const DeviceIndex before = current.card;
    setCurrentDevice(card);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex card) const { return card < 0 ? current.card : exchangeDevice(card); }
};

static_assert(sizeof(CardHooks) == sizeof(at::CUDAHooksInterface));

inline at::CUDAHooksInterface* torch_hooks() {
  return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
}
inline void put_hooks() { new (torch_hooks()) CardHooks; }
inline void restore_hooks() { new (torch_hooks()) at::CUDAHooksInterface; }

// What torch's profiler calls to record CUDA: only times, because work is done at once.
struct CardProfiler final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
    const auto now = Clock::now();
    if (device) *device = current.card;
    if (event) *event = std::make_shared<Clock::time_point>(now);
    if (cpu_ns) *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  }
  float elapsed(const Event* first, const Event* second) const override {  // microseconds
    const auto at = [](const Event* event) { return *static_cast<const Clock::time_point*>(event->get()); };
    return std::chrono::duration<float, std::micro>(at(second) - at(first)).count();
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return streams.cards > 0; }
  void onEachDevice(std::function<void(int)> action) const override {
    for (int card = 0; card < streams.cards; ++card) action(card);
  }
  void synchronize() const override { streams.wait(); }
};

// Replaces torch's own, or restores it.
inline void choose_profiler(bool here) {
  using namespace torch::profiler::impl;
  static CardProfiler* const own = new CardProfiler;
  static ProfilerStubs* before = nullptr;
  if (here) before = const_cast<ProfilerStubs*>(cudaStubs());
  registerCUDAMethods(here ? own : before);
}

at::Generator generator_on_host(const at::Generator& given, c10::DeviceIndex card) {
  const at::Generator found = given.defined() ? given : CardHooks().getDefaultGenerator(card);
  TORCH_CHECK(found.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              found.device().type(), "'");
  return static_cast<CardGenerator*>(found.unsafeGetGeneratorImpl())->host;
}
bool is_pinned(const void* at) { return pinned.holds(at); }

}  // namespace cudamem
