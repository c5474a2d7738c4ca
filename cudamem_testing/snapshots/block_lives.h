// Matches allocations, frees and what is live at the end, and adds up what is live: the loops over the events of
// lifetimes.py and replay.py, which say what they are for. Both must come to the same, also for damaged recordings.

#pragma once

#include "event_kinds.h"

#include <cstdint>
#include <unordered_map>

namespace cudamem {

constexpr int64_t kNone = -1, kFreed = -2;

// As in native_replay.py.
struct LivesJob {
  uint64_t events, ends;  // how many, and the kind that ends the life of a block
  const uint8_t* kinds;
  const int64_t* addresses;
  int64_t* freed;         // by event
  int64_t* before;        // events that freed a block that no event allocated
  uint64_t blocks;        // live at the end
  const int64_t* live;    // their addresses
  int64_t* starts;        // the events that allocated them
  int64_t* lost;          // events whose blocks are neither freed nor live at the end
  uint64_t before_count, lost_count, unseen, twice;
};

inline void match(LivesJob& job) {
  std::unordered_map<int64_t, int64_t> state;  // by address the event that allocated the block there, or kFreed
  for (uint64_t at = 0; at < job.events; ++at) {
    const bool begins = job.kinds[at] == kAlloc;
    if (!begins && job.kinds[at] != job.ends) continue;
    const auto [place, is_new] = state.try_emplace(job.addresses[at], kNone);
    int64_t& start = place->second;
    if (start >= 0) {
      job.freed[start] = int64_t(at);
      job.unseen += begins;
    } else if (!begins) {
      if (is_new)
        job.before[job.before_count++] = int64_t(at);
      else
        ++job.twice;
    }
    start = begins ? int64_t(at) : kFreed;
  }
  for (uint64_t block = 0; block < job.blocks; ++block) {
    const auto found = state.find(job.live[block]);
    job.starts[block] = found == state.end() ? kNone : found->second;
    if (found != state.end()) state.erase(found);
  }
  for (const auto& one : state)
    if (one.second >= 0) job.lost[job.lost_count++] = one.second;
}

// Turns changes by blocks from before the events into what is live, before each event and in the end.
inline void add_up(uint64_t events, uint64_t blocks, const int64_t* starts, const int64_t* freed, const int64_t* sizes,
                   int64_t* totals) {
  for (uint64_t block = 0; block < blocks; ++block) {
    const int64_t start = starts[block], end = freed[start];
    totals[start + 1] += sizes[start];
    if (uint64_t(end) < events) totals[end + 1] -= sizes[start];
  }
  for (uint64_t at = 1; at <= events; ++at) totals[at] += totals[at - 1];
}

}  // namespace cudamem
