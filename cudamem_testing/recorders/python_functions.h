// Functions of a library as builtin functions of Python, for what every test calls. A call through ctypes converts its
// arguments in code that no cache has when a test begins or ends, and takes several times as long.
//
// All need the GIL. The parts of Python's interface that are used are declared here: no headers are needed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

extern "C" {
struct Object {
  ssize_t references;
  Object* type;
};
typedef Object* (*FastCall)(Object*, Object* const*, ssize_t, Object*);
struct Method {
  const char* name;
  FastCall call;
  int flags;
  const char* doc;
};

extern Object _Py_NoneStruct;
extern Object* PyExc_ValueError;
void Py_IncRef(Object*);
void Py_DecRef(Object*);
Object* PyCFunction_NewEx(Method*, Object*, Object*);
Object* PyCapsule_New(void*, const char*, void (*)(Object*));
void* PyCapsule_GetPointer(Object*, const char*);
Object* PyBool_FromLong(long);
Object* PyBytes_FromStringAndSize(const char*, ssize_t);
char* PyBytes_AsString(Object*);
Object* PyType_GenericAlloc(Object*, ssize_t);
Object* PyTuple_New(ssize_t);
ssize_t PyTuple_Size(Object*);
Object* PyTuple_GetItem(Object*, ssize_t);
int PyTuple_SetItem(Object*, ssize_t, Object*);
Object* PyList_New(ssize_t);
int PyList_Append(Object*, Object*);
long long PyLong_AsLongLong(Object*);
Object* PyLong_FromLongLong(long long);
void PyErr_SetString(Object*, const char*);
}

// methodobject.h
constexpr int kKeywords = 2, kFastCall = 0x80;

namespace cudamem {

inline Object* none() {
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// A number that is not known.
constexpr long long kNotKnown = INT64_MIN;

inline Object* number_or_none(long long number) { return number == kNotKnown ? none() : PyLong_FromLongLong(number); }

// A tuple of two new objects, which it takes over.
inline Object* pair(Object* one, Object* two) {
  Object* const made = PyTuple_New(2);
  if (!made) return nullptr;
  PyTuple_SetItem(made, 0, one);
  PyTuple_SetItem(made, 1, two);
  return made;
}

// A new object of the class `Counters`: its numbers in their order, `None` for one that is not known, and no notes. Making
// it may collect garbage, whose finalizers may run anything.
template <int kFields>
Object* new_counters(Object* type, const long long (&fields)[kFields]) {
  Object* const made = PyType_GenericAlloc(type, kFields + 1);
  if (!made) return nullptr;
  ssize_t at = 0;
  for (const long long field : fields) {
    PyTuple_SetItem(made, at++, number_or_none(field));
  }
  PyTuple_SetItem(made, at, PyTuple_New(0));
  return made;
}

// A method of a builtin function, called with positional arguments: their number is not checked, for only this package
// calls it.
inline Method method(const char* name, Object* (*call)(Object*, Object* const*, ssize_t)) {
  return {name, reinterpret_cast<FastCall>(call), kFastCall, nullptr};
}

// A tuple of new builtin functions, which get `self` as their first argument; if asked for, the last item is `self`.
inline Object* functions(Method* methods, ssize_t count, Object* self, bool and_self) {
  Object* const made = PyTuple_New(count + (and_self ? 1 : 0));
  for (ssize_t at = 0; made && at < count; ++at) {
    Object* const one = PyCFunction_NewEx(methods + at, self, nullptr);
    if (!one) {
      Py_DecRef(made);
      return nullptr;
    }
    PyTuple_SetItem(made, at, one);
  }
  if (made && and_self) {
    Py_IncRef(self);
    PyTuple_SetItem(made, count, self);
  }
  return made;
}

// What builtin functions keep: they get it as their first argument, and the last of them frees it.
template <typename Kept>
struct Keeping {
  static constexpr const char* kName = "cudamem_testing.kept";

  // New functions, which take over `kept`; if asked for, the last item is the capsule that has it.
  static Object* functions(Method* methods, ssize_t count, Kept* kept, bool and_capsule = false) {
    Object* const capsule = PyCapsule_New(kept, kName, [](Object* self) { delete of(self); });
    if (!capsule) {
      delete kept;
      return nullptr;
    }
    Object* const made = cudamem::functions(methods, count, capsule, and_capsule);
    Py_DecRef(capsule);
    return made;
  }
  static Kept* of(Object* self) { return static_cast<Kept*>(PyCapsule_GetPointer(self, kName)); }
};

}  // namespace cudamem
