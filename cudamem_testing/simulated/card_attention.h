// Selects the attention kernel of a card. On Hopper cuDNN's comes first, for half precision; then flash attention, which
// supports no mask; then the memory-efficient one. If none fits, attention is composed of simpler operators. Recorded on
// an H200 with torch 2.11; for older cards the order is that of torch's documentation.
#pragma once

#include <ATen/native/transformers/attention.h>

namespace at {  // of torch's header for it, which takes long to compile, what is used here
class TORCH_API Context {
 public:
  bool deterministicAlgorithms() const;
  bool deterministicAlgorithmsWarnOnly() const;
  bool userEnabledFlashSDP() const;
  bool userEnabledMemEfficientSDP() const;
  bool userEnabledCuDNNSDP() const;
  static bool hasMKLDNN();
};
TORCH_API Context& globalContext();
}  // namespace at

namespace cudamem {

enum class Attention : int64_t { written_out = 0, flash = 1, efficient = 2, cudnn = 3 };

struct AttentionCard {
  bool hopper = false, ampere = false;
};
inline AttentionCard& attention_card = *new AttentionCard;

inline bool is_dense_along(const at::Tensor& tensor) { return tensor.stride(-1) == 1; }

inline int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  const auto found = [&]() -> Attention {
    if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || !query.numel() || !key.numel() ||
        query.size(0) != key.size(0) || query.size(0) != value.size(0) || key.size(1) != value.size(1)) {
      return Attention::written_out;
    }
    const bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
    const bool plain = half || query.scalar_type() == at::kFloat;
    const bool masked = mask.has_value() && mask->defined();
    const bool learned = masked && mask->requires_grad();
    const bool grouped = query.size(1) != key.size(1);
    const auto width = query.size(3), values = value.size(3), asked = query.size(2), read = key.size(2);
    // A bias that was transposed, as relative positions are, suits none of the kernels.
    if (!is_dense_along(query) || !is_dense_along(key) || !is_dense_along(value) || (masked && !is_dense_along(*mask))) {
      return Attention::written_out;
    }
    const bool narrow = (width <= 128 && values <= 128) || (width == 192 && values == 128);
    const bool deterministic = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
    if (attention_card.hopper && half && !learned && !deterministic && width % 8 == 0 && values % 8 == 0 && narrow &&
        read > 1 && (dropout == 0 || asked > 1) && context.userEnabledCuDNNSDP()) {
      return Attention::cudnn;
    }
    if (attention_card.ampere && half && !masked && width == values && width <= 256 && (!causal || asked == read) &&
        context.userEnabledFlashSDP()) {
      return Attention::flash;
    }
    const auto step = half ? 8 : 4;
    if (plain && !grouped && width % step == 0 && values % step == 0 && context.userEnabledMemEfficientSDP()) {
      return Attention::efficient;
    }
    return Attention::written_out;
  }();
  return static_cast<int64_t>(found);
}

inline void choose_attention(bool hopper, bool ampere) {
  attention_card = {hopper, ampere};
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
}
inline void forget_attention() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(nullptr); }

}  // namespace cudamem
