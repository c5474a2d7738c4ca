// What a call with typed arguments does (card_typed.h), beside the fallback.
#pragma once

#include "card_fallback.h"
#include "card_typed.h"

namespace cudamem {

TypedCall::TypedCall(const char* name)
    : name_(name),
      inside_(kAboveKernels),
      on_(c10::Device(c10::DeviceType::CUDA, current.card)),
      values_(cudamem::has_values()) {
  note_kernel();
  if (at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    recorded_ = at::isRecordFunctionEnabled();
    at::enableRecordFunction(false);
  }
}

TypedCall::~TypedCall() {
  if (recorded_) at::enableRecordFunction(true);
}

at::Tensor TypedCall::show(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_cuda()) {
    if (tensor.dim() > 0 && tensor.is_cpu()) is_mixed_ = true;
    return values_ || !tensor.is_cpu() ? tensor : shown(tensor, false);
  }
  if (!device_) {
    device_ = tensor.device();
  } else if (*device_ != tensor.device()) {
    on_two_devices(*device_, tensor.device());
  }
  return shown(tensor, values_);
}

void TypedCall::begin() {
  if (is_mixed_ && device_) on_two_devices(*device_, c10::DeviceType::CPU);
  if (device_) current.card = device_->index();
}

at::Tensor TypedCall::make(c10::IntArrayRef sizes, c10::IntArrayRef strides, const c10::TensorOptions& options) const {
  const auto type = c10::typeMetaToScalarType(options.dtype());
  if (!strides.empty()) return empty_on_card(sizes, strides, type);
  return at::detail::empty_generic(sizes, &allocator_of_card(), kCardKeys, type, options.memory_format_opt());
}

at::Tensor TypedCall::show_made(const at::Tensor& made) const { return shown(made, values_); }

void TypedCall::settle(const at::Tensor& shown, const at::Tensor& made) { cudamem::settle(shown, made); }

void TypedCall::run(c10::function_ref<void()> kernel) const {
  try {
    kernel();
  } catch (const c10::NotImplementedError& error) {
    no_kernel(std::string("aten::") + name_, error);
  }
}

}  // namespace cudamem
