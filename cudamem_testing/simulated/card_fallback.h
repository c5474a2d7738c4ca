// Runs operators on a card with the CPU's kernels over the same memory. For an operator without a kernel here
// (card_kernels.h), the CPU gets its arguments as CPU tensors, and its results become tensors of the card. Results in new
// memory are copied; most operators have none, because torch's structured kernels allocate the result first. Without
// values the `meta` kernel, which computes shapes, runs instead.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <unordered_map>

#include "card_arguments.h"
#include "card_driver.h"
#include "card_streams.h"
#include "card_typed.h"

namespace cudamem {

using Stack = torch::jit::Stack;

constexpr c10::DispatchKeySet kCardKeys(c10::DispatchKey::CUDA);

inline at::Tensor empty_on_card(c10::IntArrayRef size, c10::IntArrayRef stride, at::ScalarType type) {
  return at::detail::empty_strided_generic(size, stride, &allocator_of_card(), kCardKeys, type);
}

// A tensor of another backend over the same memory, or over none.
inline at::Tensor shown(const at::Tensor& tensor, bool values) {
  const auto key = values ? c10::DispatchKey::CPU : c10::DispatchKey::Meta;
  const c10::Device device(values ? c10::DeviceType::CPU : c10::DeviceType::Meta);
  const auto& storage = tensor.storage();
  void* const at = values ? const_cast<void*>(storage.data()) : nullptr;
  c10::Storage made(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(at, device),
                    c10::GetAllocator(device.type()), true);
  c10::DispatchKeySet keys(key);
  if (tensor._is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(made), keys, tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

inline at::Tensor host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() ? shown(tensor, true) : tensor;
}

constexpr c10::DispatchKeySet kAboveKernels = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

// These are not the user's operators: they are neither differentiated, nor cast, nor recorded.
struct InsideKernel {
  // Switching the recording off and on makes torch look its observers up again, each time: only where there are any.
  InsideKernel() {
    if (at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) unrecorded.emplace();
  }
  c10::impl::ExcludeDispatchKeyGuard below{kAboveKernels};
  std::optional<at::DisableRecordFunctionGuard> unrecorded;
};

[[noreturn]] inline void needs_values(const std::string& name) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, name, " needs the values of a tensor on a simulated card without values ",
                              "(simulated_cuda(values=False)); give it values, or keep what the host reads on the CPU");
  std::abort();
}

[[noreturn]] inline void on_two_devices(c10::Device one, c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", one, " and ", other, "!");
  std::abort();
}

// The CPU cannot do it, or not with this type; a card may.
[[noreturn]] inline void no_kernel(const std::string& name, const c10::NotImplementedError& error) {
  const std::string reason = error.what_without_backtrace();
  if (reason.rfind("a simulated card", 0) == 0) throw error;
  const bool known = reason.rfind("Could not run", 0) != 0;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a simulated card has no kernel for ", name, ": run this on a real card",
                              known ? " (the CPU: " + reason.substr(0, reason.find('\n')) + ")" : "");
  std::abort();
}

inline void no_sparse(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a simulated card has no sparse tensors: run this on a real card");
}
inline void no_nested(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a simulated card has no nested tensors but those of layout torch.jagged: ",
                              "run this on a real card");
}
inline void no_collectives(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "a simulated card has no collectives (NCCL, Gloo): run this on a real card");
}

inline Argument read(const c10::IValue& value) {
  Argument found;
  if (value.isTensor()) {
    found.tensor = value.toTensor();
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) found.tensors.push_back(each);
  } else if (value.isOptionalTensorList()) {
    for (const auto& each : value.toOptionalTensorVector()) found.tensors.push_back(each ? *each : at::Tensor());
  } else if (value.isIntList()) {
    found.integers = value.toIntVector();
  } else if (value.isBool()) {
    found.integer = value.toBool();
  } else if (value.isInt()) {
    found.is_integer = true;
    found.number = static_cast<double>(found.integer = value.toInt());
  } else if (value.isDouble()) {
    found.number = value.toDouble();
  }
  return found;
}

// Gives a tensor of the card the shape and the memory of the shown one, which the kernel may have resized or moved.
inline void settle(const at::Tensor& shown, const at::Tensor& card) {
  const auto& storage = shown.storage();
  const bool moved = storage.nbytes() > card.storage().nbytes();
  if (moved) {
    c10::Storage kept = card.storage();
    c10::DataPtr made = allocator_of_card().allocate(storage.nbytes());
    if (has_values()) std::memcpy(made.get(), storage.data(), storage.nbytes());
    kept.set_data_ptr_noswap(std::move(made));
    kept.set_nbytes(storage.nbytes());
  }
  if (moved || shown.sizes() != card.sizes() || shown.strides() != card.strides()) {
    card.unsafeGetTensorImpl()->set_sizes_and_strides(shown.sizes(), shown.strides(), shown.storage_offset());
  }
}

inline at::Tensor copied_to_card(const at::Tensor& tensor) {
  at::Tensor made = tensor.is_non_overlapping_and_dense()
                        ? empty_on_card(tensor.sizes(), tensor.strides(), tensor.scalar_type())
                        : at::detail::empty_generic(tensor.sizes(), &allocator_of_card(), kCardKeys, tensor.scalar_type(), {});
  if (has_values()) {
    if (tensor.is_non_overlapping_and_dense()) {
      std::memcpy(made.mutable_data_ptr(), tensor.const_data_ptr(), tensor.numel() * tensor.itemsize());
    } else {
      host(made).copy_(tensor);
    }
  }
  return made;
}

// What is the same for all calls of an operator.
struct Known {
  Rule rule;
  bool has_generator;
};

inline bool is_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  const auto* const optional = type->castRaw<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

inline const Known& known_of(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const void*, Known> all;
  const c10::OperatorName& name = op.operator_name();
  const auto found = all.find(&name);
  if (found != all.end()) return found->second;
  const auto& arguments = op.schema().arguments();
  const Rule rule = rule_of(name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  return all[&name] = {rule, std::any_of(arguments.begin(), arguments.end(), &is_generator)};
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack) : op_(op), schema_(op.schema()), stack_(*stack) {}

  void run() {
    const InsideKernel guard;
    note_kernel();
    values_ = has_values();
    const size_t count = schema_.arguments().size();
    const size_t base = stack_.size() - count;
    const auto [rule, has_generator] = known_of(op_);
    Arguments kept;
    for (size_t at = base; rule && at < stack_.size(); ++at) kept.push_back(read(stack_[at]));
    for (size_t at = base; at < stack_.size(); ++at) show(stack_[at]);
    for (size_t at = 0; has_generator && at < count; ++at) {
      if (is_generator(schema_.arguments()[at])) stack_[base + at] = generator(stack_[base + at]);
    }
    if (mixed_.defined() && device_) on_two_devices(*device_, c10::DeviceType::CPU);
    const c10::Device device = device_ ? *device_ : asked_ ? *asked_ : c10::Device(c10::DeviceType::CUDA, current.card);
    const OnCard on(device);
    const at::Tensor narrow = values_ ? widen(base) : at::Tensor();
    call();
    if (narrow.defined()) stack_.back() = narrow.copy_(stack_.back().toTensor());
    for (const Pair& pair : pairs_) settle(pair.shown, pair.card);
    const size_t results = schema_.returns().size();
    for (size_t at = stack_.size() - results; at < stack_.size(); ++at) bring(stack_[at]);
    if (rule) rule(kept);
  }

 private:
  struct Pair {
    at::Tensor shown, card;
  };

  void call() {
    try {
      if (plain_) {  // the dispatcher would find the same kernel
        op_.redispatchBoxed(c10::DispatchKeySet(values_ ? c10::DispatchKey::CPU : c10::DispatchKey::Meta), &stack_);
      } else {
        op_.callBoxed(&stack_);
      }
    } catch (const c10::NotImplementedError& error) {
      if (values_) no_kernel(c10::toString(op_.operator_name()), error);
      if (!schema_.returns().empty()) needs_values(schema_.name());
      stack_.resize(stack_.size() - schema_.arguments().size());  // there is no shape to compute
    }
  }

  // On a card softmax converts half precision itself; the CPU's kernels get full precision. Returns the result of a backward
  // pass, into which the wider one is copied.
  at::Tensor widen(size_t base) const {
    const auto& arguments = schema_.arguments();
    if (arguments.size() < 4) return {};
    if (arguments[2].name() == "half_to_float" && stack_[base + 2].toBool()) {
      stack_[base] = stack_[base].toTensor().to(at::kFloat);
      stack_[base + 2] = false;
    } else if (arguments.size() > 4 && arguments[3].name() == "input_dtype") {
      const at::ScalarType type = stack_[base].toTensor().scalar_type();
      if (stack_[base + 3].toScalarType() == type) return {};
      at::Tensor narrow = stack_[base + 4].toTensor();
      stack_[base + 3] = type;
      stack_[base + 4] = narrow.to(type);
      return narrow;
    }
    return {};
  }

  void show(c10::IValue& value) {
    if (value.isTensor()) {
      value = show(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(value.toTensorList().size());
      for (at::Tensor& each : std::move(value).toTensorVector()) list.push_back(show(std::move(each)));
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
        list.push_back(each ? std::optional<at::Tensor>(show(std::move(*each))) : each);
      }
      value = std::move(list);
    } else if (value.isDevice()) {
      if (value.toDevice().is_cuda()) asked_ = value.toDevice();
      value = c10::Device(values_ ? c10::DeviceType::CPU : c10::DeviceType::Meta);
    }
  }

  c10::IValue generator(const c10::IValue& given) const {
    if (!values_) return c10::IValue();
    const auto card = device_ ? device_->index() : current.card;
    return generator_on_host(given.isNone() ? at::Generator() : given.toGenerator(), card);
  }

  // The tensor of the card is kept by moving it: one more owner for a moment takes Python's lock.
  at::Tensor show(at::Tensor tensor) {
    if (!tensor.defined()) return tensor;
    plain_ &= !(tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor());
    if (!tensor.is_cuda()) {
      if (tensor.dim() > 0 && tensor.is_cpu() && !takes_host()) mixed_ = tensor;
      if (!values_ && tensor.is_cpu()) return shown(tensor, false);
      return tensor;
    }
    if (device_ && *device_ != tensor.device()) on_two_devices(*device_, tensor.device());
    device_ = tensor.device();
    at::Tensor made = shown(tensor, values_);
    pairs_.push_back({made, std::move(tensor)});
    return made;
  }

  // Operators that take indices, lengths or learning rates on the host with tensors on the card.
  bool takes_host() const {
    const std::string& name = schema_.name();
    return name == "aten::index" || name == "aten::_unsafe_index" || name.find("index_put") != std::string::npos || name.find("_foreach") != std::string::npos ||
           name.find("_fused") != std::string::npos || name.find("ctc") != std::string::npos ||
           name.find("pack") != std::string::npos || name.find("rnn") != std::string::npos ||
           name.find("set_") != std::string::npos || name.find("split") != std::string::npos;
  }

  void bring(c10::IValue& value) {
    if (value.isTensor()) {
      value = bring(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(bring(each));
      value = std::move(list);
    }
  }

  at::Tensor bring(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_cuda()) return tensor;
    if (tensor.is_nested()) no_nested(op_, {}, nullptr);
    if (tensor.layout() != c10::kStrided) no_sparse(op_, {}, nullptr);
    for (const Pair& pair : pairs_) {
      if (pair.shown.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return pair.card;
    }
    for (const Pair& pair : pairs_) {
      if (!tensor.storage().is_alias_of(pair.shown.storage())) continue;
      c10::Storage shared = pair.card.storage();  // a view
      auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(shared), kCardKeys, tensor.dtype());
      made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
      return made;
    }
    if (tensor._is_zerotensor()) return zeros_without_memory(tensor);
    return copied_to_card(tensor);
  }

  // Autograd's zeros have a shape and no memory.
  static at::Tensor zeros_without_memory(const at::Tensor& tensor) {
    const c10::Device device(c10::DeviceType::CUDA, current.card);
    c10::Storage none(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), c10::DataPtr(nullptr, device), nullptr,
                      false);
    const auto keys = kCardKeys.add(c10::DispatchKey::ZeroTensor);
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(none), keys, tensor.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    return made;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack& stack_;
  bool values_ = true, plain_ = true;
  c10::SmallVector<Pair, 4> pairs_;
  at::Tensor mixed_;
  std::optional<c10::Device> device_, asked_;
};

inline void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { Call(op, stack).run(); }

}  // namespace cudamem
