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
Object* PyType_GenericAlloc(Object*, ssize_t);
Object* PyTuple_New(ssize_t);
int PyTuple_SetItem(Object*, ssize_t, Object*);
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

// A method of a builtin function, called with positional arguments: their number is not checked, for only this package
// calls it.
inline Method method(const char* name, Object* (*call)(Object*, Object* const*, ssize_t)) {
  return {name, reinterpret_cast<FastCall>(call), kFastCall, nullptr};
}

// What a builtin function keeps: it gets a `Kept` as its first argument, and frees it when it is freed itself.
template <typename Kept>
struct Keeping {
  static constexpr const char* kName = "cudamem_testing.kept";

  // A new function; takes over `kept`.
  static Object* function(Method* method, Kept* kept) {
    Object* const capsule = PyCapsule_New(kept, kName, [](Object* self) { delete of(self); });
    if (!capsule) {
      delete kept;
      return nullptr;
    }
    Object* const made = PyCFunction_NewEx(method, capsule, nullptr);
    Py_DecRef(capsule);
    return made;
  }
  static Kept* of(Object* self) { return static_cast<Kept*>(PyCapsule_GetPointer(self, kName)); }
};

}  // namespace cudamem
