// The graph of references among some objects: its strongly connected components, and the objects that each cycle keeps.
//
// An object is its place in a list. All algorithms are iterative and take time in proportion to the objects and
// references. Nothing here calls Python code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "collector_python.h"
#include "collector_time.h"

// Finds the place of an object by its address: a table with open addressing (linear probing).
class Numbers {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // All calls get the same list, which may have grown.
  using List = std::vector<Object*>;

  bool is_empty() const { return slots_.empty(); }

  // Adds all objects of the list.
  void begin(const List& objects) { grow(objects); }

  uint32_t find(const List& objects, const Object* object) const {
    for (size_t slot = first(object);; slot = (slot + 1) & mask_) {
      const uint32_t place = slots_[slot];
      if (place == kNone || objects[place] == object) return place;
    }
  }

  // Adds the last object of the list.
  void add(const List& objects) {
    if (4 * objects.size() > 3 * slots_.size()) return grow(objects);
    insert(objects, static_cast<uint32_t>(objects.size() - 1));
  }

 private:
  void grow(const List& objects) {
    bits_ = 6;
    while ((size_t{1} << bits_) < 2 * objects.size()) ++bits_;
    slots_.assign(size_t{1} << bits_, kNone);
    mask_ = slots_.size() - 1;
    for (uint32_t place = 0; place < objects.size(); ++place) insert(objects, place);
  }

  // An object that is listed twice keeps its last place.
  void insert(const List& objects, uint32_t place) {
    if (!objects[place]) return;
    size_t slot = first(objects[place]);
    while (slots_[slot] != kNone && objects[slots_[slot]] != objects[place]) slot = (slot + 1) & mask_;
    slots_[slot] = place;
  }

  size_t first(const Object* object) const {
    return reinterpret_cast<uintptr_t>(object) * 0x9E3779B97F4A7C15ull >> (64 - bits_);
  }

  std::vector<uint32_t> slots_;
  size_t mask_ = 0;
  int bits_ = 0;
};

class Graph {
 public:
  static constexpr uint32_t kNone = Numbers::kNone;
  using Pair = std::pair<uint32_t, uint32_t>;

  Graph() = default;
  // Reads the classes of the objects, and nothing else yet.
  explicit Graph(std::vector<Object*> objects) : objects_(std::move(objects)) {
    types_.reserve(objects_.size());
    for (Object* object : objects_) types_.push_back(number_of_class(object));
  }

  const std::vector<Object*>& objects() const { return objects_; }
  // The classes of the objects, each once, and for each object the place of its class among them.
  const std::vector<Object*>& classes() const { return classes_; }
  const std::vector<uint32_t>& types() const { return types_; }
  uint32_t find(const Object* object) {
    if (numbers_.is_empty()) numbers_.begin(objects_);
    return numbers_.find(objects_, object);
  }

  void reserve(size_t size) {
    objects_.reserve(size);
    types_.reserve(size);
  }

  // Adds an object, or with null one that has no Python object; returns its place.
  uint32_t add(Object* object) {
    objects_.push_back(object);
    if (!numbers_.is_empty()) numbers_.add(objects_);
    types_.push_back(object ? number_of_class(object) : kNone);
    return static_cast<uint32_t>(objects_.size() - 1);
  }

  // Adds a reference that was not read, before `search`.
  void refer(uint32_t holder, uint32_t held) { extra_.push_back({holder, held}); }

  // Reads all references, as the collector sees them. Call it once; later only `refer` adds references.
  void read() {
    const bool is_whole = read_with([this](Object* object) {
      const uint32_t place = find(object);
      if (place != kNone) holds(place);
      return static_cast<int>(!Hurry::has_time_for([] { Hurry::check(2); }));
    });
    if (!is_whole) throw Hurry::TooLong();
  }

  // The graph of some of the objects, all of whose references were read, in that order.
  Graph part(const std::vector<uint32_t>& places) const {
    Graph found;
    found.reserve(places.size());
    std::vector<uint32_t> numbers(objects_.size(), kNone);
    for (uint32_t place : places) numbers[place] = found.add(objects_[place]);
    for (uint32_t place : places) {
      found.held_starts_.push_back(static_cast<uint32_t>(found.held_.size()));
      for (const uint32_t* held = held_by(place); held != held_by(place + 1); ++held) {
        Hurry::check();
        if (numbers[*held] != kNone) found.held_.push_back(numbers[*held]);
      }
    }
    found.held_starts_.push_back(static_cast<uint32_t>(found.held_.size()));
    for (const Pair& one : extra_) {
      const Pair inside = {numbers[one.first], numbers[one.second]};
      if (inside.first != kNone && inside.second != kNone) found.extra_.push_back(inside);
    }
    found.is_read_ = true;
    return found;
  }

  // Calls a function for each reference, which may call `holds` and `add`, until it returns something other than 0.
  // Returns whether all references were read.
  template <typename Function>
  bool read_with(Function function) {
    held_.reserve(2 * objects_.size());
    held_starts_.reserve(objects_.size() + 1);
    bool is_whole = true;
    for (current_ = 0; current_ < objects_.size() && is_whole; ++current_) {
      held_starts_.push_back(static_cast<uint32_t>(held_.size()));
      const Visit visitor = [](Object* object, void* argument) { return (*static_cast<Function*>(argument))(object); };
      if (objects_[current_]) is_whole = traverse(current_, visitor, &function) == 0;
    }
    held_starts_.push_back(static_cast<uint32_t>(held_.size()));
    return is_read_ = is_whole;
  }
  // The object whose references are read refers to one at this place.
  void holds(uint32_t place) { held_.push_back(place); }
  uint32_t holder() const { return current_; }

  // Calls a visitor for what an object refers to; returns what the visitor returned last.
  int traverse(uint32_t place, Visit visitor, void* argument) {
    Object* const object = objects_[place];
    if (object->type == &PyModule_Type) {
      // A module may refer to freed objects (_asyncio of CPython 3.12); its namespace is a separate object.
      Object* const names = PyModule_GetDict(object);
      return names ? visitor(names, argument) : 0;
    }
    const uint32_t number = types_[place];
    while (traverses_.size() < classes_.size()) {
      Object* const type = classes_[traverses_.size()];
      const bool is_collected = PyType_GetFlags(type) & kCollected;
      traverses_.push_back(is_collected ? reinterpret_cast<Traverse>(PyType_GetSlot(type, kTraverse)) : nullptr);
    }
    return traverses_[number] ? traverses_[number](object, visitor, argument) : 0;
  }

  // References that `refer` added.
  const std::vector<Pair>& given() const { return extra_; }

  // What an object refers to, once it was read.
  const uint32_t* held_by(uint32_t one) const { return held_.data() + held_starts_[one]; }

  // Finds which component keeps each object that leads to one of the targets.
  void search(const std::vector<uint32_t>& targets) {
    if (!is_read_) read();
    connect();
    ancestors(targets);
    components();
    keepers();
  }

  // The number of the component that keeps an object: a cycle that no other cycle reaches. `kNone` if no cycle does.
  uint32_t keeper(uint32_t place) const { return keeper_[place]; }
  // The objects of a component.
  std::pair<const uint32_t*, const uint32_t*> component(uint32_t number) const {
    return {&members_[bounds_[number]], &members_[bounds_[number + 1]]};
  }
  // How many objects a component keeps that lead to targets, with its own, and how many other cycles are among them.
  uint32_t size(uint32_t component) const { return sizes_[component]; }
  uint32_t hanging(uint32_t component) const { return cyclic_[component] - 1; }

  // The shortest cycle through the nearest object towards `target` of the component that keeps it, which is none of
  // `inner` classes if it has others. (Breadth-first: Moore, "The shortest path through a maze", 1959.)
  std::vector<uint32_t> cycle(uint32_t target, const std::vector<uint8_t>& inner) {
    const uint32_t number = keeper_[target];
    uint32_t start = nearest(target, number, inner);
    if (start == kNone) start = *component(number).first;
    return shortest(start, number);
  }

  // The shortest chain from one of the starts to each wanted object, through what a component keeps; empty without one.
  std::vector<std::vector<uint32_t>> chains(uint32_t number, const std::vector<uint32_t>& starts,
                                            const std::vector<uint32_t>& wanted) {
    begin_walk();
    for (uint32_t one : starts) {
      if (!seen(one)) see(one, one);
    }
    size_t missing = 0;
    for (uint32_t one : wanted) missing += !seen(one);
    for (size_t next = 0; next < waiting_.size() && missing; ++next) {
      const uint32_t one = waiting_[next];
      for (const uint32_t* held = held_by(one); held != held_by(one + 1); ++held) {
        if (seen(*held) || keeper_[*held] != number) continue;
        see(*held, one);
        for (uint32_t other : wanted) missing -= other == *held;
      }
    }
    std::vector<std::vector<uint32_t>> found;
    for (uint32_t one : wanted) {
      found.emplace_back();
      if (!seen(one)) continue;
      for (uint32_t place = one;; place = previous_[place]) {
        found.back().push_back(place);
        if (previous_[place] == place) break;
      }
      std::reverse(found.back().begin(), found.back().end());
    }
    return found;
  }

 private:
  uint32_t number_of_class(Object* object) {
    Object* const type = object->type;
    if (type == last_type_) return last_number_;
    size_t number = 0;
    if (!class_slots_.empty()) {
      size_t slot = class_slot(type);
      while (class_slots_[slot] != kNone && classes_[class_slots_[slot]] != type) slot = (slot + 1) & (class_slots_.size() - 1);
      number = class_slots_[slot] == kNone ? classes_.size() : class_slots_[slot];
    }
    if (number == classes_.size()) {
      classes_.push_back(type);
      if (2 * classes_.size() > class_slots_.size()) {
        class_slots_.assign(std::max<size_t>(64, 4 * class_slots_.size()), kNone);
        for (uint32_t i = 0; i < classes_.size(); ++i) insert_class(i);
      } else {
        insert_class(static_cast<uint32_t>(number));
      }
    }
    last_type_ = type;
    return last_number_ = static_cast<uint32_t>(number);
  }
  size_t class_slot(const Object* type) const {
    return (reinterpret_cast<uintptr_t>(type) * 0x9E3779B97F4A7C15ull >> 20) & (class_slots_.size() - 1);
  }
  void insert_class(uint32_t number) {
    size_t slot = class_slot(classes_[number]);
    while (class_slots_[slot] != kNone) slot = (slot + 1) & (class_slots_.size() - 1);
    class_slots_[slot] = number;
  }

  const uint32_t* holders_of(uint32_t one) const { return holders_.data() + holder_starts_[one]; }

  // Adds the references that were given, after those that were read, and turns all around.
  void connect() {
    const uint32_t size = static_cast<uint32_t>(objects_.size());
    if (!extra_.empty() || held_starts_.size() <= size) {
      std::stable_sort(extra_.begin(), extra_.end(), [](const Pair& a, const Pair& b) { return a.first < b.first; });
      std::vector<uint32_t> held, starts;
      held.reserve(held_.size() + extra_.size());
      starts.reserve(size + 1);
      size_t next = 0;
      for (uint32_t one = 0; one < size; ++one) {
        starts.push_back(static_cast<uint32_t>(held.size()));
        if (one + 1 < held_starts_.size()) held.insert(held.end(), held_by(one), held_by(one + 1));
        for (; next < extra_.size() && extra_[next].first == one; ++next) held.push_back(extra_[next].second);
      }
      starts.push_back(static_cast<uint32_t>(held.size()));
      held_.swap(held);
      held_starts_.swap(starts);
    }
    holder_starts_.assign(size + 2, 0);
    for (uint32_t held : held_) ++holder_starts_[held + 2];
    for (uint32_t one = 2; one < size + 2; ++one) holder_starts_[one] += holder_starts_[one - 1];
    holders_.resize(held_.size());
    for (uint32_t one = 0; one < size; ++one) {
      for (const uint32_t* held = held_by(one); held != held_by(one + 1); ++held) {
        Hurry::check();
        holders_[holder_starts_[*held + 1]++] = one;
      }
    }
    previous_.resize(size);
    walked_.assign(size, 0);
  }

  // The targets and all objects from which one of them is reached.
  void ancestors(const std::vector<uint32_t>& targets) {
    relevant_.assign(objects_.size(), 0);
    std::vector<uint32_t> waiting = targets;
    for (uint32_t one : waiting) relevant_[one] = 1;
    while (!waiting.empty()) {
      const uint32_t one = waiting.back();
      waiting.pop_back();
      for (const uint32_t* holder = holders_of(one); holder != holders_of(one + 1); ++holder) {
        Hurry::check();
        if (relevant_[*holder]) continue;
        relevant_[*holder] = 1;
        waiting.push_back(*holder);
      }
    }
  }

  // Strongly connected components of what is relevant, each before those that refer to it. (Tarjan, "Depth-first search
  // and linear graph algorithms", 1972, with a stack of positions instead of recursion.)
  void components() {
    const uint32_t size = static_cast<uint32_t>(objects_.size()), done = size + 1;
    std::vector<uint32_t> order(size), low(size), path;
    for (uint32_t one = 0; one < size; ++one) order[one] = relevant_[one] ? 0 : done;
    std::vector<std::pair<uint32_t, const uint32_t*>> work;
    uint32_t count = 0;
    bounds_.push_back(0);
    for (uint32_t root = 0; root < size; ++root) {
      if (order[root]) continue;
      work.push_back({root, held_by(root)});
      order[root] = low[root] = ++count;
      path.push_back(root);
      while (!work.empty()) {
        const uint32_t one = work.back().first;
        const uint32_t* const end = held_by(one + 1);
        const uint32_t*& next = work.back().second;
        uint32_t inner = kNone;
        for (; next != end && inner == kNone; ++next) {
          Hurry::check();
          const uint32_t seen = order[*next];
          if (seen) {
            low[one] = std::min(low[one], seen);
          } else {
            inner = *next;
          }
        }
        if (inner != kNone) {
          order[inner] = low[inner] = ++count;
          path.push_back(inner);
          work.push_back({inner, held_by(inner)});
          continue;
        }
        work.pop_back();
        if (!work.empty()) low[work.back().first] = std::min(low[work.back().first], low[one]);
        if (low[one] != order[one]) continue;
        size_t place = path.size() - 1;
        while (path[place] != one) --place;
        for (size_t i = place; i < path.size(); ++i) {
          order[path[i]] = done;
          members_.push_back(path[i]);
        }
        path.resize(place);
        bounds_.push_back(static_cast<uint32_t>(members_.size()));
      }
    }
  }

  // A component keeps objects if it has a cycle and no other cycle reaches it: breaking any other cycle first frees
  // nothing. If several reach an object, it is the first one's.
  void keepers() {
    const size_t count = bounds_.size() - 1;
    std::vector<uint32_t> reached(objects_.size(), kNone);
    keeper_.assign(objects_.size(), kNone);
    sizes_.assign(count, 0);
    cyclic_.assign(count, 0);
    for (uint32_t number = static_cast<uint32_t>(count); number-- > 0;) {
      const auto [first, last] = component(number);
      uint32_t owner = kNone;
      for (const uint32_t* one = first; one != last && owner == kNone; ++one) owner = reached[*one];
      const bool is_cyclic = last - first > 1 || std::find(held_by(*first), held_by(*first + 1), *first) != held_by(*first + 1);
      if (owner == kNone && is_cyclic) owner = number;
      if (owner == kNone) continue;
      cyclic_[owner] += is_cyclic;
      for (const uint32_t* one = first; one != last; ++one) {
        Hurry::check();
        keeper_[*one] = owner;
        ++sizes_[owner];
        for (const uint32_t* held = held_by(*one); held != held_by(*one + 1); ++held) {
          if (reached[*held] == kNone) reached[*held] = owner;
        }
      }
    }
    within_.assign(objects_.size(), kNone);
    for (uint32_t number = 0; number < count; ++number) {
      for (auto [one, last] = component(number); one != last; ++one) within_[*one] = number;
    }
  }

  uint32_t nearest(uint32_t target, uint32_t number, const std::vector<uint8_t>& inner) {
    begin_walk();
    see(target, target);
    for (size_t next = 0; next < waiting_.size(); ++next) {
      const uint32_t one = waiting_[next];
      if (within_[one] == number && !(types_[one] != kNone && inner[types_[one]])) return one;
      for (const uint32_t* holder = holders_of(one); holder != holders_of(one + 1); ++holder) {
        if (!seen(*holder) && keeper_[*holder] == number) see(*holder, one);
      }
    }
    return kNone;
  }

  std::vector<uint32_t> shortest(uint32_t start, uint32_t number) {
    begin_walk();
    if (std::find(held_by(start), held_by(start + 1), start) != held_by(start + 1)) return {start};
    see(start, start);
    for (size_t next = 0; next < waiting_.size(); ++next) {
      const uint32_t one = waiting_[next];
      for (const uint32_t* held = held_by(one); held != held_by(one + 1); ++held) {
        if (*held == start) {
          std::vector<uint32_t> chain = {one};
          while (chain.back() != start) chain.push_back(previous_[chain.back()]);
          std::reverse(chain.begin(), chain.end());
          return chain;
        }
        if (!seen(*held) && within_[*held] == number) see(*held, one);
      }
    }
    return {};
  }

  // A walk visits each object once; the marks of the last one need not be cleared.
  void begin_walk() {
    ++walk_;
    waiting_.clear();
  }
  bool seen(uint32_t one) const { return walked_[one] == walk_; }
  void see(uint32_t one, uint32_t from) {
    walked_[one] = walk_;
    previous_[one] = from;
    waiting_.push_back(one);
  }

  std::vector<Object*> objects_;
  Numbers numbers_;
  std::vector<Object*> classes_;
  std::vector<uint32_t> class_slots_, types_;
  Object* last_type_ = nullptr;
  uint32_t last_number_ = 0;
  std::vector<Traverse> traverses_;  // of the classes
  std::vector<Pair> extra_;
  uint32_t current_ = 0;
  bool is_read_ = false;
  std::vector<uint32_t> held_, held_starts_, holders_, holder_starts_;
  std::vector<uint8_t> relevant_;
  std::vector<uint32_t> members_, bounds_;             // components one after the other
  std::vector<uint32_t> keeper_, within_;              // of each object
  std::vector<uint32_t> sizes_, cyclic_;               // of each component
  std::vector<uint32_t> walked_, previous_, waiting_;  // of walks
  uint32_t walk_ = 0;
};
