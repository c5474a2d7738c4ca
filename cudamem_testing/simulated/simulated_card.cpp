// A simulated card: CUDA for a torch that was built without it. See simulated/__init__.py for what it is.
//
// It is registered once and removed again: the guard of devices, the hooks with which torch calls CUDA, the allocators, the
// kernels. Functions of the public interface return 0 or more; no exception crosses it.
#include "card_hooks.h"
#include "card_rule_table.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cudamem;

namespace {

std::string& last_error = *new std::string;

CardMemory& memory_of(int64_t card) { return simulation.load()->cards.at(static_cast<size_t>(card))->memory(); }

template <typename Function>
int64_t safely(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace

struct Setup {
  int64_t count, total, beside, values, expandable, max_split, max_unsplit_rounding, blas, light, processors, hopper, ampere;
  double collect_above;
  int64_t divisions[kIntervals];
};

// Returns why the last call failed.
EXPORT const char* cudamem_card_error() { return last_error.c_str(); }

// Returns 0 if CUDA is available already, on a real or a simulated card.
EXPORT int64_t cudamem_card_enter(const Setup* setup) {
  return safely([&]() -> int64_t {
    if (simulation || c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) || at::detail::getCUDAHooks().hasCUDA()) {
      return 0;
    }
    MemorySettings settings;
    settings.expandable = setup->expandable != 0;
    if (setup->max_split > 0) settings.max_split = static_cast<size_t>(setup->max_split);
    if (setup->max_unsplit_rounding > 0) {
      settings.max_unsplit_rounding = static_cast<size_t>(setup->max_unsplit_rounding);
    }
    settings.collect_above = setup->collect_above;
    for (size_t at = 0; at < kIntervals; ++at) settings.divisions[at] = static_cast<size_t>(setup->divisions[at]);
    auto made = std::make_unique<Simulation>();
    made->values = setup->values != 0;
    made->beside = static_cast<size_t>(setup->beside);
    for (int64_t card = 0; card < setup->count; ++card) {
      made->cards.push_back(std::make_unique<Card>(static_cast<size_t>(setup->total), made->beside, made->values, settings));
    }
    workspaces.blas = static_cast<size_t>(setup->blas);
    workspaces.light = static_cast<size_t>(setup->light);
    processors = setup->processors;
    streams.cards = static_cast<int>(setup->count);
    current = Current();
    for (auto& generator : generators) generator = at::Generator();
    simulation = made.release();
    static auto* const guard = new CardGuard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)] = guard;
    put_hooks();
    c10::SetAllocator(c10::DeviceType::CUDA, &allocator, 1);
    name_host_allocator(&pinned);
    put_operators();
    choose_kernels(setup->hopper != 0, setup->ampere != 0);
    choose_profiler(true);
    return 1;
  });
}

// Resets all cards and their counters. Nothing is live on them.
EXPORT int64_t cudamem_card_renew() {
  return safely([]() -> int64_t {
    Simulation& all = *simulation.load();
    kernels_ran = false;
    for (auto& card : all.cards) card->renew();
    current = Current();
    return 1;
  });
}

// Removes everything again. Tensors that are still live keep their memory.
EXPORT int64_t cudamem_card_leave() {
  return safely([]() -> int64_t {
    workspaces.clear();
    Simulation* const all = simulation.exchange(nullptr);
    if (!all) return 0;
    take_operators_out();
    forget_kernels();
    choose_profiler(false);
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)] = nullptr;
    restore_hooks();
    c10::SetAllocator(c10::DeviceType::CUDA, nullptr, 1);
    streams.cards = 0;
    streams.wait();
    observers.clear();
    bool live = false;
    for (const auto& card : all->cards) live = live || card->memory().stats.counts[kActive][0].current > 0;
    if (live) {
      ended.push_back(all);
    } else {
      delete all;
    }
    return 1;
  });
}

EXPORT void cudamem_card_default_generator(int64_t card) { next_default = static_cast<int>(card); }
EXPORT int64_t cudamem_card_device() { return current.card; }
EXPORT int64_t cudamem_card_set_device(int64_t card) {
  return safely([&] {
    check_card(card);
    current.card = static_cast<c10::DeviceIndex>(card);
    return int64_t{0};
  });
}
EXPORT int64_t cudamem_card_stream(int64_t card) { return current.stream.at(static_cast<size_t>(card)); }
EXPORT void cudamem_card_set_stream(int64_t card, int64_t stream) { current.stream.at(static_cast<size_t>(card)) = stream; }
EXPORT int64_t cudamem_card_new_stream(int64_t card, int64_t high) {
  return streams.take(static_cast<int>(card), high != 0);
}
EXPORT void cudamem_card_sleep(double seconds) {
  streams.sleep(current.stream[static_cast<size_t>(current.card)], seconds);
}
// Sets whether tensors on the cards have values from now on.
EXPORT void cudamem_card_set_values(int64_t values) {
  if (Simulation* const all = simulation) all->values = values != 0;
}
EXPORT int64_t cudamem_card_values() { return has_values(); }
EXPORT void cudamem_card_wait() { streams.wait(); }

// Copies all counters of a card: four numbers for each of nine kinds and three pools, then those that have no pools.
EXPORT int64_t cudamem_card_stats(int64_t card, int64_t* into) {
  return safely([&] {
    CardAllocator::with(static_cast<c10::DeviceIndex>(card), [&](CardMemory& memory) {
      const auto put = [&](const Count& count) {
        *into++ = count.current;
        *into++ = count.peak;
        *into++ = count.allocated;
        *into++ = count.freed;
      };
      const MemoryStats& stats = memory.stats;
      for (const auto& counts : stats.counts) {
        for (const auto& count : counts) put(count);
      }
      put(stats.oversize_allocations);
      put(stats.oversize_segments);
      for (const int64_t value : {stats.retries, stats.ooms, stats.syncs, stats.driver_allocations, stats.driver_frees}) {
        *into++ = value;
      }
    });
    return int64_t{0};
  });
}
EXPORT void cudamem_card_reset_peaks(int64_t card) { allocator.resetPeakStats(static_cast<c10::DeviceIndex>(card)); }
EXPORT void cudamem_card_reset_sums(int64_t card) { allocator.resetAccumulatedStats(static_cast<c10::DeviceIndex>(card)); }
EXPORT void cudamem_card_clear_workspaces() { workspaces.clear(); }
EXPORT int64_t cudamem_card_radix_sort(int64_t count, int64_t key, int64_t value) {
  return radix_sort_bytes(count, key, value);
}
// Memory of a card that a kernel in Python uses while it runs; what it allocates last it frees first.
EXPORT int64_t cudamem_card_pass(int64_t card, const int64_t* wanted, int64_t count) {
  return safely([&] {
    const OnCard on(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(card)));
    passing({wanted, wanted + count});
    return int64_t{0};
  });
}
EXPORT void cudamem_card_empty() { allocator.emptyCache({0, 0}); }
EXPORT void cudamem_card_set_fraction(int64_t card, double fraction) {
  CardAllocator::with(static_cast<c10::DeviceIndex>(card), [&](CardMemory& memory) { memory.set_fraction(fraction); });
}
EXPORT int64_t cudamem_card_free_memory(int64_t card) { return static_cast<int64_t>(memory_of(card).driver()->free()); }
EXPORT int64_t cudamem_card_take(int64_t card, int64_t size, int64_t stream, int64_t* at) {
  return safely([&] {
    *at = reinterpret_cast<int64_t>(take(static_cast<c10::DeviceIndex>(card), static_cast<size_t>(size), &stream));
    return int64_t{0};
  });
}
EXPORT void cudamem_card_give(int64_t at) { give(reinterpret_cast<void*>(at)); }
EXPORT void cudamem_card_observe(Observer observer) { observers.push_back(observer); }

// Sets the trap; returns 0 if one is set already or no card is simulated.
EXPORT int64_t cudamem_card_set_trap(int64_t card, uint64_t above, uint64_t nth, int32_t every, const Place* places,
                                     uint32_t count) {
  Simulation* const all = simulation;
  if (!all) return 0;
  const std::lock_guard<std::mutex> lock(all->mutex);
  if (all->trap.on()) return 0;
  all->trap_card = static_cast<c10::DeviceIndex>(card);
  all->trap.set(above, nth, every != 0, places, count);
  return 1;
}
EXPORT void cudamem_card_clear_trap() {
  Simulation* const all = simulation;
  if (!all) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  all->trap.clear();
}
EXPORT void cudamem_card_trapped(Trapped* out) {
  Simulation* const all = simulation;
  if (!all) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  *out = all->trap.trapped;
}
// Sets how Python's frames are read.
EXPORT void cudamem_card_set_python(const Python* given) { python = given ? *given : Python{}; }

EXPORT void cudamem_card_set_engine(uint64_t code) { engine_code = code; }

EXPORT void cudamem_card_pinned(int64_t* into) { pinned.put(into); }
EXPORT void cudamem_card_reset_pinned(int64_t peaks) { peaks ? pinned.reset_peak_stats() : pinned.reset_accumulated_stats(); }

// Sets how many events of a card the history keeps, and which records have stacks.
EXPORT void cudamem_card_record(int64_t on, int64_t stacks, int64_t most, int64_t clear) {
  Simulation* const all = simulation;
  if (!all) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  all->recording = on != 0;
  all->stacks = static_cast<Stacks>(stacks);
  for (const auto& card : all->cards) {
    if (clear || !on) card->memory().forget_events();
    card->memory().record(on ? static_cast<size_t>(most) : 0);
  }
}
EXPORT int64_t cudamem_card_recording() { return simulation && simulation.load()->recording; }

namespace {

// Copies a snapshot as numbers, and the frames of its stacks as text.
struct Snapshot {
  std::vector<int64_t> numbers;
  std::vector<Context> stacks;
  std::unordered_map<void*, int64_t> places;
  std::string text;

  int64_t stack(const Context& context) {
    if (!context) return -1;
    const auto [found, isnew] = places.emplace(context.get(), static_cast<int64_t>(stacks.size()));
    if (isnew) {
      stacks.push_back(context);
    }
    return found->second;
  }
  void put(std::initializer_list<int64_t> values) { numbers.insert(numbers.end(), values); }
};

Snapshot& snapshot = *new Snapshot;

}  // namespace

// Takes a snapshot; sets how many numbers and how many bytes of text it has.
EXPORT int64_t cudamem_card_snapshot(int64_t events, int64_t* sizes) {
  return safely([&] {
    Snapshot& now = snapshot;
    now = Snapshot();
    Simulation* const all = simulation;
    TORCH_CHECK(all, "there is no simulated card");
    {
      const std::lock_guard<std::mutex> lock(all->mutex);
      const auto pointer = [](const void* at) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at)); };
      for (const auto& card : all->cards) {
        const auto heads = card->memory().heads();
        now.put({static_cast<int64_t>(heads.size())});
        for (const Block* head : heads) {
          int64_t blocks = 0;
          for (const Block* block = head; block && block->mapped; block = block->after) ++blocks;
          now.put({pointer(head->at), head->stream, head->pool->is_small, head->range != nullptr, blocks});
          for (const Block* block = head; block && block->mapped; block = block->after) {
            const int64_t state = block->allocated ? 2 : block->is_free() ? 0 : 1;
            now.put({pointer(block->at), static_cast<int64_t>(block->size), static_cast<int64_t>(block->requested),
                     state, now.stack(block->context)});
          }
        }
        static const std::deque<Event> none;
        const auto& kept = events ? card->memory().events() : none;
        now.put({static_cast<int64_t>(kept.size())});
        for (const Event& event : kept) {
          const int64_t stack = all->stacks >= kOfAllocations ? now.stack(event.context) : -1;
          now.put({static_cast<int64_t>(event.action), event.address, event.size, event.stream, event.time_us, stack});
        }
        if (all->recording) card->memory().note(Action::snapshot, nullptr, 0, 0, nullptr);
      }
    }
    const torch::SymbolizedTracebacks found = frames_of(now.stacks);
    now.put({static_cast<int64_t>(found.all_frames.size())});
    for (const auto& frame : found.all_frames) {
      now.put({static_cast<int64_t>(frame.lineno)});
      now.text += frame.filename + '\0' + frame.funcname + '\0';
    }
    now.put({static_cast<int64_t>(found.tracebacks.size())});
    for (size_t at = 0; at < found.tracebacks.size(); ++at) {
      const auto& frames = found.tracebacks[at];
      now.put({ends_before_engine(now.stacks[at]), static_cast<int64_t>(frames.size())});
      for (const uint64_t frame : frames) now.put({static_cast<int64_t>(frame)});
    }
    sizes[0] = static_cast<int64_t>(now.numbers.size());
    sizes[1] = static_cast<int64_t>(now.text.size());
    return int64_t{0};
  });
}
EXPORT void cudamem_card_read_snapshot(int64_t* numbers, char* text) {
  std::memcpy(numbers, snapshot.numbers.data(), snapshot.numbers.size() * sizeof(int64_t));
  std::memcpy(text, snapshot.text.data(), snapshot.text.size());
  snapshot = Snapshot();
}
