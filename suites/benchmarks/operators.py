"""What recording costs per operator call, above the same program without it, and whether modules matter.

Programs of tiny tensors, so that time is overhead: a training step and inference, with 2 and with 65 modules. Beside it
three reads of torch's statistics around each operator, and torch's ``MemTracker``. Processor time of one thread, the
garbage collector off, the best of rounds that take turns; exit status 1 when a limit is broken.
Run: ``python -m suites.benchmarks.operators [--device cuda]``.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from cudamem_testing import OperatorMemory

ROUNDS = 60
LIMIT_US = 20.0
SAME_WITHIN = 1.2
LAYERS = 64


class Bare(TorchDispatchMode):
    """The least that a mode costs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Count(Bare):
    """Counts operator calls."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


class ThreeReads(Bare):
    """Reads statistics three times after each operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        torch.cuda.memory_allocated()
        torch.cuda.memory_reserved()
        torch.cuda.memory_stats().get("active_bytes.all.current", 0)
        return result


class Layers(torch.nn.Module):
    """Many layers inside one module: as many operators as ``Sequential`` of as many modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.rand(8, 8) for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.nn.functional.linear(x, weight)
        return x


def programs(device: str) -> dict[str, Callable[[], tuple[torch.nn.Module, Callable[[], object]]]]:
    """Models of 2 and of 65 modules with the same operators, and what is done with them."""

    def program(model: torch.nn.Module, training: bool) -> tuple[torch.nn.Module, Callable[[], object]]:
        model.to(device)
        x = torch.ones(4, 8, device=device)

        def train() -> None:
            model(x).sum().backward()
            model.zero_grad()

        def infer() -> None:
            with torch.no_grad():
                model(x)

        return model, train if training else infer

    def few(training: bool) -> tuple[torch.nn.Module, Callable[[], object]]:
        return program(torch.nn.Sequential(Layers()), training)

    def many(training: bool) -> tuple[torch.nn.Module, Callable[[], object]]:
        return program(torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(LAYERS))), training)

    return {
        f"{name}, {count} modules": lambda make=make, training=training: make(training)
        for name, training in (("training", True), ("inference", False))
        for count, make in ((2, few), (65, many))
    }


def seconds(work: Callable[[], object], around: Callable[[], AbstractContextManager[object]]) -> float:
    """Processor time of the work inside a context, whose own beginning and end do not count."""
    with around():
        start = time.process_time()
        work()
        return time.process_time() - start


def tracked(model: torch.nn.Module) -> AbstractContextManager[object]:
    """Torch's tracker on a model."""
    tracker = MemTracker()
    tracker.track_external(model)
    return tracker


def measure(device: str) -> dict[str, dict[str, float]]:
    """Microseconds per operator call above plain, by program and by what records."""
    found: dict[str, dict[str, float]] = {}
    for name, make in programs(device).items():
        model, work = make()
        work()
        with Count() as count:
            work()
        around: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "plain": nullcontext,
            "bare mode": Bare,
            "OperatorMemory": lambda model=model: OperatorMemory(model),
            "three reads": ThreeReads,
            "MemTracker": lambda model=model: tracked(model),
        }
        best = dict.fromkeys(around, float("inf"))
        for _ in range(ROUNDS):
            for what, context in around.items():
                best[what] = min(best[what], seconds(work, context))
        calls = count.calls
        found[name] = {what: (best[what] - best["plain"]) / calls * 1e6 for what in best}
        found[name]["plain"] = best["plain"] / calls * 1e6
        print(f"{name}, {count.calls} operators:", ", ".join(f"{what} {us:.1f}" for what, us in found[name].items()))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    arguments = sys.argv[1:] if arguments is None else arguments
    device = arguments[arguments.index("--device") + 1] if "--device" in arguments else "cpu"
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    print(f"microseconds per operator call above plain, on {device}")
    try:
        found = measure(device)
    finally:
        gc.enable()
    ours = {name: costs["OperatorMemory"] for name, costs in found.items()}
    passed = max(ours.values()) <= LIMIT_US
    for kind in ("training", "inference"):
        ratio = ours[f"{kind}, 65 modules"] / ours[f"{kind}, 2 modules"]
        passed = passed and 1 / SAME_WITHIN <= ratio <= SAME_WITHIN
        print(f"{kind}: {ratio:.2f} times as much with 65 modules as with 2 (within {SAME_WITHIN})")
    print(f"at most {max(ours.values()):.1f} (limit {LIMIT_US})")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
