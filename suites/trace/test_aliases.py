"""Families of operators: the same text from the kernels of different devices."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.profile import MemoryProfile
from suites.trace.synthetic import alloc, op, read, tensor

X, OUT, EXTRA, TEMP, GRAD = tensor(1), tensor(2), tensor(3), tensor(4), tensor(5)


def folded(*roots):
    flow = data_flow(read(*roots))
    text = flow.text(device_aliases=True)
    assert flow.diagnostics == ()
    return text


def optimizer_rows(name, foreach):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, foreach=foreach)

    def step(model, x):
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step(model, torch.ones(2, 4))
    flow = MemoryProfile(collect=False)(step, model=model, x=torch.ones(2, 4)).data_flow()
    return flow.text(device_aliases=True), flow.text()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_foreach_and_single_tensor_optimizers_have_one_text(name):
    foreach, plain_foreach = optimizer_rows(name, True)
    single, plain_single = optimizer_rows(name, False)
    assert plain_foreach != plain_single
    assert foreach == single
    assert [line.split()[0] for line in foreach.splitlines() if ".step" in line or ".zero_grad" in line] == [
        f"{name}.step",
        f"{name}.zero_grad",
    ]


def cpu_dropout():
    """What ``aten::dropout`` does where it is made of elementwise operators."""
    return (
        op("aten::dropout", X, 0.5, True, sequence=3, children=[
            op("aten::empty_like", X, None, None, None, None, None, sequence=3, children=[alloc(EXTRA, 16)]),
            op("aten::bernoulli_", EXTRA, 0.5, None, sequence=3),
            op("aten::div_", EXTRA, 0.5, sequence=3),
            op("aten::mul", X, EXTRA, sequence=3, children=[alloc(OUT, 16)]),
        ]),
        op("aten::sin", OUT, sequence=4, children=[alloc(TEMP, 16)]),
        alloc(OUT, -16),
        op("MulBackward0", TEMP, role="BACKWARD_FUNCTION", sequence=3, children=[
            op("aten::mul", TEMP, EXTRA, children=[alloc(GRAD, 16)])]),
        alloc(EXTRA, -16),
        op("aten::cos", GRAD),
    )  # fmt: skip


def cuda_dropout():
    """What it does where one kernel makes the result and a mask."""
    return (
        op("aten::dropout", X, 0.5, True, sequence=3, children=[
            op("aten::native_dropout", X, 0.5, True, sequence=3, children=[alloc(OUT, 16), alloc(EXTRA, 4)])]),
        op("aten::sin", OUT, sequence=4, children=[alloc(TEMP, 16)]),
        alloc(OUT, -16),
        op("NativeDropoutBackward0", TEMP, role="BACKWARD_FUNCTION", sequence=3, children=[
            op("aten::native_dropout_backward", TEMP, EXTRA, 2.0, children=[alloc(GRAD, 16)])]),
        alloc(EXTRA, -4),
        op("aten::cos", GRAD),
    )  # fmt: skip


def test_dropout_of_two_devices_has_one_text():
    text = "\n".join(
        [
            "dropout                   T0(v0)           ->  T1(v0)",
            "aten::sin                 T1(v0)           ->  T2(v0)",
            "[memory]                  T1(v0*)          ->",
            "dropout backward          T2(v0)           ->  T3(v0)",
            "aten::cos                 T3(v0)           ->",
        ]
    )
    assert folded(*cpu_dropout()) == text
    assert folded(*cuda_dropout()) == text


def test_a_multiplication_of_ones_own_is_no_dropout():
    roots = (
        op("aten::mul", X, X, sequence=3, children=[alloc(OUT, 16)]),
        op("MulBackward0", OUT, role="BACKWARD_FUNCTION", sequence=3, children=[op("aten::mul", OUT, X)]),
    )
    assert [line.split()[0] for line in folded(*roots).splitlines()] == ["aten::mul", "MulBackward0"]


def test_attention_kernels_that_save_the_same_have_one_text():
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def text(backend):
        tensors = {name: torch.ones(1, 2, 4, 8) for name in "qkv"}
        with sdpa_kernel(backend):
            profile = MemoryProfile(collect=False)(attend, **tensors)
        return profile.data_flow().text(device_aliases=True)

    fused = text(SDPBackend.FLASH_ATTENTION)
    assert text(SDPBackend.MATH) == fused
    assert fused.splitlines()[-1] == "attention                 T0(v0), T1(v0), T2(v0)  ->  T3(v0)"


def test_backward_nodes_of_one_attention_are_one_row():
    q, out, logits = tensor(1), tensor(2), tensor(3)
    roots = (
        op("aten::scaled_dot_product_attention", q, q, q, None, 0.0, False, None, False, sequence=8, children=[
            op("aten::bmm", q, q, sequence=8, children=[alloc(logits, 16)]),
            op("aten::bmm", logits, q, sequence=9, children=[alloc(out, 16)])]),
        op("BmmBackward0", out, role="BACKWARD_FUNCTION", sequence=9, children=[
            op("aten::bmm", out, logits, children=[alloc(TEMP, 16)])]),
        alloc(out, -16),
        alloc(logits, -16),
        op("BmmBackward0", TEMP, role="BACKWARD_FUNCTION", sequence=8, children=[
            op("aten::bmm", TEMP, q, children=[alloc(GRAD, 16)])]),
        alloc(TEMP, -16),
        op("aten::sin", GRAD),
        op("aten::cos", out.__class__(9, 9, 9)),
    )  # fmt: skip
    text = folded(*roots)
    assert [line.split("  ")[0] for line in text.splitlines()] == [
        "attention",
        "attention backward",
        "aten::sin",
        "aten::cos",
    ]


def test_only_independent_writes_are_one_foreach_row():
    one, two = tensor(7), tensor(8)
    single = folded(op("aten::mul_", one, X), op("aten::mul_", two, X), op("aten::mul_", two, X))
    assert single.splitlines()[-1].split()[0] == "aten::mul_"
    assert len(single.splitlines()) == 2
    foreach = folded(op("aten::_foreach_mul_", [tensor(11), tensor(12)], tensor(13)))
    assert foreach == "aten::mul_                T0(v0), T1(v0), T2(v0)  ->  T0(v1), T1(v1)"


def test_wrapped_numbers_between_writes_are_hidden():
    number, again = tensor(8), tensor(9)
    text = folded(
        alloc(number, 8),
        op("aten::mul_", tensor(1), number),
        alloc(number, -8),
        alloc(again, 8),
        op("aten::mul_", tensor(2), again),
        alloc(again, -8),
    )
    assert text == "aten::mul_                T0(v0), T1(v0)   ->  T0(v1), T1(v1)"


def test_optimizer_state_is_shown_and_temporaries_are_not():
    weight, state, scratch = tensor(7), tensor(8), tensor(9)
    text = folded(
        op("Optimizer.step#Adam.step", role="USER_SCOPE", start=0, end=90),
        op("aten::zeros_like", weight, None, None, None, None, None, start=1, children=[alloc(state, 16, start=2)]),
        op("aten::sqrt", weight, start=3, children=[alloc(scratch, 16, start=4)]),
        op("aten::add_", weight, scratch, 1, start=5),
        alloc(scratch, -16, start=6),
        op("aten::sin", weight, start=95),
    )
    assert text.splitlines() == [
        "Adam.step                 T0(v0)           ->  T0(v1), T1(v0)",
        "aten::sin                 T0(v1)           ->",
    ]


def test_without_the_option_nothing_is_folded():
    flow = data_flow(read(*cuda_dropout()))
    assert flow.text().splitlines()[0] == "aten::dropout             T0(v0)           ->  T1(v0), T2(v0)"
