// The arguments of an operator, as rules read them. Torch's own type for them is in a header that takes seconds to compile,
// and only the part that calls operators includes it.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <vector>

namespace cudamem {

struct Argument {
  bool is_integer = false;
  int64_t integer = 0;  // or the truth of a bool
  double number = 0;    // of an integer, too
  at::TensorBase tensor;
  std::vector<at::TensorBase> tensors;  // undefined where a list has none
  std::vector<int64_t> integers;

  bool is_true() const { return integer != 0; }
};

using Arguments = std::vector<Argument>;

inline int64_t bytes_of(const at::TensorBase& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.itemsize()); }

}  // namespace cudamem
