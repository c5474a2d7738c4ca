// Operators that have a kernel of their own on a card: those that make tensors, move data between host and card, or use
// only the shape and place of memory.
#pragma once

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/view_native.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

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
  Stack all() const { return part(0, count_); }
  Stack part(size_t first, size_t number) const {
    const auto start = stack_.end() - static_cast<int64_t>(count_ - first);
    return {start, start + static_cast<int64_t>(number)};
  }
  void leave(c10::IValue result) {
    stack_.resize(stack_.size() - count_);
    stack_.push_back(std::move(result));
  }
  void leave_all(c10::ArrayRef<at::Tensor> results) {
    leave_nothing();
    for (const at::Tensor& each : results) stack_.push_back(each);
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

// The mask is allocated first. Called for every layer of a transformer, so it is not one of the kernels in Python.
inline void dropout(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  const at::Tensor self = given.self();
  const double chance = given[1].toDouble();
  const bool drops = (given[2].isNone() || given[2].toBool()) && chance > 0;
  const OnCard on(self.device());
  const auto like = [&](MaybeType type) { return at::_ops::empty_like::call(self, type, {}, {}, {}, {}); };
  const at::Tensor mask = like(at::kBool), result = like({});
  if (has_values()) {
    const InsideKernel guard;
    const at::Tensor shown_mask = host(mask), into = host(result);
    if (drops) {
      shown_mask.bernoulli_(1 - chance, generator_on_host(at::Generator(), self.device().index()));
      into.copy_(shown_mask).mul_(host(self)).mul_(chance < 1 ? 1 / (1 - chance) : 0.0);
    } else {
      shown_mask.fill_(true);
      into.copy_(host(self));
    }
  }
  const std::array<at::Tensor, 2> results = {result, mask};
  given.leave_all(results);
}

// A tensor of the CPU over the memory of one on a card, for kernels in Python. It must not outlive that.
inline void on_host(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  given.leave(shown(given.self(), has_values()));
}

inline void all_on_host(const c10::OperatorHandle& op, Stack* stack) {
  Taken given(op, stack);
  c10::List<at::Tensor> found;
  for (const at::Tensor& each : given[0].toTensorVector()) found.push_back(each.is_cuda() ? shown(each, has_values()) : each);
  given.leave(std::move(found));
}

// Registers kernels with torch's dispatcher; without schemas, which take long to compile.
class Registered {
 public:
  void put(const std::string& name, c10::KernelFunction kernel, std::optional<c10::DispatchKey> key = c10::DispatchKey::CUDA) {
    const size_t dot = name.find('.');
    c10::OperatorName full(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
    keep(dispatcher().registerImpl(std::move(full), key, std::move(kernel), std::nullopt, nullptr, kBy));
  }
  void put_everywhere(c10::DispatchKey key, c10::KernelFunction kernel) {
    keep(dispatcher().registerFallback(key, std::move(kernel), kBy));
  }
  void define(const std::string& schema) { keep(dispatcher().registerDef(torch::jit::parseSchema(schema), kBy)); }
  void clear() { all_.clear(); }

 private:
  static constexpr const char* kBy = "a simulated card";
  static c10::Dispatcher& dispatcher() { return c10::Dispatcher::singleton(); }
  void keep(c10::RegistrationHandleRAII one) { all_.push_back(std::move(one)); }

  std::vector<c10::RegistrationHandleRAII> all_;
};

template <c10::KernelFunction::BoxedKernelFunction_withDispatchKeys* kernel>
c10::KernelFunction boxed() {
  return c10::KernelFunction::makeFromBoxedFunction<kernel>();
}
template <c10::KernelFunction::BoxedKernelFunction* kernel>
c10::KernelFunction boxed() {
  return c10::KernelFunction::makeFromBoxedFunction<kernel>();
}

inline void register_kernels(Registered& registered) {
  using c10::KernelFunction;
  const auto put = [&](const char* name, KernelFunction kernel) {
    registered.put(std::string("aten::") + name, std::move(kernel));
  };
  put("empty.memory_format", KernelFunction::makeFromUnboxedRuntimeFunction(&empty));
  put("empty_strided", KernelFunction::makeFromUnboxedRuntimeFunction(&empty_strided));
  put("as_strided", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::as_strided_tensorimpl));
  put("view", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::view));
  put("_reshape_alias", KernelFunction::makeFromUnboxedRuntimeFunction(&at::native::_reshape_alias));
  put("copy_", KernelFunction::makeFromUnboxedRuntimeFunction(&copy));
  put("_local_scalar_dense", boxed<&item>());
  put("resize_", boxed<&resize>());
  put("set_.source_Storage_storage_offset", boxed<&set_storage>());
  put("set_.source_Storage", boxed<&set_whole_storage>());
  put("set_.source_Tensor", boxed<&set_tensor>());
  put("set_", boxed<&set_nothing>());
  put("record_stream", boxed<&record_stream>());
  put("native_dropout", boxed<&dropout>());
  // Operators that torch would decompose, but for which CUDA has a kernel.
  for (const char* name : {"mish_backward", "addr", "addr.out", "any.dims", "any.dims_out", "all.dims",
                           "all.dims_out"}) {
    put(name, boxed<&fall_back>());
  }
}

}  // namespace cudamem
