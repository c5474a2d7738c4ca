// The parts of Python's interface that the collector watch uses, declared here so that no headers are needed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "python_functions.h"

extern "C" {
typedef int (*Visit)(Object*, void*);
typedef int (*Traverse)(Object*, Visit, void*);
typedef Object* (*Vectorcall)(Object*, Object* const*, size_t, Object*);
struct BuiltinFunction {
  Object base;
  Method* method;
};
struct Slot {
  int number;
  void* function;
};
struct Spec {
  const char* name;
  int size, item_size;
  unsigned flags;
  Slot* slots;
};
struct Member {
  const char* name;
  int type;
  ssize_t offset;
  int flags;
  const char* doc;
};

extern Object PyModule_Type, PyDict_Type, PyFunction_Type, PyMethod_Type, PyCFunction_Type;
extern Object* PyExc_Exception;
Object* PyObject_CallNoArgs(Object*);
Object* PyObject_CallFunctionObjArgs(Object*, ...);
Object* PyObject_CallMethod(Object*, const char*, const char*, ...);
Object* PyObject_GetAttrString(Object*, const char*);
int PyObject_SetAttrString(Object*, const char*, Object*);
int PyObject_IsTrue(Object*);
Object* PyModule_GetDict(Object*);
void PyObject_GC_Track(void*);
void PyObject_GC_UnTrack(void*);
Object* PyVectorcall_Call(Object*, Object*, Object*);
Object* _PyObject_New(Object*);
Object* PyObject_GenericGetDict(Object*, void*);
Object* PyType_FromSpec(Spec*);
void* PyType_GetSlot(Object*, int);
unsigned long PyType_GetFlags(Object*);
int PyType_IsSubtype(Object*, Object*);
Object* PyFunction_GetCode(Object*);
int PyCode_Addr2Line(Object*, int);
Object* PyMethod_Function(Object*);
Object* PyWeakref_NewRef(Object*, Object*);
Object* PyList_New(ssize_t);
ssize_t PyList_Size(Object*);
Object* PyList_GetItem(Object*, ssize_t);
int PyList_SetItem(Object*, ssize_t, Object*);
int PyList_Append(Object*, Object*);
int PyList_SetSlice(Object*, ssize_t, ssize_t, Object*);
Object* PyDict_GetItem(Object*, Object*);
int PyDict_Next(Object*, ssize_t*, Object**, Object**);
int PyDict_SetItem(Object*, Object*, Object*);
int PyDict_DelItem(Object*, Object*);
Object* PyTuple_GetItem(Object*, ssize_t);
ssize_t PyTuple_Size(Object*);
Object* PyTuple_Pack(ssize_t, ...);
long PyLong_AsLong(Object*);
Object* PyBool_FromLong(long);
Object* PyLong_FromUnsignedLongLong(unsigned long long);
const char* PyUnicode_AsUTF8AndSize(Object*, ssize_t*);
Object* PyUnicode_FromString(const char*);
Object* PyBytes_FromStringAndSize(const char*, ssize_t);
int PyGC_Enable();
int PyGC_Disable();
void PyErr_Fetch(Object**, Object**, Object**);
void PyErr_NormalizeException(Object**, Object**, Object**);
void PyErr_Restore(Object*, Object*, Object*);
void PyErr_Clear();
void PyErr_WriteUnraisable(Object*);
int PyErr_CheckSignals();
int PyException_SetTraceback(Object*, Object*);
int Py_AddPendingCall(int (*)(void*), void*);
int Py_GetRecursionLimit();
void Py_SetRecursionLimit(int);
void* PyThreadState_Get();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
int PyThreadState_SetAsyncExc(unsigned long, Object*);
unsigned long PyThread_get_thread_ident();
// From Python 3.11 on.
__attribute__((weak)) void PyThreadState_EnterTracing(void*);
__attribute__((weak)) void PyThreadState_LeaveTracing(void*);
}

// typeslots.h, object.h and structmember.h
constexpr int kCall = 50, kTraverse = 71, kMembers = 72, kSizeMember = 19, kReadOnly = 1;
constexpr unsigned long kHeapType = 1ul << 9, kHasVectorcall = 1ul << 11, kCollected = 1ul << 14, kVersionTag = 1ul << 18;
constexpr unsigned long kManagedDict = 1ul << 4, kIsList = 1ul << 25, kIsDict = 1ul << 29, kIsType = 1ul << 31;
// Flags in the links of the collector's list; the last one marks garbage during a collection.
constexpr uintptr_t kFlags = 3, kGarbage = 2;

struct Link {
  uintptr_t after, before;
};

inline Link* link_of(Object* object) { return reinterpret_cast<Link*>(object) - 1; }
inline Object* object_of(uintptr_t link) { return reinterpret_cast<Object*>(reinterpret_cast<Link*>(link) + 1); }
inline uint32_t references_to(const Object* object) { return static_cast<uint32_t>(object->references); }
// The name of a class follows the fields that every object with a size has.
inline const char* type_name(Object* type) { return *reinterpret_cast<const char**>(&reinterpret_cast<ssize_t*>(type)[3]); }
