// Workspaces of CUDA's libraries for linear algebra and for Fourier transforms. Formulas were fitted to calls on an H200 with
// torch 2.11: matrices of 8 to 512 rows, alone and in batches, and transforms of 28 to a million points.
#pragma once

#include "card_rules.h"

namespace cudamem {

// A batch of matrices.
struct Matrices {
  explicit Matrices(const at::TensorBase& given)
      : rows(std::min(given.size(-2), given.size(-1))),
        width(static_cast<int64_t>(given.itemsize())),
        bytes(bytes_of(given)),
        number(given.numel() ? given.numel() / (given.size(-2) * given.size(-1)) : 0) {}
  int64_t rows, width, bytes, number;

  int64_t pointers() const { return kIndex * number; }
  int64_t of_rows(int64_t each) const { return each * number * rows; }
};

inline int64_t factor_bytes(const Matrices& all) {  // of an LU factorization
  return all.number > 1 ? all.pointers() : 256 + 16 * aligned(all.rows, 32);
}

inline void cholesky(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  passing({all.number > 1 ? all.pointers() : all.rows > 256 ? 2 * all.rows + 128 : 160});
}
inline void solve_by_cholesky(const Arguments& arguments) { passing({bytes_of(arguments[1].tensor)}); }
inline void factorize(const Arguments& arguments) { passing({factor_bytes(Matrices(arguments[0].tensor))}); }
inline void invert(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  const int64_t order = all.of_rows(kIndex);
  passing({all.bytes, all.of_rows(4), order, order, all.rows > 16 ? order : 0, all.rows > 16 ? all.bytes : 0});
}
inline void solve_factorized(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  const at::TensorBase& right = arguments[2].tensor;
  const int64_t columns = right.size(-1), order = all.of_rows(kIndex), values = all.of_rows(all.width * columns);
  if (all.rows <= 64 && (columns < 16 || all.rows <= 16)) {
    passing({all.pointers(), all.pointers()});
  } else {
    passing({order, all.number == 1 && columns > 16 ? order : 0, all.number == 1 && columns > 16 ? order : 0, values});
  }
}
inline void orthogonalize(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  const int64_t alone = std::max<int64_t>(int64_t{3} << 18, 2048 * all.rows) + 32, batched = 32768 + 68 * all.rows;
  passing({all.of_rows(all.width), all.width * (all.number > 1 && all.rows <= 64 ? batched : alone)});
}
inline void least_squares(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  const bool batched = all.number > 1 && all.rows <= 64;
  const int64_t alone = std::max<int64_t>(int64_t{3} << 18, 2048 * all.rows) + 32;
  passing({all.bytes, batched ? all.bytes : all.of_rows(all.width), batched ? all.pointers() : all.width * alone});
}
inline void singular_values(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const Matrices all(input);
  if (input.size(-1) != input.size(-2)) {  // others than square ones are orthogonalized first
    passing({all.width * (int64_t{3} << 18)});
    return;
  }
  passing({all.bytes, all.width * (all.rows <= 32 ? 992 : 2 * all.rows * all.rows + 80 * all.rows)});
}
inline void eigenvalues(const Arguments& arguments) {
  const Matrices all(arguments[0].tensor);
  const int64_t n = all.rows;
  if (n <= 32) {  // all matrices at once
    passing({all.number * all.width * (842 * n + 65133)});
  } else {
    passing({all.width == 4 ? 4 * n * n + 150 * n + 3000 : 24 * n * n + 6145 * n + 524888});
  }
}
inline void exponential(const Arguments& arguments) {  // powers, and sums of them
  const Matrices all(arguments[0].tensor);
  passing({(all.number > 1 ? 10 : 12) * all.bytes});
}

// --- Fourier transforms ---

inline bool has_large_prime(int64_t value) {
  constexpr int64_t kLargest = 127;  // larger prime factors have no kernel
  for (int64_t prime = 2; prime * prime <= value; ++prime) {
    while (value % prime == 0) value /= prime;
  }
  return value > kLargest;
}

inline int64_t next_smooth(int64_t value) {  // without other prime factors than 2, 3 and 5
  for (;; ++value) {
    int64_t rest = value;
    for (const int64_t prime : {2, 3, 5}) {
      while (rest % prime == 0) rest /= prime;
    }
    if (rest == 1) return value;
  }
}

// The second buffer of long transforms, and of lengths with large primes. `real`: one side is real.
inline int64_t transform_bytes(c10::IntArrayRef sizes, const std::vector<int64_t>& dims, int64_t width, bool real) {
  constexpr int64_t kInOneKernel = 16384;
  int64_t all = 1;
  for (const int64_t size : sizes) all *= size;
  for (const int64_t dim : dims) {
    const int64_t size = sizes[static_cast<size_t>(dim)];
    if (!size) return 0;
    const int64_t rows = all / size, half = size / 2 + 1;
    if (has_large_prime(size)) {
      if (size <= 4096) return real ? 2 * width * all : 0;
      const int64_t longer = next_smooth(2 * size - 1);
      return 2 * width * rows * (real ? longer + half : 2 * longer);
    }
    if (real && size >= (width == 8 ? kInOneKernel / 2 : kInOneKernel + 1)) {
      return size <= 32768 ? width * all : 2 * width * rows * half;
    }
    if (!real && size >= (width == 8 ? kInOneKernel + 1 : 2 * kInOneKernel)) return 2 * width * all;
  }
  return 0;
}

inline Sizes several_steps(const std::vector<int64_t>& dims, int64_t bytes) {  // at most three dimensions at once
  return {dims.size() > 3 ? bytes : 0};
}

inline void transform_real(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const std::vector<int64_t> dims = arguments[1].integers;
  const auto width = static_cast<int64_t>(input.itemsize());
  int64_t out = 2 * bytes_of(input);
  if (!dims.empty() && input.numel()) {
    const int64_t last = input.size(dims.back());
    out = 2 * bytes_of(input) / last * (last / 2 + 1);
  }
  Sizes sizes = several_steps(dims, out);
  if (!input.is_contiguous()) sizes.push_back(bytes_of(input));
  sizes.push_back(transform_bytes(input.sizes(), dims, width, true));
  passing(sizes);
}
inline void transform_complex(const Arguments& arguments) {
  const at::TensorBase& input = arguments[0].tensor;
  const std::vector<int64_t> dims = arguments[1].integers;
  Sizes sizes = several_steps(dims, bytes_of(input));
  sizes.push_back(transform_bytes(input.sizes(), dims, static_cast<int64_t>(input.itemsize()) / 2, false));
  passing(sizes);
}
inline void transform_to_real(const Arguments& arguments) {  // it overwrites its input, which is copied
  const at::TensorBase& input = arguments[0].tensor;
  const std::vector<int64_t> dims = arguments[1].integers;
  std::vector<int64_t> shape = input.sizes().vec();
  if (!dims.empty()) shape[static_cast<size_t>(dims.back())] = arguments[3].integer;
  passing({bytes_of(input), transform_bytes(shape, dims, static_cast<int64_t>(input.itemsize()) / 2, true)});
}

}  // namespace cudamem
