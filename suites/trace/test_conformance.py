"""What torch's own tests of its data flow expect, to the letter (``TestDataFlow``, ``test_config_check``).

On torch 2.13 no operator differs from the texts; :func:`test_the_oracle_agrees` compares every program with torch's
own analysis on the installed torch.
"""

from __future__ import annotations

import gc
import textwrap

import pytest
import torch
from torch.profiler import profile

from cudamem_testing.trace.profile import MemoryProfile, from_profile
from cudamem_testing.trace.records import Operator
from cudamem_testing.trace.schemas import READ, UNKNOWN, WRITTEN, effect_of
from suites.trace.oracle import differences, graph_of, rows

FLAGS = {"record_shapes": True, "profile_memory": True, "with_stack": True}
MUTABLE = {READ: False, WRITTEN: True, UNKNOWN: None}


def data_flow_text(function, **inputs):
    return MemoryProfile()(function, **inputs).data_flow().text(ids="profiler")


def check(function, expected, **inputs):
    assert data_flow_text(function, **inputs) == textwrap.dedent(expected).strip("\n")


def schemas(function):
    """Every operator with its overload, and for each argument whether it may be written."""
    with profile(**FLAGS) as prof:
        function()
    found = []
    for event in from_profile(prof).trace.events:
        if isinstance(event, Operator):
            signature, effect = event.signature, effect_of(event.signature)
            mutable = [False if effect.known else None] * len(signature.types)
            for place, access in zip(signature.places, effect.access, strict=True):
                mutable[place] = MUTABLE[access]
            overload = f".{effect.overloads[0]}" if effect.known else ""
            found.append((signature.name + overload, tuple(mutable)))
    return tuple(found)


def annotated(x, y):
    with torch.profiler.record_function("Namespaced::Annotation"), torch.profiler.record_function("My Annotation"):
        x.zero_()
        y.zero_()
        return {"x0": torch.ones_like(x), "y0": torch.zeros_like(y)}


def non_op_allocations(x):
    x.mul(2)


def simple(x, y):
    z = x.mul(y)
    return {"z": z.view_as(z)}


def inplace(x, y):
    x.mul_(y)


def without_grad(function):
    def inner(x, y):
        with torch.no_grad():
            return function(x, y)

    return inner


def backward(x, w):
    (x * w).sin().backward()


def complicated():
    x = torch.ones((25,))
    y = x.mul(2).add_(2)
    z = torch.sin(y, out=torch.empty_like(y))
    return {"x": x, "y": y, "z": z}


def two_vectors():
    return {"x": torch.ones((25,)), "y": torch.ones((25,), requires_grad=True)}


def test_match_schemas():
    def run():
        x = torch.ones((1,)).mul(2).add_(2)
        _ = torch.sin(x, out=torch.empty_like(x))

    assert schemas(run) == (
        ("aten::ones.", (False,) * 5),
        ("aten::empty.memory_format", (False,) * 6),
        ("aten::fill_.Scalar", (True, False)),
        ("aten::mul.Tensor", (False, False)),
        ("aten::to.dtype", (False,) * 5),
        ("aten::_to_copy.", (False,) * 7),
        ("aten::empty_strided.", (False,) * 6),
        ("aten::copy_.", (True, False, False)),
        ("aten::add_.Tensor", (True, False, False)),
        ("aten::to.dtype", (False,) * 5),
        ("aten::_to_copy.", (False,) * 7),
        ("aten::empty_strided.", (False,) * 6),
        ("aten::copy_.", (True, False, False)),
        ("aten::empty_like.", (False,) * 6),
        ("aten::empty_strided.", (False,) * 6),
        ("aten::sin.out", (False, True)),
    )


def test_match_schemas_backward():
    x = torch.ones((1,))
    w = torch.ones((1,), requires_grad=True)
    assert schemas(lambda: torch.mul(x, w).backward()) == (
        ("aten::mul.Tensor", (False, False)),
        ("aten::ones_like.", (False,) * 6),
        ("aten::empty_like.", (False,) * 6),
        ("aten::empty_strided.", (False,) * 6),
        ("aten::fill_.Scalar", (True, False)),
        ("autograd::engine::evaluate_function: MulBackward0", ()),
        ("MulBackward0", (None,)),
        ("aten::mul.Tensor", (False, False)),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", ()),
        ("torch::autograd::AccumulateGrad", (None,)),
        ("aten::detach.", (False,)),
        ("detach", (None,)),
    )


def test_match_schemas_tensorlist():
    x, y = torch.ones((1,)), torch.ones((1,))
    assert schemas(lambda: torch.cat([x, y], axis=0)) == (("aten::cat.", (False, False)),)


def test_data_flow_graph_with_annotations():
    check(
        annotated,
        """\
        x:       T0
        y:       T1
        x0:      T2
        y0:      T3

        aten::zero_               T0(v0)           ->  T0(v1)
        aten::zero_               T1(v0)           ->  T1(v1)
        aten::ones_like           T0(v1)           ->  T2(v0)
        aten::zeros_like          T1(v1)           ->  T3(v0)""",
        x=torch.ones((1,)),
        y=torch.ones((1,)),
    )


def test_data_flow_graph_non_op_allocations():
    check(
        non_op_allocations,
        """\
        x:       T1

        [memory]                                   ->  T0(v0)
        aten::mul                 T0(v0), T1(v0)   ->
        [memory]                  T0(v0*)          ->""",
        x=torch.ones((1,)),
    )


@pytest.mark.parametrize("function", [simple, without_grad(simple)])
def test_data_flow_graph_simple(function):
    check(
        function,
        """\
        x:       T0
        y:       T1
        z:       T2

        aten::mul                 T0(v0), T1(v0)   ->  T2(v0)
        aten::view_as             T2(v0)           ->""",
        **two_vectors(),
    )


def test_data_flow_graph_simple_inplace():
    inputs = two_vectors()
    check(
        inplace,
        """\
        x:       T0
        y:       T1

        aten::mul_                T0(v0), T1(v0)   ->  T0(v1), T2(v0)""",
        **inputs,
    )
    check(
        without_grad(inplace),
        """\
        x:       T0
        y:       T1

        aten::mul_                T0(v0), T1(v0)   ->  T0(v1)""",
        **inputs,
    )


def test_data_flow_graph_simple_backward():
    check(
        backward,
        """\
        x:       T0
        w:       T1
        w.grad:   T7

        aten::mul                 T0(v0), T1(v0)   ->  T2(v0)
        aten::sin                 T2(v0)           ->  T3(v0)
        aten::ones_like           T3(v0)           ->  T4(v0)
        SinBackward0              T2(v0), T4(v0)   ->  T6(v0)
        [memory]                  T2(v0*)          ->
        MulBackward0              T0(v0), T6(v0)   ->  T7(v0)
        [memory]                  T6(v0*)          ->
        AccumulateGrad            T7(v0)           ->
        [memory]                  T4(v0*)          ->
        [memory]                  T3(v0*)          ->""",
        x=torch.ones((1,)),
        w=torch.ones((1,), requires_grad=True),
    )


def test_data_flow_graph_complicated():
    check(
        complicated,
        """\
        x:       T0
        y:       T3
        z:       T6

        aten::ones                                 ->  T0(v0)
        [memory]                                   ->  T1(v0)
        aten::mul                 T0(v0), T1(v0)   ->  T3(v0)
        [memory]                  T1(v0*)          ->
        [memory]                                   ->  T4(v0)
        aten::add_                T3(v0), T4(v0)   ->  T3(v1)
        [memory]                  T4(v0*)          ->
        aten::empty_like          T3(v1)           ->  T6(v0)
        aten::sin                 T3(v1), T6(v0)   ->  T6(v1)""",
    )
    with profile(**FLAGS) as prof:
        complicated()
    mul = from_profile(prof).data_flow().nodes[2]
    assert mul.name == "aten::mul"
    assert [storage.number for storage in mul.intermediates] == [2]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (annotated, lambda: {"x": torch.ones((1,)), "y": torch.ones((1,))}),
        (non_op_allocations, lambda: {"x": torch.ones((1,))}),
        (simple, two_vectors),
        (without_grad(simple), two_vectors),
        (inplace, two_vectors),
        (without_grad(inplace), two_vectors),
        (backward, lambda: {"x": torch.ones((1,)), "w": torch.ones((1,), requires_grad=True)}),
        (complicated, dict),
    ],
)
def test_the_oracle_agrees(function, inputs):
    tensors = inputs()
    with profile(**FLAGS) as prof:
        outputs = function(**tensors)
        gc.collect()
    del outputs
    flow = from_profile(prof).data_flow()
    assert differences(flow, graph_of(prof)) == []
    assert flow.text(ids="profiler") == rows(graph_of(prof))


def test_config_check():
    with profile() as prof:
        pass
    with pytest.raises(ValueError, match=r"record_shapes=True, profile_memory=True, with_stack=True"):
        from_profile(prof)
    with profile(record_shapes=True, with_stack=True) as prof:
        pass
    with pytest.raises(ValueError, match=r"^profile_memory=True required for memory profiling\.$"):
        from_profile(prof)
    with profile(**FLAGS) as prof:
        pass
    assert isinstance(from_profile(prof), MemoryProfile)
