// The model of the caching allocator without a card, real memory or torch: recorded events are replayed on it with the
// same or other settings, to find what would have been reserved. See snapshots/whatif.
//
// Pools (the main one, those of graphs and of MemPool) are separate models that share one driver, as in torch: memory of a
// private pool serves only that pool.
#include "card_memory.h"

#include <cstring>
#include <string>
#include <unordered_set>

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cudamem;

namespace {

// Addresses without memory behind them, below those that were recorded.
class Addresses final : public Driver {
 public:
  explicit Addresses(size_t total) : total_(total) {}

  char* take(size_t size) override {
    if (size > free()) return nullptr;
    char* const at = addresses_.take(size);
    if (at) taken_ += size;
    return at;
  }

  void give(char* at, size_t size) override {
    taken_ -= size;
    if (is_own(at)) addresses_.give(at, size);
  }

  char* reserve(size_t size) override { return advance(size); }
  void release(char*, size_t) override {}
  bool fill(char*, size_t size) override {
    if (size > free()) return false;
    taken_ += size;
    return true;
  }
  void empty(char*, size_t size) override { taken_ -= size; }
  void count(size_t size) { taken_ += size; }  // memory from before the record
  size_t total() const override { return total_; }
  size_t free() const override { return taken_ < total_ ? total_ - taken_ : 0; }

 private:
  static bool is_own(const char* at) {
    const auto place = reinterpret_cast<uintptr_t>(at);
    return place >= kLowest && place < kLowest + kSize;
  }

  char* advance(size_t size) {
    char* const at = reinterpret_cast<char*>(next_);
    next_ += size;
    return at;
  }

  const size_t total_;
  size_t taken_ = 0;
  static constexpr uintptr_t kLowest = uintptr_t{1} << 42, kSize = uintptr_t{1} << 44;  // segments are recorded above
  uintptr_t next_ = uintptr_t{1} << 60;  // of ranges that are filled in parts; far from every recorded address
  AddressSpace addresses_{reinterpret_cast<char*>(kLowest), kSize};
};

// An event of the record completes a free that waits for another stream; each such free waits for a separate stream.
std::unordered_set<StreamId>& running() {
  static auto* const some = new std::unordered_set<StreamId>;
  return *some;
}
bool is_idle(StreamId stream) { return !running().count(stream); }

}  // namespace

enum class Did : unsigned char { alloc, free_requested, free_completed, probe };

// The input of a replay: settings, then columns of equal length. A capacity of 0 means none.
struct Job {
  int64_t expandable, max_split, max_unsplit_rounding, capacity, limited;
  double collect_above;
  int64_t divisions[kIntervals];
  int64_t segments;  // rows of 6: address, size, stream, pool, small, expandable
  const int64_t* segment;
  int64_t blocks;  // rows of 4: address, size, requested, number of the segment; by segment and address
  const int64_t* block;
  int64_t events, pools;
  const unsigned char* did;
  const int64_t *address, *size, *stream, *pool;
  int64_t empties;
  const int64_t* empty;  // rows of 2: an event, and the pool whose cache is emptied before it; in the order of events
};

// Bytes; moments are numbers of events, -1 for none.
struct Result {
  int64_t peak_reserved, peak_moment, reserved, peak_allocated, allocated, fits, largest_free, unused;
  int64_t retries, failed, first_failed, segments;
};

namespace {

class Run {
 public:
  Run(const Job& job, Result* result, int64_t* reserved)
      : job_(job), result_(*result), course_(reserved), driver_(capacity_of(job)) {
    MemorySettings settings;
    settings.expandable = job.expandable != 0;
    if (job.max_split > 0) settings.max_split = static_cast<size_t>(job.max_split);
    if (job.max_unsplit_rounding > 0) settings.max_unsplit_rounding = static_cast<size_t>(job.max_unsplit_rounding);
    settings.collect_above = job.collect_above;
    for (size_t at = 0; at < kIntervals; ++at) settings.divisions[at] = static_cast<size_t>(job.divisions[at]);
    for (int64_t pool = 0; pool < std::max<int64_t>(job.pools, 1); ++pool) {
      pools_.push_back(std::make_unique<CardMemory>(&driver_, settings, is_idle));
      if (job.limited && job.capacity) pools_.back()->set_fraction(1);
    }
    running().clear();
    std::memset(result, 0, sizeof(Result));
    result_.peak_moment = result_.first_failed = result_.fits = -1;
  }

  void replay() {
    adopt();
    for (int64_t at = 0; at < job_.events; ++at) {
      look(at);
      empty_before(at);
      step(at);
      if (course_) course_[at] = static_cast<int64_t>(reserved());
    }
    look(job_.events);
    empty_before(job_.events);
    result_.reserved = static_cast<int64_t>(reserved());
    result_.allocated = allocated();
    for (const auto& pool : pools_) {
      result_.retries += pool->stats.retries;
      result_.segments += pool->stats.counts[kSegment][0].current;
    }
    const CardMemory& main = *pools_.front();
    result_.unused = static_cast<int64_t>(main.reserved()) - main.stats.counts[kActiveBytes][0].current;
    result_.largest_free = static_cast<int64_t>(main.largest_free());
  }

 private:
  static size_t capacity_of(const Job& job) {
    return job.capacity > 0 ? static_cast<size_t>(job.capacity) : size_t{1} << 50;
  }

  size_t reserved() const {
    size_t sum = 0;
    for (const auto& pool : pools_) sum += pool->reserved();
    return sum;
  }
  int64_t allocated() const {
    int64_t sum = 0;
    for (const auto& pool : pools_) sum += pool->stats.counts[kAllocatedBytes][0].current;
    return sum;
  }

  void empty_before(int64_t at) {
    for (; emptied_ < job_.empties && job_.empty[2 * emptied_] <= at; ++emptied_) {
      pools_.at(static_cast<size_t>(job_.empty[2 * emptied_ + 1]))->release_cached(nullptr);
    }
  }

  void look(int64_t at) {
    const auto now = static_cast<int64_t>(reserved());
    if (now > result_.peak_reserved) {
      result_.peak_reserved = now;
      result_.peak_moment = at;
    }
    result_.peak_allocated = std::max(result_.peak_allocated, allocated());
  }

  void adopt() {
    int64_t next = 0;
    for (int64_t number = 0; number < job_.segments; ++number) {
      const int64_t* const row = job_.segment + 6 * number;
      std::vector<CardMemory::Adopted> live;
      for (; next < job_.blocks && job_.block[4 * next + 3] == number; ++next) {
        const int64_t* const block = job_.block + 4 * next;
        live.push_back({pointer(block[0]), static_cast<size_t>(block[1]), static_cast<size_t>(block[2])});
      }
      const auto size = static_cast<size_t>(row[1]);
      driver_.count(size);
      CardMemory& memory = *pools_.at(static_cast<size_t>(row[3]));
      for (Block* block : memory.adopt(pointer(row[0]), size, row[2], row[4] != 0, row[5] != 0, live)) {
        owners_[static_cast<int64_t>(reinterpret_cast<uintptr_t>(block->at))] = {block, &memory};
      }
    }
  }

  void step(int64_t at) {
    const int64_t address = job_.address[at];
    CardMemory& memory = *pools_.at(static_cast<size_t>(job_.pool ? job_.pool[at] : 0));
    switch (static_cast<Did>(job_.did[at])) {
      case Did::alloc: {
        Block* const block = memory.allocate(static_cast<size_t>(job_.size[at]), job_.stream[at], nullptr);
        if (block) {
          owners_[address] = {block, &memory};
        } else {
          if (!result_.failed++) result_.first_failed = at;
          owners_.erase(address);
        }
        break;
      }
      case Did::free_requested: {
        const auto found = owners_.find(address);
        if (found == owners_.end()) break;
        const auto [block, owner] = found->second;
        owners_.erase(found);
        const bool waits = at + 1 >= job_.events || static_cast<Did>(job_.did[at + 1]) != Did::free_completed ||
                           job_.address[at + 1] != address;
        if (waits) {
          const StreamId marker = -2 - at;  // not a stream of the record
          running().insert(marker);
          waiting_[address].push_back(marker);
          owner->use_on(block, marker);
        }
        owner->free(block, nullptr);
        break;
      }
      case Did::free_completed: {
        const auto found = waiting_.find(address);
        if (found == waiting_.end()) {
          const auto asked_before = owners_.find(address);  // before the first event
          if (asked_before == owners_.end()) break;
          asked_before->second.second->free(asked_before->second.first, nullptr);
          owners_.erase(asked_before);
          break;
        }
        running().erase(found->second.front());
        found->second.pop_front();
        if (found->second.empty()) waiting_.erase(found);
        break;
      }
      case Did::probe: {
        Block* const block = memory.allocate(static_cast<size_t>(job_.size[at]), job_.stream[at], nullptr);
        result_.fits = block != nullptr;
        break;
      }
    }
  }

  static char* pointer(int64_t address) { return reinterpret_cast<char*>(static_cast<uintptr_t>(address)); }

  const Job& job_;
  Result& result_;
  int64_t* const course_;
  int64_t emptied_ = 0;
  Addresses driver_;
  std::vector<std::unique_ptr<CardMemory>> pools_;
  std::unordered_map<int64_t, std::pair<Block*, CardMemory*>> owners_;  // by recorded address
  std::unordered_map<int64_t, std::deque<StreamId>> waiting_;
};

}  // namespace

// Replays a job; `reserved`, if not null, gets the reserved bytes after each event. Returns 0, or -1 if it is malformed.
EXPORT int64_t cudamem_model_replay(const Job* job, Result* result, int64_t* reserved) {
  try {
    Run run(*job, result, reserved);
    run.replay();
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}
