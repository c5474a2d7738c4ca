"""Backward passes on a simulated card: in the thread that calls them, with the records of autograd's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from inspect import getsourcelines
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cudamem_testing import simulated_cuda, torch_api
from cudamem_testing.model.failing import Wanted
from cudamem_testing.recorders.native_trap import NativeTrap

multithreading: Any = torch.autograd.set_multithreading_enabled


class Exponential(torch.autograd.Function):
    """Its backward pass allocates, and runs another one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        torch.zeros(1000, device=x.device)
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((again @ again.T).tanh().sum(), again)
        result: Tensor = grads[0] * found
        return result


def made(*sizes: int) -> Tensor:
    """Numbers on the card that want a gradient."""
    return torch.randn(*sizes, device="cuda", requires_grad=True)


def custom_function() -> list[Tensor | None]:
    x = made(32, 32)
    Exponential.apply(x @ x).sum().backward()
    return [x.grad]


def hooks() -> list[Tensor | None]:
    model, kept = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda"), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: kept.append(one.grad.clone()))
    output = model(made(4, 16))
    output.register_hook(lambda gradient: gradient @ torch.ones(4, 4, device="cuda"))
    output.sum().backward()
    return [*kept]


def double_backward() -> list[Tensor | None]:
    x = made(32, 32)
    (gradient,) = torch.autograd.grad((x @ x).tanh().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return [x.grad]


def checkpoints(*, use_reentrant: bool) -> list[Tensor | None]:
    layer, x = nn.Linear(64, 64).to("cuda"), made(8, 64)

    def outer(given: Tensor) -> Tensor:
        inner: Tensor = checkpoint(lambda one: layer(one).relu(), given, use_reentrant=use_reentrant)
        return inner * 2

    checkpoint(outer, x, use_reentrant=use_reentrant).sum().backward()
    return [x.grad, layer.weight.grad]


def two_cards() -> list[Tensor | None]:
    first, second = nn.Linear(32, 32).to("cuda:0"), nn.Linear(32, 32).to("cuda:1")
    second(first(torch.ones(4, 32, device="cuda:0")).to("cuda:1")).sum().backward()
    return [first.weight.grad, second.weight.grad]


def another_stream() -> list[Tensor | None]:
    x = made(32, 32)
    with torch.cuda.stream(torch.cuda.ExternalStream(7)):
        y = x @ x
    (y @ y).sum().backward()
    return [x.grad]


def convolutions() -> list[Tensor | None]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).to("cuda")
    nn.functional.cross_entropy(
        model(torch.ones(2, 3, 8, 8, device="cuda")), torch.zeros(2, 5, device="cuda")
    ).backward()
    return [one.grad for one in model.parameters()]


PROGRAMS: dict[str, Callable[[], list[Tensor | None]]] = {
    "custom function": custom_function,
    "hooks": hooks,
    "double backward": double_backward,
    "reentrant checkpoints": partial(checkpoints, use_reentrant=True),
    "checkpoints": partial(checkpoints, use_reentrant=False),
    "two cards": two_cards,
    "another stream": another_stream,
    "convolutions": convolutions,
}


@pytest.fixture(autouse=True)
def cards() -> Iterator[None]:
    """Two simulated cards."""
    with simulated_cuda("h100", count=2):
        yield


def record(program: Callable[[], list[Tensor | None]]) -> dict[str, Any]:
    """What a program computes, and all that the allocators of both cards record meanwhile."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    for card in range(2):
        torch.cuda.reset_peak_memory_stats(card)
        torch.cuda.reset_accumulated_memory_stats(card)
    torch.cuda.memory._record_memory_history("all")
    torch.manual_seed(0)
    values = [None if one is None else one.tolist() for one in program()]
    counters = [dict(torch.cuda.memory_stats(card)) for card in range(2)]
    traces = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    stacks = [[[(one["filename"], one["line"]) for one in event["frames"]] for event in trace] for trace in traces]
    events = [[(event["action"], event["size"], event["stream"]) for event in trace] for trace in traces]
    return {"values": values, "counters": counters, "events": events, "stacks": stacks}


@pytest.mark.parametrize("name", PROGRAMS)
def test_records_are_those_of_autograds_thread(name: str) -> None:
    found = []
    for other_thread in (False, True):
        with multithreading(other_thread):
            found.append(record(PROGRAMS[name]))
    mine, expected = found
    assert sum(map(len, expected["events"])) >= 20
    assert mine == expected


def threads_of_hooks() -> list[int]:
    """The thread in which a hook runs in a backward pass of this thread."""
    x, found = made(4), list[int]()
    y = x * 2
    y.register_hook(lambda gradient: found.append(threading.get_ident()))
    y.sum().backward()
    return found


def test_passes_run_in_the_thread_that_entered() -> None:
    assert threads_of_hooks() == [threading.get_ident()]


def test_passes_of_other_threads_run_in_autograds() -> None:
    found: list[int] = []

    def pass_in_another() -> None:
        found.extend((threading.get_ident(), *threads_of_hooks()))

    thread = threading.Thread(target=pass_in_another)
    thread.start()
    thread.join()
    calling, running = found
    assert running not in (calling, threading.get_ident())


def test_passes_of_all_threads_have_the_same_workspaces() -> None:
    left: list[int] = []

    def multiply_in_hook() -> None:
        x = made(16, 16)
        y = x * 2
        y.register_hook(lambda gradient: gradient @ gradient)
        y.sum().backward()
        del x, y
        left.append(torch.cuda.memory_allocated())

    multiply_in_hook()
    thread = threading.Thread(target=multiply_in_hook)
    thread.start()
    thread.join()
    assert left == [2**25, 2**25]


def trapped(line: int) -> NativeTrap:
    """Makes each allocation below a line of this file fail."""
    native = torch_api.simulated_trap()
    assert native is not None
    wanted = Wanted(at=(str(Path(__file__)), line))
    return NativeTrap(partial(native.put, 0), native.read, native.clear, wanted, lambda stack: [])


def run_backward(loss: Tensor, gradient: Tensor | None) -> None:
    """Two lines below the first one of this function is a backward pass."""
    torch.autograd.backward(loss, gradient)


def test_a_line_that_calls_a_pass_is_not_where_that_allocates() -> None:
    x = made(4)
    loss = (x * 2).exp().sum()
    gradient = torch.ones_like(loss)
    trap = trapped(getsourcelines(run_backward)[1] + 2)
    try:
        with pytest.raises(torch.OutOfMemoryError):  # the first gradient is made before the pass
            run_backward(loss, None)
        run_backward(loss, gradient)
    finally:
        trap.lift()
    assert trap.look().failed == 1
    assert x.grad is not None


def test_a_line_of_a_hook_is_where_that_allocates() -> None:
    def hook(gradient: Tensor) -> Tensor:
        return gradient * 2

    x = made(4)
    y = x * 2
    y.register_hook(hook)
    trap = trapped(getsourcelines(hook)[1] + 1)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            y.sum().backward()
    finally:
        trap.lift()
    assert trap.look().failed == 1


def test_an_error_in_a_pass_is_raised_and_the_next_one_runs() -> None:
    def fail(gradient: Tensor) -> None:
        raise LookupError("here")

    x = made(4)
    y = x * 2
    y.register_hook(fail)
    with pytest.raises(LookupError, match=r"^here$"):
        y.sum().backward()
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 4


def test_more_passes_in_one_another_than_one_thread_runs() -> None:
    depth = 70  # autograd runs 60 in one thread

    def nest(x: Tensor, left: int) -> Tensor:
        return x * 2 if left == 0 else checkpoint(nest, x, left - 1, use_reentrant=True)

    x = made(4)
    nest(x, depth).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 4
