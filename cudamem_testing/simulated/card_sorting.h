// Temporary memory of kernels that sort, select, scan and scatter. For radix sorts and scans it follows from the tiles in
// which they work. Tiles and steps were derived from calls on an H200 with torch 2.11
// (fixtures/simulated/operators.json.gz); a test compares these rules with all of them.
#pragma once

#include <ATen/core/TensorBase.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "card_parts.h"

namespace cudamem {

constexpr int64_t kIndex = 8;        // bytes of an index
constexpr int64_t kSmallSort = 4096;  // up to this length one block of threads sorts a slice

inline int64_t aligned(int64_t bytes, int64_t step = 256) { return (bytes + step - 1) / step * step; }

inline int64_t bits_of(int64_t value) {
  int64_t bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

// A radix sort of keys with values of `value` bytes (0: none): second copies of both, a histogram for each pass over eight
// bits, and 256 counters for each tile. `bits`: how many bits of a key are sorted by; 0: all.
inline int64_t radix_sort_bytes(int64_t count, int64_t key, int64_t value, int64_t bits = 0) {
  constexpr int64_t kOneTile = 2304;  // fewer keys are sorted in one tile, in place
  if (count <= kOneTile) return 1;
  const int64_t tile = value == 0 ? 5760 : key == 8 ? 4608 : 5376;
  const int64_t passes = ((bits ? bits : 8 * key) + 7) / 8;
  const int64_t tiles = (count + tile - 1) / tile;
  return aligned(key * count) + aligned(value * count) + 1024 * tiles + 2048 * passes + 256 + 255;
}

// A scan over one row: a state for each tile, twice as wide for wide values.
inline int64_t scan_bytes(int64_t count, int64_t width) {
  const int64_t tile = width > 4 ? 896 : 1920, state = width > 4 ? 16 : 8;
  return aligned(state * ((count + tile - 1) / tile + 32)) + 256 + 255;
}

// Indices of the elements that a mask selects: a scan over tiles.
inline int64_t select_bytes(int64_t count) { return aligned(8 * ((count + 4223) / 4224 + 32)) + 256 + 255; }

// Slices of a tensor along a dimension, all of one length.
struct Slices {
  Slices(const at::TensorBase& tensor, int64_t dim) : count(1), each(1) {
    if (tensor.dim() == 0) return;
    each = tensor.size(dim);
    count = each ? tensor.numel() / each : 0;
    const int64_t at = dim < 0 ? dim + tensor.dim() : dim;
    bool unit = true;  // all later dimensions have one element
    for (int64_t behind = at + 1; behind < tensor.dim(); ++behind) unit = unit && tensor.size(behind) == 1;
    last = unit;
  }
  Slices(int64_t number, int64_t size) : count(number), each(size) {}
  int64_t count, each;
  bool last = true;  // a slice is contiguous in a contiguous tensor
};

// Sorts slices: small ones with a row of indices; a single one, or very long ones, separately; fewer than 128 in one sort
// of all, then by slice; more in a segmented sort. Another dimension than the last is moved to the end first.
inline Sizes sort_sizes(const Slices& slices, int64_t width) {
  const int64_t all = slices.count * slices.each;
  if (slices.each <= 1) return {};
  if (slices.each <= kSmallSort) return {kIndex * slices.each};
  Sizes found;
  if (!slices.last) found = {width * all, width * all, kIndex * all};
  if (slices.count == 1 || slices.each >= 1'000'000) {
    found.insert(found.end(), {kIndex * slices.each, radix_sort_bytes(slices.each, width, kIndex)});
  } else if (slices.count < 128) {
    found.insert(found.end(), {kIndex * all, kIndex * all, width * all, radix_sort_bytes(all, width, kIndex)});
  } else {
    found.insert(found.end(), {kIndex * all, aligned(width * all) + aligned(kIndex * all)});
  }
  return found;
}

// Whether several blocks of threads find the largest elements of each slice.
inline bool shares_selection(const Slices& slices) {
  const int64_t number = slices.count, size = slices.each;
  if (number <= 20) return size >= 20'000;
  if (number <= 40) return size >= 10'000;
  if (number <= 80) return size >= 8'000;
  if (number < 200) return size >= 5'000;
  if (number < 800) return size >= 3'000;
  return number <= 4'000 ? size >= 800 : size >= 400;
}

// The `wanted` largest of each slice, without sorting them: counters of digits for each block, and of each slice.
inline Sizes select_largest_sizes(const Slices& slices, int64_t width, int64_t processors) {
  if (!shares_selection(slices)) return {};
  constexpr int64_t kThreads = 256, kBlocksAtOnce = 6;
  const int64_t at_once = processors * kBlocksAtOnce * kThreads, all = slices.count * slices.each;
  const int64_t items = std::clamp<int64_t>((all + at_once - 1) / at_once, 4, 64);
  const int64_t blocks = slices.count * ((slices.each + items * kThreads - 1) / (items * kThreads));
  return {width * slices.count, kIndex * slices.count, kIndex * slices.count, 512 * blocks, 1024 * slices.count,
          4 * blocks, 4 * blocks, 1279};
}

// Scatters that add in a fixed order sort their indices first; `range` is how many positions there are.
inline Sizes ordered_indices_sizes(int64_t count, int64_t range) {
  return {kIndex * count, kIndex * count, kIndex * count, kIndex * count,
          radix_sort_bytes(count, kIndex, kIndex, bits_of(range))};
}

// A random permutation: keys and numbers are sorted together. Keys are so wide that equal ones are rare.
inline Sizes random_order_sizes(int64_t count) {
  const double n = static_cast<double>(count);
  const double bits = std::min(64.0, std::ceil(std::log2(n + (6 * n * n + 1) / (12 * 0.10536051565782628))));
  const int64_t key = bits > 32 ? 8 : 4;
  return {kIndex * count, key * count, key * count,
          radix_sort_bytes(count, key, kIndex, static_cast<int64_t>(bits))};
}

}  // namespace cudamem
