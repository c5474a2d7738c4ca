// As much of Python's objects as the builtin functions of the libraries need, for a program without Python.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "../../cudamem_testing/recorders/python_functions.h"

namespace {

// A number, a tuple, a capsule, or a function with what it keeps as its only item.
struct Modelled : Object {
  long long number = 0;
  std::vector<Object*> items;
  void* pointer = nullptr;
  void (*destroy)(Object*) = nullptr;

  Modelled() : Object{1, nullptr} {}
};

Modelled* modelled(Object* object) { return static_cast<Modelled*>(object); }

// Calls a builtin function with numbers; returns the number that it returns, or the first of several.
long long call(Object* function, std::initializer_list<long long> numbers) {
  std::vector<Object*> arguments;
  for (const long long number : numbers) arguments.push_back(PyLong_FromLongLong(number));
  const auto* const method = static_cast<Method*>(modelled(function)->pointer);
  Object* const found = method->call(modelled(function)->items[0], arguments.data(), arguments.size(), nullptr);
  Object* const first = modelled(found)->items.empty() ? found : modelled(found)->items[0];
  const long long number = modelled(first)->number;
  Py_DecRef(found);
  for (Object* const argument : arguments) Py_DecRef(argument);
  return number;
}

}  // namespace

Object _Py_NoneStruct = {1 << 30, nullptr};
Object* PyExc_ValueError = nullptr;

void Py_IncRef(Object* object) {
  if (object) ++object->references;
}
void Py_DecRef(Object* object) {
  if (!object || --object->references) return;
  if (modelled(object)->destroy) modelled(object)->destroy(object);
  for (Object* const item : modelled(object)->items) Py_DecRef(item);
  delete modelled(object);
}
Object* PyCFunction_NewEx(Method* method, Object* self, Object*) {
  auto* const made = new Modelled;
  made->pointer = method;
  made->items.push_back(self);
  Py_IncRef(self);
  return made;
}
Object* PyCapsule_New(void* pointer, const char*, void (*destroy)(Object*)) {
  auto* const made = new Modelled;
  made->pointer = pointer;
  made->destroy = destroy;
  return made;
}
void* PyCapsule_GetPointer(Object* capsule, const char*) { return modelled(capsule)->pointer; }
Object* PyTuple_New(ssize_t size) {
  auto* const made = new Modelled;
  made->items.resize(size);
  return made;
}
Object* PyType_GenericAlloc(Object*, ssize_t size) { return PyTuple_New(size); }
ssize_t PyTuple_Size(Object* tuple) { return modelled(tuple)->items.size(); }
Object* PyTuple_GetItem(Object* tuple, ssize_t at) { return modelled(tuple)->items[at]; }
int PyTuple_SetItem(Object* tuple, ssize_t at, Object* item) {
  modelled(tuple)->items[at] = item;
  return 0;
}
long long PyLong_AsLongLong(Object* number) { return modelled(number)->number; }
Object* PyLong_FromLongLong(long long number) {
  auto* const made = new Modelled;
  made->number = number;
  return made;
}
Object* PyBool_FromLong(long number) { return PyLong_FromLongLong(number); }
Object* PyList_New(ssize_t) { std::abort(); }
int PyList_Append(Object*, Object*) { std::abort(); }
Object* PyBytes_FromStringAndSize(const char*, ssize_t) { std::abort(); }
char* PyBytes_AsString(Object*) { std::abort(); }
void PyErr_SetString(Object*, const char*) { std::abort(); }
