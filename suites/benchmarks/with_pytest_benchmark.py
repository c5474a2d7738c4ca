"""``python -m suites.benchmarks.with_pytest_benchmark``: whether pytest-benchmark times the same under `--cudamem`.

Runs the same benchmarks with and without the flag, in turn, in fresh processes, and prints for each the median of the
ratios of pairs with its 95 % interval. Processor time is timed, and of each benchmark the fastest round is compared:
other processes only add to it. Exit status 1 if a median is more than 2 % from 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIMIT = 0.02
PAIRS = 10
FILE = """
import torch

def test_layers(benchmark):
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 128))
    x = torch.ones(64, 128)
    with torch.no_grad():
        benchmark(model, x)

def test_training_step(benchmark):
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(64, 128)

    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    benchmark(step)
"""
FLAGS = ("--benchmark-timer=time.process_time", "--benchmark-max-time=0.2", "--benchmark-min-time=0.005", "-q")


def timed(folder: Path, *flags: str) -> dict[str, float]:
    """Seconds of the fastest round of each benchmark, in one run."""
    out = folder / "out.json"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py", f"--benchmark-json={out}"]
    subprocess.run([*command, *FLAGS, *flags], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    data = json.loads(out.read_text(encoding="utf-8"))
    return {one["name"]: one["stats"]["min"] for one in data["benchmarks"]}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics: for ten values the second and the ninth."""
    ordered = sorted(values)
    outer = max(0, round((len(ordered) - 1.96 * len(ordered) ** 0.5) / 2) - 1)
    outer = max(outer, 1 if len(ordered) >= 9 else 0)
    return ordered[outer], ordered[-1 - outer]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.with_pytest_benchmark", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("-k", dest="only", help="a part of the name of the benchmarks to run")
    options = parser.parse_args(arguments)
    pairs, chosen = options.pairs, ("-k", options.only) if options.only else ()
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "test_it.py").write_text(FILE, encoding="utf-8")
        for number in range(pairs):
            order = ((), ("--cudamem",)) if number % 2 else (("--cudamem",), ())
            found = {bool(flags): timed(folder, *flags, *chosen) for flags in order}
            for name, plain in found[False].items():
                ratios.setdefault(name, []).append(found[True][name] / plain)
    passed = True
    for name, values in ratios.items():
        median, (low, high) = statistics.median(values), interval(values)
        passed &= abs(median - 1) <= LIMIT
        print(f"{name}: {median:.3f}x with --cudamem (95 %: {low:.3f} to {high:.3f}, {len(values)} pairs)", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
