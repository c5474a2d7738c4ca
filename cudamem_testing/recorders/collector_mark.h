// The mark: an object that refers to itself, so that the next collection finds it (see collector_watch.cpp).
#pragma once

#include "collector_python.h"

class Mark {
 public:
  // `cls` makes one. `callback` is called by a collection that finds it, with `reference`.
  void begin(Object* cls, Object* callback) {
    class_ = cls;
    callback_ = callback;
  }

  // It is null if there is none, and holds itself.
  Object* object() const { return object_; }
  bool is_found_by(Object* reference) const { return object_ && reference == reference_; }

  // Makes one that is younger than all other objects. A collection in between would find that code here holds it, and
  // move it to an older generation.
  void renew() {
    drop();
    const int enabled = PyGC_Disable();
    Object* const made = PyObject_CallNoArgs(class_);
    if (made && PyObject_SetAttrString(made, "me", made) == 0) {
      reference_ = PyWeakref_NewRef(made, callback_);
      object_ = reference_ ? made : nullptr;
      if (!reference_) PyObject_SetAttrString(made, "me", &_Py_NoneStruct);
    }
    if (made) Py_DecRef(made);
    PyErr_Clear();
    if (enabled) PyGC_Enable();
  }

  void drop() {
    Object* const dropped = object_;
    if (spent_) Py_DecRef(spent_);
    spent_ = reference_;  // one that is freed inside the collection is counted as garbage
    object_ = reference_ = nullptr;
    if (dropped) PyObject_SetAttrString(dropped, "me", &_Py_NoneStruct);
    PyErr_Clear();
  }

  // Takes it out of the collector's list until it is shown. While a collection counts it as garbage, it is dropped.
  void hide() {
    if (!object_) return;
    if (link_of(object_)->before & kGarbage) {
      drop();
    } else {
      PyObject_GC_UnTrack(object_);
    }
  }

  // Makes a hidden one the youngest object, whatever generation it had, and whether or not it was frozen. Returns whether
  // there is one, and nothing else holds it: it is no garbage then.
  bool show() {
    if (!object_ || link_of(object_)->after || references_to(object_) != 1) return false;
    PyObject_GC_Track(object_);
    return true;
  }

 private:
  Object *class_ = nullptr, *callback_ = nullptr;
  Object *object_ = nullptr, *reference_ = nullptr, *spent_ = nullptr;  // `spent_` is the reference of the last one
};
