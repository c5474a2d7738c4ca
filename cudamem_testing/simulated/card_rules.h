// Temporary memory of CUDA's kernels, for operators that the CPU's kernels compute: copies of matrices that cuBLAS cannot
// read, its workspaces, the two steps of large reductions. Larger kernels are in Python (kernels/). Every rule follows
// operators that were recorded on a card; tests compare the models in fixtures/simulated/ with them.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <unordered_map>

#include "card_arguments.h"
#include "card_backward.h"
#include "card_sorting.h"
#include "card_streams.h"

namespace cudamem {

void passing(const Sizes& sizes) {
  std::vector<c10::DataPtr> held;
  for (const int64_t size : sizes) {
    if (size > 0) held.push_back(allocator_of_card().allocate(static_cast<size_t>(size)));
  }
  while (!held.empty()) held.pop_back();
}

// --- cuBLAS ---

// A workspace for each thread and stream that has multiplied, until they are cleared.
struct Workspaces {
  using Key = std::tuple<std::thread::id, int, StreamId, bool>;
  std::mutex mutex;
  std::map<Key, c10::DataPtr> held;
  size_t blas = 0, light = 0;  // bytes; of cuBLAS and cuBLASLt

  void need(bool lighter) {
    const size_t size = lighter ? light : blas;
    const Key key(thread_on_card(), current.card, current.stream[static_cast<size_t>(current.card)], lighter);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!size || held.count(key)) return;
    }
    c10::DataPtr made = allocator_of_card().allocate(size);
    const std::lock_guard<std::mutex> lock(mutex);
    held.emplace(key, std::move(made));
  }

  void clear() {
    std::map<Key, c10::DataPtr> gone;
    const std::lock_guard<std::mutex> lock(mutex);
    gone.swap(held);
  }
};

inline Workspaces& workspaces = *new Workspaces;

// Whether cuBLAS can read a matrix without a copy: its rows or columns are contiguous.
inline bool is_readable(const at::TensorBase& matrix) {
  const auto rows = matrix.size(-2), columns = matrix.size(-1);
  const auto down = matrix.stride(-2), across = matrix.stride(-1);
  return (across == 1 && down >= std::max<int64_t>(1, columns)) || (down == 1 && across >= std::max<int64_t>(1, rows));
}

inline void multiply(const Arguments& arguments, size_t first, bool light) {
  const at::TensorBase& a = arguments[first].tensor;
  const at::TensorBase& b = arguments[first + 1].tensor;
  if (!a.numel() || !b.numel()) return;
  workspaces.need(false);
  if (light) workspaces.need(true);
  passing({a.dim() > 1 && !is_readable(a) ? bytes_of(a) : 0, b.dim() > 1 && !is_readable(b) ? bytes_of(b) : 0});
}

inline void matrices(const Arguments& arguments) { multiply(arguments, 0, false); }

inline void added_matrices(const Arguments& arguments) {  // a bias along the rows is added by cuBLASLt
  const at::TensorBase& bias = arguments[0].tensor;
  multiply(arguments, 1, bias.dim() == 1 && bias.is_contiguous());
}

// --- reductions ---

inline int64_t last_power(int64_t value) {
  int64_t power = 1;
  while (2 * power <= value) power *= 2;
  return power;
}
inline int64_t parts(int64_t value, int64_t size) { return (value + size - 1) / size; }

// How the work of a reduction is divided. If several blocks of threads compute one result, each stores its part in
// memory, with a counter for each column of blocks. Each thread reduces 16 to 256 values.
inline void reduction(const at::TensorBase& input, const std::vector<bool>& reduced, int64_t wide) {
  constexpr int64_t kThreads = 512, kWarp = 32, kFew = 16, kMany = 256;
  int64_t outputs = 1, inputs = 1, fastest = -1, kept_size = 0;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    (reduced[static_cast<size_t>(dim)] ? inputs : outputs) *= input.size(dim);
    if (input.size(dim) > 1 && (fastest < 0 || input.stride(dim) < input.stride(fastest))) fastest = dim;
  }
  if (fastest < 0 || inputs <= 1) return;
  const bool along = outputs == 1 || reduced[static_cast<size_t>(fastest)];
  kept_size = along ? 0 : input.size(fastest);
  int64_t dim0 = along ? inputs : outputs, dim1 = along ? outputs : inputs, vector = 1;
  if (input.stride(fastest) == 1) {
    if (along && dim0 > 128 && outputs == 1) {
      dim0 /= 4;
    } else if (!along) {
      vector = 4;
      while (kept_size % vector != 0) vector /= 2;
      dim0 /= vector;
    }
  }
  const int64_t most = kThreads / vector;
  const int64_t power0 = dim0 < most ? last_power(dim0) : most, power1 = dim1 < most ? last_power(dim1) : most;
  int64_t width = std::min(power0, kWarp);
  const int64_t height = std::min(power1, most / width);
  width = std::min(power0, most / height);
  int64_t step_input = 1, step_output = 1;
  (along ? step_input : step_output) *= width;
  const auto each = [&] { return parts(inputs, step_input); };
  const bool split = each() >= height * kFew || each() >= kMany;
  (split ? step_input : step_output) *= height;
  if (!split || each() < kMany) return;
  const int64_t grid = parts(outputs / vector, step_output);
  const int64_t target = processors * (2048 / (width * height));
  if (grid > target) return;
  const int64_t blocks =
      std::max(std::min(parts(target, grid), parts(each(), kFew)), parts(each(), kMany));
  if (blocks <= 1) return;
  const int64_t apart = along ? 1 : width * vector;
  passing({wide * outputs * blocks * apart, 4 * grid});
}

inline void reduce(const Arguments& arguments, size_t dims_at, int64_t wide) {
  const at::TensorBase& input = arguments[0].tensor;
  if (input.dim() == 0) return;
  std::vector<bool> reduced(static_cast<size_t>(input.dim()), true);
  if (dims_at && dims_at < arguments.size()) {
    std::vector<int64_t> dims;
    const Argument& given = arguments[dims_at];
    dims = given.integers;
    if (given.is_integer) dims = {given.integer};
    if (!dims.empty()) {
      reduced.assign(reduced.size(), false);
      for (const int64_t dim : dims) reduced[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)] = true;
    }
  }
  reduction(input, reduced, wide);
}

inline void sum_up(const Arguments& arguments) {
  reduce(arguments, 1, std::max<int64_t>(4, static_cast<int64_t>(arguments[0].tensor.itemsize())));
}
inline void sum_up_norm(const Arguments& arguments) {
  reduce(arguments, 2, std::max<int64_t>(4, static_cast<int64_t>(arguments[0].tensor.itemsize())));
}
inline void sum_up_flags(const Arguments& arguments) { reduce(arguments, 1, 1); }

// A pair of a value and its index, or of a mean and a variance, is wider than the value.
inline void sum_up_pairs(const Arguments& arguments) {
  reduce(arguments, 1, std::max<int64_t>(16, 4 * static_cast<int64_t>(arguments[0].tensor.itemsize())));
}
// Integers are converted first if the result is wider.
inline void sum_up_converted(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  if (at::isIntegralType(input.scalar_type(), true) && input.itemsize() < 8) passing({8 * input.numel()});
  sum_up(arguments);
}
inline void sum_up_all(const Arguments& arguments) {
  reduce(arguments, 0, std::max<int64_t>(4, static_cast<int64_t>(arguments[0].tensor.itemsize())));
}
// Without bounds they are the least and the largest value, each found by a reduction.
inline void count_in_bins(const Arguments& arguments) {
  if (arguments[2].number != arguments[3].number) return;
  for (int bound = 0; bound < 2; ++bound) {
    const c10::DataPtr found = allocator_of_card().allocate(arguments[0].tensor.itemsize());
    sum_up_all(arguments);
  }
}
inline void compare_all(const Arguments& arguments) {
  passing({arguments[0].tensor.numel(), 1});
  reduce(arguments, 0, 1);
}
inline void sum_up_loss(const Arguments& arguments) {  // the loss of every element, then their sum
  if (arguments[2].is_integer && arguments[2].integer != 0) passing({bytes_of(arguments[0].tensor)});
}
inline void norms(const Arguments& arguments) {  // a part for each 65,536 elements of the longest tensor
  const auto tensors = arguments[0].tensors;
  int64_t most = 0;
  for (const at::TensorBase& each : tensors) most = std::max(most, parts(each.numel(), 65536));
  passing({4 * static_cast<int64_t>(tensors.size()) * most});
}

// --- sorting, selecting, scanning ---

inline int64_t dim_of(const Argument& given, int64_t without = -1) { return given.is_integer ? given.integer : without; }

inline void scan(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const Slices slices(input, dim_of(arguments[1]));
  const bool integral = at::isIntegralType(input.scalar_type(), true);
  const int64_t width = integral ? kIndex : static_cast<int64_t>(input.itemsize());
  passing({integral && input.itemsize() < kIndex ? kIndex * input.numel() : 0,
           slices.count == 1 && slices.each > 1 ? scan_bytes(slices.each, width) : 0});
}

inline void sort(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  passing(sort_sizes(Slices(input, dim_of(arguments[2])), static_cast<int64_t>(input.itemsize())));
}

inline void median(const Arguments& arguments) {  // of all elements: they are sorted
  const at::TensorBase& input = arguments[0].tensor;
  const auto width = static_cast<int64_t>(input.itemsize());
  Sizes sizes = sort_sizes(Slices(1, input.numel()), width);
  sizes.insert(sizes.end(), {bytes_of(input), kIndex * input.numel()});
  passing(sizes);
}

inline void largest(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const Slices slices(input, dim_of(arguments[2]));
  const auto width = static_cast<int64_t>(input.itemsize());
  const int64_t wanted = arguments[1].integer;
  passing(select_largest_sizes(slices, width, processors));
  if (wanted > kSmallSort && arguments[4].is_true()) {  // then they are sorted into new memory
    Sizes sizes = sort_sizes(Slices(slices.count, wanted), width);
    sizes.insert(sizes.end(), {width * slices.count * wanted, kIndex * slices.count * wanted});
    passing(sizes);
  }
}

inline void draw(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const auto width = static_cast<int64_t>(input.itemsize());
  const Slices slices(input, -1);
  const int64_t wanted = arguments[1].integer;
  if (arguments[2].is_true()) {  // each is drawn from cumulative sums
    passing({bytes_of(input), bytes_of(input), bytes_of(input),
             slices.count == 1 ? scan_bytes(slices.each, width) : 0});
    return;
  }
  Sizes sizes = select_largest_sizes(slices, width, processors);  // the largest of random numbers
  sizes.insert(sizes.end(), {bytes_of(input), width * slices.count * wanted});
  passing(sizes);
}

inline void shuffle(const Arguments& arguments) { passing(random_order_sizes(arguments[0].integer)); }

inline void put_by_index(const Arguments& arguments) {
  if (!arguments[3].is_true()) return;
  const at::TensorBase& self = arguments[0].tensor;
  const at::TensorBase& value = arguments[2].tensor;
  int64_t range = 1, number = 1, at = 0;
  for (const at::TensorBase& each : arguments[1].tensors) {
    if (each.defined()) {
      if (each.scalar_type() == at::kBool) return;  // how many elements it selects is unknown here
      number = std::max(number, each.numel());
      range *= self.size(at);
    }
    ++at;
  }
  Sizes sizes = ordered_indices_sizes(number, range);
  const int64_t elements = range ? number * (self.numel() / range) : 0;
  if (value.numel() < elements || !value.is_contiguous()) {  // after the positions, the values are put in order
    sizes.insert(sizes.begin() + 1, elements * static_cast<int64_t>(value.itemsize()));
  }
  passing(sizes);
}

inline void scatter_by_mask(const Arguments& arguments) {  // the positions of the selected elements are computed first
  const at::TensorBase& mask = arguments[1].tensor;
  passing({kIndex * mask.numel(), scan_bytes(mask.numel(), kIndex)});
}

inline void put_places(const Arguments& arguments) { passing({4, select_bytes(arguments[0].tensor.numel())}); }

inline void unique(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const auto width = static_cast<int64_t>(input.itemsize());
  const int64_t count = input.numel();
  if (arguments.size() > 3 && (arguments[2].is_true() || arguments[3].is_true())) {
    passing({width * count, kIndex * count, radix_sort_bytes(count, width, kIndex)});
  } else {
    passing({width * count, radix_sort_bytes(count, width, 0)});
  }
}

// --- others ---

// A gradient whose layout the kernel does not support is copied first.
inline void copied_gradient(const Arguments& arguments) {
  const at::TensorBase& gradient = arguments[0].tensor;
  if (!gradient.is_contiguous() && !(gradient.dim() == 4 && gradient.is_contiguous(at::MemoryFormat::ChannelsLast))) {
    passing({bytes_of(gradient)});
  }
}
// The same where the gradient must have the order of the input.
inline void gradient_in_order_of_input(const Arguments& arguments) {
  const at::TensorBase& gradient = arguments[0].tensor;
  if (!gradient.is_contiguous(arguments[1].tensor.suggest_memory_format())) passing({bytes_of(gradient)});
}
// Norms over tensors whose channels are next to each other: sums of each channel by several blocks of threads, and a counter
// for each column of blocks. `parts_of_sum` is how many numbers each block has for a channel; empty if one block is enough.
inline Sizes channel_sums(const at::TensorBase& input, int64_t parts_of_sum) {
  constexpr int64_t kWarp = 32, kThreads = 512, kPerThread = 16, kMostBlocks = 128, kFewBlocks = 8;
  const int64_t channels = input.size(1), rows = input.numel() / std::max<int64_t>(channels, 1);
  if (!channels || !rows) return {};
  int64_t width = std::min(last_power(channels), kWarp);
  const int64_t height = std::min(last_power(parts(rows, kPerThread)), kThreads / width);
  if (width * height != kThreads) width = std::min(last_power(channels), kThreads / height);
  const int64_t blocks = std::min(parts(rows, height * kPerThread), kMostBlocks);
  if (blocks < kFewBlocks) return {};
  return {4 * parts_of_sum * channels * blocks, 4 * parts(channels, width)};
}
inline bool has_channels_last(const at::TensorBase& input) {
  return (input.dim() == 2 && input.is_contiguous()) ||
         (!input.is_contiguous() && input.dim() > 3 && input.is_contiguous(input.suggest_memory_format()));
}
inline void batch_norm(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  if (arguments[5].is_true() && has_channels_last(input)) passing(channel_sums(input, 4));
}
inline void batch_norm_backward(const Arguments& arguments) {
  const at::TensorBase& input = arguments[1].tensor;
  if (!arguments[7].is_true() || !has_channels_last(input)) return;
  Sizes sizes = {4 * input.size(1), 4 * input.size(1)};
  const Sizes more = channel_sums(input, 2);
  sizes.insert(sizes.end(), more.begin(), more.end());
  passing(sizes);
}
inline void magnitudes(const Arguments& arguments) {  // of complex numbers: computed as complex numbers
  const at::TensorBase& input = arguments[0].tensor;
  if (input.is_complex()) passing({bytes_of(input)});
}
inline void vector_product(const Arguments& arguments) {
  added_matrices(arguments);
  const at::TensorBase& vector = arguments[2].tensor;
  if (vector.dim() == 1 && vector.numel() > 1 && vector.stride(0) == 0) passing({bytes_of(vector)});
}

inline void unfold_backward(const Arguments& arguments) {  // positions along the dimension
  passing({kIndex * arguments[1].integers.at(static_cast<size_t>(arguments[2].integer))});
}

inline void softmax_backward(const Arguments& arguments) { passing({bytes_of(arguments[1].tensor)}); }
inline void log_softmax_backward(const Arguments& arguments) {
  const at::TensorBase& gradient = arguments[0].tensor;
  if (!gradient.is_contiguous()) passing({bytes_of(gradient)});
}

}  // namespace cudamem
