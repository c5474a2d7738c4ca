// Reads many events of a pickled history at once; native_runs.py makes objects of what is found here.
//
// An event is a dict of few keys. Its integers go into columns. All other values are numbered by the instructions that
// make them, so that a stack which the history repeats is made once. Only what torch's snapshots hold is read: any other
// instruction ends the run before its event, which is left to the machine for single instructions (unpickle.py).
//
// The input is untrusted: nothing is read beyond its end, and memory stays proportional to what was read.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace cudamem {

using Byte = uint8_t;
using Place = uint64_t;

constexpr Byte kLong = 0x8A;  // LONG1

// Numbers of values: an event, the value of a key that an event lacks; and of what is kept, but was not made here.
constexpr uint32_t kEvent = 0, kAbsent = 1, kFirst = 2, kElsewhere = UINT32_MAX;
constexpr size_t kMostColumns = 32, kMostRows = 1 << 13, kLongestList = 1 << 10, kLongest = 1 << 30;

// Instructions: a stretch of the file.
struct Span {
  Place at, size;
};

// As in native_runs.py.
struct ColumnView {
  uint64_t key, integers, gaps;
  const int64_t* values;
};

struct Found {
  Place end;
  uint64_t rows, values, columns, made, kept;
  const ColumnView* column;
  const Span* spans;
};

struct Column {
  uint32_t key;  // the number under which its text is kept
  bool integers, gaps;
  std::vector<int64_t> values;
};

struct Value {
  enum { kInteger, kReference, kMade, kKept } kind;
  size_t column;
  int64_t integer;  // or where a reference leads
  Span made;
  size_t items;
};

class Reader {
 public:
  Reader(const Byte* data, size_t size, uint64_t seed) : data_(data), end_(data + size), seed_(seed), slots_(1 << 12) {}

  // Reads the events from a position on, given how many values are kept before it.
  void read(Place at, size_t kept, Found& found) {
    memo_.resize(kept, kElsewhere);
    known_ = kept;
    columns_.clear();
    rows_ = number_ = 0;
    const size_t made = spans_.size();
    const Byte* next = data_ + at;
    const Byte* after = next;
    while (rows_ < kMostRows && event(next)) {
      after = next;
      if (end_ - next > 2 && next[0] == 'e' && next[1] == '(') next += 2;  // the list gets a new batch of items
    }
    views_.clear();
    for (const Column& one : columns_) views_.push_back({one.key, one.integers, one.gaps, one.values.data()});
    found = {Place(after - data_), rows_, number_, views_.size(), spans_.size() - made, memo_.size() - kept,
             views_.data(), spans_.data() + made};
  }

  // The number of a value that is kept.
  uint32_t kept(Place place) const { return memo_[place]; }

 private:
  struct Slot {
    uint64_t hash;
    uint32_t number;
  };

  // Reads one event and moves behind it; false if it is not one of those that are read here.
  bool event(const Byte*& at) {
    const Byte* next = at;
    const size_t before = columns_.size();
    if (spans_.size() + kMostColumns > kLongest || memo_.size() + kMostColumns > kLongest) return false;
    if (!parsed(next)) {
      columns_.resize(before);
      return false;
    }
    if (is_kept_) memo_.push_back(kEvent);
    for (const Value& one : values_) add(one);
    number_ += values_.size();
    ++rows_;
    for (Column& one : columns_)
      if (one.values.size() < rows_) {
        one.values.push_back(kAbsent);
        one.gaps = true;
      }
    at = next;
    return true;
  }

  // Whether an event begins here, an empty dict that may be kept and a mark, and is such that its values can be added.
  bool parsed(const Byte*& at) {
    if (end_ - at < 4 || *at != '}') return false;
    is_kept_ = at[1] == 0x94;
    if (at[1 + is_kept_] != '(') return false;
    at += 2 + is_kept_;
    values_.clear();
    kept_ = seen_ = 0;
    size_t integers = 0;
    while (at < end_ && *at != 'u') {
      Place key;
      Value one;
      if (!reference(at, key) || key >= known_ || !value(at, one) || !placed(key, one)) return false;
      integers += one.kind == Value::kInteger;
      kept_ += one.kind == Value::kKept;
      values_.push_back(one);
    }
    for (const Column& one : columns_) integers -= one.integers;
    if (at == end_ || values_.empty() || integers) return false;  // an integer of each such column: they have no gaps
    ++at;
    return true;
  }

  // Gives a value its column; false if there is none for it, or it has one in this event.
  bool placed(Place key, Value& one) {
    const bool integer = one.kind == Value::kInteger;
    size_t column = values_.empty() ? 0 : values_.back().column + 1;  // most often the next one
    if (column >= columns_.size() || columns_[column].key != key)
      for (column = 0; column < columns_.size() && columns_[column].key != key;) ++column;
    if (column == columns_.size()) {
      if (column == kMostColumns || (integer && rows_)) return false;
      columns_.push_back({uint32_t(key), integer, false, {}});
    }
    if (columns_[column].integers != integer || seen_ >> column & 1) return false;
    seen_ |= 1u << column;
    one.column = column;
    return true;
  }

  // Adds a value to its column, and to those that are kept.
  void add(const Value& one) {
    int64_t found = one.integer;
    if (one.kind == Value::kReference) {
      uint32_t& known = memo_[one.integer];
      found = known = known == kElsewhere ? numbered(one) : known;
    } else if (one.kind != Value::kInteger) {
      found = numbered(one);
      if (one.kind == Value::kKept) memo_.push_back(uint32_t(found));
    }
    Column& column = columns_[one.column];
    if (column.values.size() < rows_) {
      column.values.resize(rows_, kAbsent);
      column.gaps = true;
    }
    column.values.push_back(found);
  }

  // The number of a value: that of the same instructions, or a new one.
  uint32_t numbered(const Value& one) {
    const Byte* bytes = data_ + one.made.at;
    const uint64_t hash = hashed(bytes, one.made.size);
    for (size_t at = hash;; ++at) {
      Slot& slot = slots_[at & (slots_.size() - 1)];
      if (!slot.number) {
        const uint32_t number = slot.number = uint32_t(kFirst + spans_.size());
        slot.hash = hash;
        spans_.push_back(one.made);
        number_ += one.items;
        if (2 * spans_.size() > slots_.size()) grow();
        return number;
      }
      const Span& known = spans_[slot.number - kFirst];
      if (slot.hash == hash && known.size == one.made.size && !std::memcmp(data_ + known.at, bytes, known.size))
        return slot.number;
    }
  }

  void grow() {
    std::vector<Slot> larger(4 * slots_.size());
    for (const Slot& one : slots_) {
      if (!one.number) continue;
      size_t at = one.hash;
      while (larger[at & (larger.size() - 1)].number) ++at;
      larger[at & (larger.size() - 1)] = one;
    }
    slots_.swap(larger);
  }

  // Depends on a random number: no file can be written whose values all have one hash.
  uint64_t hashed(const Byte* bytes, size_t size) const {
    uint64_t hash = seed_ ^ size;
    for (size_t at = 0; at < size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, size - at < 8 ? size - at : 8);
      const auto product = static_cast<unsigned __int128>(hash ^ word) * 0x9E3779B97F4A7C15u + seed_;
      hash = uint64_t(product) ^ uint64_t(product >> 64);
    }
    return hash;
  }

  bool has(const Byte* at, size_t size) const { return size_t(end_ - at) >= size; }

  static uint64_t little(const Byte* bytes, size_t size) {
    uint64_t found = 0;
    while (size--) found = found << 8 | bytes[size];
    return found;
  }

  // Reads BINGET or LONG_BINGET.
  bool reference(const Byte*& at, Place& found) const {
    if (has(at, 5) && *at == 'j') {
      found = at[1] | at[2] << 8 | at[3] << 16 | uint32_t(at[4]) << 24;  // one load
      at += 5;
      return true;
    }
    if (!has(at, 2) || *at != 'h') return false;
    found = at[1];
    at += 2;
    return true;
  }

  // Reads BININT1, BININT2, BININT, or LONG1 of at most eight bytes.
  bool integer(const Byte*& at, int64_t& found) const {
    if (!has(at, 2)) return false;
    const bool is_long = *at == kLong;
    const size_t head = is_long ? 2 : 1;
    const size_t size = is_long ? at[1] : *at == 'K' ? 1 : *at == 'M' ? 2 : *at == 'J' ? 4 : 0;
    if (!size || size > 8 || !has(at, head + size)) return false;
    uint64_t bits = little(at + head, size);
    if ((is_long || *at == 'J') && size < 8 && bits >> (8 * size - 1)) bits |= ~uint64_t(0) << 8 * size;
    std::memcpy(&found, &bits, sizeof found);
    at += head + size;
    return true;
  }

  // Reads the value of a key.
  bool value(const Byte*& at, Value& found) const {
    const Byte* first = at;
    found.items = 0;
    if (integer(at, found.integer)) {
      int64_t other;
      const Byte* second = at;
      found.kind = Value::kInteger;
      if (!integer(at, other)) return true;
      const bool shorts = *first != kLong && *second != kLong;  // a pair of such
      if (!shorts || !has(at, 2) || at[0] != 0x86 || at[1] != 0x94) return false;
      at += 2;
      found.kind = Value::kKept;
    } else if (at == end_) {
      return false;
    } else if (*at == 'N' || *at == 0x88 || *at == 0x89) {
      ++at;
      found.kind = Value::kMade;
    } else if (*at == 0x8C) {  // a short text
      if (!has(at, 3) || !has(at, 3 + at[1]) || at[2 + at[1]] != 0x94) return false;
      at += 3 + at[1];
      found.kind = Value::kKept;
    } else if (*at == ']') {
      if (!list(at, found.items)) return false;
      found.kind = Value::kKept;
    } else {
      Place place;
      if (!reference(at, place) || place >= memo_.size() + is_kept_ + kept_) return false;
      if (place < memo_.size() ? memo_[place] == kEvent : is_kept_ && place == memo_.size()) return false;
      found.kind = Value::kReference;
      found.integer = int64_t(place);
    }
    found.made = {Place(first - data_), Place(at - first)};
    return true;
  }

  // Reads a list of values that were kept before the run.
  bool list(const Byte*& at, size_t& items) const {
    if (!has(at, 2) || at[1] != 0x94) return false;
    at += 2;
    const bool several = at < end_ && *at == '(';
    const Byte* next = at + several;
    Place place;
    while (items < kLongestList && reference(next, place)) {
      if (place >= known_ || memo_[place] == kEvent) return false;
      ++items;
      if (!several) break;
    }
    const bool ends = next < end_ && items && *next == (several ? 'e' : 'a');
    if (ends) at = next + 1;
    if (!ends) items = 0;
    return ends || !several;  // else the list is empty, or of another kind
  }

  const Byte* const data_;
  const Byte* const end_;
  const uint64_t seed_;
  size_t known_ = 0, rows_ = 0, number_ = 0, kept_ = 0;
  bool is_kept_ = false;  // whether the current event is kept under a number
  uint32_t seen_ = 0;     // a bit for each column that the current event has
  std::vector<uint32_t> memo_;
  std::vector<Span> spans_;
  std::vector<Slot> slots_;
  std::vector<Column> columns_;
  std::vector<ColumnView> views_;
  std::vector<Value> values_;
};

}  // namespace cudamem
