// Measures how much memory of one owner garbage keeps, by where it was allocated, without calling Python.
//
// Objects of one kind have one class or one code; blocks of one kind have one size and the same calls that allocated
// them. A part of the garbage is shown if it has a kind that was not shown before; of other parts the freed blocks are
// counted. The remaining memory that the owner no longer has afterwards was saved by autograd. Wrappers, whose memory is
// unknown, are always shown.
//
// Blocks of cards have no owner and no known calls here: one that is counted is like another one that was shown in the same
// test, in size. What the owner has is then all memory that is allocated on these cards. Whose they were is found later in
// the allocator's record, by their addresses and the moment of the collection.
//
// Parts that were shown to a watch stay known until another watch is metered, by the number of objects and blocks of each
// kind. When a similar part appears after `begin`, the watch is asked whether it recognises it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "collector_blocks.h"
#include "collector_garbage.h"
#include "collector_time.h"

class Meter {
 public:
  using BlockAt = Blocks::BlockAt;
  using Totals = Blocks::Totals;

  // Blocks that one collection freed, and the block that was shown for them, by collection and address; zeros if there is
  // none. If `saved` is not 0, autograd had saved them for what was shown there, and `size` is their sum.
  struct Count {
    uint64_t collection, size, blocks, shown_in, address, saved, device;
  };
  // A block of a card that was counted: in which of `counts`, and its address.
  struct Address {
    uint64_t count, address;
  };
  // A part of what is shown: how many of the chosen objects, which are in the order of the parts, and its fingerprint,
  // zero if some of its memory is unknown.
  struct Part {
    uint64_t fingerprint, objects;
  };
  // Whether the watch recognises a part by its fingerprint and its objects with their places; gets dictionaries that this
  // created.
  using Recognise =
      std::function<bool(uint64_t, const std::vector<Object*>&, const std::vector<uint32_t>&, std::vector<Garbage::Made>*)>;

  Object* watch = nullptr;
  uint64_t small = 0;  // bytes that garbage kept below the limit

  // Starts metering for a watch; a tensor's object has the address of its C++ tensor at `impl_offset`.
  void begin(Object* new_watch, BlockAt block_at, Totals totals, uint32_t impl_offset, Object* parameter,
             const uint32_t* cards, uint32_t count, uint32_t owner, uint64_t limit) {
    begin(new_watch, Blocks(block_at, totals, impl_offset, parameter, {cards, cards + count}, owner), limit);
  }

  // Starts again for the same watch, and for another owner.
  void begin(uint32_t owner, uint64_t limit) {
    if (is_used_) return begin(watch, blocks_.of(owner), limit);
    blocks_.begin(owner);
    limit_ = limit;
  }

  void begin(Object* new_watch, Blocks blocks, uint64_t limit) {
    auto parts = std::move(parts_);
    Object* const before = last_watch_;
    *this = Meter();
    if (new_watch == nullptr || before == new_watch) parts_ = std::move(parts);
    last_watch_ = new_watch ? new_watch : before;
    watch = new_watch;
    blocks_ = std::move(blocks);
    limit_ = limit;
  }

  // What is known of garbage while it is listed: how many of its classes were met, whether one is of tensors, whether all of
  // them were shown before, or at least met in garbage that was not read.
  struct Met {
    size_t classes = 0;
    bool has_wanted = false, is_known = true, is_old = true;
  };
  void meet(Garbage& garbage, Met* met) const {
    for (const size_t count = garbage.graph().classes().size(); met->classes < count; ++met->classes) {
      const uint32_t number = static_cast<uint32_t>(met->classes);
      met->has_wanted = met->has_wanted || garbage.of_class(number).wanted;
      const bool is_known = !garbage.is_alike(number) || known_.count(garbage.of_class(number).kind);
      met->is_known = met->is_known && is_known;
      met->is_old = met->is_old && (is_known || unread_kinds_.count(garbage.of_class(number).kind));
    }
  }

  // Counts garbage of which all kinds were shown before, without reading what it refers to; returns whether it did.
  // If the collection is not `whole`, what older objects keep that garbage holds is attributed to the same kind. Where the
  // garbage is listed only in `part`, or its blocks are not read until `end`, the rest is attributed as well, and `unread`
  // says so.
  bool count_known(Garbage& garbage, uint64_t collection, bool whole, bool part, const Stopwatch& time, double end) {
    const std::vector<Object*>& objects = garbage.objects();
    const std::vector<uint32_t>& types = garbage.graph().types();
    const uint32_t classes = static_cast<uint32_t>(garbage.graph().classes().size());
    std::vector<uint64_t> kinds;
    std::vector<uint8_t> looks(classes);  // 1: tensors, 2: objects of more than one kind
    for (uint32_t number = 0; number < classes; ++number) {
      looks[number] = garbage.of_class(number).wanted ? 1 : garbage.is_alike(number) ? 0 : 2;
      if (looks[number] != 2) kinds.push_back(garbage.of_class(number).kind);
    }
    const bool has_wanted = std::count(looks.begin(), looks.end(), 1);
    const auto is_known = [this](uint64_t kind) { return known_.count(kind) > 0; };
    if (has_wanted && !std::all_of(kinds.begin(), kinds.end(), is_known)) return false;
    begin(collection);
    is_cut_ = part;
    if (!has_wanted) return watch_rest(whole && !part);
    std::vector<Held> held;
    bool is_shared = false;
    Limit limit(time, end);
    for (size_t place = 0; place < types.size(); ++place) {
      const uint8_t look = looks[types[place]];
      if (look == 2) {
        kinds.push_back(garbage.kind_at(place));
        if (kinds.back() != last_kind_ && !is_known(kinds.back())) return false;
        last_kind_ = kinds.back();
      }
      if (look != 1) continue;
      if (limit.is_over()) {
        is_cut_ = true;
        break;
      }
      const size_t before = held.size();
      if (blocks_.read(objects[place], place, &held) != Memory::kRead) return false;
      for (size_t i = before; i < held.size(); ++i) {
        if (held[i].kind != last_kind_ && !is_known(held[i].kind)) return false;
        last_kind_ = held[i].kind;
        is_shared = is_shared || shared_.count(held[i].kind);
      }
    }
    if (held.empty()) return watch_rest(whole && !is_cut_);
    if (is_shared) {
      for (const Held& one : held) kinds.push_back(one.kind);
      const uint64_t kind = part_of(&kinds);
      for (Held& one : held) one.part = shared_.count(one.kind) ? kind : 0;
      const auto is_told = [this](const Held& one) { return !one.part || shown_for_.count(one.kind ^ one.part); };
      if (!std::all_of(held.begin(), held.end(), is_told)) return false;
    }
    const auto shown = shown_for_.find(held[0].kind ^ held[0].part);
    rest_part_ = shown == shown_for_.end() ? kLeft : shown->second.part;
    saved_before_ = blocks_.live();
    if (is_cut_ || !whole) saved_part_ = rest_part_;
    counted_ = std::move(held);
    return true;
  }

  // Garbage that was counted holds no older objects.
  void no_rest() {
    saved_before_ = {};
    saved_part_ = rest_part_ = before_ = 0;
  }

  // Chooses the objects of a collection to show: not too many, unless it has time.
  std::vector<Object*> choose(Garbage& garbage, uint64_t collection, bool has_time, const Recognise& recognise) {
    begin(collection);
    const size_t size = garbage.objects().size();
    std::vector<Held> held;
    std::vector<Opaque> opaque;
    for (size_t place = 0; place < size; ++place) {
      Hurry::check();
      if (!garbage.class_at(place).wanted) continue;
      Hurry::check(Storages::kTensor);
      const Memory memory = blocks_.read(garbage.objects()[place], place, &held);
      if (memory != Memory::kRead) opaque.push_back({place, memory == Memory::kSaved});
    }
    uint64_t bytes = 0;
    for (const Held& one : held) bytes += one.block.size;
    if (held.empty() && opaque.empty()) return {};
    const auto is_plain = [this](const Held& one) { return known_.count(one.kind) && !shared_.count(one.kind); };
    if (opaque.empty() && std::all_of(held.begin(), held.end(), is_plain) && is_known(garbage)) {
      counted_ = std::move(held);
      return {};
    }
    below_ = small + bytes < limit_;
    if (below_ && opaque.empty()) {
      small += bytes;
      return {};
    }
    if (below_ && small + blocks_.live().bytes < limit_) {  // not enough, even with all that autograd may have saved
      before_ = blocks_.live().bytes;
      return {};
    }
    return choose_parts(garbage, held, opaque, has_time, recognise);
  }

  // A collection has more objects than are read, or there is no time to read all that they refer to.
  void pass_over(Garbage& garbage, uint64_t collection, bool is_large) {
    begin(collection);
    for (uint32_t number = 0; number < garbage.graph().classes().size(); ++number) {
      unread_kinds_.insert(garbage.of_class(number).kind);
    }
    before_ = blocks_.live().bytes;
    is_large_ = is_large;
    is_cut_ = !is_large;
  }

  // Collections that had too many objects, those that were not read to the end, with the bytes that each of them freed; those
  // of known garbage that was counted by what was freed; and parts that were left unread in others.
  struct Unread {
    uint64_t collections, bytes, cut, cut_bytes, known, parts;
  };
  const Unread& unread() const { return unread_; }

  // The parts that `choose` chose last, and the places of their objects; none if there are others.
  const std::vector<Part>& parts() const { return chosen_; }
  const std::vector<uint32_t>& places() const { return places_; }

  // Bytes that are not part of what is shown.
  uint64_t unshown() const {
    uint64_t bytes = small;
    for (const Held& one : counted_) bytes += one.block.size;
    return bytes;
  }

  bool waits() const { return !counted_.empty() || !shown_.empty() || before_ > 0 || saved_part_ || is_large_ || is_cut_; }

  // A collection has ended; `looked` is whether the chosen objects were read. What of the counted blocks was freed is found
  // out until `end`; then it is what the owner no longer has.
  void finish(bool looked, const Stopwatch& time, double end) {
    const auto is_gone = [this](const Held& one) { return blocks_.is_freed(one); };
    Limit limit(time, end);
    std::vector<uint8_t> gone_shown;
    for (size_t i = 0; i < shown_.size() && !limit.is_over(); ++i) gone_shown.push_back(is_gone(shown_[i]));
    const bool is_late = gone_shown.size() < shown_.size();  // then these kinds are shown again
    if (looked && !is_late && std::count(gone_shown.begin(), gone_shown.end(), 0) == 0) {
      known_.insert(candidates_.begin(), candidates_.end());
      for (const Held& one : shown_) show(one.kind, one.part, {collection_, one.block.pointer});
      keep();
    }
    if (looked || !counted_.empty() || saved_part_) moments_.insert(moments_.end(), moment_.begin(), moment_.end());
    const Live now = before_ > 0 || rest_part_ || saved_part_ ? blocks_.live() : Live{};
    const uint64_t freed = before_ > now.bytes ? before_ - now.bytes : 0;
    small += freed;
    unread_.collections += is_large_;
    unread_.bytes += is_large_ ? freed : 0;
    unread_.cut_bytes += is_cut_ ? freed : 0;
    Live rest = {saved_before_.bytes - std::min(saved_before_.bytes, now.bytes),
                 saved_before_.blocks - std::min(saved_before_.blocks, now.blocks)};
    for (size_t i = 0; i < gone_shown.size(); ++i) rest.take(gone_shown[i] ? shown_[i].block.size : 0);
    if (is_late && saved_part_) saved_part_ = 0, ++unread_.known;
    std::unordered_map<uint64_t, size_t> places;  // of what was counted, by kind and part
    for (const Held& one : counted_) {
      if (rest_part_ && limit.is_over()) {
        is_cut_ = true;
        saved_part_ = rest_part_;
        break;
      }
      const bool gone = is_gone(one), known = looked || one.kind == last_kind_ || known_.count(one.kind);
      rest.take(gone ? one.block.size : 0);
      if (below_ && !known) small += one.block.size;
      // A finalizer may have resurrected what was shown: a later collection then shows it.
      if (known && gone) count(one, &places);
    }
    unread_.cut += is_cut_ && !saved_part_;
    unread_.known += is_cut_ && saved_part_;
    if (saved_part_ && rest.bytes && rest.blocks) {
      const auto is_on_card = [](const Held& one) { return one.device != 0; };
      const auto found = std::find_if(counted_.begin(), counted_.end(), is_on_card);
      const uint32_t device = found == counted_.end() ? blocks_.first_device() : found->device;
      freed_.push_back({collection_, 0, saved_part_, rest.bytes, rest.blocks, device});
    }
    forget();
  }

  size_t counted() const { return freed_.size(); }
  const std::vector<Address>& addresses() const { return addresses_; }
  // The moments of collections that freed blocks of cards, and at the end the current one.
  std::vector<Blocks::Moment> moments() const {
    std::vector<Blocks::Moment> found = moments_;
    for (const Blocks::Moment& one : blocks_.now(0)) found.push_back(one);
    return found;
  }

  std::vector<Count> counts() const {
    std::vector<Count> found;
    for (const Freed& one : freed_) {
      auto shown = shown_for_.find(one.kind ^ one.part);
      if (shown == shown_for_.end()) shown = shown_for_.find(one.kind);
      const bool is_shown = one.part != kLeft && shown != shown_for_.end();
      const Place place = is_shown ? shown->second.place : Place{};
      found.push_back({one.collection, one.size, one.blocks, place.collection, place.address, one.kind == 0, one.device});
    }
    return found;
  }

 private:
  using Held = Blocks::Held;
  using Live = Blocks::Live;
  using Memory = Blocks::Memory;
  struct Place {
    uint64_t collection, address;
  };
  struct Shown {
    uint64_t part;
    Place place;
  };
  struct Freed {
    uint64_t collection, kind, part, size, blocks;  // the kind is zero for what autograd saved
    uint32_t device;
  };
  struct Opaque {
    size_t place;
    bool is_saved;
  };
  // What is known of a part that was shown: its kinds, and where each of its blocks was shown.
  struct Known {
    uint64_t part;
    std::vector<uint64_t> kinds;
    std::vector<std::pair<uint64_t, Place>> blocks;
  };
  struct Described {
    uint64_t fingerprint, part;  // with as many of each kind; with these kinds in any number
    std::vector<uint64_t> kinds;
    bool is_saved, is_unknown, is_fresh, is_on_card;
  };
  static constexpr size_t kMostParts = 4096;  // the most parts that stay known
  static constexpr size_t kMostNew = 8;      // the most kinds of parts of a collection that are shown if there is little time
  static constexpr uint64_t kSaves = 0x5A7ED, kLeft = 1;

  void forget() {
    shown_.clear();
    counted_.clear();
    candidates_.clear();
    described_.clear();
    chosen_.clear();
    places_.clear();
    saved_before_ = {};
    saved_part_ = rest_part_ = before_ = 0;
    blocks_.forget();
    below_ = is_large_ = is_cut_ = false;
  }

  void begin(uint64_t collection) {
    is_used_ = true;
    collection_ = collection;
    forget();
    moment_ = blocks_.now(collection);
  }

  // Notes what the owner has, for garbage without tensors: older objects that it holds may have some.
  bool watch_rest(bool whole) {
    if (!whole) before_ = blocks_.live().bytes;
    return true;
  }

  // The kind of a part whose objects and blocks have these kinds.
  static uint64_t part_of(std::vector<uint64_t>* kinds) {
    std::sort(kinds->begin(), kinds->end());
    kinds->erase(std::unique(kinds->begin(), kinds->end()), kinds->end());
    uint64_t part = 1;
    for (uint64_t kind : *kinds) part = mixed(part ^ kind);
    return part;
  }

  // Whether all kinds of objects were shown before.
  bool is_known(Garbage& garbage) {
    std::vector<int8_t> known(garbage.graph().classes().size(), -1);
    for (size_t place = 0; place < garbage.objects().size(); ++place) {
      const uint32_t number = garbage.graph().types()[place];
      if (known[number] > 0) continue;
      if (!known_.count(garbage.kind_at(place))) return false;
      known[number] = garbage.is_alike(number);
    }
    return true;
  }

  std::vector<Object*> choose_parts(Garbage& garbage, std::vector<Held>& held, const std::vector<Opaque>& opaque,
                                    bool has_time, const Recognise& recognise) {
    const std::vector<Object*>& objects = garbage.objects();
    const Parts parts(garbage);
    std::vector<std::vector<Held*>> blocks(parts.count());
    std::vector<std::vector<Opaque>> opaque_of(parts.count());
    for (Held& one : held) blocks[parts.of(one.place)].push_back(&one);
    for (const Opaque& one : opaque) opaque_of[parts.of(one.place)].push_back(one);
    std::vector<uint32_t> all;
    std::vector<Garbage::Made> made;
    std::vector<size_t> left;
    std::unordered_set<uint64_t> shown;
    for (uint32_t part = 0; part < parts.count(); ++part) {
      if (blocks[part].empty() && opaque_of[part].empty()) continue;
      Hurry::check(Storages::kTensor);
      all.push_back(part);
      described_.push_back(describe(garbage, parts, part, blocks[part], opaque_of[part]));
      Described& one = described_.back();
      if (one.is_fresh && !one.is_unknown && recognises(one, garbage, parts, part, recognise, &made)) one.is_fresh = false;
      if (one.is_fresh && !has_time && shown.size() == kMostNew && !shown.count(one.part)) {
        one.is_fresh = false;
        left.push_back(all.size() - 1);
      } else if (one.is_fresh) {
        shown.insert(one.part);
        candidates_.insert(one.kinds.begin(), one.kinds.end());
      }
    }
    choose_saved();
    for (size_t place : left) {
      described_[place].is_fresh = false;
      described_[place].part = kLeft;
    }
    unread_.parts += left.size();
    std::vector<std::vector<Object*>> dictionaries(made.empty() ? 0 : parts.count());
    for (const Garbage::Made& one : made) dictionaries[parts.of(one.owner)].push_back(one.dictionary);
    std::vector<Object*> chosen;
    for (size_t i = 0; i < all.size(); ++i) {
      const Described& one = described_[i];
      for (Held* block : blocks[all[i]]) {
        block->part = one.part;
        block->fingerprint = one.fingerprint;
        (one.is_fresh ? shown_ : counted_).push_back(*block);
      }
      if (!one.is_fresh) continue;
      for (const uint32_t* at = parts.begin_of(all[i]); at != parts.end_of(all[i]); ++at) chosen.push_back(objects[*at]);
      if (made.empty()) places_.insert(places_.end(), parts.begin_of(all[i]), parts.end_of(all[i]));
      size_t count = static_cast<size_t>(parts.end_of(all[i]) - parts.begin_of(all[i]));
      if (!made.empty()) {
        const std::vector<Object*>& more = dictionaries[all[i]];
        chosen.insert(chosen.end(), more.begin(), more.end());
        count += more.size();
      }
      chosen_.push_back({one.is_unknown ? 0 : one.fingerprint, count});
    }
    return chosen;
  }

  Described describe(Garbage& garbage, const Parts& parts, uint32_t part, const std::vector<Held*>& blocks,
                     const std::vector<Opaque>& opaque) {
    Described found = {static_cast<uint64_t>(parts.end_of(part) - parts.begin_of(part)), 1, {}, false, false, false, false};
    std::vector<uint32_t> classes;
    counts_.resize(garbage.graph().classes().size());
    kinds_.resize(counts_.size());
    for (const uint32_t* at = parts.begin_of(part); at != parts.end_of(part); ++at) {
      const uint32_t number = garbage.graph().types()[*at];
      if (!garbage.is_alike(number)) {
        found.kinds.push_back(garbage.kind_at(*at));
        found.fingerprint += mixed(found.kinds.back());
      } else if (!counts_[number]++) {
        classes.push_back(number);
        kinds_[number] = garbage.kind_at(*at);
      }
    }
    for (uint32_t number : classes) {
      found.kinds.push_back(kinds_[number]);
      found.fingerprint += counts_[number] * mixed(kinds_[number]);
      counts_[number] = 0;
    }
    for (const Held* one : blocks) {
      found.kinds.push_back(one->kind);
      found.fingerprint += mixed(one->kind);
      found.is_on_card = found.is_on_card || one->device;
    }
    for (const Opaque& one : opaque) {
      found.is_saved = found.is_saved || one.is_saved;
      found.is_unknown = found.is_unknown || !one.is_saved;
      found.kinds.push_back(mixed(garbage.kind_at(one.place) ^ kSaves));
      found.fingerprint += mixed(found.kinds.back());
    }
    found.part = part_of(&found.kinds);
    const auto is_met = [this](uint64_t kind) { return known_.count(kind) || candidates_.count(kind); };
    found.is_fresh = found.is_unknown || !std::all_of(found.kinds.begin(), found.kinds.end(), is_met);
    return found;
  }

  // Whether a part was shown before `begin`; it is known from now on then.
  bool recognises(const Described& one, const Garbage& garbage, const Parts& parts, uint32_t part,
                  const Recognise& recognise, std::vector<Garbage::Made>* made) {
    const auto found = parts_.find(one.fingerprint);
    if (found == parts_.end() || found->second.kinds != one.kinds) return false;
    std::vector<Object*> objects;
    for (const uint32_t* at = parts.begin_of(part); at != parts.end_of(part); ++at) objects.push_back(garbage.objects()[*at]);
    if (!recognise(one.fingerprint, objects, {parts.begin_of(part), parts.end_of(part)}, made)) return false;
    const Known& known = found->second;
    known_.insert(known.kinds.begin(), known.kinds.end());
    for (const auto& block : known.blocks) show(block.first, known.part, block.second);
    return true;
  }

  // Memory that autograd saved is attributed if it was saved for parts of one kind; else each such part is shown.
  void choose_saved() {
    std::unordered_set<uint64_t> kinds;
    bool is_shown = false;
    for (const Described& one : described_) {
      if (one.is_saved) kinds.insert(one.part);
      is_shown = is_shown || one.is_unknown || (one.is_saved && one.is_fresh);
    }
    if (kinds.empty()) return;
    if (is_shown || kinds.size() > 1) {
      for (Described& one : described_) one.is_fresh = one.is_fresh || one.is_saved;
      return;
    }
    saved_part_ = *kinds.begin();
    saved_before_ = blocks_.live();
  }

  void show(uint64_t kind, uint64_t part, Place place) {
    const Shown shown = {part, place};
    if (shown_for_.try_emplace(kind, shown).first->second.part != part) shared_.insert(kind);
    shown_for_.try_emplace(kind ^ part, shown);
    shown_for_.try_emplace(part, shown);  // for memory that autograd saved
  }

  // Keeps what was shown until after the next `begin`.
  void keep() {
    if (parts_.size() > kMostParts) parts_.clear();
    for (Described& one : described_) {
      if (!one.is_fresh || one.is_unknown || one.is_on_card) continue;
      Known known = {one.part, one.kinds, {}};
      for (const Held& block : shown_) {
        const Place place = {collection_, block.block.pointer};
        if (block.fingerprint == one.fingerprint) known.blocks.push_back({block.kind, place});
      }
      parts_[one.fingerprint] = std::move(known);
    }
  }

  void count(const Held& held, std::unordered_map<uint64_t, size_t>* places) {
    const auto [place, is_new] = places->try_emplace(held.kind ^ mixed(held.part), freed_.size());
    if (is_new) freed_.push_back({collection_, held.kind, held.part, held.block.size, 0, held.device});
    ++freed_[place->second].blocks;
    if (held.device) addresses_.push_back({place->second, held.block.pointer});
  }

  Blocks blocks_;
  bool is_used_ = false;                    // whether there was a collection since it began
  bool is_large_ = false, is_cut_ = false;  // whether a collection has too many objects, or was not read to the end
  uint64_t last_kind_ = 0;                  // a known one
  Unread unread_ = {};
  std::vector<uint32_t> counts_;  // of a part's objects by class, zeros in between; and the kinds of these classes
  std::vector<uint64_t> kinds_;
  bool below_ = false;   // whether the known memory of a collection is below the limit
  uint64_t before_ = 0;  // bytes of the owner before a collection about which nothing else is known
  uint64_t limit_ = 0, collection_ = 0;
  uint64_t saved_part_ = 0;  // the kind of the parts to which memory saved by autograd is attributed
  uint64_t rest_part_ = 0;   // the same for known blocks that are not read, if there is no time
  Live saved_before_ = {};   // of the owner, before a collection of these
  // Kinds that were shown before, with the first block that was shown of each kind of block; if parts of several kinds
  // have such blocks, also by both kinds.
  std::unordered_set<uint64_t> known_, candidates_, shared_;
  std::unordered_set<uint64_t> unread_kinds_;  // of classes in garbage that was not read
  std::unordered_map<uint64_t, Shown> shown_for_;
  std::vector<Held> shown_, counted_;
  std::vector<Described> described_;
  std::vector<Part> chosen_;
  std::vector<uint32_t> places_;
  std::unordered_map<uint64_t, Known> parts_;  // by fingerprint, for the watch that was metered last
  Object* last_watch_ = nullptr;
  std::vector<Freed> freed_;
  std::vector<Address> addresses_;
  std::vector<Blocks::Moment> moment_, moments_;  // of this collection, and of those that freed blocks of cards
};
