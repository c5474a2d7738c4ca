// The memory of a simulated card: ranges of addresses, handed out as CUDA's driver does it. They are backed by memory of
// the machine that is committed when it is touched, or by none if tensors have no values.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <unordered_map>

namespace cudamem {

constexpr size_t kGrain = size_t{2} << 20;  // the granularity of the driver's allocations

// Where a model of the allocator gets its segments from. Sizes are bytes; null if there is no room.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual char* take(size_t size) = 0;
  virtual void give(char* at, size_t size) = 0;
  // A reserved range of addresses whose parts are mapped and unmapped.
  virtual char* reserve(size_t size) = 0;
  virtual void release(char* at, size_t size) = 0;
  virtual bool fill(char* at, size_t size) = 0;
  virtual void empty(char* at, size_t size) = 0;
  virtual size_t total() const = 0;
  virtual size_t free() const = 0;
};

// Free ranges of addresses: the lowest that fits is taken, and neighbours become one.
class FreeRanges {
 public:
  char* take(size_t size) {
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      if (range->second < size) continue;
      char* const at = range->first;
      const size_t rest = range->second - size;
      ranges_.erase(range);
      if (rest) ranges_.emplace(at + size, rest);
      return at;
    }
    return nullptr;
  }

  void add(char* at, size_t size) {
    auto next = ranges_.lower_bound(at);
    if (next != ranges_.end() && at + size == next->first) {
      size += next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += size;
        return;
      }
    }
    ranges_.emplace(at, size);
  }

 private:
  std::map<char*, size_t> ranges_;
};

// Memory of the machine.
class MachineMemory final : public Driver {
 public:
  // `beside` is the memory of the card that a context takes, which cannot be allocated.
  MachineMemory(size_t total, size_t beside, bool values) : total_(total), beside_(beside), values_(values) {}
  MachineMemory(const MachineMemory&) = delete;
  ~MachineMemory() override {
    if (arena_) munmap(arena_, arena_size_);
  }

  char* take(size_t size) override {
    if (size > free() || !has_arena()) return nullptr;
    char* const at = ranges_.take(size);
    if (at) taken_ += size;
    return at;
  }

  void give(char* at, size_t size) override {
    drop(at, size);
    taken_ -= size;
    ranges_.add(at, size);
  }

  char* reserve(size_t size) override { return map(size); }
  void release(char* at, size_t size) override { munmap(at, size); }

  bool fill(char*, size_t size) override {
    if (size > free()) return false;
    taken_ += size;
    return true;
  }

  void empty(char* at, size_t size) override {
    drop(at, size);
    taken_ -= size;
  }

  size_t total() const override { return total_; }
  size_t free() const override {
    const size_t used = taken_ + beside_;
    return used < total_ ? total_ - used : 0;
  }

 private:
  char* map(size_t size) const {
    const int access = values_ ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* const at = mmap(nullptr, size + kGrain, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    const auto start = reinterpret_cast<uintptr_t>(at);
    const uintptr_t first = (start + kGrain - 1) / kGrain * kGrain;
    if (first != start) munmap(at, first - start);
    if (const size_t rest = start + kGrain - first) munmap(reinterpret_cast<void*>(first + size), rest);
#ifdef MADV_HUGEPAGE
    if (values_) madvise(reinterpret_cast<void*>(first), size, MADV_HUGEPAGE);
#endif
    return reinterpret_cast<char*>(first);
  }

  bool has_arena() {
    if (!arena_) {
      arena_size_ = (2 * total_ + kGrain - 1) / kGrain * kGrain;  // twice the card: holes between segments
      arena_ = map(arena_size_);
      if (arena_) ranges_.add(arena_, arena_size_);
    }
    return arena_ != nullptr;
  }

  void drop(char* at, size_t size) const {
    if (values_) madvise(at, size, MADV_DONTNEED);
  }

  const size_t total_, beside_;
  const bool values_;
  size_t taken_ = 0, arena_size_ = 0;
  char* arena_ = nullptr;
  FreeRanges ranges_;
};

}  // namespace cudamem
