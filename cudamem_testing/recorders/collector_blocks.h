// The blocks that tensors have, whose they are, and whether they were freed: on the CPU by its recorder, on cards by weak
// references to storages.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "collector_python.h"
#include "collector_storages.h"
#include "cpu_ledger.h"
#include "device_counters.h"

inline uint64_t mixed(uint64_t value) { return (value ^ value >> 29) * 0x9E3779B97F4A7C15ull; }

// A set of addresses that takes no time to clear: open addressing (linear probing), each entry with the round that made it.
class Addresses {
 public:
  void clear() {
    ++round_;
    size_ = 0;
  }

  // Returns whether it is new.
  bool insert(uint64_t address) {
    if (2 * ++size_ > slots_.size()) grow();
    Slot& slot = find(address);
    if (slot.round == round_) return --size_, false;
    slot = {address, round_};
    return true;
  }

 private:
  struct Slot {
    uint64_t address, round;
  };

  Slot& find(uint64_t address) {
    size_t at = (address >> 6) * 0x9E3779B97F4A7C15ull >> 20;
    while (slots_[at &= slots_.size() - 1].round == round_ && slots_[at].address != address) ++at;
    return slots_[at];
  }

  void grow() {
    std::vector<Slot> before(std::max<size_t>(256, 2 * slots_.size()), Slot{0, 0});
    before.swap(slots_);
    for (const Slot& one : before) {
      if (one.round == round_) find(one.address) = one;
    }
  }

  std::vector<Slot> slots_;
  uint64_t round_ = 1;
  size_t size_ = 0;
};

class Blocks {
 public:
  using BlockAt = int32_t (*)(uint64_t, cudamem::Block*);
  using Totals = int32_t (*)(uint32_t, cudamem::OwnerTotals*);

  struct Held {
    size_t place;
    cudamem::Block block;
    // Its own kind, and the part of the garbage that holds it, by kind and fingerprint, zero if unknown; see `Described`.
    uint64_t kind, part, fingerprint;
    uint32_t device, weak;  // the place of a weak reference to a card's storage
  };
  struct Live {
    uint64_t bytes, blocks;
    void take(uint64_t size) {
      bytes -= std::min(bytes, size);
      blocks -= size && blocks ? 1 : 0;
    }
  };
  enum class Memory { kRead, kSaved, kUnknown };
  // A moment of a device: how many allocations there were until then, and how many of them were live.
  struct Moment {
    uint64_t collection, device, allocations, blocks;
  };

  Blocks() = default;
  // A tensor's object has the address of its C++ tensor at `offset`. `cards` are the devices that count beside the CPU
  // (`device_of`); without the functions the CPU does not count.
  Blocks(BlockAt block_at, Totals totals, uint32_t offset, Object* parameter, std::vector<uint32_t> cards, uint32_t owner)
      : block_at_(block_at), totals_(totals), offset_(offset), parameter_(parameter), cards_(std::move(cards)), owner_(owner) {}

  // The same for another owner.
  Blocks of(uint32_t owner) const { return Blocks(block_at_, totals_, offset_, parameter_, cards_, owner); }
  void begin(uint32_t owner) { owner_ = owner; }

  // A device that counts.
  uint32_t first_device() const { return block_at_ || cards_.empty() ? 0 : cards_[0]; }

  // Forgets what was read in the last collection.
  void forget() {
    weak_.clear();
    seen_.clear();
  }

  // The owner's live memory, with all that is allocated on cards.
  Live live() const {
    cudamem::OwnerTotals totals = {};
    if (totals_) totals_(owner_, &totals);
    Live found = {totals.bytes > 0 ? static_cast<uint64_t>(totals.bytes) : 0, totals.blocks};
    for (uint32_t card : cards_) {
      const cudamem::DeviceReading now = reading_of(card);
      found.bytes += static_cast<uint64_t>(now.allocated);
      found.blocks += static_cast<uint64_t>(now.blocks);
    }
    return found;
  }

  // The current moment of each card.
  std::vector<Moment> now(uint64_t collection) const {
    std::vector<Moment> found;
    for (uint32_t card : cards_) {
      const cudamem::DeviceReading now = reading_of(card);
      found.push_back({collection, card, static_cast<uint64_t>(now.allocations), static_cast<uint64_t>(now.blocks)});
    }
    return found;
  }

  // Adds the block of a tensor, and that of its gradient; returns whether that is all, or what else there is.
  Memory read(Object* object, size_t place, std::vector<Held>* held) {
    const char* const field = reinterpret_cast<const char*>(object) + offset_;
    const c10::TensorImpl* const impl = *reinterpret_cast<c10::TensorImpl* const*>(field);
    if (!add(impl, place, held)) return Memory::kUnknown;
    if (!impl->autograd_meta()) return Memory::kRead;
    if (object->type != parameter_) return Memory::kSaved;
    // A tensor in C++ is only a pointer.
    const c10::TensorImpl* const grad = *reinterpret_cast<c10::TensorImpl* const*>(&impl->grad());
    const bool is_read = grad == c10::UndefinedTensorImpl::singleton() || add(grad, place, held);
    return is_read ? Memory::kRead : Memory::kUnknown;
  }

  bool is_freed(const Held& held) {
    if (held.weak) return weak_[held.weak - 1].expired();
    cudamem::Block now;
    return !block_at_(held.block.pointer, &now) || now.sequence != held.block.sequence;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // Zeros if the device has no statistics yet.
  static cudamem::DeviceReading reading_of(uint32_t card) {
    cudamem::DeviceCounters<c10::DeviceAllocator> counters;
    try {
      if (counters.find(static_cast<int32_t>(card >> 8), static_cast<int32_t>(card & 255))) return counters.read();
    } catch (const std::exception&) {
    }
    return {};
  }

  bool add(const c10::TensorImpl* impl, size_t place, std::vector<Held>* held) {
    if (!impl || !impl->has_storage() || impl->is_python_dispatch()) return false;
    c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const uint32_t device = device_of(storage->device());
    if (device && std::find(cards_.begin(), cards_.end(), device) == cards_.end()) return true;  // it is not measured
    uint64_t address = 0;
    try {
      address = reinterpret_cast<uint64_t>(static_cast<const c10::StorageImpl*>(storage)->data_ptr().get());
      if (device && address && storage->nbytes() && seen_.insert(address)) {
        weak_.push_back(Weak::reclaim(c10::raw::intrusive_ptr::make_weak(storage)));
        const uint32_t weak = static_cast<uint32_t>(weak_.size());
        const uint64_t kind = mixed(storage->nbytes() << 1 | 1) ^ mixed(~uint64_t{device} << 32);
        held->push_back({place, {address, storage->nbytes(), 0, 0, owner_, 0, 0}, kind, 0, 0, device, weak});
      }
    } catch (const std::exception&) {
      return false;  // a tensor without data
    }
    if (device) return true;
    Held found = {place, {}, 0, 0, 0, 0, 0};
    if (block_at_ && seen_.insert(address) && block_at_(address, &found.block) && found.block.owner == owner_) {
      found.kind = mixed(found.block.size << 1 | 1) ^ mixed(~uint64_t{found.block.stack});
      held->push_back(found);
    }
    return true;
  }

  BlockAt block_at_ = nullptr;
  Totals totals_ = nullptr;
  uint32_t offset_ = 0;
  Object* parameter_ = nullptr;
  std::vector<uint32_t> cards_;
  uint32_t owner_ = 0;
  Addresses seen_;  // of this collection
  std::vector<Weak> weak_;
};
