"""Every private torch call of the package, found by feature and never by version.

What is exported here has torch from :mod:`.process`, which imports it when a function needs it, so that a run without
torch does not; the modules that read live objects or see operators, :mod:`.tensors`, :mod:`.nodes` and
:mod:`.dispatch`, import it and are for code that runs only if torch is imported. :mod:`.profiler` and :mod:`.operators`
are imported by what records programs, because few runs do. If a function is missing, the caller
gets ``None`` (or an empty answer) and says in a note what is then unknown.

| call | first seen | if it is missing |
| --- | --- | --- |
| ``torch._C._cuda_memoryStats`` | 1.4 | no CUDA counters |
| ``torch._C._cuda_resetPeakMemoryStats`` | 1.4 | no CUDA peaks |
| ``torch._C._cuda_resetAccumulatedMemoryStats`` | 1.4 | counts restart when a test resets them |
| ``torch._C._accelerator_getDeviceStats`` and resets | 2.9 | accelerators other than CUDA are not measured |
| ``torch._C._cuda_setMemoryFraction`` / ``_cuda_getMemoryFraction`` | 1.8 / 2.8 | hard limits reset to no limit |
| ``torch._C._accelerator_getAllocatorSettings``, ``_accelerator_setAllocatorSettings`` | 2.10 | settings that a test
changes stay changed, and no note says so |
| ``torch.cuda.memory._record_memory_history``, ``_snapshot`` | 2.1 | no stacks, no live at the peak |
| ``torch._lazy_modules`` | 2.1 | the first snapshot of a process imports torch's compiler, which takes 2 s |
| ``torch._C._cuda_isHistoryEnabled`` | 2.1 | a history that the user started before the session is not noticed |
| ``torch._C._cuda_attach_out_of_memory_observer`` | 2.0 | out of memory is explained after unwinding, without stacks |
| ``torch._C._cuda_hostMemoryStats`` | 2.6 | pinned host memory is not measured |
| ``torch._C._cuda_clearCublasWorkspaces`` | 1.13 | a library's workspace shows as memory held by C++ |
| ``cuda_graphs_thread_pool`` of ``torch._inductor.cudagraph_trees`` | 2.0 | what compiled graphs keep is held by C++ |
| ``torch._C._len_torch_function_stack``, ``_len_torch_dispatch_stack`` | 1.13 | a mode may see two tiny products |
| ``torch.cuda.mem_get_info``, ``torch.backends.cuda.cufft_plan_cache`` | 1.11 | less is known about memory outside the
allocator | | ``torch.cuda._lazy_call`` | 1.0 | the history starts with the test after the first use of CUDA |
| ``torch.autograd.profiler_legacy._enable_profiler_legacy`` and its kin | 1.8 | no CPU fallback without a compiler |
| ``experimental_event_tree()`` of a profile, classes of ``torch._C._profiler`` | 1.13 | no data flow |
| ``module.self_ptr``, ``optimizer.self_ptr`` of a profile's Python calls | 2.0 | no data flow |
| ``torch._C._jit_get_schemas_for_operator`` | 1.0 | no data flow |
| ``torch._C._dispatch_has_computed_kernel_for_dispatch_key`` | 1.9 | operators are distinguished by name only |
| ``torch._C.TensorBase``, ``DisableTorchFunction``, ``StorageBase`` | 1.9 | no holders, no cycles |
| ``torch.nn.Module._call_impl`` (its code) | 1.8 | operators have no module |
| ``torch._C._current_autograd_node`` | 2.1 | operators of backward have no module or formula |
| ``_sequence_nr`` of autograd's nodes | 2.1 | operators of backward have no module |
| ``torch.autograd.graph._engine_run_backward`` (its code) | 2.3 | the same |
| ``torch.utils._python_dispatch`` | 1.13 | no operators |
| ``torch._subclasses.fake_tensor`` | 1.13 | no fake tensors |
| ``torch._C._FunctionBase`` | 1.0 | what custom functions saved shows as held by C++ |
| ``torch._is_functional_tensor``, ``_C._functorch`` | 2.0 | tensors inside those of transforms are not seen |
| ``torch._C._is_cow_tensor`` | 2.1 | looking at a lazily cloned tensor copies it |
| ``UntypedStorage._weak_ref``, ``_expired`` | 1.8 | cycles are not checked; before 2.10 freed storages are read |
| ``_raw_saved_*`` of autograd's nodes | 1.9 | tensors that they saved show as held by C++ |
| ``SavedTensor.data`` | after 2.7 | the same |
| ``TorchFunctionMode``, ``TorchDispatchMode`` | 1.13 | no lint, no records of captures, no dispatcher calls |
| ``TorchDispatchMode.supports_higher_order_operators`` | after 2.7 | the mode gets a rule for each such operator |
| ``torch._C._dynamo.eval_frame`` | 2.0 | where torch wraps modes, the first operator in one imports its compiler |
| ``TensorBase._cdata`` | 1.0 | no calls of the dispatcher |
| ``torch.utils._pytree`` | 1.8 | no captures |
| ``CUDAGraph(keep_graph=True)`` and ``raw_cuda_graph`` | 2.8 | nodes are read from ``debug_dump`` |
| ``torch._C._construct_storage_from_data_pointer`` | 2.1 | free memory of pools is not overwritten between replays |
| ``torch._C._host_emptyCache`` | 2.7 | pinned memory stays cached before a capture |
| ``torch._C._group_tensors_by_device_and_dtype`` | 2.1 | the lint reports gradient clipping as a host read |
| ``torch._C.ParameterDict``, ``BufferDict``, ``ModuleDict`` | 1.5 | memory of scripted modules shows as held by C++ |
| the text of ``torch/utils/cpp_extension.py`` | 1.0 | recorders are compiled as C++17 or C++20, as each is written |
| ``UntypedStorage._new_with_weak_ptr`` | 1.8 | replays are not compared with eager calls |

PYTEST_DONT_REWRITE
"""

from cudamem_testing.torch_api.accelerator import (
    ACCELERATOR_PEAK_RESET,
    ACCELERATOR_READER,
    Accelerator,
    accelerator_name,
    accelerator_started,
    other_accelerator,
    synchronize_accelerator,
)
from cudamem_testing.torch_api.cuda import (
    NOTICED,
    SIMULATED,
    SIMULATED_TRAP,
    SettingsFunctions,
    SimulatedTrap,
    allocator_backend,
    allocator_settings,
    capturing,
    clear_workspaces,
    compiler_pools,
    cuda_device_count,
    cuda_function,
    cuda_initialized,
    current_stream,
    empty_cache,
    fork_check,
    graph_class,
    is_out_of_memory,
    memory_fraction,
    memory_in_use,
    set_allocator_settings,
    set_memory_fraction,
    settings_functions,
    simulated_cards,
    simulated_trap,
    synchronize,
    take_workspaces,
    total_memory,
    transform_plans,
    when_cuda_starts,
    workspace_sizes,
)
from cudamem_testing.torch_api.history import (
    Stats,
    history_enabled,
    history_starter,
    lazy_without_compiler,
    observe_out_of_memory,
    snapshot,
    stop_history,
)
from cudamem_testing.torch_api.process import bindings, imported, load, version

__all__ = [
    "ACCELERATOR_PEAK_RESET",
    "ACCELERATOR_READER",
    "NOTICED",
    "SIMULATED",
    "SIMULATED_TRAP",
    "Accelerator",
    "SettingsFunctions",
    "SimulatedTrap",
    "Stats",
    "accelerator_name",
    "accelerator_started",
    "allocator_backend",
    "allocator_settings",
    "bindings",
    "capturing",
    "clear_workspaces",
    "compiler_pools",
    "cuda_device_count",
    "cuda_function",
    "cuda_initialized",
    "current_stream",
    "empty_cache",
    "fork_check",
    "graph_class",
    "history_enabled",
    "history_starter",
    "imported",
    "is_out_of_memory",
    "lazy_without_compiler",
    "load",
    "memory_fraction",
    "memory_in_use",
    "observe_out_of_memory",
    "other_accelerator",
    "set_allocator_settings",
    "set_memory_fraction",
    "settings_functions",
    "simulated_cards",
    "simulated_trap",
    "snapshot",
    "stop_history",
    "synchronize",
    "synchronize_accelerator",
    "take_workspaces",
    "total_memory",
    "transform_plans",
    "version",
    "when_cuda_starts",
    "workspace_sizes",
]
