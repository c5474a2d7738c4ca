// Calls of operators with typed arguments. They take less time than calls of the fallback (card_fallback.h), which finds
// its arguments on a stack: for a moment each tensor there has one more owner, and Python's lock is taken to count it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/OptionalArrayRef.h>

#include "card_arguments.h"
#include "card_parts.h"
#include "card_streams.h"

namespace cudamem {

// What every such call does before and after the CPU's kernel, which sees tensors of the card as tensors of the CPU.
class TypedCall {
 public:
  explicit TypedCall(const char* name);
  ~TypedCall();

  at::Tensor show(const at::Tensor& tensor);
  std::optional<at::Tensor> show(const std::optional<at::Tensor>& tensor) {
    return tensor ? std::optional<at::Tensor>(show(*tensor)) : std::nullopt;
  }
  std::vector<at::Tensor> show(at::TensorList tensors) {
    std::vector<at::Tensor> found;
    found.reserve(tensors.size());
    for (const at::Tensor& each : tensors) found.push_back(show(each));
    return found;
  }
  template <typename Other>
  const Other& show(const Other& other) {
    return other;
  }

  // Makes the card of the arguments the current one. All of them were shown.
  void begin();
  bool has_values() const { return values_; }
  // Memory on the card for a result. Without strides it is in the order of the options' format.
  at::Tensor make(c10::IntArrayRef sizes, c10::IntArrayRef strides, const c10::TensorOptions& options) const;
  // That result as the CPU's kernel sees it.
  at::Tensor show_made(const at::Tensor& made) const;
  // Gives it the shape that the kernel gave to what it saw.
  static void settle(const at::Tensor& shown, const at::Tensor& made);
  // Runs the CPU's kernel, which may not have the types of the arguments.
  void run(c10::function_ref<void()> kernel) const;

 private:
  const char* const name_;
  const c10::impl::ExcludeDispatchKeyGuard inside_;
  const OnCard on_;
  const bool values_;
  bool recorded_ = false, is_mixed_ = false;
  std::optional<c10::Device> device_;
};

// Arguments as rules read them.
inline Argument argument(const at::Tensor& tensor) {
  Argument found;
  found.tensor = tensor;
  return found;
}
inline Argument argument(int64_t value) {
  Argument found;
  found.is_integer = true;
  found.number = static_cast<double>(found.integer = value);
  return found;
}
inline Argument argument(bool value) {
  Argument found;
  found.integer = value;
  return found;
}
inline Argument argument(c10::IntArrayRef values) {
  Argument found;
  found.integers = values.vec();
  return found;
}
inline Argument argument(c10::OptionalIntArrayRef values) { return values ? argument(*values) : Argument(); }
inline Argument argument(const std::optional<int64_t>& value) { return value ? argument(*value) : Argument(); }
template <typename Other>
Argument argument(const Other&) {  // no rule reads it
  return {};
}

template <typename... Given>
void follow(Rule rule, const Given&... given) {
  if (rule) rule({argument(given)...});
}

// Registers a kernel. The types that kernels may have are listed where this is defined.
template <typename Function>
void put_typed(const char* name, Function* kernel);

}  // namespace cudamem
