// The functions by which Python reads some objects: their graph (`Graph`), and the storages of tensors among them.
//
// All need the GIL. Lists of places are Python lists of numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "collector_graph.h"
#include "collector_python.h"
#include "collector_storages.h"

#define READING extern "C" __attribute__((visibility("default")))

namespace reading {

// The graph of the objects that a look is called with, read before it: a look makes dictionaries of instances, which
// then stand between these and what they refer to, for another watch and for a look that is repeated.
inline const Graph* shared = nullptr;

// Gives copies of a graph to those that begin meanwhile with the same objects.
class SharedGraph {
 public:
  explicit SharedGraph(const Graph& graph) { shared = &graph; }
  ~SharedGraph() { shared = nullptr; }
  SharedGraph(const SharedGraph&) = delete;
  SharedGraph& operator=(const SharedGraph&) = delete;
};

inline std::vector<uint32_t> places_of(Object* list) {
  std::vector<uint32_t> found;
  for (ssize_t i = 0, size = PyList_Size(list); i < size; ++i) {
    found.push_back(static_cast<uint32_t>(PyLong_AsLong(PyList_GetItem(list, i))));
  }
  return found;
}

inline Object* list_of_places(const std::vector<uint32_t>& places) {
  Object* const list = PyList_New(static_cast<ssize_t>(places.size()));
  for (size_t i = 0; list && i < places.size(); ++i) {
    PyList_SetItem(list, static_cast<ssize_t>(i), PyLong_FromUnsignedLongLong(places[i]));
  }
  return list;
}

inline Object* list_of_lists(const std::vector<std::vector<uint32_t>>& lists) {
  Object* const list = PyList_New(static_cast<ssize_t>(lists.size()));
  for (size_t i = 0; list && i < lists.size(); ++i) {
    PyList_SetItem(list, static_cast<ssize_t>(i), list_of_places(lists[i]));
  }
  return list;
}

}  // namespace reading

// Starts with the objects of a list, which must stay alive until `end`.
READING void* cudamem_graph_begin(Object* list) {
  std::vector<Object*> objects;
  const ssize_t size = PyList_Size(list);
  objects.reserve(static_cast<size_t>(size));
  for (ssize_t i = 0; i < size; ++i) objects.push_back(PyList_GetItem(list, i));
  if (reading::shared && reading::shared->objects() == objects) return new Graph(*reading::shared);
  return new Graph(std::move(objects));
}

READING void cudamem_graph_end(Graph* graph) { delete graph; }

READING Object* cudamem_graph_classes(const Graph* graph) {
  const std::vector<Object*>& classes = graph->classes();
  Object* const list = PyList_New(static_cast<ssize_t>(classes.size()));
  for (size_t i = 0; list && i < classes.size(); ++i) {
    Py_IncRef(classes[i]);
    PyList_SetItem(list, static_cast<ssize_t>(i), classes[i]);
  }
  return list;
}

// The places of the objects whose class is chosen: a byte for each of the classes.
READING Object* cudamem_graph_instances(const Graph* graph, const char* chosen) {
  std::vector<uint32_t> found;
  const std::vector<uint32_t>& types = graph->types();
  for (uint32_t place = 0; place < types.size(); ++place) {
    if (types[place] != Graph::kNone && chosen[types[place]]) found.push_back(place);
  }
  return reading::list_of_places(found);
}

READING uint32_t cudamem_graph_find(Graph* graph, Object* one) { return graph->find(PyList_GetItem(one, 0)); }

READING uint32_t cudamem_graph_add(Graph* graph, Object* one) { return graph->add(PyList_GetItem(one, 0)); }

READING void cudamem_graph_refer(Graph* graph, uint32_t holder, uint32_t held) { graph->refer(holder, held); }

// Searches for what keeps the storages that were read, if any, and other objects.
// Returns whether there was time.
READING int32_t cudamem_graph_search(Graph* graph, const Storages* storages, Object* others) {
  std::vector<uint32_t> targets = reading::places_of(others);
  if (storages) {
    for (const Storages::Item& one : storages->items()) targets.push_back(one.place);
  }
  return Hurry::has_time_for([&] { graph->search(targets); });
}

READING uint32_t cudamem_graph_keeper(const Graph* graph, uint32_t place) { return graph->keeper(place); }

READING uint32_t cudamem_graph_size(const Graph* graph, uint32_t component) { return graph->size(component); }

READING uint32_t cudamem_graph_hanging(const Graph* graph, uint32_t component) { return graph->hanging(component); }

READING Object* cudamem_graph_component(const Graph* graph, uint32_t component) {
  const auto [first, last] = graph->component(component);
  return reading::list_of_places({first, last});
}

// See `Graph::cycle`; `inner` has a byte for each of the classes.
READING Object* cudamem_graph_cycle(Graph* graph, uint32_t target, const char* inner) {
  return reading::list_of_places(graph->cycle(target, {inner, inner + graph->classes().size()}));
}

READING Object* cudamem_graph_chains(Graph* graph, uint32_t component, Object* starts, Object* wanted) {
  return reading::list_of_lists(graph->chains(component, reading::places_of(starts), reading::places_of(wanted)));
}

// The entries of a dictionary, list or tuple that are wanted objects: keys or positions and values, one after the other.
READING Object* cudamem_pairs(Object* container, Object* wanted) {
  Object* const found = PyList_New(0);
  Object* const inside = PyList_GetItem(container, 0);
  const auto is_wanted = [wanted, size = PyList_Size(wanted)](Object* one) {
    for (ssize_t i = 0; i < size; ++i) {
      if (PyList_GetItem(wanted, i) == one) return true;
    }
    return false;
  };
  const unsigned long flags = PyType_GetFlags(inside->type);
  if (flags & kIsDict) {
    Object *key, *value;
    for (ssize_t place = 0; PyDict_Next(inside, &place, &key, &value);) {
      if (is_wanted(key) || is_wanted(value)) PyList_Append(found, key), PyList_Append(found, value);
    }
    return found;
  }
  const bool is_list = flags & kIsList;
  for (ssize_t i = 0, size = is_list ? PyList_Size(inside) : PyTuple_Size(inside); i < size; ++i) {
    Object* const value = is_list ? PyList_GetItem(inside, i) : PyTuple_GetItem(inside, i);
    if (!is_wanted(value)) continue;
    Object* const number = PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(i));
    PyList_Append(found, number), PyList_Append(found, value);
    Py_DecRef(number);
  }
  return found;
}

// See `Storages`. `search`, `groups` and this need the graph; later it may end.
READING void* cudamem_storages_begin(Graph* graph, uint32_t offset, Object* parameter, Storages::BlockAt block_at,
                                     uint32_t owner) {
  return new Storages(graph, offset, parameter, block_at, owner);
}

READING void cudamem_storages_end(Storages* storages) { delete storages; }

// Reads the tensors at some places; returns three lists (`Storages::Others`), or none if there was no time.
READING Object* cudamem_storages_read(Storages* storages, Object* places, int32_t gradients) {
  Storages::Others others;
  const auto read = [&] { others = storages->read(reading::places_of(places), gradients != 0); };
  if (!Hurry::has_time_for(read)) return PyList_New(0);
  return reading::list_of_lists({others.unread, others.followed, others.owners});
}

READING uint32_t cudamem_storages_count(const Storages* storages) {
  return static_cast<uint32_t>(storages->items().size());
}

// Bytes by device, one after the other.
READING Object* cudamem_storages_totals(const Storages* storages) {
  std::vector<std::pair<uint32_t, uint64_t>> totals;
  for (const Storages::Item& one : storages->items()) {
    auto found = std::find_if(totals.begin(), totals.end(), [&one](const auto& pair) { return pair.first == one.device; });
    if (found == totals.end()) found = totals.insert(found, {one.device, 0});
    found->second += one.size;
  }
  Object* const list = PyList_New(0);
  const auto append = [list](uint64_t number) {
    Object* const made = PyLong_FromUnsignedLongLong(number);
    if (made) PyList_Append(list, made), Py_DecRef(made);
  };
  for (const auto& [device, bytes] : totals) append(device), append(bytes);
  return list;
}

// The name of a device by its number in `Storages::Item`.
READING Object* cudamem_device_name(uint32_t device) {
  if (!device) return PyUnicode_FromString("cpu");
  const auto type = static_cast<c10::DeviceType>(device >> 8);
  return PyUnicode_FromString(c10::Device(type, static_cast<int8_t>(device & 255)).str().c_str());
}

// The number of a device by its name, 0 for a name that torch does not know.
READING uint32_t cudamem_device_number(const char* name) {
  try {
    return device_of(c10::Device(name));
  } catch (const std::exception&) {
    return 0;
  }
}

// Drops storages: a byte for each says whether it is kept.
READING void cudamem_storages_keep(Storages* storages, const char* chosen) { storages->keep(chosen); }

// The groups that components keep, the largest first, in pairs: a component, and where its storages end; none at all, not
// even an empty list, if there was no time.
READING Object* cudamem_storages_groups(Storages* storages) {
  std::vector<std::vector<uint32_t>> found;
  const auto group = [&] {
    for (const auto& [component, end] : storages->group()) found.push_back({component, static_cast<uint32_t>(end)});
  };
  if (Hurry::has_time_for(group)) return reading::list_of_lists(found);
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}

// Some storages, in bytes. (An array of ctypes would make a class for each size, which is garbage.)
READING Object* cudamem_storages_items(const Storages* storages, uint32_t first, uint32_t last) {
  const char* const begin = reinterpret_cast<const char*>(storages->items().data() + first);
  return PyBytes_FromStringAndSize(begin, static_cast<ssize_t>((last - first) * sizeof(Storages::Item)));
}

// Releases the storages; a byte for each says whether it was freed by now. It may be called again.
READING Object* cudamem_storages_settle(Storages* storages) {
  const std::vector<uint8_t>& gone = storages->settle();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(gone.data()), static_cast<ssize_t>(gone.size()));
}
