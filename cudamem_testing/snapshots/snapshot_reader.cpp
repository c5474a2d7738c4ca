// The native parts of reading and replaying large snapshots (native.py): what Python calls.
#include "block_layout.h"
#include "block_lives.h"
#include "event_reader.h"

#include <new>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Runs a piece of work: false if there is not enough memory.
template <typename Work>
bool done(Work work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

using cudamem::Found;
using cudamem::LayoutJob;
using cudamem::LivesJob;
using cudamem::Reader;

EXPORTED void* cudamem_events_open(const uint8_t* data, uint64_t size, uint64_t seed) {
  Reader* reader = nullptr;
  done([&] { reader = new Reader(data, size, seed); });
  return reader;
}

EXPORTED int cudamem_events_read(Reader* reader, uint64_t at, uint64_t kept, Found* found) {
  return done([&] { reader->read(at, kept, *found); });
}

EXPORTED uint32_t cudamem_events_kept(const Reader* reader, uint64_t place) { return reader->kept(place); }

EXPORTED void cudamem_events_close(Reader* reader) { delete reader; }

EXPORTED int cudamem_block_lives(LivesJob* job) {
  return done([&] { cudamem::match(*job); });
}

EXPORTED int cudamem_block_layout(LayoutJob* job) {
  return done([&] { cudamem::Layout(*job).replay(); });
}

EXPORTED void cudamem_block_totals(uint64_t events, uint64_t blocks, const int64_t* starts, const int64_t* freed,
                                   const int64_t* sizes, int64_t* totals) {
  cudamem::add_up(events, blocks, starts, freed, sizes, totals);
}
