// Operators that have a kernel of their own on a card: those that make tensors, move data between host and card, or look
// at memory without its values.
#pragma once

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
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
  return at::detail::empty_generic(size, &allocator, kCardKeys, c10::dtype_or_default(type), format);
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

// CUDA makes a copy on the card where the memory of both sides has not the same order and type.
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
  } else if (!self.is_cuda()) {  // into pinned memory is how tensors wait on the host: nobody reads them there
    if (!pinned.holds(self.const_data_ptr())) needs_values("copying to the CPU");
  } else {
    TORCH_CHECK(expands(source.sizes(), self.sizes()), "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", source.sizes());
  }
  return self;
}

inline at::Scalar item(const at::Tensor& tensor) {
  if (!has_values()) needs_values("item()");
  const InsideKernel guard;
  return host(tensor).item();
}

inline const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef symbolic, MaybeFormat format) {
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  const OnCard on(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const size_t needed = self.numel() == 0 ? 0 : at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(self.storage_offset()));
  c10::Storage storage = self.storage();
  if (needed > storage.nbytes()) {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    c10::DataPtr made = allocator.allocate(needed);
    if (has_values() && storage.nbytes()) std::memcpy(made.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(made));
    storage.set_nbytes(needed);
  }
  return self;
}

inline at::Tensor& set_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto start = offset.guard_int(__FILE__, __LINE__);
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  if (strides.empty() && !sizes.empty()) {
    impl->set_storage_offset(start);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, start);
  }
  return self;
}

inline at::Tensor& set_whole(at::Tensor& self, c10::Storage source) {
  const auto number = static_cast<int64_t>(source.nbytes() / self.itemsize());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({number});
  return self;
}

inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

inline at::Tensor& set_nothing(at::Tensor& self) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({0});
  return self;
}

inline void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator.recordStream(self.storage().data_ptr(), stream);
}

// A tensor of the CPU over the memory of one on a card, for kernels in Python. It must not outlive that.
inline at::Tensor on_host(const at::Tensor& tensor) { return shown(tensor, has_values()); }

inline void register_kernels(torch::Library& library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("copy_", copy);
  library.impl("_local_scalar_dense", item);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Storage", set_whole);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_", set_nothing);
  library.impl("record_stream", record_stream);
  // Those that torch would take apart into others, where CUDA has a kernel.
  for (const char* name : {"silu_backward", "mish_backward", "native_layer_norm", "addr", "addr.out", "any.dims",
                           "any.dims_out", "all.dims", "all.dims_out"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
}

}  // namespace cudamem
