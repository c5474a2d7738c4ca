// How much memory of one owner garbage keeps, by where it was allocated: found without calling Python.
//
// Objects of one kind have one class or one code, blocks of one kind the size and the calls that allocated them. A part
// of the garbage is shown where it has a kind that was not shown before; of the others the freed blocks are counted.
// Tensors whose memory is not known from themselves (what autograd saved, other devices, wrappers) are always shown.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "collector_garbage.h"
#include "cpu_ledger.h"

class Meter {
 public:
  using BlockAt = int32_t (*)(uint64_t, cudamem::Block*);
  using Totals = int32_t (*)(uint32_t, cudamem::OwnerTotals*);

  // Blocks that one collection freed, and the block that was shown in their place: that of a collection at an address,
  // zeros where there is none.
  struct Count {
    uint64_t collection, size, blocks, shown_in, address;
  };

  Object* watch = nullptr;
  uint64_t small = 0;  // bytes that garbage kept below the limit

  // From here on for a watch; `impl_offset` is where the object of a tensor has the address of its C++ tensor.
  void begin(Object* new_watch, BlockAt block_at, Totals totals, uint32_t impl_offset, Object* parameter,
             uint32_t owner, uint64_t limit) {
    *this = Meter();
    watch = new_watch;
    block_at_ = block_at;
    totals_ = totals;
    impl_offset_ = impl_offset;
    parameter_ = parameter;
    owner_ = owner;
    limit_ = limit;
  }

  // Chooses the objects of a collection that are to be shown.
  std::vector<Object*> choose(Garbage& garbage, uint64_t collection) {
    collection_ = collection;
    forget();
    seen_.clear();
    const std::vector<Object*>& objects = garbage.objects();
    std::vector<Held> held;
    std::vector<size_t> opaque;
    for (size_t place = 0; place < objects.size(); ++place) {
      if (garbage.class_of(objects[place]).wanted && !read(objects[place], place, &held)) opaque.push_back(place);
    }
    uint64_t bytes = 0;
    for (const Held& one : held) bytes += one.block.size;
    if (held.empty() && opaque.empty()) return {};
    const auto is_plain = [this](const Held& one) { return known_.count(one.kind) && !shared_.count(one.kind); };
    const auto is_known = [&](Object* one) { return known_.count(garbage.kind_of(one)) > 0; };
    if (opaque.empty() && std::all_of(held.begin(), held.end(), is_plain) &&
        std::all_of(objects.begin(), objects.end(), is_known)) {
      counted_ = std::move(held);
      return {};
    }
    below_ = small + bytes < limit_;
    if (below_ && opaque.empty()) {
      small += bytes;
      return {};
    }
    if (below_ && small + live() < limit_) {  // however much autograd saved, it is not enough
      before_ = live();
      return {};
    }
    return choose_parts(garbage, held, opaque);
  }

  // Bytes that are not among what is shown.
  uint64_t unshown() const {
    uint64_t bytes = small;
    for (const Held& one : counted_) bytes += one.block.size;
    return bytes;
  }

  bool waits() const { return !counted_.empty() || !shown_.empty() || before_ > 0; }

  // A collection is over; `looked` tells whether what was chosen was read.
  void finish(bool looked) {
    const auto is_gone = [this](const Held& one) { return is_freed(one.block); };
    if (looked && std::all_of(shown_.begin(), shown_.end(), is_gone)) {
      known_.insert(candidates_.begin(), candidates_.end());
      for (const Held& one : shown_) {
        const Shown shown = {one.part, {collection_, one.block.pointer}};
        if (shown_for_.emplace(one.kind, shown).first->second.part != one.part) shared_.insert(one.kind);
        shown_for_.emplace(one.kind ^ one.part, shown);
      }
    }
    const uint64_t now = before_ > 0 ? live() : 0;
    small += before_ > now ? before_ - now : 0;
    for (const Held& one : counted_) {
      if (below_ && !looked && !known_.count(one.kind)) small += one.block.size;
      // What was shown in its place may have been saved by a finalizer: then a later one tells what it was.
      if ((looked || known_.count(one.kind)) && is_freed(one.block)) count(one);
    }
    forget();
  }

  std::vector<Count> counts() const {
    std::vector<Count> found;
    for (const Freed& one : freed_) {
      auto shown = shown_for_.find(one.kind ^ one.part);
      if (shown == shown_for_.end()) shown = shown_for_.find(one.kind);
      const Place place = shown == shown_for_.end() ? Place{} : shown->second.place;
      found.push_back({one.collection, one.size, one.blocks, place.collection, place.address});
    }
    return found;
  }

 private:
  struct Held {
    size_t place;
    cudamem::Block block;
    uint64_t kind, part;  // its own, and that of the part of the garbage that holds it, zero where it is not known
  };
  struct Place {
    uint64_t collection, address;
  };
  struct Shown {
    uint64_t part;
    Place place;
  };
  struct Freed {
    uint64_t collection, kind, part, size, blocks;
  };

  static uint64_t mixed(uint64_t value) { return (value ^ value >> 29) * 0x9E3779B97F4A7C15ull; }

  void forget() {
    shown_.clear();
    counted_.clear();
    candidates_.clear();
    before_ = 0;
    below_ = false;
  }

  // Bytes of the owner.
  uint64_t live() const {
    cudamem::OwnerTotals totals = {};
    totals_(owner_, &totals);
    return totals.bytes > 0 ? static_cast<uint64_t>(totals.bytes) : 0;
  }

  // Adds the block of a tensor, and that of its gradient. False if the tensor itself does not show them.
  bool read(Object* object, size_t place, std::vector<Held>* held) {
    const char* const field = reinterpret_cast<const char*>(object) + impl_offset_;
    const c10::TensorImpl* const impl = *reinterpret_cast<c10::TensorImpl* const*>(field);
    if (!add(impl, place, held)) return false;
    if (!impl->autograd_meta()) return true;
    if (object->type != parameter_) return false;
    // A tensor in C++ is nothing but a pointer.
    const c10::TensorImpl* const grad = *reinterpret_cast<c10::TensorImpl* const*>(&impl->grad());
    return grad == c10::UndefinedTensorImpl::singleton() || add(grad, place, held);
  }

  bool add(const c10::TensorImpl* impl, size_t place, std::vector<Held>* held) {
    if (!impl || !impl->has_storage() || impl->is_python_dispatch() || !impl->is_cpu()) return false;
    const c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
    uint64_t address = 0;
    try {
      address = reinterpret_cast<uint64_t>(storage->data_ptr().get());
    } catch (const std::exception&) {
      return false;  // a tensor without data
    }
    Held found = {place, {}, 0, 0};
    if (seen_.insert(address).second && block_at_(address, &found.block) && found.block.owner == owner_) {
      found.kind = mixed(found.block.size << 1 | 1) ^ mixed(~uint64_t{found.block.stack});
      held->push_back(found);
    }
    return true;
  }

  std::vector<Object*> choose_parts(Garbage& garbage, std::vector<Held>& held, const std::vector<size_t>& opaque) {
    const std::vector<Object*>& objects = garbage.objects();
    Parts parts(garbage);
    std::vector<std::vector<size_t>> members(objects.size());
    std::vector<std::vector<Held*>> blocks(objects.size());
    std::vector<char> is_opaque(objects.size());
    for (size_t place = 0; place < objects.size(); ++place) members[parts.of(place)].push_back(place);
    for (Held& one : held) blocks[parts.of(one.place)].push_back(&one);
    for (size_t place : opaque) is_opaque[parts.of(place)] = 1;
    std::vector<Object*> chosen;
    for (size_t part = 0; part < objects.size(); ++part) {
      if (blocks[part].empty() && !is_opaque[part]) continue;
      std::vector<uint64_t> kinds;
      for (size_t place : members[part]) kinds.push_back(garbage.kind_of(objects[place]));
      for (const Held* one : blocks[part]) kinds.push_back(one->kind);
      std::sort(kinds.begin(), kinds.end());
      kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
      const auto is_met = [this](uint64_t kind) { return known_.count(kind) || candidates_.count(kind); };
      const bool fresh = is_opaque[part] || !std::all_of(kinds.begin(), kinds.end(), is_met);
      uint64_t kind_of_part = 1;
      for (uint64_t kind : kinds) kind_of_part = mixed(kind_of_part ^ kind);
      for (Held* one : blocks[part]) {
        one->part = kind_of_part;
        (fresh ? shown_ : counted_).push_back(*one);
      }
      if (!fresh) continue;
      candidates_.insert(kinds.begin(), kinds.end());
      for (size_t place : members[part]) chosen.push_back(objects[place]);
    }
    return chosen;
  }

  bool is_freed(const cudamem::Block& block) {
    cudamem::Block now;
    return !block_at_(block.pointer, &now) || now.sequence != block.sequence;
  }

  void count(const Held& held) {
    for (size_t i = freed_.size(); i-- > 0 && freed_[i].collection == collection_;) {
      if (freed_[i].kind == held.kind && freed_[i].part == held.part) {
        ++freed_[i].blocks;
        return;
      }
    }
    freed_.push_back({collection_, held.kind, held.part, held.block.size, 1});
  }

  BlockAt block_at_ = nullptr;
  Totals totals_ = nullptr;
  bool below_ = false;   // whether what is known of a collection does not reach the limit
  uint64_t before_ = 0;  // bytes of the owner before a collection of which more is not known
  uint32_t owner_ = 0, impl_offset_ = 0;
  uint64_t limit_ = 0, collection_ = 0;
  Object* parameter_ = nullptr;
  // Kinds that were shown before and, by kind of block, the first one that was shown; of those that parts of several
  // kinds have, also by the kinds of both.
  std::unordered_set<uint64_t> known_, candidates_, shared_, seen_;
  std::unordered_map<uint64_t, Shown> shown_for_;
  std::vector<Held> shown_, counted_;
  std::vector<Freed> freed_;
};
