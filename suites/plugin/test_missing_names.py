"""Each private name of torch that is missing costs one capability, and the run says which name and which capability."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import autograd
from torch._C import _profiler as c_profiler

import cudamem_testing
from cudamem_testing.torch_api import profiler
from cudamem_testing.torch_api.lacking import TorchLacksError, missing_name, needed_for
from cudamem_testing.torch_api.process import version

TESTS = """
    import pytest, torch
    KEPT = []

    def test_clean():
        x = torch.ones(64, 64, requires_grad=True)
        (x * 2).sum().backward()

    def test_fails():
        assert torch.zeros(8).sum().item() == 1

    def test_leaks():
        KEPT.append(torch.ones(256, 256, requires_grad=True) * 2)

    def test_cycle():
        tensor = torch.ones(256, 256)
        tensor.me = tensor

    def test_flow(memory_profile):
        profile = memory_profile(lambda x: (x * 2).sum().backward(), torch.ones(8, requires_grad=True))
        assert "aten::mul" in str(profile.data_flow())
"""
OUTCOMES = {
    "test_clean": "passed",
    "test_fails": "failed",
    "test_leaks": "error",
    "test_cycle": "error",
    "test_flow": "passed",
}
"""With everything there."""


class Gone(NamedTuple):
    """A name, the tests with another outcome without it, and what the run says then."""

    owner: Any
    name: str
    other: dict[str, str] = {}  # noqa: RUF012 - of a tuple
    said: str = ""


FLOW = {"test_flow": "failed"}
READING = "reading torch's profiler needs {name}, which torch {version} does not have"
CYCLES = (
    "NOT CHECKED: reference cycles: collections cannot be watched: the check for cycles needs torch.storage.{name}, "
    "which torch {version} does not have"
)
GONE = (
    Gone(c_profiler, "_ExtraFields_TorchOp", FLOW, READING),
    Gone(c_profiler, "_ExtraFields_Allocation", FLOW, READING),
    Gone(c_profiler, "_ExtraFields_OutOfMemory", FLOW, READING),
    Gone(c_profiler, "_ExtraFields_PyCall", FLOW, READING),
    Gone(c_profiler, "_ExtraFields_PyCCall", FLOW, READING),
    Gone(c_profiler, "_TensorMetadata", FLOW, READING),
    Gone(c_profiler, "ActiveProfilerType"),
    Gone(c_profiler, "ProfilerConfig"),  # of the recorder without a compiler
    Gone(torch._C._autograd, "_profiler_enabled", FLOW, READING),
    Gone(torch._C, "_jit_get_schemas_for_operator", FLOW, "the data flow needs {name}, which torch {version}"),
    Gone(torch.UntypedStorage, "_weak_ref", {"test_cycle": "passed"}, CYCLES),
    Gone(torch.UntypedStorage, "_expired", {"test_cycle": "passed"}, CYCLES),
    Gone(torch.UntypedStorage, "_new_with_weak_ptr"),
    Gone(torch._C, "_current_autograd_node"),
    Gone(torch._C, "_len_torch_dispatch_stack"),
    Gone(torch._C, "_len_torch_function_stack"),
    Gone(torch._C, "_storage_Use_Count"),
    Gone(torch._C, "_group_tensors_by_device_and_dtype"),
    Gone(torch._C, "_construct_storage_from_data_pointer"),
    Gone(torch._C, "_dispatch_has_kernel"),
    Gone(torch._C, "_data_address"),
    Gone(torch._C, "_DisableTorchDispatch"),
    Gone(torch._C._autograd, "_get_sequence_nr"),
    Gone(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    Gone(torch._C._autograd.SavedTensor, "data", {}, "does not show what autograd saved: an autograd graph may hold"),
    Gone(torch._C._functorch, "get_unwrapped"),
    Gone(torch, "_from_functional_tensor"),
    Gone(torch, "accelerator"),
    Gone(torch.nn.Module, "_call_impl"),
    Gone(autograd.graph, "_engine_run_backward"),
    Gone(torch.optim.Optimizer, "profile_hook_step"),
    Gone(autograd.profiler_legacy, "_enable_profiler_legacy"),
)
#: Read when a module is imported, with what stands there without them.
AT_IMPORT = {
    "torch._C.ParameterDict": ("tensors", "_SCRIPT_MODULE", None),
    "torch._C.BufferDict": ("tensors", "_SCRIPT_MODULE", None),
    "torch._C.ModuleDict": ("tensors", "_SCRIPT_MODULE", None),
    "torch._C.ScriptModule": ("tensors", "_SCRIPT_MODULE", None),
    "torch._C._is_cow_tensor": ("tensors", "_is_lazy_clone", None),
    "torch._is_functional_tensor": ("tensors", "_is_functional", None),
    "torch._C._functorch.is_functorch_wrapped_tensor": ("tensors", "_is_transformed", None),
}
#: Without these torch itself does not work, or the names are of its documented Python API.
OF_TORCH = {
    "torch._C._autograd.SavedTensor",  # whose data may be missing
    "torch._C._autograd._disable_profiler",  # with _profiler_enabled
    "torch._C._autograd._pop_saved_tensors_default_hooks",  # with _top_saved_tensors_default_hooks
    "torch._C._autograd._profiler_type",  # with _profiler_enabled
    "torch._C._dispatch_has_computed_kernel_for_dispatch_key",  # with _dispatch_has_kernel
    "torch._C._profiler._ExperimentalConfig",  # with ProfilerConfig
    "torch._scaled_dot_product_attention_math",  # operators: torch's own functions are made of them
    "torch.ops.aten._ctc_loss_backward",
    "torch.ops.aten._embedding_bag",
    "torch.ops.aten._embedding_bag_dense_backward",
    "torch._ops._higher_order_ops",  # of torch 2.7 alone
    "torch._subclasses.fake_tensor.FakeTensor",  # torch prints tensors with it
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch.autograd.profiler._run_on_profiler_stop",  # the profiler calls it
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "torch.UntypedStorage._free_weak_ref",  # with _weak_ref
}
#: What is tested on cards, classes of C that cannot be changed, and torch's trees, which its compiler needs.
OTHER = re.compile(
    r"torch\.(_C\._(cuda|accelerator|host|cudnn)|cuda\b|_C\.(StorageBase|TensorBase)\b|utils\._pytree\b)"
)
PACKAGE = Path(cudamem_testing.__file__).parent


class Removed:
    """In the place of an attribute that a class inherits from C."""

    def __get__(self, instance: object, owner: type) -> object:
        raise AttributeError("removed")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Remove a name from torch."""

    def remove(owner: Any, name: str) -> str:
        if isinstance(owner, type) and name not in vars(owner):
            monkeypatch.setattr(owner, name, Removed())
        else:
            monkeypatch.delattr(owner, name)
        return f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"

    profiler.event_types.cache_clear()
    yield remove
    monkeypatch.undo()
    profiler.event_types.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("gone", GONE, ids=lambda gone: gone.name)
def test_one_capability_is_lost_and_named(run_inner, without, gone: Gone) -> None:
    if not hasattr(gone.owner, gone.name):
        pytest.skip(f"this torch has no {gone.name}")
    name = without(gone.owner, gone.name)
    inner = run_inner(TESTS, "--cudamem", "--cudamem-cycles=fail")
    text = " ".join((inner.out + inner.err).split())
    assert "INTERNALERROR" not in text, text
    assert inner.outcomes == {**OUTCOMES, **gone.other}, text
    assert gone.said.format(name=name, version=version()) in text, text
    assert "assert 0.0 == 1" in text


def test_what_is_missing_is_named_once(run_inner, without) -> None:
    without(torch.UntypedStorage, "_expired")
    inner = run_inner("import torch\ndef test_it(): torch.ones(8)", "--cudamem", "--cudamem-cycles=fail")
    assert inner.last == "1 passed"
    said = CYCLES.format(name="UntypedStorage._expired", version=version())
    assert " ".join(inner.out.split()).count(said) == 1


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_module_is_imported_without_a_name(without, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, _, last = name.rpartition(".")
    without(sys.modules[owner], last)
    module, value, expected = AT_IMPORT[name]
    file = PACKAGE / "torch_api" / f"{module}.py"
    namespace: dict[str, Any] = {"__name__": "copy"}
    exec(compile(file.read_text(), file, "exec"), namespace)
    assert namespace[value] is expected
    tensor = torch.ones(4)
    with namespace["quiet"]():
        assert namespace["storage"](tensor)[1:3] == (tensor.data_ptr(), 16)
        assert namespace["parts"](tensor) == []
        assert namespace["is_lazy_clone"](tensor) is False
        assert [*namespace["scripted"](tensor)] == []


def test_looking_at_tensors_needs_one_name(without) -> None:
    without(torch._C, "DisableTorchFunction")
    file = PACKAGE / "torch_api" / "tensors.py"
    namespace: dict[str, Any] = {"__name__": "copy"}
    exec(compile(file.read_text(), file, "exec"), namespace)
    with pytest.raises(TorchLacksError) as caught:
        namespace["use_count"](torch.ones(1))
    name = "looking at tensors needs torch._C.DisableTorchFunction"
    assert str(caught.value) == f"{name}, which torch {version()} does not have"


def test_custom_functions_without_their_base(without) -> None:
    without(torch._C, "_FunctionBase")
    file = PACKAGE / "torch_api" / "nodes.py"
    namespace: dict[str, Any] = {"__name__": "copy"}
    exec(compile(file.read_text(), file, "exec"), namespace)
    assert namespace["is_node_type"](type((torch.ones(1, requires_grad=True) * 2).grad_fn))
    assert not namespace["is_node_type"](dict)


def names_of_torch(tree: ast.Module) -> Iterator[str]:
    """The private names of torch that a module uses as attributes."""
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}

    def path(node: ast.AST) -> str | None:
        if isinstance(node, ast.Attribute):
            owner = path(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return known.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        found = path(node) if isinstance(node, ast.Attribute | ast.Name) else None
        if found is not None and "._" in found and "__" not in found:
            yield found


def test_every_private_name_is_listed() -> None:
    trees = [ast.parse(file.read_text()) for file in (PACKAGE / "torch_api").glob("*.py")]
    # One name for two modules.
    both = re.compile(r"torch\.autograd\.profiler\.(_ExtraFields|_TensorMetadata|_ExperimentalConfig)")
    found = {both.sub(r"torch._C._profiler.\1", name) for tree in trees for name in names_of_torch(tree)}
    found = {re.sub(r"(_profiler|_higher_order_ops)\.(ProfilerState|values)\b.*", r"\1", name) for name in found}
    found = {name for name in found if not any(other.startswith(f"{name}.") for other in found)}
    owners = {torch.UntypedStorage: "torch.UntypedStorage"}
    gone = {f"{owners.get(owner, owner.__name__)}.{name}" for owner, name, *_ in GONE}
    left = {name for name in found - gone - {*AT_IMPORT} - OF_TORCH if not OTHER.match(name)}
    assert left == set()


def test_errors_of_others_stay() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'none'"), needed_for("it"):
        object().none  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError), needed_for("it"):
        from os import none  # type: ignore[attr-defined]
    line = r"^it needs torch\.utils\._pytree\.none, which torch .* does not have$"
    with pytest.raises(TorchLacksError, match=line), needed_for("it"):
        from torch.utils._pytree import none  # type: ignore[attr-defined] # noqa: F401
    assert missing_name(ValueError("none")) is None
