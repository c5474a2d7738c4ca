// Operators that torch computes in two steps: `meta` finds the results' shapes, `impl` their values. Here the results lie on
// a card, as CUDA's do, and `impl` is the CPU's: shapes are found once, and nothing is copied.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include "card_typed.h"

namespace cudamem {

// An operator whose results are new. Before torch 2.13 results have names, too.
template <typename Operator, size_t count, typename = decltype(&at::impl::MetaBase::set_output_strided)>
class Structured;
template <typename Operator, size_t count, typename... More>
class Structured<Operator, count,
                 void (at::impl::MetaBase::*)(int64_t, c10::IntArrayRef, c10::IntArrayRef, c10::TensorOptions, More...)>
    final : public Operator {
 public:
  explicit Structured(const TypedCall& call) : call_(call) {}

  void set_output_strided(int64_t at, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::TensorOptions options,
                          More... more) override {
    set_output_raw_strided(at, sizes, strides, options, more...);
  }
  void set_output_raw_strided(int64_t at, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::TensorOptions options,
                              More... more) override {
    const auto place = static_cast<size_t>(at);
    made[place] = call_.make(sizes, strides, options);
    shown_[place] = call_.show_made(made[place]);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Operator>) {
      Operator::set_output_raw_strided(at, sizes, strides, options, more...);
    }
  }
  const at::Tensor& maybe_get_output(int64_t at) override { return shown_[static_cast<size_t>(at)]; }

  // Some operators reduce a result to one number at last.
  void settle() const {
    for (size_t at = 0; at < count; ++at) TypedCall::settle(shown_[at], made[at]);
  }

  std::array<at::Tensor, count> made;

 private:
  const TypedCall& call_;
  std::array<at::Tensor, count> shown_;
};

// The type of an argument in calls, and what `meta` and `impl` take in its place.
template <typename Given>
struct Called {
  using type = Given;
};
template <>
struct Called<at::OptionalTensorRef> {
  using type = const std::optional<at::Tensor>&;
};
template <typename Other>
const Other& taken(const Other& shown) {
  return shown;
}
inline at::OptionalTensorRef taken(const std::optional<at::Tensor>& shown) {
  return shown && shown->defined() ? at::OptionalTensorRef(*shown) : at::OptionalTensorRef();
}

// The kernel of an operator whose `impl` has the arguments of its `meta`, and its results.
template <typename Operator, typename = decltype(&Operator::meta), typename = decltype(&Operator::impl)>
class Kernel;
template <typename Operator, typename Meta, typename... Given, typename Impl, typename... All>
class Kernel<Operator, void (Meta::*)(Given...), void (Impl::*)(All...)> {
  static constexpr size_t kCount = sizeof...(All) - sizeof...(Given);
  using Made = Structured<Operator, kCount>;

 public:
  static inline const char* name = nullptr;
  static inline Rule rule = nullptr;

  static auto run(typename Called<Given>::type... given) {
    TypedCall call(name);
    return run_shown(call, call.show(given)...);
  }

  // Only the arguments of a tensor's type, which were shown.
  static auto run_shown(TypedCall& call, const std::decay_t<typename Called<Given>::type>&... shown) {
    call.begin();
    Made found(call);
    call.run([&] {
      found.meta(taken(shown)...);
      if (call.has_values()) fill(found, std::make_index_sequence<kCount>(), taken(shown)...);
    });
    found.settle();
    follow(rule, shown...);
    if constexpr (kCount == 1) {
      return std::move(found.made[0]);
    } else {
      return std::tuple_cat(std::move(found.made));
    }
  }

  // `ruled` is the operator's name in the table of rules, if it has one.
  static void put(const char* own, const char* ruled = nullptr) {
    name = own;
    rule = ruled ? rule_of(std::string("aten::") + ruled) : nullptr;
    put_typed(own, &run);
  }

 private:
  template <size_t... at>
  static void fill(Made& found, std::index_sequence<at...>, const std::decay_t<Given>&... given) {
    found.impl(given..., found.maybe_get_output(at)...);
  }
};

}  // namespace cudamem
