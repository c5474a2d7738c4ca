// The readings of a test at the boundaries of its phases, on all devices. They are kept as numbers: Python makes counters of
// them only for tests in which something new was read, or something else is measured.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "python_functions.h"
#include "source.h"

namespace cudamem {

// A reading of one device; Python must read if there is none.
struct Entry {
  bool known;
  Numbers numbers;
};

struct Boundaries {
  std::vector<Object*> kept;  // the capsules of the sources
  std::vector<Source*> sources;
  Object *type, *names;        // the class `Counters`, and two names for each device
  std::vector<Entry> entries;  // of one boundary after the other

  Boundaries(Object* type, Object* names) : type(type), names(names) {
    Py_IncRef(type);
    Py_IncRef(names);
  }
  ~Boundaries() {
    for (Object* const one : kept) Py_DecRef(one);
    Py_DecRef(type);
    Py_DecRef(names);
  }
  Boundaries(const Boundaries&) = delete;
  Boundaries& operator=(const Boundaries&) = delete;

  void add(Object* capsule) {
    Py_IncRef(capsule);
    kept.push_back(capsule);
    sources.push_back(Keeping<Source>::of(capsule));
  }
  // The last readings of a device, the newest at 0.
  const Numbers& last(size_t device, size_t before = 0) const {
    return entries[entries.size() - (before + 1) * sources.size() + device].numbers;
  }
};

namespace {

inline long long difference(long long now, long long before) {
  return now == kNotKnown || before == kNotKnown ? kNotKnown : now - before;
}

inline long long growth(long long peak, long long before) {
  const long long found = difference(peak, before);
  return found == kNotKnown ? found : std::max(found, 0LL);
}

// Reads every device at a boundary of a test, 0 for its first one, and forgets later ones: an interrupt may come before
// Python has noted that it has read. Returns whether all could be read.
Object* read_all(Object* self, Object* const* arguments, ssize_t) {
  Boundaries& all = *Keeping<Boundaries>::of(self);
  const auto number = static_cast<size_t>(PyLong_AsLongLong(arguments[0]));
  all.entries.resize(std::min(all.entries.size(), number * all.sources.size()));
  bool known = true;
  for (Source* const source : all.sources) {
    Entry entry{};
    entry.known = source->read(number == 0, &entry.numbers);
    known = known && entry.known;
    all.entries.push_back(entry);
  }
  return PyBool_FromLong(known);
}

// What was read, as bytes: equal for tests in which the same was read. Allocations are counted from the first boundary.
Object* key(Object* self, Object* const*, ssize_t) {
  const Boundaries& all = *Keeping<Boundaries>::of(self);
  Object* const made = PyBytes_FromStringAndSize(nullptr, static_cast<ssize_t>(all.entries.size() * sizeof(Numbers)));
  if (!made) return nullptr;
  char* to = PyBytes_AsString(made);
  for (size_t at = 0; at < all.entries.size(); ++at, to += sizeof(Numbers)) {
    Numbers numbers = all.entries[at].numbers;
    long long& made_since = numbers.of[Numbers::kAllocations];
    made_since = difference(made_since, all.entries[at % all.sources.size()].numbers.of[Numbers::kAllocations]);
    std::memcpy(to, &numbers, sizeof numbers);
  }
  return made;
}

// The counters that were read, a tuple for each boundary; `None` where Python must read. Equal ones that follow each other
// are one object.
Object* counters(Object* self, Object* const*, ssize_t) {
  const Boundaries& all = *Keeping<Boundaries>::of(self);
  const std::vector<Entry> entries = all.entries;
  const size_t devices = all.sources.size(), rows = entries.size() / devices;
  Object* const made = PyTuple_New(static_cast<ssize_t>(rows));
  std::vector<Object*> before(devices, nullptr);
  for (size_t row = 0; made && row < rows; ++row) {
    Object* const one = PyTuple_New(static_cast<ssize_t>(devices));
    if (!one) {
      Py_DecRef(made);
      return nullptr;
    }
    PyTuple_SetItem(made, static_cast<ssize_t>(row), one);
    for (size_t device = 0; device < devices; ++device) {
      const Entry& entry = entries[row * devices + device];
      if (!entry.known) {
        PyTuple_SetItem(one, static_cast<ssize_t>(device), none());
        continue;
      }
      if (before[device] && entries[(row - 1) * devices + device].numbers == entry.numbers) {
        Py_IncRef(before[device]);
      } else {
        before[device] = new_counters(all.type, entry.numbers.of);
      }
      if (!before[device]) {
        Py_DecRef(made);
        return nullptr;
      }
      PyTuple_SetItem(one, static_cast<ssize_t>(device), before[device]);
    }
  }
  return made;
}

// Between the last two boundaries: a list of the growth of allocated bytes of each device up to their peak, and of that of
// reserved ones, in pairs with their names; without those that are not known.
Object* grown(Object* self, Object* const*, ssize_t) {
  const Boundaries& all = *Keeping<Boundaries>::of(self);
  std::vector<long long> found;  // making Python's objects may run anything
  for (size_t device = 0; device < all.sources.size(); ++device) {
    const auto &now = all.last(device).of, &before = all.last(device, 1).of;
    found.push_back(growth(now[Numbers::kAllocatedPeak], before[Numbers::kAllocated]));
    found.push_back(growth(now[Numbers::kReservedPeak], before[Numbers::kReserved]));
  }
  Object* const made = PyList_New(0);
  for (size_t at = 0; made && at < found.size(); ++at) {
    if (found[at] == kNotKnown) continue;
    Object* const name = PyTuple_GetItem(all.names, static_cast<ssize_t>(at));
    Py_IncRef(name);
    Object* const one = pair(name, PyLong_FromLongLong(found[at]));
    const int appended = one ? PyList_Append(made, one) : -1;
    Py_DecRef(one);
    if (appended != 0) {
      Py_DecRef(made);
      return nullptr;
    }
  }
  return made;
}

// From the first boundary to the last: for each device by how many bytes and blocks what is allocated has grown.
Object* gained(Object* self, Object* const*, ssize_t) {
  const Boundaries& all = *Keeping<Boundaries>::of(self);
  const size_t devices = all.sources.size();
  std::vector<long long> bytes, blocks;
  for (size_t device = 0; device < devices; ++device) {
    const auto &now = all.last(device).of, &first = all.entries[device].numbers.of;
    bytes.push_back(difference(now[Numbers::kAllocated], first[Numbers::kAllocated]));
    blocks.push_back(difference(now[Numbers::kBlocks], first[Numbers::kBlocks]));
  }
  Object* const made = PyTuple_New(static_cast<ssize_t>(devices));
  for (size_t device = 0; made && device < devices; ++device) {
    PyTuple_SetItem(made, static_cast<ssize_t>(device), pair(number_or_none(bytes[device]), number_or_none(blocks[device])));
  }
  return made;
}

Method boundary_methods[] = {method("read", &read_all), method("key", &key), method("counters", &counters),
                             method("grown", &grown), method("gained", &gained)};

}  // namespace
}  // namespace cudamem

// The functions `read`, `key`, `counters`, `grown` and `gained` for the sources in some capsules, whose counters are of the
// class `type`. `names` are two for each: of the growth of allocated bytes, and of reserved ones.
EXPORT Object* cudamem_boundary_functions(Object* capsules, Object* names, Object* type) {
  using namespace cudamem;
  auto all = std::make_unique<Boundaries>(type, names);
  for (ssize_t at = 0; at < PyTuple_Size(capsules); ++at) all->add(PyTuple_GetItem(capsules, at));
  return Keeping<Boundaries>::functions(boundary_methods, 5, all.release());
}
