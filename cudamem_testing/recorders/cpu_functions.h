// What every test calls of the CPU recorder, as builtin functions. Included by cpu_recorder.cpp, whose state it uses.
#pragma once

#include <cstring>

#include "cpu_ledger.h"
#include "python_functions.h"

namespace cudamem {
namespace {

// Options of a reading: it begins a test; the test's stacks and events are recorded; also while another allocator is in
// place.
constexpr long long kBegins = 1, kRecords = 2, kAnyway = 4;

// Reads one slot as counters.
struct Reader {
  int32_t slot;
  Object* type;  // the class `Counters`
  Reading last = {}, first = {};  // the last reading, and the one that began the test
  int64_t freed = 0;              // bytes of others that were freed in the slot's time before the test began
  Object* counters = nullptr;     // of the last reading

  Reader(int32_t slot, Object* type) : slot(slot), type(type) { Py_IncRef(type); }
  ~Reader() {
    Py_DecRef(type);
    if (counters) Py_DecRef(counters);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

// The CPU keeps no cache: nothing is reserved, nothing is active, and there are no segments and no retries.
Object* counters_of(Object* type, const Reading& now, int64_t freed) {
  const auto made = static_cast<long long>(now.allocations), live = static_cast<long long>(now.live_blocks);
  return new_counters(type, {now.allocated, now.peak, now.own - freed, now.own_peak - freed, kNotKnown, kNotKnown,
                             kNotKnown, kNotKnown, made, kNotKnown, 0, live});
}

Object* pair(long long one, long long two) {
  Object* const made = PyTuple_New(2);
  if (!made) return nullptr;
  PyTuple_SetItem(made, 0, PyLong_FromLongLong(one));
  PyTuple_SetItem(made, 1, PyLong_FromLongLong(two));
  return made;
}

// The counters and the slot's peaks since its last reading; then resets the peaks. If nothing has changed, it is the same
// object. `None`, and nothing is read, if another allocator is in place, or a test that is to be recorded is not.
Object* take(Object* self, Object* const* arguments, ssize_t) {
  Reader& reader = *Keeping<Reader>::of(self);
  const long long options = PyLong_AsLongLong(arguments[0]);
  Reading now;
  bool is_there;
  {
    const Lock lock(shared.mutex);
    const bool records = shared.gather.load() && shared.ledger.log_events;
    if (!(options & kAnyway) && (!is_installed() || (options & kRecords && !records))) return none();
    is_there = shared.ledger.read(reader.slot, true, &now);
  }
  if (!is_there) {  // an error may collect garbage, which frees blocks: not inside the lock
    PyErr_SetString(PyExc_ValueError, "this observer of the CPU recorder was released");
    return nullptr;
  }
  if (options & kBegins) reader.first = now;
  const int64_t freed = options & kBegins ? now.own - now.allocated : reader.freed;
  if (!reader.counters || freed != reader.freed || std::memcmp(&now, &reader.last, sizeof now) != 0) {
    Object* const made = counters_of(reader.type, now, freed);  // may collect garbage, and a finalizer may read
    if (!made) return nullptr;
    Object* const before = reader.counters;
    reader.last = now;
    reader.freed = freed;
    reader.counters = made;
    if (before) Py_DecRef(before);
  }
  Py_IncRef(reader.counters);
  return reader.counters;
}

// How many events and refusals there were when the test began.
Object* begun(Object* self, Object* const*, ssize_t) {
  const Reading& first = Keeping<Reader>::of(self)->first;
  return pair(static_cast<int64_t>(first.events), static_cast<int64_t>(first.refusals));
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
  return pair(owner, earlier);
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

Method reader_methods[] = {method("take", &take), method("begun", &begun)};
Method owner_methods[] = {method("enter_new_owner", &enter_new_owner), method("set_owner", &set_owner),
                          method("owns", &owns)};

}  // namespace
}  // namespace cudamem

// The functions `take` and `begun` for a slot, whose counters are of the class `type`.
EXPORT Object* cudamem_reader_functions(int32_t slot, Object* type) {
  using namespace cudamem;
  return Keeping<Reader>::functions(reader_methods, 2, new Reader(slot, type));
}

EXPORT Object* cudamem_owner_functions() {
  using namespace cudamem;
  return functions(owner_methods, 3, nullptr);
}
