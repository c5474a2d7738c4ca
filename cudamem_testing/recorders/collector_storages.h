// The storages of tensors among the objects of a graph, with weak references to them: they tell what was freed.
//
// Reads tensors with a storage of their own, on any device. Others, such as wrappers, are listed: Python reads them. So are
// tensors with a history of autograd, whose references only torch's Python interface shows.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "collector_graph.h"
#include "cpu_ledger.h"

// The number of a device: 0 for the CPU, else its type and index.
inline uint32_t device_of(c10::Device device) {
  if (device.is_cpu()) return 0;
  return static_cast<uint32_t>(device.type()) << 8 | static_cast<uint8_t>(device.index());
}

class Storages {
 public:
  using BlockAt = int32_t (*)(uint64_t, cudamem::Block*);
  static constexpr uint32_t kAnyOwner = 0xFFFFFFFF, kTensor = 32;  // the second one: steps of a loop (`Hurry`)

  // One storage: its first tensor, the number of the stack that allocated its block, `kNone` if unknown, and its device, for
  // the CPU 0, else the type and the index (see `device_of`).
  struct Item {
    uint64_t address, size;
    uint32_t place, stack, device, unused;
  };

  // A tensor's object has the address of the C++ tensor at `offset`. Blocks of the CPU of other owners than `owner` do not
  // count; without `block_at` every storage counts.
  Storages(Graph* graph, uint32_t offset, Object* parameter, BlockAt block_at, uint32_t owner)
      : graph_(graph), offset_(offset), parameter_(parameter), block_at_(block_at), owner_(owner) {}

  // What a read left to Python: tensors whose storages, and those whose references it cannot read. For each gradient that
  // was added to the graph, because it has no Python object, the parameter that has it.
  struct Others {
    std::vector<uint32_t> unread, followed, owners;
  };

  // Reads the tensors at some places of the graph.
  Others read(const std::vector<uint32_t>& places, bool gradients) {
    Others others;
    std::vector<std::pair<uint32_t, const c10::TensorImpl*>> found;
    for (uint32_t place : places) {
      Hurry::check(kTensor);
      const c10::TensorImpl* const impl = tensor_at(place);
      if (!add(impl, place)) others.unread.push_back(place);
      if (!impl || !impl->autograd_meta()) continue;
      if (graph_->objects()[place]->type != parameter_) {
        others.followed.push_back(place);
        continue;
      }
      // A tensor in C++ is only a pointer.
      const c10::TensorImpl* const grad = *reinterpret_cast<c10::TensorImpl* const*>(&impl->grad());
      if (grad != c10::UndefinedTensorImpl::singleton()) found.push_back({place, grad});
    }
    if (!gradients || found.empty()) return others;
    std::unordered_map<const c10::TensorImpl*, uint32_t> tensors;
    for (uint32_t place : places) Hurry::check(kTensor), tensors.emplace(tensor_at(place), place);
    for (const auto& [place, grad] : found) {
      const auto known = tensors.find(grad);
      if (known != tensors.end()) {
        graph_->refer(place, known->second);
      } else if (is_plain(grad)) {
        const uint32_t added = graph_->add(nullptr);
        others.owners.push_back(place);
        graph_->refer(place, added);
        add(grad, added);
      } else {
        others.followed.push_back(place);
      }
    }
    return others;
  }

  // Drops the storages that are not chosen: a byte for each. Call it before `group`.
  void keep(const char* chosen) {
    size_t kept = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!chosen[i]) continue;
      items_[kept] = items_[i];
      weak_[kept++] = std::move(weak_[i]);
    }
    items_.resize(kept);
    weak_.erase(weak_.begin() + static_cast<ssize_t>(kept), weak_.end());
  }

  // Puts what each component of the graph keeps together, the largest first, then what no component keeps. Returns these
  // groups: a component, and where its storages end.
  std::vector<std::pair<uint32_t, size_t>> group() {
    const Graph& graph = *graph_;
    std::unordered_map<uint32_t, uint64_t> bytes;
    for (const Item& one : items_) bytes[graph.keeper(one.place)] += one.size;
    std::vector<size_t> order(items_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto is_before = [&](size_t one, size_t other) {
      Hurry::check(4);
      const Item &a = items_[one], &b = items_[other];
      const uint32_t first = graph.keeper(a.place), second = graph.keeper(b.place);
      if (first == second) return a.size > b.size;
      if (first == Graph::kNone || second == Graph::kNone) return second == Graph::kNone;
      const uint64_t all = bytes[first], others = bytes[second];
      return all == others ? first > second : all > others;
    };
    std::stable_sort(order.begin(), order.end(), is_before);
    std::vector<Item> items;
    std::vector<Weak> weak;
    std::vector<std::pair<uint32_t, size_t>> groups;
    for (size_t i : order) {
      const uint32_t component = graph.keeper(items_[i].place);
      items.push_back(items_[i]);
      weak.push_back(std::move(weak_[i]));
      if (groups.empty() || groups.back().first != component) groups.push_back({component, 0});
      groups.back().second = items.size();
    }
    items_ = std::move(items);
    weak_ = std::move(weak);
    return groups;
  }

  const std::vector<Item>& items() const { return items_; }
  // Drops the weak references; from then on `gone` says which storages were freed by now.
  const std::vector<uint8_t>& settle() {
    if (gone_.empty()) {
      for (const Weak& one : weak_) gone_.push_back(one.expired());
      weak_.clear();
    }
    return gone_;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  const c10::TensorImpl* tensor_at(uint32_t place) const {
    const char* const field = reinterpret_cast<const char*>(graph_->objects()[place]) + offset_;
    return *reinterpret_cast<c10::TensorImpl* const*>(field);
  }

  static bool is_plain(const c10::TensorImpl* impl) {
    return impl && impl->has_storage() && !impl->is_meta() && impl->layout() == c10::kStrided && !impl->is_python_dispatch() &&
           !impl->is_quantized() && !impl->key_set().has(c10::DispatchKey::Functionalize) &&
           !impl->key_set().has(c10::DispatchKey::NestedTensor);
  }

  // Adds the storage of a tensor once; returns whether it could be read.
  bool add(const c10::TensorImpl* impl, uint32_t place) {
    if (!is_plain(impl)) return false;
    const c10::Storage& storage = impl->unsafe_storage();
    c10::StorageImpl* const inner = storage.unsafeGetStorageImpl();
    if (!inner) return false;
    Item found = {0, 0, place, Graph::kNone, device_of(inner->device()), 0};
    try {
      found.size = inner->nbytes();
      found.address = reinterpret_cast<uint64_t>(static_cast<const c10::StorageImpl*>(inner)->data_ptr().get());
    } catch (const std::exception&) {
      return false;  // a tensor without data
    }
    if (!found.size || !found.address) return true;
    if (!seen_.insert(inner).second) return true;
    if (block_at_ && !found.device) {
      cudamem::Block block;
      const bool is_known = block_at_(found.address, &block);
      if (owner_ != kAnyOwner && (!is_known || block.owner != owner_)) return true;
      if (is_known) found.stack = block.stack;
    }
    items_.push_back(found);
    weak_.push_back(Weak::reclaim(c10::raw::intrusive_ptr::make_weak(inner)));
    return true;
  }

  Graph* graph_;
  uint32_t offset_;
  Object* parameter_;
  BlockAt block_at_;
  uint32_t owner_;
  std::unordered_set<const c10::StorageImpl*> seen_;
  std::vector<Item> items_;
  std::vector<Weak> weak_;
  std::vector<uint8_t> gone_;
};
