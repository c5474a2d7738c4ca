// The ledger of the CPU recorder: live blocks and their owners, peaks, and events.
//
// Nothing here locks, allocates tensors or uses Python. Every member function is called with the recorder's mutex held,
// so the counters, the peak and the order of events are exact with any number of threads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include <sys/mman.h>
#include <time.h>

namespace cudamem {

// Records cross the C boundary unchanged: fixed widths, no implicit padding.
struct Block {
  uint64_t pointer, size, sequence;
  uint32_t stack, owner, thread, unused;
};

enum EventKind : uint32_t { kAllocated = 0, kFreed = 1, kRefused = 2 };

struct Event {
  uint64_t pointer, size, sequence;
  int64_t time;  // ticks in the ring, nanoseconds of the monotonic clock for the reader
  uint32_t stack, owner, thread;
  uint16_t kind, grad;  // grad: whether the thread's grad mode was on when it allocated
};

// `own` is like `allocated`, but frees of other owners' blocks do not lower it: it counts what the current owner allocates,
// and frees of that.
struct Reading {
  int64_t allocated, peak, own, own_peak;
  uint64_t peak_event, events, allocations, live_blocks, allocated_total, unknown_frees, refusals;
};

struct OwnerTotals {
  int64_t bytes;
  uint64_t blocks, allocations;
};

struct Refusal {
  uint64_t count, size, event;
  int64_t allocated, limit;
  uint32_t stack, thread;
};

// Open addressing with linear probing and backward-shift deletion: no tombstones, so probes stay short and the table does
// not grow however long a program allocates and frees. (Knuth, TAOCP 6.4, algorithm R.)
class BlockTable {
 public:
  BlockTable() : slots_(allocate(kFirst)), mask_(kFirst - 1) {}

  uint64_t size() const { return used_; }
  uint64_t capacity() const { return mask_ + 1; }
  const Block& at(uint64_t index) const { return slots_[index]; }

  Block* find(uint64_t pointer) {
    for (uint64_t i = home(pointer); slots_[i].pointer; i = (i + 1) & mask_) {
      if (slots_[i].pointer == pointer) return &slots_[i];
    }
    return nullptr;
  }

  // Makes room for one more block. Only this step can fail, so it comes before anything is changed.
  void reserve_one() {
    if ((used_ + 1) * 5 <= capacity() * 3) return;
    const uint64_t old_capacity = capacity();
    Block* const old = slots_;
    slots_ = allocate(old_capacity * 2);
    mask_ = old_capacity * 2 - 1;
    for (uint64_t i = 0; i < old_capacity; ++i) {
      if (old[i].pointer) place(old[i]);
    }
    std::free(old);
  }

  void insert(const Block& block) {
    place(block);
    ++used_;
  }

  void erase(Block* block) {
    uint64_t hole = static_cast<uint64_t>(block - slots_);
    for (uint64_t i = (hole + 1) & mask_; slots_[i].pointer; i = (i + 1) & mask_) {
      // A block may move back into the hole unless its home is (cyclically) after the hole.
      if (((i - home(slots_[i].pointer)) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole].pointer = 0;
    --used_;
  }

  void clear() {
    for (uint64_t i = 0; i <= mask_; ++i) slots_[i].pointer = 0;
    used_ = 0;
  }

 private:
  static constexpr uint64_t kFirst = 256;  // small, so that few live blocks touch few pages

  static Block* allocate(uint64_t count) {
    void* memory = std::calloc(count, sizeof(Block));
    if (!memory) throw std::bad_alloc();
    return static_cast<Block*>(memory);
  }

  uint64_t home(uint64_t pointer) const { return ((pointer >> 6) * 0x9E3779B97F4A7C15ull >> 20) & mask_; }

  void place(const Block& block) {
    uint64_t i = home(block.pointer);
    while (slots_[i].pointer) i = (i + 1) & mask_;
    slots_[i] = block;
  }

  Block* slots_;
  uint64_t mask_, used_ = 0;
};

// Reading the clock would double the cost of an event, so events have the processor's counter, and readers convert it by
// linear interpolation between two moments at which both were read.
class Clock {
  struct Moment {
    int64_t ticks, ns;
  };

 public:
  static int64_t ticks() {
#if defined(__x86_64__)
    return static_cast<int64_t>(__builtin_ia32_rdtsc());
#else
    return nanoseconds();
#endif
  }

  void start() { start_ = now(); }

  class Translation {
   public:
    Translation(const Clock& clock) : start_(clock.start_), end_(now()) {
      const int64_t elapsed = end_.ticks - start_.ticks;
      rate_ = elapsed > 0 ? static_cast<double>(end_.ns - start_.ns) / static_cast<double>(elapsed) : 1.0;
    }
    int64_t operator()(int64_t ticks) const {
      return start_.ns + static_cast<int64_t>(static_cast<double>(ticks - start_.ticks) * rate_);
    }

   private:
    Moment start_, end_;
    double rate_;
  };

 private:
  static int64_t nanoseconds() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
  }
  static Moment now() { return {ticks(), nanoseconds()}; }

  Moment start_ = {};
};

// The last `capacity` events. Indices count every event since the process started, so an index of a peak stays valid; a
// reader sees from `first()` which events the ring no longer has.
class EventRing {
 public:
  uint64_t first() const { return total_ - start_ > capacity_ ? total_ - capacity_ : start_; }
  uint64_t total() const { return total_; }
  uint64_t capacity() const { return capacity_; }
  Clock::Translation clock() const { return Clock::Translation(clock_); }
  const Event& at(uint64_t index) const { return ring_[index % capacity_]; }

  // Pages are touched only as events arrive, and returned here if there are many.
  bool restart(uint64_t capacity) {
    if (capacity != capacity_ || total_ - start_ > kKeep) {
      void* memory = nullptr;
      if (capacity) {
        memory = mmap(nullptr, capacity * sizeof(Event), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
        if (memory == MAP_FAILED) return false;
      }
      if (ring_) munmap(ring_, capacity_ * sizeof(Event));
      ring_ = static_cast<Event*>(memory);
      capacity_ = capacity;
    }
    clock_.start();
    start_ = total_;
    cursor_ = capacity_ ? total_ % capacity_ : 0;
    return true;
  }

  void push(const Block& block, EventKind kind, uint32_t thread, bool grad = false) {
    if (!capacity_) return;
    ring_[cursor_] = {block.pointer, block.size,  block.sequence,              Clock::ticks(), block.stack,
                      block.owner,   thread,      static_cast<uint16_t>(kind), grad};
    if (++cursor_ == capacity_) cursor_ = 0;
    ++total_;
  }

 private:
  static constexpr uint64_t kKeep = 1 << 15;

  Event* ring_ = nullptr;
  uint64_t capacity_ = 0, start_ = 0, total_ = 0, cursor_ = 0;
  Clock clock_;
};

// Totals by owner, in chunks that never move. Owner 0 means no owner.
class Owners {
 public:
  uint32_t add() {
    if (count_ == kChunk * kChunks) return 0;
    if (count_ % kChunk == 0) {
      void* memory = std::calloc(kChunk, sizeof(OwnerTotals));
      if (!memory) return 0;
      chunks_[count_ / kChunk] = static_cast<OwnerTotals*>(memory);
    }
    return count_++;
  }
  uint32_t count() const { return count_; }
  OwnerTotals& at(uint32_t owner) { return chunks_[owner / kChunk][owner % kChunk]; }

 private:
  static constexpr uint32_t kChunk = 1024, kChunks = 1 << 14;  // 16 million owners

  OwnerTotals* chunks_[kChunks] = {};
  uint32_t count_ = 0;
};

struct Ledger {
  static constexpr int kSlots = 256;
  static constexpr int32_t kMostAcquired = INT32_MAX / kSlots;  // all bits of it are set

  // An observer with its own peak.
  struct Slot {
    bool taken;
    int64_t peak;
    uint64_t peak_event;
    int64_t own_peak;
    int32_t number;
  };

  // Fields that every allocation touches come first and close together, the two big arrays last: an operator takes some
  // hundred nanoseconds, so each further page that is touched is measurable.
  BlockTable blocks;
  bool log_events = false;
  EventRing events;
  int64_t limit = -1;
  int64_t promised = 0;  // admitted below the limit, not yet allocated by the allocator underneath
  Refusal refusal = {};

 private:
  uint32_t owner_ = 0;
  OwnerTotals current_ = {};  // of owner_, while it is the current owner
  int64_t allocated_ = 0, peak_ = 0, freed_of_others_ = 0, own_peak_ = 0;
  uint64_t peak_event_ = 0, allocations_ = 0, allocated_total_ = 0, unknown_frees_ = 0;
  int slots_end_ = 0;
  int32_t acquired_ = 0;  // how often one was acquired, in the bits that a number has for it
  Slot slots_[kSlots] = {};

  Owners owners_;

 public:
  Ledger() { owners_.add(); }

  uint32_t new_owner() { return owners_.add(); }
  bool is_owner(int64_t owner) const { return owner >= 0 && owner < static_cast<int64_t>(owners_.count()); }
  uint32_t owner() const { return owner_; }
  OwnerTotals& totals_of(uint32_t owner) { return owner == owner_ ? current_ : owners_.at(owner); }

  void set_owner(uint32_t owner) {
    owners_.at(owner_) = current_;
    owner_ = owner;
    current_ = owners_.at(owner);
  }

  void allocated(void* pointer, uint64_t size, uint32_t stack, uint32_t thread, bool grad = false) {
    const uint64_t key = reinterpret_cast<uint64_t>(pointer);
    blocks.reserve_one();
    // An address that is handed out again was freed without our deleter, which was replaced: close the old block.
    if (Block* old = blocks.find(key)) remove(old, thread);
    const Block block{key, size, ++allocations_, stack, owner_, thread, 0};
    blocks.insert(block);
    OwnerTotals& totals = totals_of(owner_);
    totals.bytes += static_cast<int64_t>(size);
    ++totals.blocks;
    ++totals.allocations;
    allocated_ += static_cast<int64_t>(size);
    allocated_total_ += size;
    if (log_events) events.push(block, kAllocated, thread, grad);
    if (allocated_ > peak_) {
      peak_ = allocated_;
      peak_event_ = events.total();
    }
    if (own() > own_peak_) own_peak_ = own();
  }

  void freed(void* pointer, uint32_t thread, bool count_unknown) {
    if (Block* block = blocks.find(reinterpret_cast<uint64_t>(pointer))) {
      remove(block, thread);
    } else if (count_unknown) {
      ++unknown_frees_;
    }
  }

  bool admits(uint64_t size) const {
    return limit < 0 || size == 0 ||
        (size <= static_cast<uint64_t>(limit) && allocated_ + promised <= limit - static_cast<int64_t>(size));
  }

  void refuse(uint64_t size, uint32_t stack, uint32_t thread) {
    if (log_events) events.push({0, size, 0, stack, owner_, thread, 0}, kRefused, thread);
    refusal = {refusal.count + 1, size, events.total(), allocated_, limit, stack, thread};
  }

  // The number of a free slot, or -1. It differs each time: whoever still reads a released one gets nothing, and does not
  // reset the peaks of the next observer.
  int32_t acquire_slot() {
    fold();
    for (int i = 0; i < kSlots; ++i) {
      if (slots_[i].taken) continue;
      acquired_ = (acquired_ + 1) & kMostAcquired;
      const int32_t number = acquired_ * kSlots + i;
      slots_[i] = {true, allocated_, events.total(), own(), number};
      if (i >= slots_end_) slots_end_ = i + 1;
      return number;
    }
    return -1;
  }

  bool release_slot(int32_t number) {
    Slot* const slot = slot_of(number);
    if (!slot) return false;
    slot->taken = false;
    while (slots_end_ > 0 && !slots_[slots_end_ - 1].taken) --slots_end_;
    return true;
  }

  bool read(int32_t number, bool reset, Reading* out) {
    Slot* const slot = slot_of(number);
    if (!slot) return false;
    fold();
    Slot& mine = *slot;
    *out = {allocated_,   mine.peak,     own(),            mine.own_peak,  mine.peak_event, events.total(),
            allocations_, blocks.size(), allocated_total_, unknown_frees_, refusal.count};
    if (reset) {
      mine.peak = allocated_;
      mine.peak_event = events.total();
      mine.own_peak = own();
    }
    return true;
  }

  // After a fork the child starts with an empty ledger: frees that it missed while passive would make the old one wrong.
  void forget() {
    blocks.clear();
    for (uint32_t i = 0; i < owners_.count(); ++i) totals_of(i) = {};
    allocated_ = promised = peak_ = freed_of_others_ = own_peak_ = 0;
    events.restart(events.capacity());
    peak_event_ = events.total();
    for (Slot& slot : slots_) slot.peak = slot.own_peak = 0;
  }

 private:
  int64_t own() const { return allocated_ + freed_of_others_; }

  void remove(Block* block, uint32_t thread) {
    OwnerTotals& totals = totals_of(block->owner);
    totals.bytes -= static_cast<int64_t>(block->size);
    --totals.blocks;
    allocated_ -= static_cast<int64_t>(block->size);
    if (block->owner != owner_) freed_of_others_ += static_cast<int64_t>(block->size);
    if (log_events) events.push(*block, kFreed, thread);
    blocks.erase(block);
  }

  // Null if it was released.
  Slot* slot_of(int32_t number) {
    if (number < 0) return nullptr;
    Slot& slot = slots_[number % kSlots];
    return slot.taken && slot.number == number ? &slot : nullptr;
  }

  // Copies the shared peak to every observer, so that a reset by one does not change the others.
  void fold() {
    for (int i = 0; i < slots_end_; ++i) {
      Slot& slot = slots_[i];
      if (!slot.taken) continue;
      if (peak_ > slot.peak) {
        slot.peak = peak_;
        slot.peak_event = peak_event_;
      }
      if (own_peak_ > slot.own_peak) slot.own_peak = own_peak_;
    }
    peak_ = allocated_;
    peak_event_ = events.total();
    own_peak_ = own();
  }
};

}  // namespace cudamem
