// The allocator of a card as torch uses it, implemented by a model (card_memory.h), with a stack for every record.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <functional>
#include <optional>

#include "../recorders/cpu_stacks.h"
#include "../recorders/trap.h"
#include "card_backward.h"
#include "card_memory.h"
#include "card_parts.h"
#include "card_stacks.h"
#include "card_streams.h"

namespace cudamem {

enum Stacks : int { kNoStacks, kOfLive, kOfAllocations, kOfAll };

struct Card {
  Card(size_t total, size_t beside, bool values, const MemorySettings& settings) : driver(total, beside, values) {
    made.emplace(&driver, settings, &is_idle);
  }
  static bool is_idle(StreamId stream) { return streams.is_idle(stream); }

  // Resets it as if nothing had been allocated. Nothing is live.
  void renew() {
    const MemorySettings settings = made->settings();
    made->release_cached(nullptr);
    made.reset();
    made.emplace(&driver, settings, &is_idle);
  }
  CardMemory& memory() { return *made; }

  MachineMemory driver;
  std::optional<CardMemory> made;
};

using Observer = void (*)(int64_t card, int64_t size, int64_t allowed, int64_t free);

// All cards of a process. Memory that is live when a simulation ends keeps its cards.
struct Simulation {
  std::mutex mutex;
  std::vector<std::unique_ptr<Card>> cards;
  bool values = true, recording = false;
  Stacks stacks = kNoStacks;
  size_t beside = 0;
  Trap trap;
  c10::DeviceIndex trap_card = 0;
};

inline std::atomic<Simulation*> simulation{nullptr};
inline Python python = {};  // how to read the frames of the calling thread; unset without `this_thread_state`
inline std::vector<Observer>& observers = *new std::vector<Observer>;

inline Context stack_for(Simulation& all, Stacks least) {
  if (!all.recording || all.stacks < least) return nullptr;
  return gather_stack();
}

inline std::string shown_size(size_t size) {
  char text[32];
  const auto bytes = static_cast<double>(size);
  if (size <= 1024) {
    snprintf(text, sizeof text, "%zu bytes", size);
  } else if (size <= 1048576) {
    snprintf(text, sizeof text, "%.2f KiB", bytes / 1024);
  } else if (size <= 1073741824) {
    snprintf(text, sizeof text, "%.2f MiB", bytes / 1048576);
  } else {
    snprintf(text, sizeof text, "%.2f GiB", bytes / 1073741824);
  }
  return text;
}

// Torch's message in the same words: tests and users match it.
inline std::string full_message(size_t index, const CardMemory& memory, size_t size, size_t beside) {
  const auto& stats = memory.stats.counts;
  const auto allocated = static_cast<size_t>(stats[kAllocatedBytes][0].current);
  const auto reserved = static_cast<size_t>(stats[kReservedBytes][0].current);
  std::string text = "CUDA out of memory. Tried to allocate " + shown_size(size) + ". GPU " + std::to_string(index) +
                     " has a total capacity of " + shown_size(memory.driver()->total()) + " of which " +
                     shown_size(memory.driver()->free()) +
                     " is free. Including non-PyTorch memory, this process has " + shown_size(reserved + beside) +
                     " memory in use. ";
  if (memory.limited()) text += shown_size(memory.allowed()) + " allowed; ";
  return text + "Of the allocated memory " + shown_size(allocated) + " is allocated by PyTorch, and " +
         shown_size(reserved - allocated) +
         " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
         "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
         "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
}

// Simulations that have ended, for blocks that outlive them.
inline std::vector<Simulation*>& ended = *new std::vector<Simulation*>;

struct Found {
  Simulation* all;
  size_t card;
  Block* block;
};

inline Found find_block(const void* at) {
  const auto look = [&](Simulation* all) -> Found {
    const std::lock_guard<std::mutex> lock(all->mutex);
    for (size_t card = 0; card < all->cards.size(); ++card) {
      if (Block* const block = all->cards[card]->memory().block_at(at)) return {all, card, block};
    }
    return {};
  };
  if (Simulation* const now = simulation) {
    if (const Found found = look(now); found.block) return found;
  }
  for (Simulation* each : ended) {
    if (const Found found = look(each); found.block) return found;
  }
  return {};
}

inline void report(Simulation& all, size_t index, void* at, int64_t change) {
  const auto& stats = all.cards[index]->memory().stats.counts;
  c10::reportMemoryUsageToProfiler(at, change, static_cast<size_t>(stats[kAllocatedBytes][0].current),
                                   static_cast<size_t>(stats[kReservedBytes][0].current),
                                   c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
}

// Whether this request must fail. Called with the mutex held.
inline bool is_trapped(Simulation& all, c10::DeviceIndex card, size_t size) {
  if (!all.trap.on() || all.trap_card != card) return false;
  static const std::atomic<uint64_t> no_stops[kStopCodes] = {};
  Walk<kDepth> stack;
  if (python.this_thread_state && walk(python, no_stops, &stack)) end_before_engine(&stack);
  return all.trap.springs(size, stack.frames, stack.depth);
}

// A block of the current stream on a card; null for 0 bytes.
inline void* take(c10::DeviceIndex card, size_t size, const StreamId* stream = nullptr) {
  if (size == 0) return nullptr;
  Simulation* const all = simulation;
  TORCH_CHECK(all, "this simulated card no longer exists: its with block has ended");
  check_card(card);
  const auto index = static_cast<size_t>(card);
  const StreamId used = stream ? *stream : current.stream[index];
  Context context = stack_for(*all, kOfLive);
  CardMemory& memory = all->cards[index]->memory();
  std::string message;
  int64_t allowed = 0, free = 0;
  void* at = nullptr;
  int64_t taken = 0;
  bool trapped;
  {
    const std::lock_guard<std::mutex> lock(all->mutex);
    trapped = is_trapped(*all, card, size);
    Block* const block = trapped ? nullptr : memory.allocate(size, used, context);
    if (block) {
      at = block->at;
      taken = static_cast<int64_t>(block->size);
    } else {
      free = static_cast<int64_t>(memory.driver()->free());
      memory.note(Action::oom, reinterpret_cast<void*>(free), size, used, context);
      allowed = static_cast<int64_t>(memory.limited() ? memory.allowed() : memory.driver()->total());
      message = full_message(index, memory, size, all->beside);
      if (trapped) message += " (made to fail by cudamem)";
    }
  }
  if (at) {
    report(*all, index, at, taken);
    return at;
  }
  if (!trapped) for (const Observer observer : observers) observer(card, static_cast<int64_t>(size), allowed, free);
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
}

inline void give(void* at) {
  if (!at) return;
  const Found found = find_block(at);
  if (!found.block) return;  // of a simulation that has ended
  Context context = stack_for(*found.all, kOfAll);
  const auto size = static_cast<int64_t>(found.block->size);
  {
    const std::lock_guard<std::mutex> lock(found.all->mutex);
    found.all->cards[found.card]->memory().free(found.block, std::move(context));
  }
  report(*found.all, found.card, at, -size);
}

using PoolId = std::pair<unsigned long long, unsigned long long>;

// Functions that older versions of torch do not have are not marked as overriding.
struct CardAllocator final : IfComplete<c10::DeviceAllocator, c10::Allocator> {
  c10::DataPtr allocate(size_t size) override {
    const c10::DeviceIndex card = current.card;
    void* const at = take(card, size);
    return {at, at, &give, c10::Device(c10::DeviceType::CUDA, card)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, size_t size) const override {
    if (has_values()) std::memcpy(to, from, size);
  }

  bool initialized() { return simulation != nullptr; }
  void emptyCache(PoolId) {
    Simulation* const all = simulation;
    if (!all) return;
    Context context = stack_for(*all, kOfAll);
    const std::lock_guard<std::mutex> lock(all->mutex);
    for (const auto& card : all->cards) card->memory().release_cached(context);
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) {
    const Found found = find_block(data.get());
    if (!found.block) return;
    const std::lock_guard<std::mutex> lock(found.all->mutex);
    found.all->cards[found.card]->memory().use_on(found.block, stream.id());
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex card) {
    c10::CachingDeviceAllocator::DeviceStats found;
    with(card, [&](CardMemory& memory) {
      auto& stats = memory.stats;
      const std::pair<Counted, c10::CachingAllocator::StatArray*> all[] = {
          {kAllocation, &found.allocation},
          {kSegment, &found.segment},
          {kActive, &found.active},
          {kInactiveSplit, &found.inactive_split},
          {kAllocatedBytes, &found.allocated_bytes},
          {kReservedBytes, &found.reserved_bytes},
          {kActiveBytes, &found.active_bytes},
          {kInactiveSplitBytes, &found.inactive_split_bytes},
          {kRequestedBytes, &found.requested_bytes}};
      for (const auto& [counted, into] : all) {
        for (size_t pool = 0; pool < 3; ++pool) copy(stats.counts[counted][pool], (*into)[pool]);
      }
      copy(stats.oversize_allocations, found.oversize_allocations);
      copy(stats.oversize_segments, found.oversize_segments);
      found.num_alloc_retries = stats.retries;
      found.num_ooms = stats.ooms;
    });
    return found;
  }
  void resetAccumulatedStats(c10::DeviceIndex card) {
    with(card, [](CardMemory& memory) {
      each_count(memory.stats, [](Count& count) { count.reset_sums(); });
      memory.stats.retries = memory.stats.ooms = memory.stats.syncs = 0;
      memory.stats.driver_allocations = memory.stats.driver_frees = 0;
    });
  }
  void resetPeakStats(c10::DeviceIndex card) {
    with(card, [](CardMemory& memory) { each_count(memory.stats, [](Count& count) { count.reset_peak(); }); });
  }

  template <typename Function>
  static void with(c10::DeviceIndex card, Function function) {
    Simulation* const all = simulation;
    TORCH_CHECK(all, "there is no simulated card");
    check_card(card);
    const std::lock_guard<std::mutex> lock(all->mutex);
    function(all->cards[static_cast<size_t>(card)]->memory());
  }

 private:
  static void copy(const Count& from, c10::CachingAllocator::Stat& into) {
    into.current = from.current;
    into.peak = from.peak;
    into.allocated = from.allocated;
    into.freed = from.freed;
  }
  template <typename Function>
  static void each_count(MemoryStats& stats, Function function) {
    for (auto& counts : stats.counts) {
      for (auto& count : counts) function(count);
    }
    function(stats.oversize_allocations);
    function(stats.oversize_segments);
  }
};

inline CardAllocator& allocator = *new CardAllocator;

bool has_values() {
  const Simulation* const all = simulation;
  return !all || all->values;
}
c10::Allocator& allocator_of_card() { return allocator; }
void use_on(const c10::DataPtr& data, c10::Stream stream) { allocator.recordStream(data, stream); }

}  // namespace cudamem
