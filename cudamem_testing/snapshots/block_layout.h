// Finds the real sizes of freed blocks: the loop over the events of layout.py, which says why it is needed and how it
// works. Both must give the same sizes, also for damaged recordings.

#pragma once

#include "event_kinds.h"

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cudamem {

using Address = uint64_t;  // below 2**63, and all sizes together are below 2**60: no sum is too large
using Ranges = std::unordered_map<Address, Address>;
using Pair = std::pair<Address, Address>;

// Rules of sizes, as in rounding.py.
constexpr Address kSmallest = 512, kLargestSmall = 1 << 20;
constexpr uint64_t kMostCorrections = 200;

// As in native_replay.py.
struct LayoutJob {
  uint64_t events, ends;  // how many, and the kind that ends the life of a block
  const uint8_t* kinds;
  const Address* addresses;
  const Address* requested;
  const uint8_t* exact;  // whether the size of the block that an event allocated is known
  Address* sizes;
  uint64_t expandable, max_split;
  uint64_t ranges, borders, blocks, guesses;
  const Pair* range;  // free: start and end
  const Address* border;
  const Pair* block;  // in use: address and size
  const Pair* guess;  // end and address of blocks whose size is a guess
  Pair* corrected;    // address and size of such blocks
  uint64_t corrections;
};

class Layout {
 public:
  explicit Layout(LayoutJob& job)
      : job_(job),
        borders_(job.border, job.border + job.borders),
        taken_(job.block, job.block + job.blocks),
        guessed_(job.guess, job.guess + job.guesses) {
    for (uint64_t one = 0; one < job.ranges; ++one) add(job.range[one].first, job.range[one].second);
  }

  void replay() {
    for (uint64_t at = 0; at < job_.events; ++at) {
      const uint8_t kind = job_.kinds[at];
      const Address address = job_.addresses[at], size = job_.sizes[at];
      if (kind == kAlloc) {
        if (size > kLargestSmall) taken_[address] = job_.sizes[at] = take(address, size, job_.exact[at]);
      } else if (kind == job_.ends) {
        const auto found = taken_.find(address);
        if (found == taken_.end()) continue;
        const Address end = address + found->second;
        taken_.erase(found);
        if (end == address) continue;
        if (free_.count(end) || by_end_.count(address))
          give(address, end);
        else
          add(address, end);
      } else if (kind == kSegmentAlloc || kind == kSegmentMap) {
        if (kind == kSegmentAlloc) borders_.insert(address);
        give(address, address + job_.requested[at]);
      } else if (kind == kSegmentFree || kind == kSegmentUnmap) {
        const auto found = free_.find(address);
        if (found != free_.end() && found->second == address + job_.requested[at]) remove(found);
        if (kind == kSegmentFree) borders_.erase(address);
      }
    }
  }

 private:
  void add(Address start, Address end) {
    free_[start] = end;
    by_end_[end] = start;
  }

  void remove(Ranges::iterator range) {
    by_end_.erase(range->second);
    free_.erase(range);
  }

  // Cuts a block from the free range that begins at its address; its size with an unsplit remainder.
  Address take(Address address, Address size, bool exact) {
    Address end;
    const auto found = free_.find(address);
    if (found != free_.end()) {
      end = found->second;
      free_.erase(found);
    } else if (!correct(address, end)) {
      return size;
    }
    by_end_.erase(end);
    const Address room = end - address;
    if (room <= size) return size;
    if (!exact && !splits(room, size)) return room;
    add(address + size, end);
    return size;
  }

  bool splits(Address room, Address size) const {
    if (job_.expandable) return room - size >= kSmallest;
    return room - size > kLargestSmall && size < job_.max_split;
  }

  // Makes a range free, merged with its free neighbours of the same segment.
  void give(Address start, Address end) {
    const auto after = free_.find(end);
    if (after != free_.end() && !borders_.count(end)) {
      end = after->second;
      remove(after);
    }
    const auto before = by_end_.find(start);
    if (before != by_end_.end() && !borders_.count(start)) {
      start = before->second;
      by_end_.erase(before);
      free_.erase(start);
    }
    if (!free_.count(start) && !by_end_.count(end)) add(start, end);
  }

  // Handles a block inside a range assumed free: the block before it is larger than guessed.
  bool correct(Address address, Address& end) {
    if (guessed_.empty() || tried_ >= kMostCorrections) return false;
    ++tried_;
    auto range = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one)
      if (one->first < address && (range == free_.end() || one->first > range->first)) range = one;
    if (range == free_.end() || range->second <= address) return false;
    const auto guess = guessed_.find(range->first);
    if (guess == guessed_.end()) return false;
    const Address owner = guess->second;
    guessed_.erase(guess);
    taken_[owner] = address - owner;
    job_.corrected[job_.corrections++] = {owner, address - owner};
    end = range->second;
    free_.erase(range);
    return true;
  }

  LayoutJob& job_;
  Ranges free_, by_end_;
  std::unordered_set<Address> borders_;
  Ranges taken_, guessed_;
  uint64_t tried_ = 0;
};

}  // namespace cudamem
