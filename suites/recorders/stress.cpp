// The CPU recorder's own source under load, with a model of Python: the GIL is a mutex, frames lie on the C++ stack, and
// code objects are on the heap and have a plain count of references, so that a sanitizer sees whoever touches them
// without the GIL or after their end.
//
// Threads of Python make code, release the GIL, take a mutex of their own and allocate; when they have the GIL again,
// their code ends. Another thread keeps the GIL and takes that mutex. Threads of C++ allocate and free for others. The
// main thread calls all that Python calls, and forks. Every stack that is read must name the code that was there.
//
// Usage: stress SECONDS. Runs so long, on a busy machine until it has seen everything once, and ends with 0 and one line
// of counts, or says what is wrong.
#include "../../cudamem_testing/recorders/cpu_recorder.cpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <random>

#include "python_model.h"

namespace {

// A fork may not allocate under GCC's address sanitizer: another thread may have held the lock of its allocator.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kForks = false;
#else
constexpr bool kForks = true;
#endif

std::mutex gil;
using WithGil = std::lock_guard<std::mutex>;

struct Code {
  uint64_t type;
  int64_t references;
  int64_t number;  // also the position in every frame that runs it
};
struct InFrame {
  uint64_t code, back, position;
};
struct State {
  uint64_t frame;
};

constexpr uint64_t kType = 0xC0DE;
int64_t numbers = 0, living = 0;  // under the GIL
thread_local State* this_state = nullptr;

void really_free(void* code) {
  --living;
  delete static_cast<Code*>(code);
}
FreeCode slot = &really_free;

void keep(void* code) { ++static_cast<Code*>(code)->references; }
void drop(void* code) {
  if (--static_cast<Code*>(code)->references == 0) slot(code);
}
void* state() { return this_state; }

Code* new_code() {
  ++living;
  return new Code{kType, 1, ++numbers};
}

std::atomic<bool> stop{false};
std::atomic<uint64_t> allocations{0}, refused{0}, stacks_read{0};
std::mutex users_mutex, exchange_mutex;
std::vector<c10::DataPtr> users_cache;
std::deque<c10::DataPtr> exchange;

[[noreturn]] void fail(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  _exit(2);
}

void allocate(std::mt19937& random, std::vector<c10::DataPtr>& mine) {
  try {
    c10::DataPtr data = c10::GetCPUAllocator()->allocate(random() % 5000);
    ++allocations;
    if (data.get()) *static_cast<char*>(data.get()) = 1;
    if (random() % 3 == 0) {
      const std::lock_guard<std::mutex> lock(exchange_mutex);
      exchange.push_back(std::move(data));
    } else {
      mine.push_back(std::move(data));
    }
  } catch (const c10::OutOfMemoryError&) {
    ++refused;
  }
  if (random() % 8 == 0) mine.clear();
  if (random() % 8 == 0) {
    const std::lock_guard<std::mutex> lock(exchange_mutex);
    while (exchange.size() > 20) exchange.pop_front();
  }
}

void python_thread(int seed) {
  std::mt19937 random(seed);
  std::vector<c10::DataPtr> mine;
  State own = {};
  this_state = &own;
  Code* module;
  {
    const WithGil held(gil);
    module = new_code();
  }
  while (!stop) {
    InFrame frames[12];
    const int depth = 2 + static_cast<int>(random() % 10);
    {
      const WithGil held(gil);
      for (int i = 0; i < depth; ++i) {
        Code* code = i == 0 ? module : new_code();
        if (i == 0) keep(code);
        const auto address = reinterpret_cast<uint64_t>(code);
        frames[i] = {address, i ? reinterpret_cast<uint64_t>(&frames[i - 1]) : 0,
                     address + sizeof(Code) + static_cast<uint64_t>(code->number)};
      }
      own.frame = reinterpret_cast<uint64_t>(&frames[depth - 1]);
    }
    for (int times = 1 + static_cast<int>(random() % 3); times > 0; --times) {
      const std::lock_guard<std::mutex> lock(users_mutex);
      allocate(random, mine);
      users_cache.clear();
      try {
        users_cache.push_back(c10::GetCPUAllocator()->allocate(100));
      } catch (const c10::OutOfMemoryError&) {
        ++refused;
      }
    }
    const WithGil held(gil);
    own.frame = 0;
    for (int i = 0; i < depth; ++i) drop(reinterpret_cast<void*>(frames[i].code));
  }
  const WithGil held(gil);
  drop(module);
}

void cpp_thread(int seed) {
  std::mt19937 random(seed);
  std::vector<c10::DataPtr> mine;
  while (!stop) allocate(random, mine);
}

// Short calls that keep the GIL and look at the cache.
void looking_thread() {
  while (!stop) {
    const WithGil held(gil);
    const std::lock_guard<std::mutex> lock(users_mutex);
    if (users_cache.size() > 1) fail("the user's own cache is wrong");
  }
}

void read_stacks(std::vector<Block>& blocks) {
  const uint64_t count = std::min<uint64_t>(cudamem_scan(-1, blocks.data(), blocks.size()), 100);
  Frame frames[kDepth];
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t depth = cudamem_stack(blocks[i].stack, frames);
    for (uint32_t j = 0; j < depth; ++j) {
      auto* code = reinterpret_cast<Code*>(frames[j].code);
      if (code->number != frames[j].position) fail("a stack names other code");
      drop(code);
    }
    stacks_read += depth > 0;
  }
}

void child(int observer) {
  if (cudamem_is_installed()) fail("a child begins installed");
  (void)c10::GetCPUAllocator()->allocate(100);
  drop(new_code());  // through the slot, whose mutex must be free
  if (cudamem_install() != kInPlace) fail("a child cannot install");
  Reading reading;
  {
    const auto data = c10::GetCPUAllocator()->allocate(1000);
    cudamem_read(observer, 0, &reading);
    if (reading.allocated != 1000) fail("a child counts wrongly");
  }
  cudamem_read(observer, 0, &reading);
  _exit(reading.allocated == 0 ? 0 : 3);
}

}  // namespace

int main(int, char** arguments) {
  Python python = {};
  python.this_thread_state = state;
  python.keep = keep;
  python.drop = drop;
  python.free_slot = &slot;
  python.code_type = kType;
  python.type_offset = offsetof(Code, type);
  python.indirect_frame = -1;
  python.frame_back = offsetof(InFrame, back);
  python.frame_position = offsetof(InFrame, position);
  python.code_start = sizeof(Code);
  cudamem_set_python(&python);

  std::vector<std::thread> threads;  // some of them before the recorder is in place
  for (int i = 0; i < 4; ++i) threads.emplace_back(python_thread, i);
  if (cudamem_install() != kInPlace) fail("cannot install");
  cudamem_restart_events(4096);
  for (int i = 4; i < 6; ++i) threads.emplace_back(cpp_thread, i);
  threads.emplace_back(looking_thread);

  const auto begun = std::chrono::steady_clock::now();
  const auto least = std::chrono::seconds(std::atoi(arguments[1])), most = least + std::chrono::seconds(60);
  std::mt19937 random(99);
  std::vector<Block> blocks(100'000);
  std::vector<Event> events(5000);
  std::vector<uint32_t> owners{0};
  const int observer = cudamem_acquire_slot();
  Modelled counters;  // in the place of a class
  Object* const reader = cudamem_reader_functions(observer, &counters);
  Object* const take = modelled(reader)->items[0];
  Object* const begun_with = modelled(reader)->items[1];
  Object* const owning = cudamem_owner_functions();
  Object* const enter_new_owner = modelled(owning)->items[0];
  Object* const set_owner = modelled(owning)->items[1];
  Object* const owns = modelled(owning)->items[2];
  int rounds = 0, children = 0;
  const auto is_over = [&] {
    const auto lasted = std::chrono::steady_clock::now() - begun;
    const bool saw_all = allocations && refused && stacks_read && (children || !kForks);
    return lasted >= (saw_all ? least : most);
  };
  for (; !is_over(); ++rounds) {
    Reading reading;
    OwnerTotals totals;
    Refusal refusal;
    uint64_t first, total, counts[2];
    const WithGil held(gil);
    switch (random() % 15) {
      case 0: cudamem_read(observer, random() % 2, &reading); break;
      case 1: read_stacks(blocks); break;
      case 2: cudamem_trim_stacks(); break;
      case 3: cudamem_set_limit(random() % 2 ? -1 : static_cast<int64_t>(random() % 1'000'000)); break;
      case 4: cudamem_restart_events(random() % 3 ? 4096 : 0); break;
      case 5: cudamem_events(0, events.data(), events.size(), &first, &total); break;
      case 6:
        owners.push_back(random() % 2 ? cudamem_new_owner() : static_cast<uint32_t>(call(enter_new_owner, {})));
        if (call(set_owner, {owners[random() % owners.size()]}) < 0) fail("an owner is unknown");
        break;
      case 7: cudamem_owner_totals(owners[random() % owners.size()], &totals); break;
      case 8: cudamem_set_recording(random() % 8 != 0, random() % 4 != 0); break;
      case 9: random() % 8 ? static_cast<void>(cudamem_install()) : cudamem_uninstall(); break;
      case 10: cudamem_set_python(random() % 4 ? &python : nullptr); break;
      case 11:
        cudamem_refusal(&refusal);
        cudamem_stack_counts(counts);
        break;
      case 12: call(take, {static_cast<long long>(random() % 2 * kBegins + kAnyway)}); break;
      case 13:
        call(begun_with, {});
        if (call(owns, {owners[random() % owners.size()]}) < 0) fail("an owner is unknown");
        break;
      case 14:
        if (kForks && random() % 20 == 0) {
          std::fflush(stdout);
          const pid_t process = fork();
          if (process == 0) child(observer);
          int status;
          waitpid(process, &status, 0);
          if (status != 0) fail("a child failed");
          ++children;
        }
        break;
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  exchange.clear();
  users_cache.clear();

  const WithGil held(gil);
  Py_DecRef(reader);
  Py_DecRef(owning);
  if (counters.references != 1) fail("counters are kept");
  cudamem_install();
  cudamem_set_limit(-1);
  cudamem_set_recording(0, 0);
  cudamem_restart_events(0);
  Reading reading;
  cudamem_read(observer, 0, &reading);
  if (reading.allocated != 0 || reading.live_blocks != 0) fail("blocks are counted that were freed");
  Refusal refusal;
  cudamem_refusal(&refusal);
  Frame frames[kDepth];
  const uint32_t named = cudamem_stack(refusal.stack, frames);  // the last refusal keeps its stack
  for (uint32_t i = 0; i < named; ++i) drop(reinterpret_cast<void*>(frames[i].code));
  cudamem_trim_stacks();
  if (living != named) fail("code is kept that no stack names");
  std::printf("%d rounds, %lu allocations, %lu refused, %lu stacks, %ld codes, %d children\n", rounds,
              allocations.load(), refused.load(), stacks_read.load(), numbers, children);
  return 0;
}
