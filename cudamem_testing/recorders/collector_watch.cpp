// Shows the garbage of each collection before its finalizers run; calls Python only if it has wanted objects.
//
// The collector calls the callbacks of weak references to garbage when it knows all of it, and before it runs
// finalizers and clears anything. So we always keep an object, the mark, that is garbage itself: it is in the collector's
// list beside the other garbage, which is read from there (PyGC_Head, the same from CPython 3.8 on; unfinalized.py
// verifies that first). The list is not written, except that dictionaries which reading the objects created are added
// to it if they cannot be undone (see `adopt`). The mark is freed before the collector counts.
//
// No Python code runs for garbage without an instance of the wanted classes: no frame, no replaced function, and no
// handler of a signal but where it would else run in a callback of `gc.callbacks`. If there is an instance, `look` of
// each watch is called. An error that a signal handler raises meanwhile is kept, and raised in the main thread at the
// next bytecode after the collection, as if the signal had arrived then; a look that it interrupted is repeated. A look
// has room below the recursion limit, no profiler sees it, and it uses the original functions of `builtins` and of some
// modules, even if a test has replaced them.
//
// All functions need the GIL. The parts of Python's interface that are used are declared here: no headers are needed.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "collector_counts.h"
#include "collector_garbage.h"
#include "collector_mark.h"
#include "collector_meter.h"
#include "collector_others.h"
#include "collector_python.h"
#include "collector_reading.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using cudamem::none;

// How deep the calls of a look may nest, and how often it is repeated after a signal handler interrupted it.
constexpr int kRoom = 400, kAttempts = 5;

struct Raised {
  Object *type, *value, *trace;
};

struct Callable {
  Object base;
  Vectorcall call;
};

struct State {
  Object *watches, *wanted, *callbacks, *get_count, *failure, *genuine;
  Collections collections;
  unsigned long main_thread;
  bool adopts;                                // dictionaries that reading creates
  Values values;
  Callable *at_garbage, *at_end;
  Mark mark;
  Object* resumed;                            // the watch that was resumed, if nothing but that has started it
  int64_t begun;                              // what `collections` was then
  std::vector<Object*> looked;                // watches that wait for the end of this collection
  std::vector<Object*> after;                 // watches with something to do after the collection
  std::deque<Raised> raised;                  // errors of signal handlers
  Meter meter;                                // belongs to one of the watches
  bool metered;                               // whether it has read what it was shown
  double took, most;                          // how long the callbacks of a collection took so far, and may take
  bool has_time;                              // a collection may take long
  uint64_t seen;
  bool ending;
};
State state = {};

// What calling Python from inside a collection needs: room to recurse, and no profiler or tracer.
class Quiet {
 public:
  Quiet() : thread_(PyThreadState_Get()), limit_(Py_GetRecursionLimit()) {
    Py_SetRecursionLimit(limit_ + kRoom);
    if (PyThreadState_EnterTracing) PyThreadState_EnterTracing(thread_);
  }
  ~Quiet() {
    if (PyThreadState_EnterTracing) PyThreadState_LeaveTracing(thread_);
    if (Py_GetRecursionLimit() == limit_ + kRoom) Py_SetRecursionLimit(limit_);
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  void* thread_;
  int limit_;
};

// Temporarily restores the original values of names in modules: triples of a namespace, a name, a value.
class Genuine {
 public:
  Genuine() {
    for (ssize_t i = 0, size = PyTuple_Size(state.genuine); i < size; ++i) {
      Object* const one = PyTuple_GetItem(state.genuine, i);
      Object* const value = PyTuple_GetItem(one, 2);
      Object* const now = PyDict_GetItem(PyTuple_GetItem(one, 0), PyTuple_GetItem(one, 1));
      if (now == value) continue;
      if (now) Py_IncRef(now);
      replaced_.push_back({one, now});
      PyDict_SetItem(PyTuple_GetItem(one, 0), PyTuple_GetItem(one, 1), value);
    }
    PyErr_Clear();
  }
  ~Genuine() {
    for (const Replaced& one : replaced_) {
      Object* const space = PyTuple_GetItem(one.place, 0);
      Object* const name = PyTuple_GetItem(one.place, 1);
      if (PyDict_GetItem(space, name) == PyTuple_GetItem(one.place, 2)) {
        if (one.value) {
          PyDict_SetItem(space, name, one.value);
        } else {
          PyDict_DelItem(space, name);
        }
      }
      if (one.value) Py_DecRef(one.value);
    }
    PyErr_Clear();
  }
  Genuine(const Genuine&) = delete;
  Genuine& operator=(const Genuine&) = delete;

 private:
  struct Replaced {
    Object *place, *value;
  };
  std::vector<Replaced> replaced_;
};

bool begins_with(Object* text, const char* word) {
  ssize_t size = 0;
  const char* found = text ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  if (!found) PyErr_Clear();
  return found && std::strncmp(found, word, std::strlen(word)) == 0;
}

// Whether a name belongs to this package or to torch, whose code a look runs.
bool is_own_name(Object* name) {
  return begins_with(name, "cudamem_testing.") || begins_with(name, "torch.") || begins_with(name, "builtins");
}

bool is_own_frame(Object* frame) {
  Object* globals = PyObject_GetAttrString(frame, "f_globals");
  Object* name = globals ? PyObject_CallMethod(globals, "get", "s", "__name__") : nullptr;
  const bool own = is_own_name(name);
  PyErr_Clear();
  if (name) Py_DecRef(name);
  if (globals) Py_DecRef(globals);
  return own;
}

// A traceback without its first frames, those of the look, which drop what they hold: it is garbage.
Object* without_own_frames(Object* trace) {
  while (trace && trace != &_Py_NoneStruct) {
    Object* frame = PyObject_GetAttrString(trace, "tb_frame");
    const bool own = frame && is_own_frame(frame);
    if (own) {
      Object* cleared = PyObject_CallMethod(frame, "clear", nullptr);
      if (cleared) Py_DecRef(cleared);
      PyErr_Clear();
    }
    if (frame) Py_DecRef(frame);
    if (!own) return trace;
    Object* next = PyObject_GetAttrString(trace, "tb_next");
    Py_DecRef(trace);
    trace = next;
  }
  PyErr_Clear();
  if (trace) Py_DecRef(trace);
  return nullptr;
}

// Whether something other than the look raised it: it has a frame of other code, or its class is not an Exception, or
// user code created its class (an error that one thread sets in another has no frame).
bool is_foreign(const Raised& raised) {
  if (raised.trace || !PyType_IsSubtype(raised.type, PyExc_Exception)) return true;
  Object* module = PyObject_GetAttrString(raised.type, "__module__");
  const bool own = is_own_name(module);
  if (module) Py_DecRef(module);
  PyErr_Clear();
  return !own;
}

Raised take_error() {
  Raised found;
  PyErr_Fetch(&found.type, &found.value, &found.trace);
  PyErr_NormalizeException(&found.type, &found.value, &found.trace);
  found.trace = without_own_frames(found.trace);
  if (found.value) PyException_SetTraceback(found.value, found.trace ? found.trace : &_Py_NoneStruct);
  PyErr_Clear();
  return found;
}

void drop(const Raised& raised) {
  for (Object* one : {raised.type, raised.value, raised.trace}) {
    if (one) Py_DecRef(one);
  }
}

// Calls a method of a watch, again if something else interrupts it; its own error is passed to `failed`. Returns whether
// its result is true.
bool call(Object* watch, const char* name, Object* argument) {
  Object* failure = nullptr;
  bool answer = false, done = false;
  for (int attempt = 0; attempt < kAttempts && !done; ++attempt) {
    Object* method = PyObject_GetAttrString(watch, name);
    Object* result = method ? PyObject_CallFunctionObjArgs(method, argument, nullptr) : nullptr;
    if (method) Py_DecRef(method);
    if (result) {
      answer = PyObject_IsTrue(result) == 1;
      Py_DecRef(result);
      return answer;
    }
    const Raised raised = take_error();
    if (is_foreign(raised)) {
      state.raised.push_back(raised);
    } else {
      done = true;
      failure = raised.value;
      if (failure) Py_IncRef(failure);
      drop(raised);
    }
  }
  if (!failure) failure = PyObject_CallNoArgs(state.failure);
  for (int attempt = 0; attempt < kAttempts && failure; ++attempt) {
    Object* result = PyObject_CallMethod(watch, "failed", "O", failure);
    if (result) {
      Py_DecRef(result);
      break;
    }
    const Raised raised = take_error();
    if (raised.value != failure && is_foreign(raised)) {
      state.raised.push_back(raised);
      continue;
    }
    PyErr_Restore(raised.type, raised.value, raised.trace);
    PyErr_WriteUnraisable(watch);
    break;
  }
  if (failure) Py_DecRef(failure);
  PyErr_Clear();
  return false;
}

// The number of collections of this process, also before anything was watched, in the upper half; in the lower half the
// number of those in which no mark was found.
int64_t collections() {
  const int64_t every = state.collections.count().every;
  return (every << 32) + every - static_cast<int64_t>(state.seen);
}

// Raises the kept errors, in the main thread between two bytecodes, and calls what watches do after the collection.
int after_collection(void*) {
  while (state.raised.empty() && !state.after.empty()) {
    Object* const watch = state.after.back();
    state.after.pop_back();
    Object* result = PyObject_CallMethod(watch, "outside", nullptr);
    Py_DecRef(watch);
    if (!result) {
      if (!state.after.empty()) Py_AddPendingCall(&after_collection, nullptr);
      return -1;
    }
    Py_DecRef(result);
  }
  if (state.raised.empty()) return 0;
  const Raised raised = state.raised.front();
  state.raised.pop_front();
  if (!state.raised.empty() || !state.after.empty()) Py_AddPendingCall(&after_collection, nullptr);
  PyErr_Restore(raised.type, raised.value, raised.trace);
  return -1;
}

// Runs the handlers of signals that came until now. Else they would run in the callback of someone else, which Python
// calls next: it drops what they raise there.
void take_signals() {
  if (PyList_Size(state.callbacks) > 0 && PyErr_CheckSignals() != 0) state.raised.push_back(take_error());
}

void schedule() {
  if (!state.raised.empty() && PyThread_get_thread_ident() != state.main_thread) {
    // Another thread set it in this one: signal handlers run only in the main thread.
    for (const Raised& raised : state.raised) {
      PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), raised.type);
      drop(raised);
    }
    state.raised.clear();
  }
  if (!state.raised.empty() || !state.after.empty()) Py_AddPendingCall(&after_collection, nullptr);
}

void finish(const Stopwatch& time) {
  std::vector<Object*> looked;
  looked.swap(state.looked);
  state.meter.finish(state.metered, time, state.most);
  if (looked.empty()) return;
  const Genuine genuine;
  for (Object* watch : looked) {
    if (call(watch, "gone", nullptr)) {
      state.after.push_back(watch);
    } else {
      Py_DecRef(watch);
    }
  }
}

Object* list_of(const std::vector<Object*>& objects) {
  Object* list = PyList_New(static_cast<ssize_t>(objects.size()));
  for (size_t i = 0; list && i < objects.size(); ++i) {
    Py_IncRef(objects[i]);
    PyList_SetItem(list, static_cast<ssize_t>(i), objects[i]);
  }
  return list;
}

// Calls a method of a watch with some garbage, and the numbers that describe it in pairs, in the same order.
bool call_with(Object* watch, const char* name, const std::vector<Object*>& objects,
               const std::vector<Meter::Part>& parts) {
  Object* const list = list_of(objects);
  Object* const numbers = PyList_New(0);
  bool answer = false;
  for (const Meter::Part& one : parts) {
    for (uint64_t number : {one.fingerprint, one.objects}) {
      Object* const made = numbers ? PyLong_FromUnsignedLongLong(number) : nullptr;
      if (made) PyList_Append(numbers, made), Py_DecRef(made);
    }
  }
  Object* const pair = list && numbers ? PyTuple_Pack(2, list, numbers) : nullptr;
  if (pair) answer = call(watch, name, pair);
  if (list) PyList_SetSlice(list, 0, PyList_Size(list), nullptr);
  for (Object* one : {pair, list, numbers}) {
    if (one) Py_DecRef(one);
  }
  return answer;
}

// Whether a watch looks at all garbage.
bool has_other_watch() {
  for (ssize_t i = 0; i < PyList_Size(state.watches); ++i) {
    if (PyList_GetItem(state.watches, i) != state.meter.watch) return true;
  }
  return false;
}

// Calls each watch with the garbage, or with what its meter chooses. Returns whether one looked.
bool look(Garbage& garbage) {
  bool looks = false;
  for (ssize_t i = 0; i < PyList_Size(state.watches); ++i) {
    Object* const watch = PyList_GetItem(state.watches, i);
    const bool metered = watch == state.meter.watch;
    const auto recognise = [&](uint64_t fingerprint, const std::vector<Object*>& objects,
                               const std::vector<uint32_t>& places, std::vector<Garbage::Made>* made) {
      const Genuine genuine;
      looks = true;
      const bool answer = call_with(watch, "recognise", objects, {{fingerprint, objects.size()}});
      if (state.adopts) {
        const std::vector<Garbage::Made>& found = garbage.adopt(state.mark.object(), state.values, &places);
        made->insert(made->end(), found.begin(), found.end());
      }
      return answer;
    };
    std::vector<Object*> chosen;
    Hurry::stage(kParts);
    const auto choose = [&] { chosen = state.meter.choose(garbage, state.seen, state.has_time, recognise); };
    if (metered && !Hurry::has_time_for(choose)) state.meter.pass_over(garbage, state.seen, false);
    if (metered && chosen.empty()) continue;
    Hurry::stage(kKeepers);
    const Genuine genuine;
    looks = true;
    Py_IncRef(watch);
    if (!metered) chosen = garbage.objects();
    Graph part;
    const auto take_part = [&] {
      if (!metered || chosen == garbage.objects()) return;
      if (state.meter.places().size() == chosen.size()) {
        part = garbage.graph().part(state.meter.places());
      } else {  // with dictionaries that reading made
        part = Graph(chosen);
        part.read();
      }
    };
    bool looked = false;
    if (Hurry::has_time_for(take_part)) {
      const reading::SharedGraph shared(part.objects().empty() ? garbage.graph() : part);
      looked = call_with(watch, "look", chosen, metered ? state.meter.parts() : std::vector<Meter::Part>());
    }
    if (looked) {
      state.looked.push_back(watch);
      state.metered = state.metered || metered;
    } else {
      Py_DecRef(watch);
    }
    if (metered && Hurry::is_late()) state.meter.pass_over(garbage, state.seen, false);
  }
  PyErr_Clear();
  return looks;
}

// Whether a collection examines all generations: the collector counts one of a younger generation in the next older one.
// (Frozen objects are not counted: asking how many there are walks over all of them.)
bool is_whole() {
  if (state.get_count == &_Py_NoneStruct) return false;
  Object* const counts = PyObject_CallNoArgs(state.get_count);
  bool found = counts && PyTuple_Size(counts) == 3;
  for (ssize_t i = 1; found && i < 3; ++i) found = PyLong_AsLong(PyTuple_GetItem(counts, i)) == 0;
  if (counts) Py_DecRef(counts);
  PyErr_Clear();
  return found;
}

// Lists garbage and reads it; returns whether it needs a look. It does not if it has no tensors, or if all of its kinds were
// shown before: then it is counted. If that is little, the older objects that it holds are looked for, and read, too.
bool read(Garbage& garbage, const Stopwatch& time, bool has_time) {
  Meter::Met met;
  const size_t most = has_time ? SIZE_MAX - 1 : kMostObjects;
  const auto is_over = [&] {
    if (has_time) return false;
    state.meter.meet(garbage, &met);
    return time.passed() > (!met.is_old ? kList : met.is_known && met.has_wanted ? kListKnown : kListPlain);
  };
  Garbage::Listed listed = garbage.list(state.mark.object(), most, is_over);
  if (garbage.objects().empty()) return false;
  const bool whole = is_whole();
  const bool is_part = listed == Garbage::Listed::kPart;
  state.most = has_time ? kNoLimit : kNew;
  if (state.meter.watch && !has_other_watch() && (whole || !state.has_time) && (!is_part || met.is_known)) {
    const double now = time.passed(), end = has_time ? kNoLimit : now + (kReadKnown - now) * (1 - kFinding);
    if (state.meter.count_known(garbage, state.seen, whole, is_part, time, end)) {
      state.most = has_time ? kNoLimit : kKnown;
      if (is_part || whole || garbage.objects().size() > kFew || !garbage.read(time, end)) return false;
      if (!garbage.has_older()) {
        state.meter.no_rest();
        return false;
      }
      return garbage.has_wanted();
    }
  }
  if (is_part && met.is_known && garbage.objects().size() <= most) {  // its blocks are of a new kind
    listed = garbage.list(state.mark.object(), most, [&] { return time.passed() > kList; });
  }
  if (listed == Garbage::Listed::kPart) {
    state.meter.pass_over(garbage, state.seen, garbage.objects().size() > most);
    return false;
  }
  if (garbage.read(time, has_time ? kNoLimit : kReferences)) return garbage.has_wanted();
  state.meter.pass_over(garbage, state.seen, false);
  return false;
}

Object* at_garbage(Object*, Object* const* args, size_t, Object*) {
  if (!state.mark.is_found_by(args[0])) return none();
  const Stopwatch time;
  ++state.seen;
  const Quiet quiet;
  Others others;
  if (state.ending) finish(time);  // the list of callbacks was emptied
  state.ending = false;
  if (PyList_Size(state.watches) > 0) {
    state.metered = false;
    Garbage garbage(state.wanted);
    const bool has_time = state.has_time || has_other_watch();
    const bool needs_look = read(garbage, time, has_time);
    const Hurry hurry(has_time ? nullptr : &time);
    if (needs_look && look(garbage) && state.adopts) garbage.adopt(state.mark.object(), state.values);
    take_signals();
    if ((!state.looked.empty() || !state.raised.empty() || state.meter.waits()) &&
        PyList_Append(state.callbacks, &state.at_end->base) == 0) {
      state.ending = true;
    }
  }
  state.mark.renew();
  PyErr_Clear();
  if (state.ending) others.wait_longer();
  state.took = time.passed();
  return none();
}

Object* at_end(Object* self, Object* const*, size_t, Object*) {
  for (ssize_t i = PyList_Size(state.callbacks) - 1; i >= 0; --i) {
    if (PyList_GetItem(state.callbacks, i) == self) PyList_SetSlice(state.callbacks, i, i + 1, nullptr);
  }
  if (state.ending) {
    const Stopwatch time(state.took);
    state.ending = false;
    const Quiet quiet;
    const Others others;
    finish(time);
    schedule();
    state.took = time.passed();
  }
  PyErr_Clear();
  return none();
}

void want(Object* wanted) {
  Py_IncRef(wanted);
  if (state.wanted) Py_DecRef(state.wanted);
  state.wanted = wanted;
}

// Starts a watch again, for the memory of another owner and a limit. Returns whether it did: not if there is another
// watch, if it was not metered last, or if the owner is below zero. `self` is the watch, and what it wants.
Object* resume(Object* self, Object* const* args, ssize_t) {
  Object* const watch = PyTuple_GetItem(self, 0);
  const long long owner = PyLong_AsLongLong(args[0]), limit = PyLong_AsLongLong(args[1]);
  if (owner < 0 || limit < 0 || state.meter.watch != watch || PyList_Size(state.watches) > 0) return PyBool_FromLong(0);
  if (PyList_Append(state.watches, watch) != 0) return nullptr;
  want(PyTuple_GetItem(self, 1));
  state.has_time = false;
  state.meter.begin(static_cast<uint32_t>(owner), static_cast<uint64_t>(limit));
  if (!state.mark.show()) {
    const Quiet quiet;
    state.mark.renew();
  }
  state.resumed = watch;
  state.begun = collections();
  return PyBool_FromLong(1);
}

// Stops a watch that was resumed, if it is the only one and there was no collection; returns whether it did. The mark
// stays for the next time, and no collection sees it until then.
Object* pause(Object* self, Object* const*, ssize_t) {
  Object* const watch = PyTuple_GetItem(self, 0);
  const bool is_alone = state.resumed == watch && PyList_Size(state.watches) == 1 && PyList_GetItem(state.watches, 0) == watch;
  if (!is_alone || collections() != state.begun) return PyBool_FromLong(0);
  if (PyList_SetSlice(state.watches, 0, 1, nullptr) != 0) return nullptr;
  state.resumed = nullptr;
  state.mark.hide();
  return PyBool_FromLong(1);
}

Object* older_collections(Object*, Object* const*, ssize_t) { return PyLong_FromLongLong(state.collections.count().older); }

Member members[] = {{"__vectorcalloffset__", kSizeMember, offsetof(Callable, call), kReadOnly, nullptr}, {}};
Slot slots[] = {{kCall, reinterpret_cast<void*>(&PyVectorcall_Call)}, {kMembers, members}, {}};
Spec spec = {"cudamem_testing.CollectorHook", sizeof(Callable), 0, static_cast<unsigned>(kVersionTag | kHasVectorcall), slots};

Callable* make_callable(Object* type, Vectorcall function) {
  Callable* made = reinterpret_cast<Callable*>(_PyObject_New(type));
  if (made) made->call = function;
  return made;
}

}  // namespace

// Starts; call it once in a process. All arguments are kept forever. The caller may change the list `watches`. `get_count`
// is None if it does not tell which generations a collection examines.
EXPORT int32_t cudamem_collector_begin(Object* mark_class, Object* watches, Object* callbacks, Object* get_stats,
                                       Object* get_count, Object* collect, Object* failure, Object* genuine, int32_t adopts) {
  if (!state.at_garbage) {
    Object* type = PyType_FromSpec(&spec);
    if (!type) return -1;
    state.at_garbage = make_callable(type, &at_garbage);
    state.at_end = make_callable(type, &at_end);
    if (!state.at_garbage || !state.at_end) return -1;
  }
  for (Object* one : {mark_class, watches, callbacks, get_stats, get_count, collect, failure, genuine}) {
    Py_IncRef(one);
  }
  Others::begin(collect);
  state.mark.begin(mark_class, &state.at_garbage->base);
  state.collections.begin(get_stats);
  state.watches = watches;
  state.callbacks = callbacks;
  state.get_count = get_count;
  state.failure = failure;
  state.genuine = genuine;
  state.adopts = adopts != 0;
  return 0;
}

// The main thread is the one that runs signal handlers.
EXPORT void cudamem_collector_main_thread(uint64_t main_thread) { state.main_thread = static_cast<unsigned long>(main_thread); }

// Replaces the mark with a young one, because an earlier collection may have skipped the old one. The classes in the
// tuple `wanted` are those whose instances are searched for. Returns how many collections there were so far (see
// `collections`).
EXPORT int64_t cudamem_collector_mark(Object* wanted) {
  const Quiet quiet;
  state.resumed = nullptr;
  want(wanted);
  state.mark.renew();
  return collections();
}

// Removes the mark. Returns how many collections there were so far.
EXPORT int64_t cudamem_collector_end() {
  const Quiet quiet;
  const int64_t found = collections();
  state.resumed = nullptr;
  state.mark.drop();
  return found;
}

// How many collections there were when a watch was resumed last.
EXPORT int64_t cudamem_collector_begun() { return state.begun; }

// Functions of a watch, which are called with positional arguments: `resume` and `pause`.
EXPORT Object* cudamem_collector_functions(Object* watch, Object* wanted) {
  static Method resumes = cudamem::method("resume", &resume), pauses = cudamem::method("pause", &pause);
  Object* const kept = PyTuple_Pack(2, watch, wanted);
  Object* const made = kept ? PyCFunction_NewEx(&resumes, kept, nullptr) : nullptr;
  Object* const other = kept ? PyCFunction_NewEx(&pauses, kept, nullptr) : nullptr;
  Object* const both = made && other ? PyTuple_Pack(2, made, other) : nullptr;
  for (Object* one : {kept, made, other}) {
    if (one) Py_DecRef(one);
  }
  return both;
}

// A function without arguments that returns how many collections of older generations there were so far.
EXPORT Object* cudamem_collector_older() {
  static Method method = cudamem::method("older_collections", &older_collections);
  return PyCFunction_NewEx(&method, nullptr, nullptr);
}

// Whether that is read where the collector keeps it if `reads` is not 0, else a function of Python is called; for tests.
EXPORT int32_t cudamem_collector_reads_counts(int32_t reads) { return state.collections.set_reads(reads != 0); }

// Where reading makes dictionaries: see `Values`.
EXPORT void cudamem_collector_values(Object* probe, Object* value, int32_t version) {
  state.values.begin(probe, value, version);
}

EXPORT int64_t cudamem_collector_collections() { return collections(); }

// How long the callbacks of the last collection took, in milliseconds of the thread's processor time.
EXPORT double cudamem_collector_took() { return state.took / Stopwatch::pace; }

// Has time pass so many times as fast; for tests.
EXPORT void cudamem_collector_pace(double pace) { Stopwatch::pace = pace; }

// How many milliseconds reading may still take.
EXPORT double cudamem_collector_left() { return Hurry::left() / Stopwatch::pace; }

EXPORT int64_t cudamem_collector_seen() { return static_cast<int64_t>(state.seen); }

// Measures for one watch, or for none: it is shown parts that may keep `limit` bytes and that it was not shown before.
// `cards` are the numbers of measured devices (`device_of`). See collector_meter.h. From then on collections have little time.
EXPORT void cudamem_collector_meter(Object* watch, Meter::BlockAt block_at, Meter::Totals totals, uint32_t impl_offset,
                                    Object* parameter, const uint32_t* cards, uint32_t count, uint32_t owner,
                                    uint64_t limit) {
  Object* const metered = watch == &_Py_NoneStruct ? nullptr : watch;
  state.has_time = false;
  state.meter.begin(metered, block_at, totals, impl_offset, parameter, cards, count, owner, limit);
}

// Whether allocations of cards are counted here, as of the CPU.
EXPORT int32_t cudamem_collector_counts_cards() { return cudamem::DeviceCounters<c10::DeviceAllocator>::kInTorch; }

// The entries that were counted and not shown, in bytes: see `Meter::Count`.
EXPORT Object* cudamem_collector_counts() {
  const std::vector<Meter::Count> counts = state.meter.counts();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(counts.data()),
                                   static_cast<ssize_t>(counts.size() * sizeof(Meter::Count)));
}

// The blocks of cards among them, and when each collection was, in bytes: see `Meter::Address`, `Blocks::Moment`.
EXPORT Object* cudamem_collector_addresses() {
  const std::vector<Meter::Address>& found = state.meter.addresses();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()),
                                   static_cast<ssize_t>(found.size() * sizeof(Meter::Address)));
}
EXPORT Object* cudamem_collector_moments() {
  const std::vector<Blocks::Moment> found = state.meter.moments();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(found.data()),
                                   static_cast<ssize_t>(found.size() * sizeof(Blocks::Moment)));
}

// How many entries those are.
EXPORT uint64_t cudamem_collector_counted() { return state.meter.counted(); }

// From now on collections may take long, because no code of a test waits for them.
EXPORT void cudamem_collector_has_time() { state.has_time = true; }

// What was not read, in bytes: see `Meter::Unread`.
EXPORT Object* cudamem_collector_unread() {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&state.meter.unread()), sizeof(Meter::Unread));
}

// Returns the bytes that were not shown, including those of the current collection.
EXPORT uint64_t cudamem_collector_unshown() { return state.meter.unshown(); }
