// Operators that run as the CPU's kernel alone, but have typed arguments (card_typed.h), because tests call them most. All
// others find theirs on a stack (card_fallback.h).
#pragma once

#include "card_kernels.h"
#include "card_typed_calls.h"

namespace cudamem {

inline bool on_card(bool result) { return result; }
inline at::Tensor on_card(const at::Tensor& result) { return result.defined() ? copied_to_card(result) : result; }
template <typename... Each>
std::tuple<Each...> on_card(const std::tuple<Each...>& results) {
  return std::apply([](const Each&... each) { return std::tuple<Each...>{on_card(each)...}; }, results);
}

inline std::vector<at::Tensor> on_card(const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> found;
  found.reserve(results.size());
  for (const at::Tensor& each : results) found.push_back(on_card(each));
  return found;
}

// What a kernel gets in place of an argument.
template <typename Given>
struct Shown {
  using type = std::decay_t<Given>;
};
template <>
struct Shown<at::TensorList> {
  using type = std::vector<at::Tensor>;
};

// The results are new, or one is an argument, which is changed.
template <typename Function>
class HostKernel;
template <typename Result, typename... Given>
class HostKernel<Result(Given...)> final : public c10::OperatorKernel {
 public:
  HostKernel(const c10::OperatorHandle& op, const char* name)
      : op_(op.typed<Result(Given...)>()), name_(name), rule_(rule_of(std::string("aten::") + name)) {}

  Result operator()(Given... given) {
    TypedCall call(name_);
    return run(call, std::index_sequence_for<Given...>(), std::forward_as_tuple(given...), call.show(given)...);
  }

 private:
  template <size_t... at>
  Result run(TypedCall& call, std::index_sequence<at...>, std::tuple<Given&...> given, typename Shown<Given>::type... shown) {
    call.begin();
    const c10::DispatchKeySet keys(call.has_values() ? c10::DispatchKey::CPU : c10::DispatchKey::Meta);
    if constexpr (std::is_void_v<Result>) {  // it changes the tensors of a list, which keep their shapes
      call.run([&] { op_.redispatch(keys, shown...); });
      for (const at::Tensor& each : std::get<0>(given)) {  // as CUDA's kernels do: torch counts none for lists
        if (!each.is_inference()) each.unsafeGetTensorImpl()->bump_version();
      }
    } else if constexpr (std::is_reference_v<Result>) {
      call.run([&] { op_.redispatch(keys, shown...); });
      at::Tensor* changed = nullptr;
      ((std::is_same_v<Given, at::Tensor&> ? changed = change(shown, std::get<at>(given)) : nullptr), ...);
      follow(rule_, shown...);
      return *changed;
    } else {
      std::optional<Result> found;
      call.run([&] { found.emplace(op_.redispatch(keys, shown...)); });
      Result result = on_card(*found);
      follow(rule_, shown...);
      return result;
    }
  }

  static at::Tensor* change(const at::Tensor& shown, at::Tensor& card) {
    settle(shown, card);
    return &card;
  }
  template <typename Other, typename Another>
  static at::Tensor* change(const Other&, const Another&) {
    return nullptr;
  }

  const c10::TypedOperatorHandle<Result(Given...)> op_;
  const char* const name_;
  const Rule rule_;
};

template <typename Function>
void put_on_host(Registered& registered, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const std::string full = std::string("aten::") + name;
    const size_t dot = full.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        full.substr(0, dot).c_str(), dot == std::string::npos ? "" : full.substr(dot + 1).c_str());
    using Kernel = HostKernel<Function>;
    registered.put(full, c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(op, name)));
  }
}

inline void register_on_host(Registered& registered) {
  using T = at::Tensor;
  using At = const at::Tensor&;
  using Maybe = const std::optional<at::Tensor>&;
  using Number = const c10::Scalar&;
  put_on_host<T&(T&, Number)>(registered, {"fill_.Scalar"});
  put_on_host<T&(T&, At)>(registered, {"mul_.Tensor", "div_.Tensor", "bitwise_and_.Tensor", "bitwise_or_.Tensor"});
  put_on_host<T&(T&, At, Number)>(registered, {"add_.Tensor", "sub_.Tensor"});
  put_on_host<T&(At, T&)>(registered, {"abs.out"});
  put_on_host<T(At)>(registered, {"max", "min", "relu"});
  put_on_host<T(At, At, At)>(registered, {"where.self"});
  put_on_host<T(At, int64_t, At)>(registered, {"index_select"});
  put_on_host<bool(At, At)>(registered, {"equal"});
  using List = at::TensorList;
  put_on_host<void(List, Number)>(registered, {"_foreach_add_.Scalar", "_foreach_mul_.Scalar", "_foreach_div_.Scalar"});
  put_on_host<void(List, List, Number)>(registered, {"_foreach_add_.List", "_foreach_lerp_.Scalar"});
  put_on_host<void(List, List, List, Number)>(registered, {"_foreach_addcmul_.Scalar"});
  put_on_host<void(List, List, List, c10::ArrayRef<c10::Scalar>)>(registered, {"_foreach_addcdiv_.ScalarList"});
  put_on_host<void(List, c10::ArrayRef<c10::Scalar>)>(registered, {"_foreach_div_.ScalarList"});
  put_on_host<std::vector<T>(List)>(registered, {"_foreach_sqrt"});
  put_on_host<std::tuple<T, T, T>(At, c10::SymIntArrayRef, Maybe, Maybe, double)>(registered, {"native_layer_norm"});
  put_on_host<std::tuple<T, T, T>(At, At, c10::SymIntArrayRef, At, At, Maybe, Maybe, std::array<bool, 3>)>(
      registered, {"native_layer_norm_backward"});
}

}  // namespace cudamem
