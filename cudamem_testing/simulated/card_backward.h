// Backward passes. On a card they run in a thread of autograd's that has no Python frames but those of hooks and of custom
// functions. Here the thread that calls them runs them, where torch's multithreading of autograd is off for it
// (simulated/__init__.py): it need not wake another one, and the CPU's kernels have one team of threads. What depends on
// the thread is as on a card nevertheless: the workspaces of cuBLAS, and stacks.
#pragma once

#include <c10/core/AutogradState.h>

#include <thread>

#include "../recorders/cpu_stacks.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();  // its header takes long to compile; `doctor` checks that it declares this
}

namespace cudamem {

inline uint64_t engine_code = 0;  // of the function in Python that calls autograd's engine; 0 if there is none

// The thread whose workspaces the calling one uses: none of the program's in a backward pass.
inline std::thread::id thread_on_card() {
  return torch::autograd::get_current_graph_task_id() >= 0 ? std::thread::id() : std::this_thread::get_id();
}

inline bool runs_own_passes() { return !c10::AutogradState::get_tls_state().get_multithreading_enabled(); }

// Drops the frames that autograd's thread would not have. Passes inside of a pass run in that thread too: the outermost
// call of the engine ends the stack.
template <uint32_t most>
void end_before_engine(Walk<most>* stack) {
  if (!engine_code || !runs_own_passes()) return;
  for (uint32_t at = stack->depth; at > 0; --at) {
    if (stack->frames[at - 1].code != engine_code) continue;
    stack->depth = at - 1;
    return;
  }
}

}  // namespace cudamem
