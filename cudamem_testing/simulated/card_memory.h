// A model of CUDA's caching allocator for one card. It does what torch's does: which requests share a segment, what is
// split and merged, what is returned to the driver and when, and all counters. Sizes are bytes.
//
// The rules come from torch's documentation and from recordings of cards (fixtures/recordings): sizes in steps of 512;
// two pools, of requests up to 1 MiB and of larger ones; of the free blocks of a stream the smallest that fits, of equal
// ones the first in memory; segments of 2 MiB, of 20 MiB, or of the size in steps of 2 MiB; a remainder is split off if it
// is useful. Expandable segments map and unmap parts of one range of addresses instead.
//
// It is not thread-safe: callers hold a lock.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <set>
#include <unordered_map>
#include <tuple>
#include <utility>
#include <vector>

#include "card_driver.h"
#include "card_parts.h"

namespace cudamem {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr size_t kStep = 512, kSmallMost = kMiB, kSmallSegment = 2 * kMiB, kLargeSegment = 20 * kMiB;
constexpr size_t kOwnSegment = 10 * kMiB;  // requests of this size or more have their own segment
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
constexpr int kIntervals = 16;


struct MemorySettings {
  bool expandable = false;
  size_t max_split = kUnlimited;
  size_t max_unsplit_rounding = kLargeSegment;
  double collect_above = 0;  // a fraction of the allowed memory
  std::array<size_t, kIntervals> divisions = {};

  // The size of a request, rounded to the steps of blocks.
  size_t rounded(size_t size) const {
    if (size < kStep) return kStep;
    const size_t parts = divisions_of(size);
    if (parts > 1 && size > kStep * parts) return next_division(size, parts);
    return (size + kStep - 1) / kStep * kStep;
  }

 private:
  static int log2(size_t value) { return 63 - __builtin_clzll(value); }

  size_t divisions_of(size_t size) const {
    const int above = log2(size) - log2(kMiB);
    return divisions[static_cast<size_t>(std::clamp(above, 0, kIntervals - 1))];
  }

  static size_t next_division(size_t size, size_t parts) {
    if ((size & (size - 1)) == 0) return size;
    const size_t power = size_t{1} << log2(size);
    const size_t step = power >> log2(parts);
    if (!step) return power << 1;
    return (size + step - 1) / step * step;
  }
};

// A counter as torch shows it.
struct Count {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void add(int64_t value) {
    current += value;
    peak = std::max(peak, current);
    if (value > 0) allocated += value;
    if (value < 0) freed -= value;
  }
  void reset_peak() { peak = current; }
  void reset_sums() { allocated = freed = 0; }
};

using Counts = std::array<Count, 3>;  // of all, the small pool, the large pool

enum Counted {
  kAllocation,
  kSegment,
  kActive,
  kInactiveSplit,
  kAllocatedBytes,
  kReservedBytes,
  kActiveBytes,
  kInactiveSplitBytes,
  kRequestedBytes,
  kCountedKinds
};

struct MemoryStats {
  std::array<Counts, kCountedKinds> counts;
  Count oversize_allocations, oversize_segments;
  int64_t retries = 0, ooms = 0, syncs = 0, driver_allocations = 0, driver_frees = 0;
};

enum class Action : int64_t { alloc, free_requested, free_completed, segment_alloc, segment_free, map, unmap, snapshot, oom };

struct Event {
  Action action;
  int64_t address, size;
  StreamId stream;
  int64_t time_us;
  Context context;
};

struct Range {  // of addresses, of which parts are mapped
  char* at;
  size_t size, step;
};

struct Pool;

struct Block {
  StreamId stream;
  size_t size;
  char* at;
  Pool* pool;
  size_t requested = 0;
  Block *before = nullptr, *after = nullptr;
  Range* range = nullptr;
  bool mapped = true, allocated = false;
  int waiting = 0;  // events of other streams that a free waits for
  std::vector<StreamId> users;
  int64_t age_from = 0;
  Context context;

  bool is_split() const { return before || after; }
  bool is_free() const { return !allocated && !waiting && users.empty(); }
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->at < b->at;
  }
};
struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->at < b->at;
  }
};

struct Pool {
  explicit Pool(bool small) : is_small(small) {}
  const bool is_small;
  std::set<Block*, BySize> blocks;
  std::set<Block*, ByAddress> unmapped;
  int64_t searches = 0;

  void insert(Block* block) {
    block->age_from = searches;
    blocks.insert(block);
  }
  int64_t age(const Block* block) const { return searches - block->age_from; }
};

// Whether a stream has done all work that was queued so far.
using IsIdle = bool (*)(StreamId);

class CardMemory {
 public:
  CardMemory(Driver* driver, MemorySettings settings, IsIdle is_idle)
      : driver_(driver), settings_(settings), is_idle_(is_idle), allowed_(driver->total()) {}
  CardMemory(const CardMemory&) = delete;

  ~CardMemory() {
    std::set<Block*> all;
    for (auto& [at, block] : active_) all.insert(block);
    for (Pool* pool : {&large_, &small_}) {
      all.insert(pool->blocks.begin(), pool->blocks.end());
      all.insert(pool->unmapped.begin(), pool->unmapped.end());
    }
    for (Block* block : all) {
      if (!block->range && !block->before) driver_->give(block->at, whole(block));
    }
    for (auto& range : ranges_) driver_->release(range->at, range->size);
    for (Block* block : all) delete block;
  }

  // A block for a request; null if there is no room even after all cached memory was returned.
  Block* allocate(size_t requested, StreamId stream, Context context) {
    finish_events(false);
    const size_t size = settings_.rounded(requested);
    Pool& pool = size <= kSmallMost ? small_ : large_;
    const Request request{size, segment_size(size), stream, &pool, context};
    Block* block = find(request);
    if (!block) {
      if (limited_ && settings_.collect_above > 0) collect_old(context);
      block = grow(request, false);
      if (!block && release_oversize(request)) block = grow(request, false);
      if (!block) {
        release_cached(context);
        block = grow(request, true);
      }
    }
    if (!block) {
      ++stats.ooms;
      return nullptr;
    }
    return use(block, requested, request);
  }

  void free(Block* block, Context context) {
    block->allocated = false;
    add(block->pool, kAllocation, -1);
    add(block->pool, kAllocatedBytes, -static_cast<int64_t>(block->size));
    note(Action::free_requested, block->at, block->requested, block->stream, context ? context : block->context);
    if (block->size >= settings_.max_split) stats.oversize_allocations.add(-1);
    if (block->users.empty()) {
      free_now(block, context);
      return;
    }
    for (const StreamId user : block->users) {
      ++block->waiting;
      events_.emplace_back(user, block);
    }
    block->users.clear();
  }

  // The block is used on another stream: its free waits for that.
  void use_on(Block* block, StreamId stream) {
    if (stream == block->stream) return;
    if (std::find(block->users.begin(), block->users.end(), stream) == block->users.end()) {
      block->users.push_back(stream);
    }
  }

  Block* block_at(const void* at) const {
    const auto found = active_.find(static_cast<char*>(const_cast<void*>(at)));
    return found == active_.end() ? nullptr : found->second;
  }

  void release_cached(const Context& context) {
    finish_events(true);
    release(large_, context);
    release(small_, context);
  }

  struct Adopted {
    char* at;
    size_t size, requested;
  };

  // Adds an existing segment, with its live blocks by address; memory between them is free. For replays, in which the driver
  // has counted it. Returns the live blocks, in their order.
  std::vector<Block*> adopt(char* at, size_t size, StreamId stream, bool small, bool expandable,
                            const std::vector<Adopted>& live) {
    Pool& pool = small ? small_ : large_;
    Range* range = nullptr;
    if (expandable) {
      ranges_.push_back(std::make_unique<Range>(Range{at, size, small ? kSmallSegment : kLargeSegment}));
      range = ranges_.back().get();
    }
    Block* before = nullptr;
    const auto append = [&](char* start, size_t bytes) {
      auto* const block = new Block{stream, bytes, start, &pool};
      block->range = range;
      link(before, block, nullptr);
      return before = block;
    };
    std::vector<Block*> made, unused;
    char* place = at;
    for (const Adopted& one : live) {
      if (one.at > place) unused.push_back(append(place, static_cast<size_t>(one.at - place)));
      Block* const block = append(one.at, one.size);
      block->allocated = true;
      block->requested = one.requested;
      active_[block->at] = block;
      made.push_back(block);
      for (const auto& [counted, value] : {std::pair{kAllocation, size_t{1}}, std::pair{kActive, size_t{1}},
                                           std::pair{kAllocatedBytes, one.size}, std::pair{kActiveBytes, one.size},
                                           std::pair{kRequestedBytes, one.requested}}) {
        add(&pool, counted, static_cast<int64_t>(value));
      }
      place = one.at + one.size;
    }
    if (place < at + size) unused.push_back(append(place, static_cast<size_t>(at + size - place)));
    for (Block* block : unused) {
      pool.insert(block);
      if (!block->is_split() || block->range) continue;
      add(&pool, kInactiveSplit, 1);
      add(&pool, kInactiveSplitBytes, static_cast<int64_t>(block->size));
    }
    reserved_ += size;
    if (!range) add(&pool, kSegment, 1);
    add(&pool, kReservedBytes, static_cast<int64_t>(size));
    return made;
  }

  // The largest free block of the pool for large requests.
  size_t largest_free() const {
    size_t most = 0;
    for (const Block* block : large_.blocks) most = std::max(most, block->size);
    return most;
  }

  void set_fraction(double fraction) {
    allowed_ = static_cast<size_t>(fraction * static_cast<double>(driver_->total()));
    limited_ = true;
  }
  bool limited() const { return limited_; }
  size_t allowed() const { return allowed_; }
  size_t reserved() const { return reserved_; }
  Driver* driver() const { return driver_; }
  const MemorySettings& settings() const { return settings_; }

  // The blocks at the start of contiguous memory, by address.
  std::vector<const Block*> heads() const {
    std::vector<const Block*> found;
    const auto look = [&](const Block* block) {
      if (block->mapped && !(block->before && block->before->mapped)) found.push_back(block);
    };
    for (const auto& [at, block] : active_) look(block);
    for (const Pool* pool : {&large_, &small_}) {
      for (const Block* block : pool->blocks) look(block);
    }
    std::sort(found.begin(), found.end(), [](const Block* a, const Block* b) { return a->at < b->at; });
    return found;
  }

  // Keep up to `most` events from here on; 0: none.
  void record(size_t most) {
    most_events_ = most;
    if (!most) events_kept_.clear();
  }
  void forget_events() { events_kept_.clear(); }
  const std::deque<Event>& events() const { return events_kept_; }
  void note(Action action, const void* at, size_t size, StreamId stream, Context context) {
    if (!most_events_) return;
    if (events_kept_.size() >= most_events_) events_kept_.pop_front();
    using namespace std::chrono;
    const int64_t now = duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at));
    events_kept_.push_back({action, address, static_cast<int64_t>(size), stream, now, std::move(context)});
  }

  MemoryStats stats;

 private:
  struct Request {
    size_t size, segment;
    StreamId stream;
    Pool* pool;
    const Context& context;
  };

  static size_t segment_size(size_t size) {
    if (size <= kSmallMost) return kSmallSegment;
    if (size < kOwnSegment) return kLargeSegment;
    return (size + kGrain - 1) / kGrain * kGrain;
  }

  static size_t whole(const Block* block) {
    size_t size = 0;
    for (; block; block = block->after) size += block->size;
    return size;
  }

  void add(const Pool* pool, Counted counted, int64_t value) {
    stats.counts[counted][0].add(value);
    stats.counts[counted][pool->is_small ? 1 : 2].add(value);
  }

  // --- requests ---

  Block* find(const Request& request) {
    Pool& pool = *request.pool;
    if (limited_ && settings_.collect_above > 0) ++pool.searches;
    Block key{request.stream, request.size, nullptr, &pool};
    auto found = pool.blocks.lower_bound(&key);
    if (found == pool.blocks.end() || (*found)->stream != request.stream) return nullptr;
    if ((*found)->range) {  // a block at the end of the mapped part counts with all that it can grow to
      const auto room = [](const Block* block) {
        return block->size + (block->after && !block->after->mapped ? block->after->size : 0);
      };
      for (auto next = std::next(found); (*found)->range && next != pool.blocks.end() &&
                                         (*next)->stream == request.stream && room(*next) < room(*found);
           ++next) {
        found = next;
      }
    }
    Block* const block = *found;
    const size_t limit = settings_.max_split;
    if (request.size < limit && block->size >= limit) return nullptr;
    if (request.size >= limit && block->size >= request.size + settings_.max_unsplit_rounding) return nullptr;
    pool.blocks.erase(found);
    return block;
  }

  Block* grow(const Request& request, bool again) {
    if (again) ++stats.retries;
    if (limited_ && reserved_ + request.segment > allowed_) return nullptr;
    if (settings_.expandable) return expand(request);
    char* const at = driver_->take(request.segment);
    if (!at) return nullptr;
    reserved_ += request.segment;
    auto* const block = new Block{request.stream, request.segment, at, request.pool};
    add(request.pool, kSegment, 1);
    add(request.pool, kReservedBytes, static_cast<int64_t>(request.segment));
    if (request.segment >= settings_.max_split) stats.oversize_segments.add(1);
    ++stats.driver_allocations;
    note(Action::segment_alloc, at, request.segment, request.stream, request.context);
    return block;
  }

  bool should_split(const Block* block, size_t size) const {
    const size_t rest = block->size - size;
    if (block->pool->is_small || settings_.expandable) return rest >= kStep;
    return size < settings_.max_split && rest > kSmallMost;
  }

  Block* use(Block* block, size_t requested, const Request& request) {
    Pool* const pool = request.pool;
    const bool was_split = block->is_split();
    if (should_split(block, request.size)) {
      Block* const rest = block;
      block = new Block{request.stream, request.size, rest->at, pool};
      block->range = rest->range;
      block->before = rest->before;
      if (block->before) block->before->after = block;
      block->after = rest;
      rest->before = block;
      rest->at += request.size;
      rest->size -= request.size;
      pool->insert(rest);
      if (!block->range) {
        if (was_split) {
          add(pool, kInactiveSplitBytes, -static_cast<int64_t>(block->size));
        } else {
          add(pool, kInactiveSplitBytes, static_cast<int64_t>(rest->size));
          add(pool, kInactiveSplit, 1);
        }
      }
    } else if (was_split && !block->range) {
      add(pool, kInactiveSplitBytes, -static_cast<int64_t>(block->size));
      add(pool, kInactiveSplit, -1);
    }
    block->allocated = true;
    block->requested = requested;
    block->context = request.context;
    note(Action::alloc, block->at, requested, block->stream, request.context);
    active_[block->at] = block;
    add(pool, kAllocation, 1);
    add(pool, kAllocatedBytes, static_cast<int64_t>(block->size));
    add(pool, kActive, 1);
    add(pool, kActiveBytes, static_cast<int64_t>(block->size));
    add(pool, kRequestedBytes, static_cast<int64_t>(block->requested));
    if (block->size >= settings_.max_split) stats.oversize_allocations.add(1);
    return block;
  }

  // --- frees ---

  void free_now(Block* block, const Context& context) {
    note(Action::free_completed, block->at, block->requested, block->stream, context ? context : block->context);
    block->context.reset();
    const auto size = static_cast<int64_t>(block->size);
    const auto requested = static_cast<int64_t>(block->requested);
    active_.erase(block->at);
    int64_t pieces = 0, bytes = 0;
    for (Block* other : {block->before, block->after}) {
      if (const size_t merged = merge(block, other)) {
        --pieces;
        bytes -= static_cast<int64_t>(merged);
      }
    }
    block->pool->insert(block);
    if (block->is_split()) {
      ++pieces;
      bytes += static_cast<int64_t>(block->size);
    }
    if (!block->range) {
      add(block->pool, kInactiveSplit, pieces);
      add(block->pool, kInactiveSplitBytes, bytes);
    }
    add(block->pool, kActive, -1);
    add(block->pool, kActiveBytes, -size);
    add(block->pool, kRequestedBytes, -requested);
  }

  // Merges a free neighbour into a block; returns its bytes.
  static size_t merge(Block* into, Block* other) {
    if (!other || !other->is_free() || into->mapped != other->mapped) return 0;
    if (other->mapped) {
      other->pool->blocks.erase(other);
    } else {
      other->pool->unmapped.erase(other);
    }
    if (into->before == other) {
      into->at = other->at;
      into->before = other->before;
      if (into->before) into->before->after = into;
    } else {
      into->after = other->after;
      if (into->after) into->after->before = into;
    }
    const size_t size = other->size;
    into->size += size;
    delete other;
    return size;
  }

  // Frees blocks that waited for streams which have done their work, or all of them.
  void finish_events(bool all) {
    if (all) ++stats.syncs;
    for (auto event = events_.begin(); event != events_.end();) {
      if (!all && !is_idle_(event->first)) {
        ++event;
        continue;
      }
      Block* const block = event->second;
      event = events_.erase(event);
      if (--block->waiting == 0) free_now(block, nullptr);
    }
  }

  // --- memory that is returned to the driver ---

  void release(Block* block, const Context& context) {
    note(Action::segment_free, block->at, block->size, block->stream, context);
    driver_->give(block->at, block->size);
    reserved_ -= block->size;
    ++stats.driver_frees;
    add(block->pool, kSegment, -1);
    add(block->pool, kReservedBytes, -static_cast<int64_t>(block->size));
    if (block->size >= settings_.max_split) stats.oversize_segments.add(-1);
    block->pool->blocks.erase(block);
    delete block;
  }

  void release(Pool& pool, const Context& context) {
    std::vector<Block*> filled;
    for (auto next = pool.blocks.begin(); next != pool.blocks.end();) {
      Block* const block = *next++;
      if (block->range) {
        filled.push_back(block);
      } else if (!block->is_split()) {
        release(block, context);
      }
    }
    for (Block* block : filled) {
      shrink(block, context);
      if (!block->is_split() && !block->mapped) release_range(block);
    }
  }

  // If the size of blocks that are split is limited: returns a larger block to the driver, or as many as needed.
  bool release_oversize(const Request& request) {
    if (settings_.max_split == kUnlimited) return false;
    Pool& pool = *request.pool;
    Block key{request.stream, std::max(request.size, settings_.max_split), nullptr, &pool};
    auto found = pool.blocks.lower_bound(&key);
    if (found != pool.blocks.end() && (*found)->stream == request.stream && !(*found)->range) {
      release(*found, request.context);
      return true;
    }
    if (found == pool.blocks.begin()) return false;
    size_t released = 0;
    --found;
    while (released < key.size && (*found)->size >= settings_.max_split && (*found)->stream == request.stream) {
      const auto each = found;
      const bool first = each == pool.blocks.begin();
      if (!first) --found;
      if (!(*each)->range) {
        released += (*each)->size;
        release(*each, request.context);
      }
      if (first) break;
    }
    return released >= key.size;
  }

  // Returns large segments that were not used for long, until reserved memory is below the threshold.
  void collect_old(const Context& context) {
    const auto threshold = static_cast<size_t>(settings_.collect_above * static_cast<double>(allowed_));
    if (reserved_ <= threshold) return;
    const size_t target = reserved_ - threshold;
    double ages = 0;
    int64_t number = 0;
    for (const Block* block : large_.blocks) {
      if (block->is_split()) continue;
      ages += static_cast<double>(large_.age(block));
      ++number;
    }
    size_t freed = 0;
    for (bool some = number > 0; some && freed < target && number > 0;) {
      const double oldest = ages / static_cast<double>(number);
      some = false;
      for (auto next = large_.blocks.begin(); next != large_.blocks.end();) {
        Block* const block = *next++;
        const auto age = static_cast<double>(large_.age(block));
        if (block->is_split() || block->range || age < oldest) continue;
        some = true;
        freed += block->size;
        ages -= age;
        --number;
        release(block, context);
      }
    }
  }

  // --- expandable segments ---

  Block* expand(const Request& request) {
    Block* block = room_for(request);
    if (!block || (!block->mapped && !fill(block, std::min(block->size, request.size), request.context))) {
      return nullptr;
    }
    while (block->size < request.size) {
      Block* const next = block->after;
      if (!fill(next, std::min(request.size - block->size, next->size), request.context)) return nullptr;
      block = next;
    }
    request.pool->blocks.erase(block);
    return block;
  }

  // The first range of the stream with room, or a new range.
  Block* room_for(const Request& request) {
    Pool& pool = *request.pool;
    Block key{request.stream, 0, nullptr, &pool};
    for (auto each = pool.unmapped.lower_bound(&key);
         each != pool.unmapped.end() && (*each)->stream == request.stream; ++each) {
      Block* block = *each;
      if (block->before && block->before->is_free()) block = block->before;
      size_t room = 0;
      for (const Block* next = block; room < request.size && next && next->is_free(); next = next->after) {
        room += next->size;
      }
      if (room >= request.size) return block;
    }
    const size_t step = pool.is_small ? kSmallSegment : kLargeSegment, total = driver_->total();
    const size_t size = (total + total / 8 + step - 1) / step * step;
    char* const at = driver_->reserve(size);
    if (!at) return nullptr;
    ranges_.push_back(std::make_unique<Range>(Range{at, size, step}));
    auto* const block = new Block{request.stream, size, at, &pool};
    block->mapped = false;
    block->range = ranges_.back().get();
    pool.unmapped.insert(block);
    return block;
  }

  bool fill(Block* block, size_t size, const Context& context) {
    const Range& range = *block->range;
    const size_t filled = (size + range.step - 1) / range.step * range.step;
    if (!driver_->fill(block->at, filled)) return false;
    Pool& pool = *block->pool;
    pool.unmapped.erase(block);
    block->mapped = true;
    if (filled < block->size) {
      auto* const rest = new Block{block->stream, block->size - filled, block->at + filled, &pool};
      rest->mapped = false;
      rest->range = block->range;
      link(block, rest, block->after);
      pool.unmapped.insert(rest);
      block->size = filled;
    }
    char* const at = block->at;
    merge(block, block->before);
    merge(block, block->after);
    pool.insert(block);
    reserved_ += filled;
    ++stats.driver_allocations;
    add(&pool, kReservedBytes, static_cast<int64_t>(filled));
    note(Action::map, at, filled, block->stream, context);
    return true;
  }

  void shrink(Block* block, const Context& context) {
    const Range& range = *block->range;
    const auto offset = static_cast<size_t>(block->at - range.at);
    const size_t first = (offset + range.step - 1) / range.step * range.step;
    const size_t end = (offset + block->size) / range.step * range.step;
    if (end <= first) return;
    Pool& pool = *block->pool;
    pool.blocks.erase(block);
    const size_t before = first - offset, filled = end - first, after = block->size - before - filled;
    for (const auto& [size, at, is_before] :
         {std::tuple{before, block->at, true}, std::tuple{after, block->at + before + filled, false}}) {
      if (!size) continue;
      auto* const rest = new Block{block->stream, size, at, &pool};
      rest->range = block->range;
      if (is_before) {
        link(block->before, rest, block);
      } else {
        link(block, rest, block->after);
      }
      pool.insert(rest);
    }
    block->at += before;
    block->size = filled;
    block->mapped = false;
    char* const at = block->at;
    driver_->empty(at, filled);
    merge(block, block->before);
    merge(block, block->after);
    pool.unmapped.insert(block);
    reserved_ -= filled;
    ++stats.driver_frees;
    add(&pool, kReservedBytes, -static_cast<int64_t>(filled));
    note(Action::unmap, at, filled, block->stream, context);
  }

  void release_range(Block* block) {
    block->pool->unmapped.erase(block);
    driver_->release(block->range->at, block->range->size);
    const auto gone = std::find_if(ranges_.begin(), ranges_.end(),
                                   [&](const auto& range) { return range.get() == block->range; });
    ranges_.erase(gone);
    delete block;
  }

  static void link(Block* before, Block* block, Block* after) {
    block->before = before;
    block->after = after;
    if (before) before->after = block;
    if (after) after->before = block;
  }

  Driver* const driver_;
  const MemorySettings settings_;
  const IsIdle is_idle_;
  size_t allowed_, reserved_ = 0;
  bool limited_ = false;
  Pool small_{true}, large_{false};
  std::unordered_map<char*, Block*> active_;
  std::deque<std::pair<StreamId, Block*>> events_;
  std::vector<std::unique_ptr<Range>> ranges_;
  size_t most_events_ = 0;
  std::deque<Event> events_kept_;
};

}  // namespace cudamem
