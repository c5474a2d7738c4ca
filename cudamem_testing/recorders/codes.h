// Code objects that stacks name, kept alive without counting references (see cpu_stacks.h for why that is enough).
#pragma once

#include <cstdint>
#include <new>
#include <unordered_map>
#include <vector>

namespace cudamem {

struct Frame {
  uint64_t code;
  int64_t position;
};

using FreeCode = void (*)(void*);

// Counts the stacks that name each code object. Called with the mutex of the stacks held.
class Codes {
  struct Named {
    uint64_t stacks = 0;
    bool ours = false;  // the last reference is ours: all others have ended
  };

 public:
  // Throws std::bad_alloc, and then names none of them.
  void name(const Frame* frames, uint32_t depth) {
    uint32_t there = 0;
    try {
      for (; there < depth; ++there) ++named_[frames[there].code].stacks;
    } catch (const std::bad_alloc&) {
      forget(frames, there, nullptr);
      throw;
    }
  }

  // One stack that names them is dropped. Those that no other stack names, and whose last reference is ours, are added to
  // `ours`, to be dropped.
  void forget(const Frame* frames, uint32_t depth, std::vector<uint64_t>* ours) {
    for (uint32_t i = 0; i < depth; ++i) {
      const auto found = named_.find(frames[i].code);
      if (--found->second.stacks != 0) continue;
      if (found->second.ours) ours->push_back(found->first);
      named_.erase(found);
    }
  }

  // Whether a stack names a code object whose last reference is about to be dropped. That reference is ours then.
  bool take(uint64_t code) {
    const auto found = named_.find(code);
    if (found == named_.end()) return false;
    return found->second.ours = true;
  }

 private:
  std::unordered_map<uint64_t, Named> named_;
};

// Replaces the function with which Python frees code by ours, which calls that one. It is replaced once and stays,
// because others may have replaced ours.
class CodeWatch {
 public:
  // Needs the GIL.
  void start(FreeCode* slot, FreeCode ours) {
    if (next_) return;
    next_ = *slot;
    *slot = ours;
  }
  void pass_on(void* code) const { next_(code); }

 private:
  FreeCode next_ = nullptr;
};

}  // namespace cudamem
