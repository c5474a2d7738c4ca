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

#include "collector_graph.h"
#include "collector_python.h"
#include "collector_time.h"

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

  // Whether an instance may have a dictionary.
  bool may_have_made(Object* instance) const {
    const uintptr_t found = dictionary_of(instance);
    return !works_ || (version_ == 11 ? found != 0 : !(found & 1));
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
    uint64_t kind;  // distinguishes classes while they exist
  };

  enum class Listed { kWhole, kPart, kBroken };

  explicit Garbage(Object* wanted) : wanted_(wanted) { graph_.reserve(4096); }

  // Finds the objects beside the mark in the collector's list until there are more than `most`, or until a function says
  // that this takes too long: it is asked once in 256 objects. Call it again to go on. Nothing is found if the list is not
  // as expected.
  template <typename IsOver>
  Listed list(Object* mark, size_t most, IsOver is_over) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(link_of(mark));
    if (!at_) last_ = start, at_ = link_of(mark)->after & ~kFlags;
    while (at_ != start) {
      const Link* link = reinterpret_cast<const Link*>(at_);
      if ((link->before & ~kFlags) != last_) {
        graph_ = Graph();
        return Listed::kBroken;
      }
      last_ = at_;
      at_ = link->after & ~kFlags;
      if (!(link->before & kGarbage)) continue;  // the head of the list, not an object
      graph_.add(object_of(last_));
      listed_ = graph_.objects().size();
      if (listed_ > most || (!(listed_ & 255) && is_over())) return Listed::kPart;
    }
    return Listed::kWhole;
  }

  // Reads what the garbage refers to. Objects that this collection did not visit, because they are of an older generation
  // or frozen, are garbage if all counted references to them come from garbage. Returns whether it read all until some
  // moment.
  bool read(const Stopwatch& time, double end) {
    Limit limit(time, end, 1024);
    return graph_.read_with([&](Object* object) {
      if (limit.is_over()) return 1;
      if (!is_collected(object)) return 0;
      if (link_of(object)->before & kGarbage) {
        const uint32_t place = graph_.find(object);
        if (place != Graph::kNone) graph_.holds(place);
      } else if (link_of(object)->after) {
        met(graph_.holder(), object);
      }
      return 0;
    });
  }

  // Whether there are objects that this collection did not visit.
  bool has_older() const { return objects().size() > listed_; }

  bool has_wanted() {
    for (uint32_t number = 0; number < graph_.classes().size(); ++number) {
      if (of_class(number).wanted) return true;
    }
    return false;
  }

  Graph& graph() { return graph_; }
  const std::vector<Object*>& objects() const { return graph_.objects(); }
  const Class& class_at(size_t place) { return of_class(graph_.types()[place]); }
  // By the number of the class in the graph; determined once for each collection, for another class may have its address
  // later.
  const Class& of_class(uint32_t number) {
    while (classes_.size() <= number) {
      Object* const type = graph_.classes()[classes_.size()];
      Class cls = {};
      const unsigned long flags = PyType_GetFlags(type);
      cls.managed = (flags & kManagedDict) && (flags & kHeapType);
      for (ssize_t i = 0, size = PyTuple_Size(wanted_); i < size; ++i) {
        cls.wanted = cls.wanted || PyType_IsSubtype(type, PyTuple_GetItem(wanted_, i));
      }
      cls.kind = reinterpret_cast<uintptr_t>(type) ^ std::hash<std::string_view>()(type_name(type));
      classes_.push_back(cls);
    }
    return classes_[number];
  }

  // A dictionary, and the index of the instance that has its values.
  struct Made {
    Object* dictionary;
    size_t owner;
  };

  // Dictionaries that reading created from the values in an instance hold garbage, in some versions of Python (see
  // `_makes_dictionaries` in unfinalized.py). Only the instance holds them. It gets its values back; if that fails, they
  // are added to the garbage, else the collector would think that a finalizer resurrected what they hold. Returns those
  // of them that were added now. `places` are those of the objects that may have been read, in ascending order; without
  // them, it may be all.
  const std::vector<Made>& adopt(Object* mark, const Values& values, const std::vector<uint32_t>* places = nullptr) {
    made_.clear();
    const size_t count = places ? places->size() : listed_;
    for (size_t i = 0; i < count; ++i) {
      owner_ = places ? (*places)[i] : i;
      if (owner_ >= listed_) break;
      if (!class_at(owner_).managed || !values.may_have_made(objects()[owner_])) continue;
      graph_.traverse(static_cast<uint32_t>(owner_), &visit, this);
    }
    const auto is_restored = [&](const Made& one) {
      if (!values.restore(objects()[one.owner], one.dictionary)) return false;
      adopted_.erase(one.dictionary);
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

  // What objects of one kind have in common: their class, or the code of functions and bound methods.
  uint64_t kind_at(size_t place) {
    const uint64_t kind = class_at(place).kind;
    Object* const object = objects()[place];
    Object* const function = object->type == &PyMethod_Type ? PyMethod_Function(object) : object;
    if (function->type != &PyFunction_Type) return kind;
    Object* const code = PyFunction_GetCode(function);
    const auto found = lines_.find(code);
    if (found != lines_.end()) return kind ^ found->second;
    const uint64_t line = static_cast<uint64_t>(PyCode_Addr2Line(code, -1));  // other code may have this address later
    return kind ^ (lines_[code] = reinterpret_cast<uintptr_t>(code) << 1 ^ line << 48);
  }
  // Whether objects of a class are of one kind.
  bool is_alike(uint32_t number) const {
    Object* const type = graph_.classes()[number];
    return type != &PyMethod_Type && type != &PyFunction_Type;
  }

 private:
  // Whether the collector knows an object. (Most references are to objects of the same few classes.)
  bool is_collected(Object* object) {
    if (object->type == last_type_) return is_last_collected_;
    last_type_ = object->type;
    return is_last_collected_ = PyType_GetFlags(last_type_) & kCollected;
  }

  // An untracked object (an empty dictionary, a tuple of numbers) refers to nothing that matters.
  bool is_outside(Object* object) {
    return is_collected(object) && link_of(object)->after && !(link_of(object)->before & kGarbage);
  }

  // The references to an object beyond the list are read again when all of them are known.
  void met(uint32_t holder, Object* object) {
    if (PyType_GetFlags(object->type) & kIsType) return;
    std::vector<uint32_t>& holders = outside_[object];
    holders.push_back(holder);
    if (holders.size() != references_to(object)) return;
    const uint32_t added = graph_.add(object);
    for (uint32_t one : holders) graph_.refer(one, added);
    outside_.erase(object);
  }

  static int visit(Object* object, void* self) {
    static_cast<Garbage*>(self)->found_dictionary(object);
    return 0;
  }

  void found_dictionary(Object* object) {
    if (object->type != &PyDict_Type || references_to(object) != 1 || !is_outside(object)) return;
    if (graph_.find(object) != Graph::kNone) return;
    if (adopted_.insert(object).second) made_.push_back({object, owner_});
  }

  Graph graph_;
  size_t listed_ = 0;            // those in the collector's list come first
  uintptr_t last_ = 0, at_ = 0;  // where listing was, and where it goes on
  Object* const wanted_;
  std::vector<Class> classes_;
  std::vector<Made> made_;
  size_t owner_ = 0;
  Object* last_type_ = nullptr;
  bool is_last_collected_ = false;
  std::unordered_set<Object*> adopted_;
  std::unordered_map<Object*, uint64_t> lines_;  // of code
  std::unordered_map<Object*, std::vector<uint32_t>> outside_;  // who holds objects beyond the list
};

// The parts of the garbage, in the order of their first objects: they have no references to each other. References of
// objects to their classes do not count, else all instances of a class that is garbage would be one part.
// (Disjoint sets with path halving: Tarjan and van Leeuwen, 1984.)
class Parts {
 public:
  explicit Parts(Garbage& garbage) {
    const Graph& graph = garbage.graph();
    const std::vector<Object*>& objects = graph.objects();
    const uint32_t size = static_cast<uint32_t>(objects.size());
    parents_.resize(size);
    for (uint32_t i = 0; i < size; ++i) parents_[i] = i;
    for (uint32_t i = 0; i < size; ++i) {
      for (const uint32_t* held = graph.held_by(i); held != graph.held_by(i + 1); ++held) {
        Hurry::check();
        join(objects, i, *held);
      }
    }
    for (const Graph::Pair& one : graph.given()) join(objects, one.first, one.second);
    numbers_.resize(size);
    for (uint32_t i = 0; i < size; ++i) {
      const uint32_t first = root(i);
      numbers_[i] = first == i ? count_++ : numbers_[first];
    }
    starts_.assign(count_ + 1, 0);
    for (uint32_t i = 0; i < size; ++i) ++starts_[numbers_[i] + 1];
    for (uint32_t part = 0; part < count_; ++part) starts_[part + 1] += starts_[part];
    std::vector<uint32_t> next(starts_.begin(), starts_.end());
    members_.resize(size);
    for (uint32_t i = 0; i < size; ++i) members_[next[numbers_[i]]++] = i;
  }

  uint32_t count() const { return count_; }
  // The part of an object.
  uint32_t of(size_t place) const { return numbers_[place]; }
  // The objects of a part, in ascending order.
  const uint32_t* begin_of(uint32_t part) const { return members_.data() + starts_[part]; }
  const uint32_t* end_of(uint32_t part) const { return members_.data() + starts_[part + 1]; }

 private:
  uint32_t root(uint32_t place) {
    while (parents_[place] != place) place = parents_[place] = parents_[parents_[place]];
    return place;
  }

  // The root of a part is its first object.
  void join(const std::vector<Object*>& objects, uint32_t holder, uint32_t held) {
    if (objects[held] == objects[holder]->type) return;
    const uint32_t one = root(holder), other = root(held);
    if (one != other) parents_[one < other ? other : one] = one < other ? one : other;
  }

  std::vector<uint32_t> parents_, numbers_, starts_, members_;
  uint32_t count_ = 0;
};
