// Python stacks of allocations, without Python's headers and without the GIL.
//
// Torch operators release the GIL, so the thread that allocates usually does not hold it. It must not wait for it either:
// the thread may hold another mutex (a cache does), for which the thread that has the GIL is waiting. A thread can read its
// own frames without the GIL: while it is inside a C++ call its interpreter frames are suspended, no other thread changes
// their code, position or back link, and the frames keep their code objects alive. So the walk reads three words per frame,
// at offsets that layout.py found and verified with known frames.
//
// A stack is an array of (code object, position), stored once and found by these addresses. It outlives the call, so its
// code objects must too: an address that is used again would show the names of other code. References cannot be counted
// without the GIL, but while the frames exist none is needed. Later, code is freed only with the GIL, and the free calls
// `Codes` first (`CodeWatch` replaces the type's slot for it): code that a stack names is not freed, and the table takes
// over its last reference. PyCode_AddWatcher of Python 3.12 allows the same.
//
// Threads without Python frames have no stack: OpenMP workers and other C++ threads, autograd's device threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "codes.h"

namespace cudamem {

constexpr uint32_t kDepth = 64;
constexpr uint32_t kStopCodes = 8;

// Addresses of Python's stable C functions and the offsets of the frame layout; filled by native_python.py.
struct Python {
  void* (*this_thread_state)();
  void (*keep)(void*);
  void (*drop)(void*);
  FreeCode* free_slot;     // in the type of code objects: the function that frees one
  uint64_t code_type;
  int64_t type_offset;     // offset of the type in any object
  int64_t state_frame;     // offset in the thread state of the current frame, or of the struct that points to it
  int64_t indirect_frame;  // offset of the current frame in that struct; negative: it is in the thread state
  int64_t frame_code, frame_back, frame_position;
  int64_t code_start;      // position = pointer at frame_position - (code + code_start); negative: it is an index
  uint64_t entry, init;    // code of the interpreter's own frames, between C and Python and below `__init__`; 0 if none
};

// The innermost frames of a stack.
template <uint32_t most>
struct Walk {
  Frame frames[most];
  uint32_t depth = 0;
  uint64_t hash = 0;
};

inline uint64_t word(uint64_t address) { return *reinterpret_cast<const uint64_t*>(address); }

// A hash of the frames of a stack. No step waits for the one before, so a deep stack is cheap. A multiplication moves bits
// up only: the last two lines bring those of the positions down to the bits that choose a bucket, without which all stacks
// of the same functions share one.
inline uint64_t hash_of(const Frame* frames, uint32_t depth) {
  uint64_t hash = depth, factor = 0x9E3779B97F4A7C15ull;
  for (uint32_t i = 0; i < depth; ++i, factor += 0xC2B2AE3D27D4EB4Eull) {
    hash += (frames[i].code ^ (static_cast<uint64_t>(frames[i].position) << 48)) * factor;
  }
  hash = (hash ^ (hash >> 32)) * 0xFF51AFD7ED558CCDull;
  return hash ^ (hash >> 32);
}

// Reads this thread's Python frames, innermost first. Allocates nothing, locks nothing, touches no reference count.
template <uint32_t most>
bool walk(const Python& python, const std::atomic<uint64_t>* stops, Walk<most>* out) {
  const auto state = reinterpret_cast<uint64_t>(python.this_thread_state());
  if (!state) return false;
  uint64_t frame = word(state + python.state_frame);
  if (frame && python.indirect_frame >= 0) frame = word(frame + python.indirect_frame);
  uint64_t stop[kStopCodes];
  uint32_t stop_count = 0;
  for (; stop_count < kStopCodes; ++stop_count) {
    stop[stop_count] = stops[stop_count].load(std::memory_order_relaxed);
    if (!stop[stop_count]) break;
  }
  uint32_t depth = 0;
  for (; frame && depth < most; frame = word(frame + python.frame_back)) {
    const uint64_t code = word(frame + python.frame_code) & ~7ull;  // 3.14 tags references in the low bits
    // Frames of the interpreter's own have no code object, or all the same one.
    if (!code || code == python.entry || code == python.init || word(code + python.type_offset) != python.code_type) continue;
    bool stopped = false;
    for (uint32_t i = 0; i < stop_count; ++i) stopped |= stop[i] == code;
    if (stopped) break;
    const int64_t position = python.code_start >= 0
        ? static_cast<int64_t>(word(frame + python.frame_position) - (code + python.code_start))
        : 2 * static_cast<int64_t>(*reinterpret_cast<const int32_t*>(frame + python.frame_position));
    out->frames[depth++] = {code, position};
  }
  out->depth = depth;
  out->hash = hash_of(out->frames, depth);
  return depth > 0;
}

// Distinct stacks, found by their frames; `Tag` is what the user stores with each. Called with the user's mutex held.
template <typename Tag, uint32_t most>
class StackSet {
 public:
  struct Stack : Tag {
    uint64_t hash;
    Stack* next;
    uint32_t depth;
    Frame frames[1];  // `depth` of them
  };

  uint64_t size() const { return size_; }

  Stack* find(const Walk<most>& walk) const {
    if (buckets_.empty()) return nullptr;
    Stack* s = buckets_[walk.hash & (buckets_.size() - 1)];
    while (s && (s->hash != walk.hash || s->depth != walk.depth ||
                 std::memcmp(s->frames, walk.frames, walk.depth * sizeof(Frame)) != 0)) {
      s = s->next;
    }
    return s;
  }

  // Called inside the call whose frames these are. Returns null if there is no memory.
  Stack* insert(const Walk<most>& walk) {
    void* memory = nullptr;
    try {
      if (size_ >= buckets_.size()) rehash(buckets_.empty() ? 128 : buckets_.size() * 2);
      memory = std::malloc(sizeof(Stack) + (walk.depth - 1) * sizeof(Frame));
      if (!memory) return nullptr;
      codes_.name(walk.frames, walk.depth);
    } catch (const std::bad_alloc&) {
      std::free(memory);
      return nullptr;
    }
    Stack* s = new (memory) Stack();
    s->hash = walk.hash;
    s->depth = walk.depth;
    std::memcpy(s->frames, walk.frames, walk.depth * sizeof(Frame));
    link(s);
    ++size_;
    return s;
  }

  // Whether a code object that is about to be freed must stay; the table then has its last reference.
  bool take(const void* code) { return codes_.take(reinterpret_cast<uint64_t>(code)); }

  // What remains to do outside of the mutex, with the GIL, after stacks were removed.
  class Gone {
   public:
    uint64_t drop(const Python& python) {
      for (uint64_t code : codes_) python.drop(reinterpret_cast<void*>(code));
      for (Stack* s : stacks_) std::free(s);
      return stacks_.size();
    }

   private:
    friend class StackSet;
    std::vector<Stack*> stacks_;
    std::vector<uint64_t> codes_;  // whose last reference the table had
  };

  // Removes the stacks that are not to be kept.
  template <typename Keep>
  Gone take_unless(Keep keep) {
    Gone gone;
    for (Stack*& bucket : buckets_) {
      for (Stack** at = &bucket; *at;) {
        Stack* s = *at;
        if (keep(*s)) {
          at = &s->next;
        } else {
          *at = s->next;
          gone.stacks_.push_back(s);
          codes_.forget(s->frames, s->depth, &gone.codes_);
        }
      }
    }
    size_ -= gone.stacks_.size();
    return gone;
  }

 private:
  void rehash(uint64_t count) {
    std::vector<Stack*> before(count, nullptr);
    before.swap(buckets_);
    for (Stack* s : before) {
      while (s) {
        Stack* next = s->next;
        link(s);
        s = next;
      }
    }
  }

  void link(Stack* s) {
    Stack*& head = buckets_[s->hash & (buckets_.size() - 1)];
    s->next = head;
    head = s;
  }

  std::vector<Stack*> buckets_;
  uint64_t size_ = 0;
  Codes codes_;
};

// Called with the GIL when Python frees a code object; keeps it if one of the owner's stacks names it.
template <typename Owner>
void free_code(Owner& owner, void* code) {
  bool taken;
  {
    const std::lock_guard<decltype(owner.mutex)> lock(owner.mutex);
    taken = owner.stacks.take(code);
  }
  if (taken) {
    owner.python.keep(code);
  } else {
    owner.code_watch.pass_on(code);
  }
}

struct Numbered {
  uint32_t id;
  bool used;
};

// Every distinct stack of the CPU recorder. Ids are never used twice, so the id of a dropped stack is unknown, and never
// another stack.
class StackTable {
  using Stacks = StackSet<Numbered, kDepth>;

 public:
  static constexpr uint64_t kMaximum = 1 << 18;  // distinct stacks; later ones are unknown, and counted
  using Stack = Stacks::Stack;
  using Gone = Stacks::Gone;

  uint64_t size() const { return stacks_.size(); }
  uint64_t overflow = 0;

  // The id of a stack, which is added if it is new. 0 if the table is full or there is no memory.
  uint32_t note(const Walk<kDepth>& walk) {
    const Stack* s = stacks_.find(walk);
    return s ? s->id : insert(walk);
  }

  bool take(const void* code) { return stacks_.take(code); }

  Stack* get(uint32_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }

  void mark(uint32_t id) {
    if (Stack* s = id ? get(id) : nullptr) s->used = true;
  }

  // Removes the stacks that were not marked.
  Gone take_unmarked() {
    return stacks_.take_unless([this](Stack& s) {
      if (!s.used) by_id_.erase(s.id);
      return std::exchange(s.used, false);
    });
  }

 private:
  uint32_t insert(const Walk<kDepth>& walk) {
    if (size() >= kMaximum) {
      ++overflow;
      return 0;
    }
    typename std::unordered_map<uint32_t, Stack*>::iterator place;
    try {
      place = by_id_.emplace(next_id_, nullptr).first;
    } catch (const std::bad_alloc&) {
      return 0;
    }
    Stack* s = stacks_.insert(walk);
    if (!s) {
      by_id_.erase(place);
      return 0;
    }
    place->second = s;
    return s->id = next_id_++;
  }

  Stacks stacks_;
  std::unordered_map<uint32_t, Stack*> by_id_;
  uint32_t next_id_ = 1;
};

}  // namespace cudamem
