// Devices, streams and events of simulated cards. Work is done at once, so a stream is idle unless it sleeps.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>

#include "card_parts.h"
#include "card_versions.h"

namespace cudamem {

constexpr int kMostCards = 16, kStreamsInPool = 32;

using Clock = std::chrono::steady_clock;

struct Streams {
  std::atomic<int> cards{0};
  std::mutex mutex;
  std::array<std::array<int, 2>, kMostCards> next = {};  // of both priorities
  std::unordered_map<StreamId, Clock::time_point> busy;  // until when

  // A stream of the pool, in turn. The default stream is 0.
  StreamId take(int card, bool high) {
    const std::lock_guard<std::mutex> lock(mutex);
    const int turn = next[static_cast<size_t>(card)][high]++ % kStreamsInPool;
    return 1 + card * 2 * kStreamsInPool + (high ? kStreamsInPool : 0) + turn;
  }

  void sleep(StreamId stream, double seconds) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto more = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    auto& end = busy[stream];
    end = std::max(end, Clock::now()) + more;
  }

  bool is_idle(StreamId stream) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = busy.find(stream);
    return found == busy.end() || found->second <= Clock::now();
  }

  void wait() {
    const std::lock_guard<std::mutex> lock(mutex);
    busy.clear();
  }
};

inline Streams& streams = *new Streams;

struct Current {
  c10::DeviceIndex card = 0;
  std::array<StreamId, kMostCards> stream = {};
};
inline thread_local Current current;

inline void check_card(int64_t index) {
  constexpr int32_t kInvalidDevice = 101;  // an error code of CUDA's runtime
  if (index < 0 || index >= streams.cards) {
    raise_of_runtime({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kInvalidDevice,
                     "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?");
  }
}

struct OnCard {  // makes the card of some tensors the current one
  explicit OnCard(c10::Device device) : before(current.card) {
    if (device.is_cuda() && device.index() >= 0) current.card = device.index();
  }
  ~OnCard() { current.card = before; }
  const c10::DeviceIndex before;
};

struct CardEvent {
  Clock::time_point when;
  StreamId stream;
};

struct CardGuard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;

  static Device card(c10::DeviceIndex index) { return Device(c10::DeviceType::CUDA, index); }
  static c10::DeviceIndex index_of(Device device) { return device.index() < 0 ? current.card : device.index(); }
  static Stream stream(Device device, StreamId id) { return Stream(Stream::UNSAFE, card(index_of(device)), id); }

  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = card(current.card);
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return card(current.card); }
  void setDevice(Device device) const override {
    if (device.index() < 0) return;
    check_card(device.index());
    current.card = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current.card = device.index();
  }
  Stream getStream(Device device) const override {
    return stream(device, current.stream[static_cast<size_t>(index_of(device))]);
  }
  Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool high) const override {
    return stream(device, streams.take(index_of(device), high));
  }
  Stream getNewStream(Device device, int priority) const override {
    return stream(device, streams.take(index_of(device), priority < 0));
  }
  Stream exchangeStream(Stream now) const override {
    auto& kept = current.stream[static_cast<size_t>(index_of(now.device()))];
    const Stream before = stream(now.device(), kept);
    kept = now.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream now) const { return reinterpret_cast<void*>(now.id()); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(streams.cards.load()); }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<CardEvent*>(event); }
  void record(void** event, const Stream& now, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new CardEvent;
    *static_cast<CardEvent*>(*event) = {Clock::now(), now.id()};
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override {
    return !event || streams.is_idle(static_cast<CardEvent*>(event)->stream);
  }
  bool queryStream(const Stream& now) const override { return streams.is_idle(now.id()); }
  void synchronizeStream(const Stream&) const override { streams.wait(); }
  void synchronizeEvent(void*) const override { streams.wait(); }
  void synchronizeDevice(c10::DeviceIndex) const override { streams.wait(); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& now) const override { use_on(data, now); }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    const auto span = static_cast<CardEvent*>(second)->when - static_cast<CardEvent*>(first)->when;
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

}  // namespace cudamem
