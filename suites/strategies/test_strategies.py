"""What the strategies make: within their bounds, small when shrunk, the same each time, wrong bounds refused."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from cudamem_testing import strategies
from cudamem_testing.strategies.random_programs import make

ROOT = Path(__file__).parents[2]
SEARCH = settings(database=None, max_examples=500, derandomize=True, suppress_health_check=list(HealthCheck))


@given(st.data(), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5))
def test_shapes_keep_their_bounds(data, dims, more, side, longer):
    most = max(1, side**dims, 40)
    shape = data.draw(
        strategies.shapes(min_dims=dims, max_dims=dims + more, min_side=side, max_side=side + longer, max_elements=most)
    )
    assert dims <= len(shape) <= dims + more
    assert all(side <= one <= side + longer for one in shape)
    assert prod(shape) <= most


def test_what_is_made_shrinks_to_what_is_small():
    assert find(strategies.shapes(), lambda shape: True, settings=SEARCH) == ()
    assert find(strategies.shapes(max_side=64), lambda shape: prod(shape) > 20, settings=SEARCH) == (21,)
    assert find(strategies.dtypes(integers=True), lambda dtype: True, settings=SEARCH) is torch.float32
    smallest = find(strategies.tensors(), lambda x: x.numel() > 3, settings=SEARCH)
    assert (smallest.tolist(), smallest.dtype) == ([0.0, 0.0, 0.0, 0.0], torch.float32)
    module = find(strategies.modules(), lambda module: True, settings=SEARCH)
    assert str(module) == str(torch.nn.Sequential(torch.nn.Linear(1, 1)))
    program = find(strategies.programs(), lambda program: "backward()" in program.source, settings=SEARCH)
    lines = program.source.splitlines()
    assert "backward()" in lines[-1]


@given(
    strategies.tensors(
        strategies.shapes(min_side=0, max_side=5),
        strategies.dtypes(integers=True, boolean=True, complex_numbers=True),
        contiguous=False,
    )
)
def test_tensors_hold_values_of_their_own(x):
    assert x.device.type == "cpu"
    assert x.untyped_storage().nbytes() in (x.nbytes, 2 * x.nbytes)
    assert torch.isfinite(x.to(torch.complex128).abs()).all()


def test_tensors_are_the_same_each_time_and_take_gradients():
    shape = (3, 4)
    first, second = (
        strategies._tensor(shape, torch.float32, "random", "strided", torch.device("cpu"), True) for _ in "ab"
    )
    assert torch.equal(first, second)
    assert first.requires_grad
    assert (first.shape, first.stride()) == (shape, (8, 2))
    turned = strategies._tensor(shape, torch.float32, "range", "transposed", torch.device("cpu"), False)
    assert turned.stride() == (1, 3)


@given(strategies.modules(max_features=8), st.integers(1, 3))
def test_modules_take_a_batch(module, batch):
    y = module(torch.zeros(batch, module[0].in_features))
    assert y.shape[0] == batch
    y.sum().backward()


@pytest.mark.filterwarnings("ignore")  # programs do what torch warns of
@settings(max_examples=3)
@given(strategies.programs(max_statements=3))
def test_programs_run(program):
    program.compile()()


def test_a_shorter_program_is_the_beginning_of_a_longer_one():
    long, short = make(7, statements=9).source, make(7, statements=4).source
    assert long.startswith(short)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: strategies.shapes(min_dims=3, max_dims=2), "write 0 <= min <= max"),
        (lambda: strategies.shapes(min_dims=3, min_side=16, max_elements=100), "3 sides of 16 are more than 100"),
        (lambda: strategies.dtypes(floating=False), "no kind of dtype is chosen"),
        (lambda: strategies.tensors(dtype=torch.int8, requires_grad=True), "torch.int8 has no gradients"),
        (lambda: strategies.modules(min_features=0), "write 1 <= min <= max"),
        (lambda: strategies.programs("odd"), "kind 'odd' is not known"),
        (lambda: strategies.programs(max_statements=0), "write at least 1"),
    ],
)
def test_wrong_bounds_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


@pytest.mark.subprocess
def test_without_hypothesis_it_says_what_to_install():
    code = "import sys; sys.modules['hypothesis'] = None; import cudamem_testing.strategies"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    needs = "cudamem_testing.strategies needs hypothesis: pip install 'cudamem_testing[hypothesis]'"
    assert last == f"ModuleNotFoundError: {needs}"


def test_the_module_is_there_without_an_import_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import cudamem_testing

    monkeypatch.delattr(cudamem_testing, "strategies")
    monkeypatch.delitem(sys.modules, "cudamem_testing.strategies")
    assert cudamem_testing.strategies.tensors.__module__ == "cudamem_testing.strategies"
    with pytest.raises(AttributeError, match=r"^module 'cudamem_testing' has no attribute 'strategy'$"):
        _ = cudamem_testing.strategy
