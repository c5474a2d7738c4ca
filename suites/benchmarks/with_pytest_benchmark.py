"""``python -m suites.benchmarks.with_pytest_benchmark``: whether pytest-benchmark times the same under `--cudamem`.

Three runs of the same benchmarks go on at once: plain, with the flag, and plain again. They take turns after every
round of about a millisecond, on one core, so that a machine that becomes slower slows all three. Each round with the
flag is compared with the plain rounds before and after it. A pair of runs gives the median of its rounds. Printed are
the median of the pairs and its 95 % interval, beside those of plain again to plain, which show the noise.

The runs are forked from one process, so they have the same imports, hash seed and addresses. Processor time is timed.
Exit status 1 if an end of an interval is more than 2 % from 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch._dynamo  # optimizers import it

import cudamem_testing

LIMIT = 0.02
PAIRS = 10
FILE = """
import pytest, torch

# each time the tensors are elsewhere in memory, which changes times as well
pytestmark = pytest.mark.parametrize("time", range(6))

def test_layers(benchmark, time):
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 128))
    x = torch.ones(64, 128)
    with torch.no_grad():
        benchmark.pedantic(model, (x,), rounds=30, warmup_rounds=5, iterations=10)

def test_training_step(benchmark, time):
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(64, 128)

    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    benchmark.pedantic(step, rounds=30, warmup_rounds=5, iterations=3)

def test_attention(benchmark, time):
    x = torch.ones(2, 4, 64, 32)
    attend = torch.nn.functional.scaled_dot_product_attention
    benchmark.pedantic(attend, (x, x, x), rounds=30, warmup_rounds=5, iterations=10)

def test_allocations_alone(benchmark, time):
    benchmark.pedantic(lambda: [torch.empty(64) for _ in range(100)], rounds=30, warmup_rounds=5, iterations=10)
"""
#: A hundred allocations without any work, where counting them can be seen: shown, and not held to the limit.
SHOWN = "test_allocations_alone"
#: A timer for rounds that begin when a byte can be read, and end by writing one.
TIMER = """
import itertools, os, time

before, after = map(int, os.environ["TURNS"].split())
calls = itertools.count()

def timer():
    if next(calls) % 2 == 0:
        os.read(before, 1)
        return time.process_time()
    ended = time.process_time()
    os.write(after, b"x")
    return ended
"""
#: What pytest-benchmark writes about the machine takes it a second.
CONFTEST = """
def pytest_benchmark_generate_machine_info(): return {"node": "", "machine": ""}
def pytest_benchmark_generate_commit_info(): return {"id": ""}
"""
PLUGINS = ("-p", "pytest_benchmark.plugin", "-p", "cudamem", "-p", "no:cacheprovider", "-p", "no:terminal")
VARIANTS = ((), ("--cudamem",), ())


def run_together(folder: Path, chosen: Sequence[str]) -> list[dict[str, list[float]]]:
    """Seconds of each round of each benchmark: plain, with the flag, plain again."""
    ring = [os.pipe() for _ in VARIANTS]
    children = []
    for place, flags in enumerate(VARIANTS):
        child = os.fork()
        if child == 0:
            state = 70
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.environ["TURNS"] = f"{ring[place][0]} {ring[(place + 1) % len(ring)][1]}"
                sys.path.insert(0, str(folder))
                arguments = str(folder / "test_it.py"), f"--benchmark-json={folder / str(place)}"
                state = pytest.main([*PLUGINS, *arguments, "--benchmark-timer=turns.timer", *flags, *chosen])
            finally:
                os._exit(state)
        children.append(child)
    os.write(ring[0][1], b"x")
    states = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for pipe in ring:
        os.close(pipe[0])
        os.close(pipe[1])
    if any(states):
        raise RuntimeError(f"runs of the benchmarks ended with {states}")
    read = [json.loads((folder / str(place)).read_text(encoding="utf-8")) for place in range(len(VARIANTS))]
    found: list[dict[str, list[float]]] = []
    for data in read:
        found.append({})
        for one in data["benchmarks"]:
            found[-1].setdefault(one["name"].partition("[")[0], []).extend(one["stats"]["data"])
    return found


def of_rounds(some: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of rounds that ran one after the other."""
    return statistics.median(one / other for one, other in zip(some, others, strict=True))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics: for ten values the second and the ninth."""
    ordered = sorted(values)
    outer = max(0, round((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2) - 1)
    outer = max(outer, 1 if len(ordered) >= 9 else 0)
    return ordered[outer], ordered[-1 - outer]


def told(values: Sequence[float]) -> str:
    """The median with its interval."""
    low, high = interval(values)
    return f"{statistics.median(values):.3f}x (95 %: {low:.3f} to {high:.3f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.with_pytest_benchmark", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("-k", dest="only", help="a part of the name of the benchmarks to run")
    options = parser.parse_args(arguments)
    chosen = ("-k", options.only) if options.only else ()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for module in pkgutil.walk_packages(cudamem_testing.__path__, "cudamem_testing."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    ratios: dict[str, list[float]] = {}
    noise: dict[str, list[float]] = {}
    fastest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "test_it.py").write_text(FILE, encoding="utf-8")
        (folder / "turns.py").write_text(TIMER, encoding="utf-8")
        (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        for _ in range(options.pairs):
            plain, measured, again = run_together(folder, chosen)
            for name, rounds in plain.items():
                around = [(one + other) / 2 for one, other in zip(rounds, again[name], strict=True)]
                ratios.setdefault(name, []).append(of_rounds(measured[name], around))
                noise.setdefault(name, []).append(of_rounds(again[name], rounds))
                fastest[name] = min(*rounds, fastest.get(name, rounds[0]))
    passed = True
    for name, values in ratios.items():
        passed &= name == SHOWN or all(abs(value - 1) <= LIMIT for value in interval(values))
        print(f"{name}, {fastest[name] * 1e6:.0f} us: with --cudamem {told(values)}, plain again {told(noise[name])}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
