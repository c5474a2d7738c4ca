// What a kernel of CUDA takes beside its results, for operators that the CPU's kernels compute: copies of matrices that
// cuBLAS cannot read, its workspaces, the two steps of large reductions. Larger kernels are in Python (kernels/). Every
// rule was written from operators that were recorded on a card; the models in fixtures/simulated/ are held to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <thread>
#include <unordered_map>

#include "card_streams.h"

namespace cudamem {

inline int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.itemsize()); }

// Memory that a kernel takes for as long as it runs.
inline void passing(std::initializer_list<int64_t> sizes) {
  std::vector<c10::DataPtr> held;
  for (const int64_t size : sizes) {
    if (size > 0) held.push_back(allocator_of_card().allocate(static_cast<size_t>(size)));
  }
}

// --- cuBLAS ---

// One for each thread and stream that has multiplied, until they are cleared.
struct Workspaces {
  using Key = std::tuple<std::thread::id, int, StreamId, bool>;
  std::mutex mutex;
  std::map<Key, c10::DataPtr> held;
  size_t blas = 0, light = 0;  // bytes; of cuBLAS and cuBLASLt

  void need(bool lighter) {
    const size_t size = lighter ? light : blas;
    const Key key(std::this_thread::get_id(), current.card, current.stream[static_cast<size_t>(current.card)], lighter);
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

// Whether cuBLAS reads a matrix as it is: rows or columns lie next to each other.
inline bool is_readable(const at::Tensor& matrix) {
  const auto rows = matrix.size(-2), columns = matrix.size(-1);
  const auto down = matrix.stride(-2), across = matrix.stride(-1);
  return (across == 1 && down >= std::max<int64_t>(1, columns)) || (down == 1 && across >= std::max<int64_t>(1, rows));
}

using Arguments = std::vector<c10::IValue>;

inline void multiply(const Arguments& arguments, size_t first, bool light) {
  const at::Tensor& a = arguments[first].toTensor();
  const at::Tensor& b = arguments[first + 1].toTensor();
  if (!a.numel() || !b.numel()) return;
  workspaces.need(false);
  if (light) workspaces.need(true);
  passing({a.dim() > 1 && !is_readable(a) ? bytes_of(a) : 0, b.dim() > 1 && !is_readable(b) ? bytes_of(b) : 0});
}

inline void matrices(const Arguments& arguments) { multiply(arguments, 0, false); }

inline void added_matrices(const Arguments& arguments) {  // a bias along the rows is added by cuBLASLt
  const at::Tensor& bias = arguments[0].toTensor();
  multiply(arguments, 1, bias.dim() == 1 && bias.is_contiguous());
}

// --- reductions ---

inline int64_t last_power(int64_t value) {
  int64_t power = 1;
  while (2 * power <= value) power *= 2;
  return power;
}
inline int64_t parts(int64_t value, int64_t size) { return (value + size - 1) / size; }

// How the work of a reduction is shared out; where several blocks of threads work on one result, each leaves its part in
// memory, with a counter for each column of blocks. Threads hold 16 to 256 values each.
inline void reduction(const at::Tensor& input, const std::vector<bool>& reduced, int64_t wide) {
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
  const int64_t target = 132 * (2048 / (width * height));
  if (grid > target) return;
  const int64_t blocks =
      std::max(std::min(parts(target, grid), parts(each(), kFew)), parts(each(), kMany));
  if (blocks <= 1) return;
  const int64_t apart = along ? 1 : width * vector;
  passing({wide * outputs * blocks * apart, 4 * grid});
}

inline void reduce(const Arguments& arguments, size_t dims_at, int64_t wide) {
  const at::Tensor& input = arguments[0].toTensor();
  if (input.dim() == 0) return;
  std::vector<bool> reduced(static_cast<size_t>(input.dim()), true);
  if (dims_at && dims_at < arguments.size()) {
    std::vector<int64_t> dims;
    const c10::IValue& given = arguments[dims_at];
    if (given.isIntList()) dims = given.toIntVector();
    if (given.isInt()) dims = {given.toInt()};
    if (!dims.empty()) {
      reduced.assign(reduced.size(), false);
      for (const int64_t dim : dims) reduced[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)] = true;
    }
  }
  reduction(input, reduced, wide);
}

inline void sum_up(const Arguments& arguments) {
  reduce(arguments, 1, std::max<int64_t>(4, static_cast<int64_t>(arguments[0].toTensor().itemsize())));
}
inline void sum_up_norm(const Arguments& arguments) {
  reduce(arguments, 2, std::max<int64_t>(4, static_cast<int64_t>(arguments[0].toTensor().itemsize())));
}
inline void sum_up_flags(const Arguments& arguments) { reduce(arguments, 1, 1); }

// --- others ---

inline void softmax_backward(const Arguments& arguments) { passing({bytes_of(arguments[1].toTensor())}); }
inline void log_softmax_backward(const Arguments& arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  if (!gradient.is_contiguous()) passing({bytes_of(gradient)});
}

using Rule = void (*)(const Arguments&);

inline const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> all = {
      {"aten::mm.out", &matrices},
      {"aten::bmm.out", &matrices},
      {"aten::addmm.out", &added_matrices},
      {"aten::baddbmm.out", &added_matrices},
      {"aten::addmv.out", &added_matrices},
      {"aten::dot", &matrices},
      {"aten::sum.IntList_out", &sum_up},
      {"aten::mean.out", &sum_up},
      {"aten::amax.out", &sum_up},
      {"aten::amin.out", &sum_up},
      {"aten::linalg_vector_norm.out", &sum_up_norm},
      {"aten::all.all_out", &sum_up_flags},
      {"aten::any.all_out", &sum_up_flags},
      {"aten::all.out", &sum_up_flags},
      {"aten::any.out", &sum_up_flags},
      {"aten::_softmax_backward_data.out", &softmax_backward},
      {"aten::_log_softmax_backward_data.out", &log_softmax_backward},
  };
  return all;
}

inline Rule rule_of(const c10::OperatorName& name) {
  static thread_local std::unordered_map<const void*, Rule> known;
  const auto found = known.find(&name);
  if (found != known.end()) return found->second;
  const std::string text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  const auto rule = rules().find(text);
  return known[&name] = rule == rules().end() ? nullptr : rule->second;
}

}  // namespace cudamem
