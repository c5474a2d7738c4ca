// A trap makes an allocation fail, so that a program can be tested without memory running out.
//
// A request counts if it is larger than `above` and, if places are given, was made at one of them. The `nth` that counts
// fails, or each of them. Called with the user's mutex held.
#pragma once

#include <cstdint>
#include <vector>

#include "codes.h"

namespace cudamem {

// A line of a code object: its instructions from `first` to before `last`.
struct Place {
  uint64_t code;
  int64_t first, last;
};

// `requests` is how many were made, `number` which of them failed last.
struct Trapped {
  uint64_t requests, failed, number, size;
  uint32_t stack, thread;
};

class Trap {
 public:
  void set(uint64_t above, uint64_t nth, bool every, const Place* places, uint32_t count) {
    above_ = above;
    nth_ = nth;
    every_ = every;
    places_.assign(places, places + count);
    counted_ = 0;
    trapped = {};
    on_ = true;
  }
  void clear() {
    on_ = false;
    places_.clear();
  }

  bool on() const { return on_; }

  // Whether a request fails. An empty one never reaches the allocator.
  bool springs(uint64_t size, const Frame* frames, uint32_t depth) {
    if (!on_ || size == 0) return false;
    ++trapped.requests;
    if (size <= above_ && above_) return false;
    if (!places_.empty() && !is_there(frames, depth)) return false;
    if (++counted_ != nth_ && !every_) return false;
    ++trapped.failed;
    trapped.number = trapped.requests;
    trapped.size = size;
    return true;
  }

  Trapped trapped = {};

 private:
  bool is_there(const Frame* frames, uint32_t depth) const {
    for (uint32_t i = 0; i < depth; ++i) {
      for (const Place& place : places_) {
        const int64_t position = frames[i].position;
        if (frames[i].code == place.code && position >= place.first && position < place.last) return true;
      }
    }
    return false;
  }

  bool on_ = false, every_ = false;
  uint64_t above_ = 0, nth_ = 0, counted_ = 0;
  std::vector<Place> places_;
};

}  // namespace cudamem
