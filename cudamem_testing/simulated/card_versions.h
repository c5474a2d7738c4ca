// What torch's headers have since 2.9, or what takes its place in older versions. It is found by what they declare, not by
// torch's number: a class that is declared here alone is incomplete.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <type_traits>

namespace at {
struct HostAllocator;
}
namespace c10 {
struct DeviceAllocator;
class AcceleratorError;
}  // namespace c10

namespace cudamem {

template <typename Type, typename = void>
struct IsComplete : std::false_type {};
template <typename Type>
struct IsComplete<Type, std::void_t<decltype(sizeof(Type))>> : std::true_type {};

// A class of torch's, or another where this version does not have it.
template <typename Type, typename Other>
using IfComplete = std::conditional_t<IsComplete<Type>::value, Type, Other>;

// Raises an error of CUDA's runtime, which older versions raise as a RuntimeError.
template <typename Error = c10::AcceleratorError>
[[noreturn]] void raise_of_runtime(c10::SourceLocation where, int32_t code, const std::string& message) {
  if constexpr (IsComplete<Error>::value) {
    throw Error(where, code, message);
  } else {
    throw c10::Error(where, message);
  }
}

}  // namespace cudamem
