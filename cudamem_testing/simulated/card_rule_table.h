// Which rule says what temporary memory an operator takes, by the operator's name.
#pragma once

#include "card_linalg.h"

namespace cudamem {

using Rule = void (*)(const Arguments&);

inline const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> all = {
      {"aten::mm.out", &matrices},
      {"aten::bmm.out", &matrices},
      {"aten::addmm.out", &added_matrices},
      {"aten::baddbmm.out", &added_matrices},
      {"aten::addmv.out", &vector_product},
      {"aten::dot", &matrices},
      {"aten::sum.IntList_out", &sum_up_converted},
      {"aten::mean.out", &sum_up},
      {"aten::amax.out", &sum_up},
      {"aten::amin.out", &sum_up},
      {"aten::max", &sum_up_all},
      {"aten::min", &sum_up_all},
      {"aten::max.unary_out", &sum_up_all},
      {"aten::min.unary_out", &sum_up_all},
      {"aten::prod", &sum_up_all},
      {"aten::prod.int_out", &sum_up},
      {"aten::argmax.out", &sum_up_pairs},
      {"aten::argmin.out", &sum_up_pairs},
      {"aten::max.dim_max", &sum_up_pairs},
      {"aten::min.dim_min", &sum_up_pairs},
      {"aten::std.correction", &sum_up_pairs},
      {"aten::std.correction_out", &sum_up_pairs},
      {"aten::var.correction", &sum_up_pairs},
      {"aten::var.correction_out", &sum_up_pairs},
      {"aten::var_mean.correction", &sum_up_pairs},
      {"aten::std_mean.correction", &sum_up_pairs},
      {"aten::linalg_vector_norm.out", &sum_up_norm},
      {"aten::_foreach_norm.Scalar", &norms},
      {"aten::all.all_out", &sum_up_flags},
      {"aten::any.all_out", &sum_up_flags},
      {"aten::all.out", &sum_up_flags},
      {"aten::any.out", &sum_up_flags},
      {"aten::equal", &compare_all},
      {"aten::histc", &count_in_bins},
      {"aten::histc.out", &count_in_bins},
      {"aten::bincount", &sum_up_all},
      {"aten::mse_loss.out", &sum_up_loss},
      {"aten::smooth_l1_loss.out", &sum_up_loss},
      {"aten::huber_loss", &sum_up_loss},
      {"aten::huber_loss.out", &sum_up_loss},
      {"aten::cumsum.out", &scan},
      {"aten::cumprod.out", &scan},
      {"aten::sort.values_stable", &sort},
      {"aten::median", &median},
      {"aten::nanmedian", &median},
      {"aten::topk.values", &largest},
      {"aten::multinomial", &draw},
      {"aten::multinomial.out", &draw},
      {"aten::randperm.generator_out", &shuffle},
      {"aten::_index_put_impl_", &put_by_index},
      {"aten::masked_scatter_", &scatter_by_mask},
      {"aten::nonzero", &put_places},
      {"aten::nonzero.out", &put_places},
      {"aten::_unique2", &unique},
      {"aten::_softmax_backward_data.out", &softmax_backward},
      {"aten::_log_softmax_backward_data.out", &log_softmax_backward},
      {"aten::native_layer_norm_backward", &copied_gradient},
      {"aten::native_batch_norm", &batch_norm},
      {"aten::native_batch_norm_backward", &batch_norm_backward},
      {"aten::max_pool2d_with_indices_backward.grad_input", &gradient_in_order_of_input},
      {"aten::avg_pool2d_backward.grad_input", &gradient_in_order_of_input},
      {"aten::reflection_pad2d_backward", &copied_gradient},
      {"aten::upsample_nearest2d_backward.grad_input", &copied_gradient},
      {"aten::upsample_bilinear2d_backward.grad_input", &copied_gradient},
      {"aten::upsample_bicubic2d_backward.grad_input", &copied_gradient},
      {"aten::abs.out", &magnitudes},
      {"aten::unfold_backward", &unfold_backward},
      {"aten::_fft_r2c", &transform_real},
      {"aten::_fft_c2r", &transform_to_real},
      {"aten::_fft_c2c", &transform_complex},
      {"aten::linalg_qr.out", &orthogonalize},
      {"aten::_linalg_svd.U", &singular_values},
      {"aten::_linalg_eigh.eigenvalues", &eigenvalues},
      {"aten::linalg_cholesky_ex.L", &cholesky},
      {"aten::_cholesky_solve_helper", &solve_by_cholesky},
      {"aten::linalg_lu_factor_ex.out", &factorize},
      {"aten::linalg_lu_solve.out", &solve_factorized},
      {"aten::linalg_inv_ex.inverse", &invert},
      {"aten::linalg_matrix_exp", &exponential},
      {"aten::linalg_lstsq.out", &least_squares},
  };
  return all;
}

inline Rule rule_of(const c10::OperatorName& name) {
  static thread_local std::unordered_map<const void*, Rule> known;
  const auto found = known.find(&name);
  if (found != known.end()) return found->second;
  const std::string text = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  const auto rule = rules().find(text);
  return known[&name] = rule == rules().end() ? nullptr : rule->second;
}

}  // namespace cudamem
