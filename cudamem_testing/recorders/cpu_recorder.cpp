// The CPU recorder: an allocator around torch's CPU allocator that keeps a ledger of its blocks.
//
// install() installs it; from then on it allocates the storage of every CPU tensor, on any thread. It is loaded once and
// never unloaded: storages keep a pointer to the allocator and to the deleter for as long as they live.
//
// Rules that keep it safe
//   - The context of a DataPtr is the data pointer, so the deleter needs nothing but the address (oneDNN relies on
//     it too). The deleter of every block is ours, also of those handed out while passive: raw_deleter() requires that.
//   - One mutex guards the ledger and the stacks. Under it we neither call the allocator underneath nor drop a Python
//     reference. A block leaves the ledger before it is freed and enters after it is allocated, so no address is ever
//     live twice.
//   - Nothing here waits for the GIL (see cpu_stacks.h). Calls from Python keep it.
//   - A forked child starts passive: its allocations and frees are only passed on until it installs its own recorder.
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <cstring>
#include <mutex>
#include <string>
#include <typeinfo>

#include "cpu_ledger.h"
#include "cpu_mutex.h"
#include "cpu_stacks.h"
#include "journal.h"
#include "trap.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cudamem {
namespace {

enum Mode { kPassive, kRecording, kDraining };  // kDraining: uninstalled, but recorded blocks are still being freed

struct Shared {
  BriefMutex mutex;
  std::atomic<int> mode{kPassive};
  std::atomic<bool> gather{false};    // stacks are gathered: they are requested, and Python is running
  std::atomic<bool> limited{false};   // a limit or a trap is set
  std::atomic<uint64_t> stops[kStopCodes] = {};
  std::atomic<uint32_t> threads{0};
  std::atomic<c10::Allocator*> inner{nullptr};  // bound by the first install, forever
  std::atomic<c10::DeleterFnPtr> inner_free{nullptr};
  Python python = {};                 // written once, before `gather` is first set
  bool python_ready = false;
  CodeWatch code_watch;
  StackTable stacks;
  Trap trap;
  Ledger ledger;                      // last: its end is large and rarely touched
};

// Never destroyed: tensors may be freed after static destructors have run.
Shared& shared = *new Shared;
Journals& journals = *new Journals;

using Lock = std::lock_guard<BriefMutex>;

uint32_t thread_number() {
  thread_local uint32_t number = 0;
  if (C10_UNLIKELY(number == 0)) number = shared.threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

c10::Allocator& inner() { return *shared.inner.load(std::memory_order_acquire); }
c10::DeleterFnPtr inner_free() { return shared.inner_free.load(std::memory_order_acquire); }

// The stack of the calling thread; without frames if none are gathered or it has none.
Walk<kDepth> stack_here() {
  Walk<kDepth> stack;
  if (shared.gather.load(std::memory_order_acquire)) walk(shared.python, shared.stops, &stack);
  return stack;
}

// Called with the mutex held.
bool is_limited() { return shared.ledger.limit >= 0 || shared.trap.on(); }

// Its id; 0 for a stack without frames. Called with the mutex held.
uint32_t id_of(const Walk<kDepth>& stack) { return stack.depth ? shared.stacks.note(stack) : 0; }

void release(void* pointer) {
  if (C10_UNLIKELY(!pointer)) return;
  const int mode = shared.mode.load(std::memory_order_relaxed);
  if (C10_LIKELY(mode != kPassive)) {
    const uint32_t thread = thread_number();
    const Lock lock(shared.mutex);
    shared.ledger.freed(pointer, thread, mode == kRecording);
  }
  inner_free()(pointer);
}

// Room below the hard limit, reserved from the check until the block is in the ledger or has failed. The block is entered
// and the room released in one critical section: no other thread can count the room twice.
class Promise {
 public:
  explicit Promise(size_t size) {
    if (C10_LIKELY(!shared.limited.load(std::memory_order_relaxed))) return;
    const Walk<kDepth> stack = stack_here();
    int64_t allocated, limit;
    bool trapped;
    {
      const Lock lock(shared.mutex);
      trapped = shared.trap.springs(size, stack.frames, stack.depth);
      if (trapped) {
        shared.trap.trapped.stack = id_of(stack);
        shared.trap.trapped.thread = thread_number();
      } else if (shared.ledger.admits(size)) {
        size_ = static_cast<int64_t>(size);
        shared.ledger.promised += size_;
        return;
      }
    }
    // Programs that retry match torch's messages, which differ for a card and for the CPU's allocator.
    if (trapped) {
      throw c10::OutOfMemoryError(
          "CPU out of memory. DefaultCPUAllocator: can't allocate memory: you tried to allocate " +
              std::to_string(size) + " bytes (made to fail by cudamem)",
          nullptr);
    }
    {
      const Lock lock(shared.mutex);
      shared.ledger.refuse(size, id_of(stack), thread_number());
      allocated = shared.ledger.refusal.allocated;
      limit = shared.ledger.refusal.limit;
    }
    // No streams and no C++ backtrace: if the compiler links its own standard library into this one, numbers written to a
    // stream would use torch's copy of the locale and crash.
    throw c10::OutOfMemoryError(
        "CPU out of memory. Tried to allocate " + std::to_string(size) + " bytes with " + std::to_string(allocated) +
            " bytes allocated, over cudamem's limit of " + std::to_string(limit) + " bytes",
        nullptr);
  }
  ~Promise() {
    if (C10_LIKELY(size_ == 0)) return;
    const Lock lock(shared.mutex);
    shared.ledger.promised -= size_;
  }
  // Called with the mutex held.
  void keep(void* pointer, size_t size, uint32_t stack, uint32_t thread, bool grad) {
    shared.ledger.allocated(pointer, size, stack, thread, grad);
    if (C10_LIKELY(size_ == 0)) return;
    shared.ledger.promised -= size_;
    size_ = 0;
  }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

 private:
  int64_t size_ = 0;
};

class Recorder final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const bool recording = shared.mode.load(std::memory_order_relaxed) == kRecording;
    if (C10_UNLIKELY(!recording)) return adopt(inner().allocate(size));
    Promise promise(size);
    c10::DataPtr data = inner().allocate(size);
    void* const pointer = data.get();
    // Empty tensors have no block; a block with another deleter could not be followed.
    if (C10_UNLIKELY(!pointer || data.get_deleter() != inner_free())) return data;
    record(pointer, size, promise);
    return adopt(std::move(data));
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get() == data.get_context(); }

  void copy_data(void* target, const void* source, std::size_t count) const override {
    inner().copy_data(target, source, count);
  }

 private:
  static c10::DataPtr adopt(c10::DataPtr data) {
    (void)data.compare_exchange_deleter(inner_free(), &release);
    return data;
  }

  static void record(void* pointer, size_t size, Promise& promise) {
    const uint32_t thread = thread_number();
    const bool grad = c10::GradMode::is_enabled();
    const Walk<kDepth> stack = stack_here();
    const Lock lock(shared.mutex);
    promise.keep(pointer, size, id_of(stack), thread, grad);
  }
};

Recorder& recorder = *new Recorder;

void before_fork() { shared.mutex.lock(); }
void after_fork_in_parent() { shared.mutex.unlock(); }
void after_fork_in_child() {
  shared.mode.store(kPassive, std::memory_order_relaxed);
  shared.limited.store(false, std::memory_order_relaxed);
  shared.mutex.unlock();
}
const int at_fork = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

// Registers without raising the priority that torch keeps for the allocator (it can be neither read nor lowered): the
// first accepted one is the current one, so others can register as before.
bool put_in_place(c10::Allocator* allocator) {
  for (int priority = 0; priority < 256 && c10::GetCPUAllocator() != allocator; ++priority) {
    c10::SetCPUAllocator(allocator, static_cast<uint8_t>(priority));
  }
  return c10::GetCPUAllocator() == allocator;
}

}  // namespace
}  // namespace cudamem

using namespace cudamem;

enum Installed { kInPlace = 1, kNoRawDeleter = -1, kForeignOnTop = -2, kSecondCopy = -3 };

EXPORT int32_t cudamem_install() {
  c10::Allocator* const current = c10::GetCPUAllocator();
  if (current != &recorder) {
    c10::Allocator* const bound = shared.inner.load();
    if (bound && current != bound) return kForeignOnTop;  // it may call us: never wrap it
    if (!bound) {
      if (!current->raw_deleter()) return kNoRawDeleter;
      if (std::strcmp(typeid(*current).name(), typeid(recorder).name()) == 0) return kSecondCopy;
      shared.inner_free.store(current->raw_deleter());
      shared.inner.store(current);
    }
    if (!put_in_place(&recorder)) return kForeignOnTop;
  }
  const Lock lock(shared.mutex);
  if (shared.mode.load() == kPassive) shared.ledger.forget();
  shared.limited.store(is_limited());
  shared.mode.store(kRecording);
  return kInPlace;
}

EXPORT void cudamem_uninstall() {
  if (c10::GetCPUAllocator() == &recorder) put_in_place(shared.inner.load());
  if (shared.mode.load() == kRecording) shared.mode.store(kDraining);
}

namespace {
bool is_installed() { return shared.mode.load() == kRecording && c10::GetCPUAllocator() == &recorder; }
}  // namespace

EXPORT int32_t cudamem_is_installed() { return is_installed(); }

EXPORT int32_t cudamem_acquire_slot() {
  const Lock lock(shared.mutex);
  return shared.ledger.acquire_slot();
}

EXPORT int32_t cudamem_release_slot(int32_t slot) {
  const Lock lock(shared.mutex);
  return shared.ledger.release_slot(slot);
}

// Reads what an observer sees; returns 0 without such an observer.
EXPORT int32_t cudamem_read(int32_t slot, int32_t reset, Reading* now) {
  const Lock lock(shared.mutex);
  return shared.ledger.read(slot, reset != 0, now);
}

EXPORT uint32_t cudamem_new_owner() {
  const Lock lock(shared.mutex);
  return shared.ledger.new_owner();
}

EXPORT int32_t cudamem_owner_totals(uint32_t owner, OwnerTotals* out) {
  const Lock lock(shared.mutex);
  if (!shared.ledger.is_owner(owner)) return 0;
  *out = shared.ledger.totals_of(owner);
  return 1;
}

// Copies the live blocks of an owner (of all if it is below 0) while there is room; returns how many there are.
EXPORT uint64_t cudamem_scan(int64_t owner, Block* out, uint64_t room) {
  const Lock lock(shared.mutex);
  const BlockTable& blocks = shared.ledger.blocks;
  if (owner >= 0 && !shared.ledger.is_owner(owner)) return 0;
  const uint64_t expected = owner < 0 ? blocks.size() : shared.ledger.totals_of(static_cast<uint32_t>(owner)).blocks;
  if (expected > room) return expected;
  uint64_t count = 0;
  for (uint64_t i = 0; count < expected && i < blocks.capacity(); ++i) {
    const Block& block = blocks.at(i);
    if (block.pointer && (owner < 0 || block.owner == owner)) out[count++] = block;
  }
  return count;
}

// Copies the live block at an address; returns 0 if there is none.
EXPORT int32_t cudamem_block_at(uint64_t pointer, Block* out) {
  const Lock lock(shared.mutex);
  const Block* const block = shared.ledger.blocks.find(pointer);
  if (!block) return 0;
  *out = *block;
  return 1;
}

// Sets how Python's frames are read; null before Python ends, so that no more stacks are gathered.
EXPORT void cudamem_set_python(const Python* python) {
  const Lock lock(shared.mutex);
  if (python && !shared.python.this_thread_state) shared.python = *python;
  shared.python_ready = python != nullptr;
  if (!python) shared.gather.store(false);
}

// Switches stacks and events on or off; stacks need set_python first. Returns what was on before: 1 for stacks, plus 2
// for events. The caller holds the GIL.
EXPORT int32_t cudamem_set_recording(int32_t stacks, int32_t events) {
  const Lock lock(shared.mutex);
  const int32_t before = (shared.gather.load() ? 1 : 0) + (shared.ledger.log_events ? 2 : 0);
  shared.ledger.log_events = events != 0;
  if (stacks != 0 && shared.python_ready) {
    shared.code_watch.start(shared.python.free_slot, [](void* code) { free_code(shared, code); });
  }
  shared.gather.store(stacks != 0 && shared.python_ready, std::memory_order_release);
  return before;
}

// Sets the code objects before whose first frame stacks end. The caller holds the GIL. `codes` has room for kStopCodes; on
// return it has the `*count` earlier ones, whose references the caller then owns.
EXPORT void cudamem_swap_stop_codes(uint64_t* codes, uint32_t* count) {
  uint64_t earlier[kStopCodes];
  uint32_t earlier_count = 0;
  for (uint32_t i = 0; i < *count; ++i) shared.python.keep(reinterpret_cast<void*>(codes[i]));
  for (uint32_t i = 0; i < kStopCodes; ++i) {
    const uint64_t old = shared.stops[i].exchange(i < *count ? codes[i] : 0);
    if (old) earlier[earlier_count++] = old;
  }
  std::memcpy(codes, earlier, earlier_count * sizeof(uint64_t));
  *count = earlier_count;
}

// Copies a stack, innermost frame first, with a new reference to each code object for the caller, who holds the GIL.
EXPORT uint32_t cudamem_stack(uint32_t id, Frame* out) {
  const Lock lock(shared.mutex);
  const StackTable::Stack* stack = shared.stacks.get(id);
  if (!stack) return 0;
  for (uint32_t i = 0; i < stack->depth; ++i) {
    out[i] = stack->frames[i];
    shared.python.keep(reinterpret_cast<void*>(out[i].code));
  }
  return stack->depth;
}

EXPORT void cudamem_stack_counts(uint64_t* out) {
  const Lock lock(shared.mutex);
  out[0] = shared.stacks.size();
  out[1] = shared.stacks.overflow;
}

// Drops stacks to which no live block, event in the ring, last refusal or trap refers. The caller holds the GIL.
EXPORT uint64_t cudamem_trim_stacks() {
  StackTable::Gone gone;
  {
    const Lock lock(shared.mutex);
    const BlockTable& blocks = shared.ledger.blocks;
    for (uint64_t i = 0; i < blocks.capacity(); ++i) {
      if (blocks.at(i).pointer) shared.stacks.mark(blocks.at(i).stack);
    }
    const EventRing& events = shared.ledger.events;
    for (uint64_t i = events.first(); i < events.total(); ++i) shared.stacks.mark(events.at(i).stack);
    shared.stacks.mark(shared.ledger.refusal.stack);
    shared.stacks.mark(shared.trap.trapped.stack);
    gone = shared.stacks.take_unmarked();
  }
  return gone.drop(shared.python);
}

EXPORT int64_t cudamem_restart_events(uint64_t capacity) {
  const Lock lock(shared.mutex);
  return shared.ledger.events.restart(capacity) ? static_cast<int64_t>(shared.ledger.events.total()) : -1;
}

EXPORT uint64_t cudamem_events_capacity() {
  const Lock lock(shared.mutex);
  return shared.ledger.events.capacity();
}

// Copies events from index `from` on (or from the first kept one) while there is room; sets which were kept and where it
// began.
EXPORT uint64_t cudamem_events(uint64_t from, Event* out, uint64_t room, uint64_t* first, uint64_t* total) {
  const Lock lock(shared.mutex);
  const EventRing& events = shared.ledger.events;
  *first = events.first();
  *total = events.total();
  if (from < *first) from = *first;
  uint64_t count = 0;
  const Clock::Translation nanoseconds = events.clock();
  for (; count < room && from + count < *total; ++count) {
    out[count] = events.at(from + count);
    out[count].time = nanoseconds(out[count].time);
  }
  return count;
}

EXPORT int64_t cudamem_set_limit(int64_t limit) {
  const Lock lock(shared.mutex);
  const int64_t before = shared.ledger.limit;
  shared.ledger.limit = limit;
  shared.limited.store(is_limited());
  return before;
}

// Returns 0 if a trap is already set: there is only one.
EXPORT int32_t cudamem_set_trap(uint64_t above, uint64_t nth, int32_t every, const Place* places, uint32_t count) {
  const Lock lock(shared.mutex);
  if (shared.trap.on()) return 0;
  shared.trap.set(above, nth, every != 0, places, count);
  shared.limited.store(true);
  return 1;
}

EXPORT void cudamem_clear_trap() {
  const Lock lock(shared.mutex);
  shared.trap.clear();
  shared.limited.store(is_limited());
}

EXPORT void cudamem_trapped(Trapped* out) {
  const Lock lock(shared.mutex);
  *out = shared.trap.trapped;
}

EXPORT void cudamem_refusal(Refusal* out) {
  const Lock lock(shared.mutex);
  *out = shared.ledger.refusal;
}

EXPORT uint32_t cudamem_thread() { return thread_number(); }

#include "boundaries.h"
#include "cpu_functions.h"
#include "device_functions.h"
#include "journal_calls.h"
