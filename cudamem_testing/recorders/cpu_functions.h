// What every test calls of the CPU recorder, as builtin functions. Included by cpu_recorder.cpp, whose state it uses.
#pragma once

#include "cpu_ledger.h"
#include "python_functions.h"
#include "source.h"

namespace cudamem {
namespace {

// Options of a reading: it begins a test; the test's stacks and events are recorded; also while another allocator is in
// place.
constexpr long long kBegins = 1, kRecords = 2, kAnyway = 4;

// Reads one slot as counters.
struct Reader : CountedSource {
  enum Outcome { kElsewhere, kReleased, kRead };

  int32_t slot;
  Reading first = {};     // the reading that began the test
  int64_t freed = 0;      // bytes of others that were freed in the slot's time before the test began
  long long planned = 0;  // options of the next reading

  Reader(int32_t slot, Object* type) : CountedSource(type), slot(slot) {}
  static Reader& of(Object* self) { return static_cast<Reader&>(*Keeping<Source>::of(self)); }

  // Reads the slot and resets its peaks. Nothing is read if another allocator is in place, or a test that is to be recorded
  // is not.
  Outcome take(long long options, Reading* now) {
    options |= planned;
    {
      const Lock lock(shared.mutex);
      const bool records = shared.gather.load() && shared.ledger.log_events;
      if (!(options & kAnyway) && (!is_installed() || (options & kRecords && !records))) return kElsewhere;
      if (!shared.ledger.read(slot, true, now)) return kReleased;
    }
    planned = 0;
    if (options & kBegins) {
      first = *now;
      freed = now->own - now->allocated;
    }
    return kRead;
  }

  // The CPU keeps no cache: nothing is reserved, nothing is active, and there are no segments and no retries.
  Numbers numbers_of(const Reading& now) const {
    const auto made = static_cast<long long>(now.allocations), live = static_cast<long long>(now.live_blocks);
    return {{now.allocated, now.peak, now.own - freed, now.own_peak - freed, kNotKnown, kNotKnown, kNotKnown, kNotKnown,
             made, kNotKnown, 0, live}};
  }

  bool read(bool, Numbers* numbers) override {
    Reading now;
    drop();
    if (take(0, &now) != kRead) return false;
    *numbers = numbers_of(now);
    return true;
  }
};

// The counters and the slot's peaks since its last reading; then resets the peaks. If nothing has changed, it is the same
// object. `None`, and nothing is read, if another allocator is in place, or a test that is to be recorded is not.
Object* take(Object* self, Object* const* arguments, ssize_t) {
  Reader& reader = Reader::of(self);
  Reading now;
  switch (reader.take(PyLong_AsLongLong(arguments[0]), &now)) {
    case Reader::kElsewhere:
      return none();
    case Reader::kReleased:  // an error may collect garbage, which frees blocks: not inside the lock
      PyErr_SetString(PyExc_ValueError, "this observer of the CPU recorder was released");
      return nullptr;
    case Reader::kRead:
      break;
  }
  return reader.counted(reader.numbers_of(now));
}

// Has the next reading use these options, too.
Object* plan(Object* self, Object* const* arguments, ssize_t) {
  Reader::of(self).planned = PyLong_AsLongLong(arguments[0]);
  return none();
}

// The options that the next reading will use.
Object* planned(Object* self, Object* const*, ssize_t) { return PyLong_FromLongLong(Reader::of(self).planned); }

// How many events and refusals there were when the test began.
Object* begun(Object* self, Object* const*, ssize_t) {
  const Reading& first = Reader::of(self).first;
  return pair(PyLong_FromLongLong(first.events), PyLong_FromLongLong(first.refusals));
}

// A new owner, the current one from now on; and the earlier one.
Object* enter_new_owner(Object*, Object* const*, ssize_t) {
  uint32_t owner, earlier;
  {
    const Lock lock(shared.mutex);
    earlier = shared.ledger.owner();
    owner = shared.ledger.new_owner();
    shared.ledger.set_owner(owner);
  }
  return pair(PyLong_FromLongLong(owner), PyLong_FromLongLong(earlier));
}

// Sets the current owner; returns the earlier one, -1 if there is no such owner.
Object* set_owner(Object*, Object* const* arguments, ssize_t) {
  const long long owner = PyLong_AsLongLong(arguments[0]);
  long long earlier = -1;
  {
    const Lock lock(shared.mutex);
    if (shared.ledger.is_owner(owner)) {
      earlier = shared.ledger.owner();
      shared.ledger.set_owner(static_cast<uint32_t>(owner));
    }
  }
  return PyLong_FromLongLong(earlier);
}

// Whether an owner has live memory: 1 or 0, -1 if there is no such owner.
Object* owns(Object*, Object* const* arguments, ssize_t) {
  const long long owner = PyLong_AsLongLong(arguments[0]);
  long long found = -1;
  {
    const Lock lock(shared.mutex);
    if (shared.ledger.is_owner(owner)) {
      const OwnerTotals& totals = shared.ledger.totals_of(static_cast<uint32_t>(owner));
      found = totals.blocks != 0 || totals.bytes != 0;
    }
  }
  return PyLong_FromLongLong(found);
}

Method reader_methods[] = {method("take", &take), method("begun", &begun), method("plan", &plan),
                           method("planned", &planned)};
Method owner_methods[] = {method("enter_new_owner", &enter_new_owner), method("set_owner", &set_owner),
                          method("owns", &owns)};

}  // namespace
}  // namespace cudamem

// The functions `take`, `begun`, `plan` and `planned` for a slot, whose counters are of the class `type`, and its source.
EXPORT Object* cudamem_reader_functions(int32_t slot, Object* type) {
  using namespace cudamem;
  return Keeping<Source>::functions(reader_methods, 4, new Reader(slot, type), true);
}

EXPORT Object* cudamem_owner_functions() {
  using namespace cudamem;
  return functions(owner_methods, 3, nullptr, false);
}
