// Which operators have kernels of their own because torch computes them in two steps (card_structured.h): those that tests
// call most. All others take longer, through the fallback.
#include <ATen/ops/add_native.h>
#include <ATen/ops/addmm_native.h>
#include <ATen/ops/all_native.h>
#include <ATen/ops/any_native.h>
#include <ATen/ops/baddbmm_native.h>
#include <ATen/ops/bitwise_and_native.h>
#include <ATen/ops/bitwise_or_native.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/eq_native.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/ge_native.h>
#include <ATen/ops/gt_native.h>
#include <ATen/ops/le_native.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/lt_native.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/mm_native.h>
#include <ATen/ops/mse_loss_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/ne_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/pow_native.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/sum_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/tanh_backward_native.h>
#include <ATen/ops/threshold_backward_native.h>

#include <ATen/ops/_log_softmax_native.h>
#include <ATen/ops/_softmax_native.h>
#include <ATen/ops/nll_loss_backward_native.h>
#include <ATen/ops/nll_loss_forward_native.h>

#include "card_structured.h"

namespace cudamem {

namespace {

// On a card softmax converts half precision itself; the CPU's kernels get full precision.
template <typename Operator>
at::Tensor softmax(const at::Tensor& self, int64_t dim, bool to_float) {
  TypedCall call(Kernel<Operator>::name);
  const at::Tensor shown = call.show(self);
  const bool widens = to_float && call.has_values();
  return Kernel<Operator>::run_shown(call, widens ? shown.to(at::kFloat) : shown, dim, to_float && !widens);
}

template <typename Operator>
void put_softmax(const char* name) {
  Kernel<Operator>::name = name;
  put_typed(name, &softmax<Operator>);
}
}  // namespace

void put_structured() {
  using namespace at::native;
  Kernel<structured_nll_loss_forward_out_cpu>::put("nll_loss_forward");
  Kernel<structured_nll_loss_backward_out_cpu>::put("nll_loss_backward");
  put_softmax<structured_softmax_cpu_out>("_softmax");
  put_softmax<structured_log_softmax_cpu_out>("_log_softmax");
  Kernel<structured_neg_out>::put("neg");
  Kernel<structured_exp_out>::put("exp");
  Kernel<structured_log_out>::put("log");
  Kernel<structured_sqrt_out>::put("sqrt");
  Kernel<structured_rsqrt_out>::put("rsqrt");
  Kernel<structured_sigmoid_out>::put("sigmoid");
  Kernel<structured_tanh_out>::put("tanh");
  Kernel<structured_sin_out>::put("sin");
  Kernel<structured_cos_out>::put("cos");
  Kernel<structured_silu_out>::put("silu");
  Kernel<structured_mul_out>::put("mul.Tensor");
  Kernel<structured_div_out>::put("div.Tensor");
  Kernel<structured_maximum_out>::put("maximum");
  Kernel<structured_minimum_out>::put("minimum");
  Kernel<structured_bitwise_and_out>::put("bitwise_and.Tensor");
  Kernel<structured_bitwise_or_out>::put("bitwise_or.Tensor");
  Kernel<structured_tanh_backward_out>::put("tanh_backward");
  Kernel<structured_sigmoid_backward_out>::put("sigmoid_backward");
  Kernel<structured_silu_backward_out>::put("silu_backward");
  Kernel<structured_eq_Tensor_out>::put("eq.Tensor");
  Kernel<structured_ne_Tensor_out>::put("ne.Tensor");
  Kernel<structured_lt_Tensor_out>::put("lt.Tensor");
  Kernel<structured_le_Tensor_out>::put("le.Tensor");
  Kernel<structured_gt_Tensor_out>::put("gt.Tensor");
  Kernel<structured_ge_Tensor_out>::put("ge.Tensor");
  Kernel<structured_eq_Scalar_out>::put("eq.Scalar");
  Kernel<structured_ne_Scalar_out>::put("ne.Scalar");
  Kernel<structured_lt_Scalar_out>::put("lt.Scalar");
  Kernel<structured_le_Scalar_out>::put("le.Scalar");
  Kernel<structured_gt_Scalar_out>::put("gt.Scalar");
  Kernel<structured_ge_Scalar_out>::put("ge.Scalar");
  Kernel<structured_pow_Tensor_Scalar_out>::put("pow.Tensor_Scalar");
  Kernel<structured_clamp_min_out>::put("clamp_min");
  Kernel<structured_ufunc_add_CPU>::put("add.Tensor");
  Kernel<structured_sub_out>::put("sub.Tensor");
  Kernel<structured_threshold_backward_out>::put("threshold_backward");
  Kernel<structured_mm_out_cpu>::put("mm", "mm.out");
  Kernel<structured_bmm_out_cpu>::put("bmm", "bmm.out");
  Kernel<structured_addmm_out_cpu>::put("addmm", "addmm.out");
  Kernel<structured_baddbmm_out_cpu>::put("baddbmm", "baddbmm.out");
  Kernel<structured_sum_out>::put("sum.dim_IntList", "sum.IntList_out");
  Kernel<structured_mean_out>::put("mean.dim", "mean.out");
  Kernel<structured_all_all_out>::put("all", "all.all_out");
  Kernel<structured_any_all_out>::put("any", "any.all_out");
  Kernel<structured_mse_loss_out>::put("mse_loss", "mse_loss.out");
}

}  // namespace cudamem
