// The garbage of one collection, read from the collector's own list.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "collector_python.h"

// Finds the objects in the mark's list beside it. Returns false if the list is not as expected.
inline bool read_list(Object* mark, std::vector<Object*>* found) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(link_of(mark));
  uintptr_t last = start;
  for (uintptr_t at = link_of(mark)->after & ~kFlags; at != start;) {
    const Link* link = reinterpret_cast<const Link*>(at);
    if ((link->before & ~kFlags) != last) {
      found->clear();
      return false;
    }
    if (link->before & kGarbage) found->push_back(object_of(at));  // else it is the head of the list, not an object
    last = at;
    at = link->after & ~kFlags;
  }
  return true;
}

// How an instance has its attributes before it is asked for a dictionary: as values in front of it. Python makes the
// dictionary of these values and forgets that there were any, in Python 3.11 and 3.12, and this undoes it.
class Values {
 public:
  // `probe` is an instance that was never asked, `value` its only attribute. `version` is 11 or 12.
  void begin(Object* probe, Object* value, int version) {
    version_ = version;
    Object* const made = PyObject_GenericGetDict(probe, nullptr);
    if (!made) return PyErr_Clear();
    uintptr_t* const values = values_of(made);
    works_ = dictionary_of(probe) == reinterpret_cast<uintptr_t>(made) && references_to(made) == 2 && *values &&
             *reinterpret_cast<uintptr_t*>(*values) == reinterpret_cast<uintptr_t>(value) &&
             (version_ == 12 || words(probe)[-4] == 0);
    Py_DecRef(made);
  }

  // Whether an instance has its values again, in the place of a dictionary that nothing else holds.
  bool restore(Object* instance, Object* dictionary) const {
    if (!works_ || dictionary_of(instance) != reinterpret_cast<uintptr_t>(dictionary)) return false;
    uintptr_t* const values = values_of(dictionary);
    if (!*values || references_to(dictionary) != 1) return false;
    if (version_ == 11) {
      words(instance)[-4] = *values;
      words(instance)[-3] = 0;
    } else {
      words(instance)[-3] = *values - 1;  // the lowest bit tells values from a dictionary
    }
    *values = 0;
    Py_DecRef(dictionary);
    return true;
  }

 private:
  static uintptr_t* words(Object* object) { return reinterpret_cast<uintptr_t*>(object); }
  static uintptr_t dictionary_of(Object* instance) { return words(instance)[-3]; }
  static uintptr_t* values_of(Object* dictionary) { return &words(dictionary)[5]; }

  int version_ = 0;
  bool works_ = false;
};

// The garbage, and objects that only it holds and that this collection did not visit.
class Garbage {
 public:
  struct Class {
    bool wanted, managed;
    Traverse traverse;
    uint64_t kind;  // distinguishes classes while they exist
  };

  Garbage(std::vector<Object*> objects, Object* wanted)
      : objects_(std::move(objects)), listed_(objects_.size()), wanted_(wanted) {}

  bool has_wanted() {
    for (Object* object : objects_) {
      if (class_of(object).wanted) return true;
    }
    return false;
  }

  // An object is garbage if all counted references to it come from garbage.
  void add_older() {
    for (size_t i = 0; i < objects_.size(); ++i) traverse(objects_[i], &visit, this);
  }

  const std::vector<Object*>& objects() const { return objects_; }

  // A dictionary, and the index of the instance that has its values.
  struct Made {
    Object* dictionary;
    size_t owner;
  };

  // Dictionaries that reading created from the values in an instance hold garbage, in some versions of Python (see
  // `_makes_dictionaries` in unfinalized.py). Only the instance holds them. It gets its values back; if that fails, they
  // are added to the garbage, else the collector would think that a finalizer resurrected what they hold. Returns those
  // of them that were added since the last call.
  const std::vector<Made>& adopt(Object* mark, const Values& values) {
    made_.clear();
    adopting_ = true;
    for (owner_ = 0; owner_ < listed_; ++owner_) {
      Object* const object = objects_[owner_];
      const Class& cls = class_of(object);
      if (cls.managed && cls.traverse) cls.traverse(object, &visit, this);
    }
    adopting_ = false;
    const auto is_restored = [&](const Made& one) {
      if (!values.restore(objects_[one.owner], one.dictionary)) return false;
      older_.erase(one.dictionary);
      return true;
    };
    made_.erase(std::remove_if(made_.begin(), made_.end(), is_restored), made_.end());
    for (const Made& one : made_) {
      Object* const made = one.dictionary;
      PyObject_GC_UnTrack(made);
      Link* const place = link_of(mark);
      Link* const next = reinterpret_cast<Link*>(place->after & ~kFlags);
      Link* const link = link_of(made);
      link->after = reinterpret_cast<uintptr_t>(next);
      link->before = reinterpret_cast<uintptr_t>(place) | kGarbage;
      next->before = reinterpret_cast<uintptr_t>(link) | (next->before & kFlags);
      place->after = reinterpret_cast<uintptr_t>(link) | (place->after & kFlags);
    }
    return made_;
  }

  // Determined once for each collection: another class may have this address later.
  const Class& class_of(Object* object) {
    Object* const type = object->type;
    if (type == last_type_) return *last_;
    auto found = classes_.find(type);
    if (found == classes_.end()) {
      Class cls = {};
      const unsigned long flags = PyType_GetFlags(type);
      cls.managed = (flags & kManagedDict) && (flags & kHeapType);
      for (ssize_t i = 0, size = PyTuple_Size(wanted_); i < size; ++i) {
        cls.wanted = cls.wanted || PyType_IsSubtype(type, PyTuple_GetItem(wanted_, i));
      }
      if (flags & kCollected) cls.traverse = reinterpret_cast<Traverse>(PyType_GetSlot(type, kTraverse));
      cls.kind = reinterpret_cast<uintptr_t>(type) ^ std::hash<std::string_view>()(type_name(type));
      found = classes_.emplace(type, cls).first;
    }
    last_type_ = type;
    last_ = &found->second;
    return *last_;
  }

  // What objects of one kind have in common: their class, or the code of functions and bound methods.
  uint64_t kind_of(Object* object) {
    const uint64_t kind = class_of(object).kind;
    Object* const function = object->type == &PyMethod_Type ? PyMethod_Function(object) : object;
    if (function->type != &PyFunction_Type) return kind;
    Object* const code = PyFunction_GetCode(function);
    const uint64_t line = static_cast<uint64_t>(PyCode_Addr2Line(code, -1));  // other code may have this address later
    return kind ^ reinterpret_cast<uintptr_t>(code) << 1 ^ line << 48;
  }

  void traverse(Object* object, Visit visit, void* argument) {
    // A module may refer to freed objects (_asyncio of CPython 3.12); its namespace is a separate object.
    const Class& cls = class_of(object);
    if (cls.traverse && object->type != &PyModule_Type) cls.traverse(object, visit, argument);
  }

 private:
  static int visit(Object* object, void* self) {
    static_cast<Garbage*>(self)->met(object);
    return 0;
  }

  void met(Object* object) {
    const unsigned long flags = PyType_GetFlags(object->type);
    if (!(flags & kCollected) || (flags & kIsType) || (link_of(object)->before & kGarbage)) return;
    if (older_.count(object)) return;
    if (adopting_) {
      if (object->type == &PyDict_Type && references_to(object) == 1 && PyObject_GC_IsTracked(object)) {
        older_.insert(object);
        made_.push_back({object, owner_});
      }
      return;
    }
    if (++outside_[object] == references_to(object) && PyObject_GC_IsTracked(object)) {
      older_.insert(object);
      objects_.push_back(object);
    }
  }

  std::vector<Object*> objects_;
  std::vector<Made> made_;
  size_t owner_ = 0;
  const size_t listed_;                       // those in the collector's list come first
  Object* const wanted_;
  std::unordered_map<Object*, Class> classes_;
  std::unordered_set<Object*> older_;
  std::unordered_map<Object*, uint32_t> outside_;
  Object* last_type_ = nullptr;
  const Class* last_ = nullptr;
  bool adopting_ = false;
};

// Finds the part of the garbage to which each object belongs: parts have no references to each other. References of
// objects to their classes do not count, else all instances of a class that is garbage would be one part.
// (Disjoint sets with path halving: Tarjan and van Leeuwen, 1984.)
class Parts {
 public:
  explicit Parts(Garbage& garbage) {
    const std::vector<Object*>& objects = garbage.objects();
    places_.reserve(objects.size());
    parents_.resize(objects.size());
    for (size_t i = 0; i < objects.size(); ++i) {
      places_.emplace(objects[i], i);
      parents_[i] = i;
    }
    for (current_ = 0; current_ < objects.size(); ++current_) {
      type_ = objects[current_]->type;
      garbage.traverse(objects[current_], &visit, this);
    }
  }

  size_t of(size_t place) {
    while (parents_[place] != place) place = parents_[place] = parents_[parents_[place]];
    return place;
  }

 private:
  static int visit(Object* object, void* self) {
    static_cast<Parts*>(self)->join(object);
    return 0;
  }

  void join(Object* object) {
    if (object == type_) return;
    const auto found = places_.find(object);
    if (found == places_.end()) return;
    const size_t one = of(current_), other = of(found->second);
    if (one != other) parents_[one < other ? other : one] = one < other ? one : other;
  }

  std::unordered_map<Object*, size_t> places_;
  std::vector<size_t> parents_;
  size_t current_ = 0;
  Object* type_ = nullptr;
};
