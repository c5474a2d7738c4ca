// Which rule says what temporary memory an operator takes, by the operator's name.
#pragma once

#include "card_linalg.h"

namespace cudamem {

struct Ruled {
  const char* name;  // without its namespace, which is torch's
  Rule rule;
};
constexpr Ruled kRules[] = {
    {"mm.out", &matrices},
    {"bmm.out", &matrices},
    {"addmm.out", &added_matrices},
    {"baddbmm.out", &added_matrices},
    {"addmv.out", &vector_product},
    {"dot", &matrices},
    {"sum.IntList_out", &sum_up_converted},
    {"mean.out", &sum_up},
    {"amax.out", &sum_up},
    {"amin.out", &sum_up},
    {"max", &sum_up_all},
    {"min", &sum_up_all},
    {"max.unary_out", &sum_up_all},
    {"min.unary_out", &sum_up_all},
    {"prod", &sum_up_all},
    {"prod.int_out", &sum_up},
    {"argmax.out", &sum_up_pairs},
    {"argmin.out", &sum_up_pairs},
    {"max.dim_max", &sum_up_pairs},
    {"min.dim_min", &sum_up_pairs},
    {"std.correction", &sum_up_pairs},
    {"std.correction_out", &sum_up_pairs},
    {"var.correction", &sum_up_pairs},
    {"var.correction_out", &sum_up_pairs},
    {"var_mean.correction", &sum_up_pairs},
    {"std_mean.correction", &sum_up_pairs},
    {"linalg_vector_norm.out", &sum_up_norm},
    {"_foreach_norm.Scalar", &norms},
    {"all.all_out", &sum_up_flags},
    {"any.all_out", &sum_up_flags},
    {"all.out", &sum_up_flags},
    {"any.out", &sum_up_flags},
    {"equal", &compare_all},
    {"histc", &count_in_bins},
    {"histc.out", &count_in_bins},
    {"bincount", &sum_up_all},
    {"mse_loss.out", &sum_up_loss},
    {"smooth_l1_loss.out", &sum_up_loss},
    {"huber_loss", &sum_up_loss},
    {"huber_loss.out", &sum_up_loss},
    {"cumsum.out", &scan},
    {"cumprod.out", &scan},
    {"sort.values_stable", &sort},
    {"median", &median},
    {"nanmedian", &median},
    {"topk.values", &largest},
    {"multinomial", &draw},
    {"multinomial.out", &draw},
    {"randperm.generator_out", &shuffle},
    {"_index_put_impl_", &put_by_index},
    {"masked_scatter_", &scatter_by_mask},
    {"nonzero", &put_places},
    {"nonzero.out", &put_places},
    {"_unique2", &unique},
    {"_softmax_backward_data.out", &softmax_backward},
    {"_log_softmax_backward_data.out", &log_softmax_backward},
    {"native_layer_norm_backward", &copied_gradient},
    {"native_batch_norm", &batch_norm},
    {"native_batch_norm_backward", &batch_norm_backward},
    {"max_pool2d_with_indices_backward.grad_input", &gradient_in_order_of_input},
    {"avg_pool2d_backward.grad_input", &gradient_in_order_of_input},
    {"reflection_pad2d_backward", &copied_gradient},
    {"upsample_nearest2d_backward.grad_input", &copied_gradient},
    {"upsample_bilinear2d_backward.grad_input", &copied_gradient},
    {"upsample_bicubic2d_backward.grad_input", &copied_gradient},
    {"abs.out", &magnitudes},
    {"unfold_backward", &unfold_backward},
    {"_fft_r2c", &transform_real},
    {"_fft_c2r", &transform_to_real},
    {"_fft_c2c", &transform_complex},
    {"linalg_qr.out", &orthogonalize},
    {"_linalg_svd.U", &singular_values},
    {"_linalg_eigh.eigenvalues", &eigenvalues},
    {"linalg_cholesky_ex.L", &cholesky},
    {"_cholesky_solve_helper", &solve_by_cholesky},
    {"linalg_lu_factor_ex.out", &factorize},
    {"linalg_lu_solve.out", &solve_factorized},
    {"linalg_inv_ex.inverse", &invert},
    {"linalg_matrix_exp", &exponential},
    {"linalg_lstsq.out", &least_squares},
};

Rule rule_of(const std::string& name) {
  static const std::unordered_map<std::string, Rule> all = [] {
    std::unordered_map<std::string, Rule> made;
    for (const Ruled& each : kRules) made.emplace(std::string("aten::") + each.name, each.rule);
    return made;
  }();
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace cudamem
