// Operators that have a kernel of their own on a card: those that make tensors, move data between host and card, or use
// only the shape and place of memory.
#pragma once

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "card_fallback.h"

namespace cudamem {

using MaybeType = std::optional<at::ScalarType>;
using MaybeLayout = std::optional<at::Layout>;
using MaybeDevice = std::optional<c10::Device>;
using MaybeFormat = std::optional<at::MemoryFormat>;

inline c10::Device card_of(MaybeDevice device) {
  const c10::Device found = device.value_or(c10::Device(c10::DeviceType::CUDA, current.card));
  if (found.index() >= 0) check_card(found.index());
  return found;
}

inline at::Tensor empty(c10::IntArrayRef size, MaybeType type, MaybeLayout, MaybeDevice device, std::optional<bool> pin,
                        MaybeFormat format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const OnCard on(card_of(device));
  return at::detail::empty_generic(size, &allocator_of_card(), kCardKeys, c10::dtype_or_default(type), format);
}

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, MaybeType type, MaybeLayout,
                                MaybeDevice device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const OnCard on(card_of(device));
  return empty_on_card(size, stride, c10::dtype_or_default(type));
}

inline bool expands(c10::IntArrayRef from, c10::IntArrayRef to) {
  if (from.size() > to.size()) return false;
  const size_t more = to.size() - from.size();
  for (size_t at = 0; at < from.size(); ++at) {
    if (from[at] != 1 && from[at] != to[at + more]) return false;
  }
  return true;
}

// CUDA makes a copy on the card if the memory of both sides differs in order or type.
inline at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool) {
  const InsideKernel guard;
  const at::Tensor& on_card = self.is_cuda() ? self : source;
  const OnCard on(on_card.device());
  if (self.device() != source.device() && self.numel()) {
    const bool expanded = source.sizes() != self.sizes();
    const bool plain = self.scalar_type() == source.scalar_type() && !expanded &&
                       ((self.is_contiguous() && source.is_contiguous()) ||
                        (self.strides() == source.strides() && self.is_non_overlapping_and_dense()));
    if (!plain && self.is_cuda() && !source.is_cuda() && !self.is_contiguous()) passing({bytes_of(self)});
    if (!plain && source.is_cuda()) passing({self.numel() * static_cast<int64_t>(self.itemsize())});
  }
  if (has_values()) {
    host(self).copy_(host(source));
  } else if (!self.is_cuda()) {  // a copy to pinned memory only keeps tensors on the host: they are not read there
    if (!is_pinned(self.const_data_ptr())) needs_values("copying to the CPU");
  } else {
    TORCH_CHECK(expands(source.sizes(), self.sizes()), "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", source.sizes());
  }
  return self;
}

// --- rarely called: these take their arguments from a stack, which compiles faster than functions with types ---

inline std::vector<int64_t> integers(const c10::IValue& value) {
  if (value.isIntList()) return value.toIntVector();
  std::vector<int64_t> found;
  for (const auto& each : value.toList()) found.push_back(c10::IValue(each).toSymInt().guard_int(__FILE__, __LINE__));
  return found;
}
inline int64_t integer(const c10::IValue& value) {
  return value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
}

// Takes the arguments of a call, and returns the first one, or another, as its result.
class Taken {
 public:
  Taken(const c10::OperatorHandle& op, Stack* stack) : stack_(*stack), count_(op.schema().arguments().size()) {}
  const c10::IValue& operator[](size_t at) const { return stack_[stack_.size() - count_ + at]; }
  at::Tensor self() const { return (*this)[0].toTensor(); }
  void leave(c10::IValue result) {
    stack_.resize(stack_.size() - count_);
    stack_.push_back(std::move(result));
  }
  void leave_nothing() { stack_.resize(stack_.size() - count_); }

 private:
  Stack& stack_;
  const size_t count_;
};

inline void item(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  if (!has_values()) needs_values("item()");
  const InsideKernel guard;
  given.leave(host(given.self()).item());
}

inline void resize(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self();
  const std::vector<int64_t> size = integers(given[1]);
  const OnCard on(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  if (self.sizes() != c10::IntArrayRef(size)) impl->set_sizes_contiguous(size);
  if (!given[2].isNone() && given[2].toMemoryFormat() != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(given[2].toMemoryFormat());
  }
  const size_t needed = self.numel() == 0 ? 0 : at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(self.storage_offset()));
  c10::Storage storage = self.storage();
  if (needed > storage.nbytes()) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    c10::DataPtr made = allocator_of_card().allocate(needed);
    if (has_values() && storage.nbytes()) std::memcpy(made.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(made));
    storage.set_nbytes(needed);
  }
  given.leave(self);
}

// Gives a tensor another storage, and its place in that.
inline void set_storage(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self();
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(given[1].toStorage());
  const std::vector<int64_t> sizes = integers(given[3]), strides = integers(given[4]);
  if (strides.empty() && !sizes.empty()) {
    impl->set_storage_offset(integer(given[2]));
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, integer(given[2]));
  }
  given.leave(self);
}

inline void set_whole(const at::Tensor& self, c10::Storage source) {
  const auto number = static_cast<int64_t>(source.nbytes() / self.itemsize());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({number});
}

inline void set_whole_storage(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self();
  set_whole(self, given[1].toStorage());
  given.leave(self);
}

inline void set_nothing(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self();
  const OnCard on(self.device());
  auto& allocator = allocator_of_card();
  set_whole(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true));
  given.leave(self);
}

inline void set_tensor(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self(), source = given[1].toTensor();
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  given.leave(self);
}

inline void record_stream(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  use_on(given.self().storage().data_ptr(), given[1].toStream());
  given.leave_nothing();
}

// A tensor of the CPU over the memory of one on a card, for kernels in Python. It must not outlive that.
inline at::Tensor on_host(const at::Tensor& tensor) { return shown(tensor, has_values()); }

inline void register_kernels(torch::Library& library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("copy_", copy);
  const auto boxed = [&](const char* name, torch::CppFunction kernel) { library.impl(name, std::move(kernel)); };
  using torch::CppFunction;
  boxed("_local_scalar_dense", CppFunction::makeFromBoxedFunction<&item>());
  boxed("resize_", CppFunction::makeFromBoxedFunction<&resize>());
  boxed("set_.source_Storage_storage_offset", CppFunction::makeFromBoxedFunction<&set_storage>());
  boxed("set_.source_Storage", CppFunction::makeFromBoxedFunction<&set_whole_storage>());
  boxed("set_.source_Tensor", CppFunction::makeFromBoxedFunction<&set_tensor>());
  boxed("set_", CppFunction::makeFromBoxedFunction<&set_nothing>());
  boxed("record_stream", CppFunction::makeFromBoxedFunction<&record_stream>());
  // Operators that torch would decompose, but for which CUDA has a kernel.
  for (const char* name : {"silu_backward", "mish_backward", "native_layer_norm", "addr", "addr.out", "any.dims",
                           "any.dims_out", "all.dims", "all.dims_out"}) {
    library.impl(name, CppFunction::makeFromBoxedFunction<&fall_back>());
  }
}

}  // namespace cudamem
