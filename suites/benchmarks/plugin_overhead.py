"""What `--cudamem` costs: the same tests with and without it, in turn, in fresh processes.

Wall times hold the start of Python, torch and pytest, so a column of their own gives the tests' share, measured inside
the run. CPU times are what the processes used: they tell more than wall times on a machine that others use as well.
A ratio is the median of those of runs side by side, with its quartiles behind it.

On a card layers of width 256 take less time than their launch, so that all that is done for an allocation shows. What
names the line of every allocation cannot cost nothing there: the limit is what torch's own memory history costs alone,
with Python stacks, in runs side by side. These are sessions of one process, which starts the card once: 40 s in all.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cudamem_testing.show.tables import Column, Table

OUT = "out.json"
ARGUMENTS = ("-q", "-p", "no:cacheprovider", "-p", "cudamem_testing.plugin")
#: Width and batch of layers: on a card those of width 256 are done before the next one is launched, others are not.
NARROW, WIDE = (256, 64), (1024, 2048)
#: Ratios, and for loading milliseconds.
LIMITS = {"clean": 1.08, "million": 1.3, "loading": 3.0}
LAYERS_LIMITS = {"cpu": 1.10, "cuda": 1.05}
TRAINING_LIMITS = {"cpu": 1.10, "cuda": 1.25}  # on a card kernels are as short as their launch
RING_MIB = 12  # the events that the CPU recorder keeps, which may not all have come by a tenth of the run
CONFTEST = """
import json, os, time
finished = []

def pytest_collection_finish():
    if "BENCH_HISTORY" in os.environ:
        import torch
        history = torch.cuda.memory._record_memory_history
        history("all", context="alloc", stacks="python", max_entries=100_000)

def pytest_runtest_logfinish():
    finished.append((time.perf_counter(), time.process_time()))

def pytest_sessionfinish():
    if "BENCH_HISTORY" in os.environ:
        import torch
        torch.cuda.memory._record_memory_history(None)
    if len(finished) > 1:  # the first test also starts the device
        with open(os.environ["BENCH_OUT"], "w") as out:
            tests, tests_cpu = (last - first for first, last in zip(finished[0], finished[-1]))
            json.dump({"tests": tests, "tests_cpu": tests_cpu, "count": len(finished) - 1}, out)
"""

CLEAN = """
import pytest, torch
DEVICE = {device!r}

@pytest.mark.parametrize("number", range({tests}))
def test_clean(number):
    torch.ones(8, device=DEVICE).add_(1)
"""

LAYERS = """
import pytest, torch
DEVICE = {device!r}

@torch.no_grad()
@pytest.mark.parametrize("number", range({tests}))
def test_layers(number):
    layer = torch.nn.Linear({width}, {width}, device=DEVICE)
    x = torch.ones({batch}, {width}, device=DEVICE)
    for _ in range({work}):
        x = torch.relu(layer(x))
    if DEVICE == "cuda":
        torch.cuda.synchronize()
"""

TRAINING = """
import pytest, torch
DEVICE = {device!r}

@pytest.mark.parametrize("number", range({tests}))
def test_training(number):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(64, 256, device=DEVICE)).square().mean().backward()
        optimizer.step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
"""

MILLION = """
import json, os, resource, time, torch
DEVICE = {device!r}

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def test_million():
    a, b = torch.ones(16, device=DEVICE), torch.ones(16, device=DEVICE)
    start, start_cpu = time.perf_counter(), time.process_time()
    sizes = []
    for operators in {parts}:
        for _ in range(operators):
            a.add(b)
        sizes.append(resident())
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    tests, tests_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    growth = [sizes[1] - sizes[0], sizes[2] - sizes[1]]
    with open(os.environ["BENCH_OUT"], "w") as out:
        json.dump({{"tests": tests, "tests_cpu": tests_cpu, "count": 1, "growth": growth}}, out)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One process: its wall and CPU time, those of its tests alone, their number, and how memory grew in parts."""

    wall: float
    cpu: float
    tests: float
    tests_cpu: float
    count: int
    growth: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the table."""

    name: str
    off: str
    on: str
    ratio: str
    limit: str
    passed: bool | None

    def row(self) -> tuple[str, ...]:
        """Texts for the table."""
        verdict = "" if self.passed is None else ("PASS" if self.passed else "FAIL")
        return self.name, self.off, self.on, self.ratio, self.limit, verdict


LABELS = {"wall": "whole run", "cpu": "whole run, CPU", "tests": "tests alone", "tests_cpu": "tests alone, CPU"}
COLUMNS = (
    Column("what"),
    Column("off", "right"),
    Column("on", "right"),
    Column("ratio, quartiles", "right"),
    Column("limit", "right"),
    Column("verdict"),
)


OFF, ON, HISTORY = "off", "on", "history"
"""Kinds of runs: without the plugin, with it, and with torch's own record of Python stacks in its place."""


def process(folder: Path, *flags: str, history: bool = False) -> Run:
    """Run the tests in a process of their own."""
    command = [sys.executable, "-m", "pytest", *ARGUMENTS, *flags]
    start = time.perf_counter()
    started = subprocess.Popen(command, cwd=folder, env=environment(folder, history), stdout=subprocess.PIPE, text=True)
    output = started.stdout.read() if started.stdout else ""
    _, status, usage = os.wait4(started.pid, 0)
    wall = time.perf_counter() - start
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise RuntimeError(f"the measured run failed: {' '.join(command)}\n{output}")
    return Run(wall, usage.ru_utime + usage.ru_stime, **json.loads((folder / OUT).read_text()))


def session(folder: Path, *flags: str, history: bool = False) -> Run:
    """Run the tests in a session of this process."""
    for name in ("conftest", "test_bench"):
        sys.modules.pop(name, None)
    gc.collect()
    said, before = io.StringIO(), {**os.environ}
    start, start_cpu = time.perf_counter(), time.process_time()
    os.environ.update(environment(folder, history))
    try:
        with contextlib.redirect_stdout(said):
            status = pytest.main([*ARGUMENTS, *flags, f"--rootdir={folder}", str(folder)])
    finally:
        os.environ.clear()
        os.environ.update(before)
    if status:
        raise RuntimeError(f"the measured session failed:\n{said.getvalue()}")
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return Run(wall, cpu, **json.loads((folder / OUT).read_text()))


def side_by_side(
    source: str, rounds: int, device: str, kinds: Sequence[str] = (OFF, ON), run: Callable[..., Run] = process
) -> dict[str, list[Run]]:
    """Runs of each kind in turn; each round begins with the next one."""
    flags = ("--cudamem", f"--cudamem-device={device}")
    found: dict[str, list[Run]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_bench.py").write_text(source)
        run(folder, *flags)  # fills every cache
        for number in range(rounds):
            first = number % len(kinds)
            for kind in (*kinds[first:], *kinds[:first]):
                found[kind].append(run(folder, *(flags if kind == ON else ()), history=kind == HISTORY))
    return found


def clean(rounds: int, device: str, tests: int = 1000) -> list[Outcome]:
    """Tests that do next to nothing: what a test costs at least."""
    runs = side_by_side(CLEAN.format(device=device, tests=tests), rounds, device)
    off, on = runs[OFF], runs[ON]
    return [*_outcomes(f"{tests:,} clean tests", off, on, "wall", LIMITS["clean"]), *_shares(off, on)]


def layers(rounds: int, device: str, tests: int = 200) -> list[Outcome]:
    """Tests of about 10 ms of operators, on a card of those that take longer than their launch."""
    name, source = _of_layers(device, *(NARROW if device == "cpu" else WIDE), tests)
    runs = side_by_side(source, rounds, device, (OFF, ON) if device == "cpu" else (OFF, ON, HISTORY))
    return _beside_history(name, runs, LAYERS_LIMITS[device])


def narrow(rounds: int, device: str, tests: int = 80) -> list[Outcome]:
    """Tests of about 10 ms of operators that take less than their launch, each kind in turn in this process."""
    name, source = _of_layers(device, *NARROW, tests)
    kinds = (OFF, ON, HISTORY) if device == "cuda" else (OFF, ON)
    runs = side_by_side(source, rounds, device, kinds, session)
    return _beside_history(name, runs, None, least=1.0)


def _of_layers(device: str, width: int, batch: int, tests: int) -> tuple[str, str]:
    """A name, and the source of the tests."""
    work = _calibrate(device, width, batch)
    source = LAYERS.format(device=device, tests=tests, work=work, width=width, batch=batch)
    return f"{tests} tests of {work} layers, width {width}", source


def _beside_history(
    name: str, runs: Mapping[str, Sequence[Run]], limit: float | None, least: float | None = None
) -> list[Outcome]:
    """What the plugin costs, and, where it was run, what torch's memory history costs and how they compare."""
    off, on = runs[OFF], runs[ON]
    outcomes = [*_outcomes(name, off, on, "tests", limit), *_shares(off, on)]
    if HISTORY in runs:
        history = runs[HISTORY]
        outcomes += [
            _outcome("  off, and torch's memory history alone: tests alone", off, history, "tests"),
            *_shares(off, history),
            _outcome("  torch's memory history alone, and on: tests alone", history, on, "tests", least),
        ]
    return outcomes


def training(rounds: int, device: str, tests: int = 200) -> list[Outcome]:
    """Tests that train: backward passes run in a thread of autograd's, which has workspaces of its own."""
    runs = side_by_side(TRAINING.format(device=device, tests=tests), rounds, device)
    off, on = runs[OFF], runs[ON]
    return [*_outcomes(f"{tests} tests that train", off, on, "tests", TRAINING_LIMITS[device]), *_shares(off, on)]


def million(rounds: int, device: str, operators: int = 1_000_000) -> list[Outcome]:
    """One long test of small operators, and whether recording it takes more and more memory."""
    parts = (operators // 10, operators * 6 // 10, operators * 3 // 10)
    runs = side_by_side(MILLION.format(device=device, parts=parts), rounds, device)
    off, on = runs[OFF], runs[ON]
    return [
        *_outcomes(f"{operators:,} operators", off, on, "tests", LIMITS["million"]),
        _growth("  memory, 10% to 70%", off, on, 0, RING_MIB + 1),
        _growth("  memory, 70% to the end", off, on, 1, 1),
    ]


def loading(rounds: int) -> list[Outcome]:
    """Processor time that the plugin adds to the start of a run that does not use it: its import and its options."""
    with tempfile.TemporaryDirectory() as folder:
        best = min([_loading_ms(Path(folder)) for _ in range(rounds + 1)][1:])
    limit = LIMITS["loading"]
    return [Outcome("loading the plugin (best), CPU", "", f"{best:.1f} ms", "", f"{limit:.0f} ms", best <= limit)]


PARTS = ("clean", "layers", "narrow", "training", "million", "loading")


def measure(device: str, rounds: int, scale: int, chosen: Sequence[str] = PARTS) -> bool:
    """Run the chosen parts and print the table; whether every limit holds. ``scale`` divides the sizes."""
    import torch

    print(f"torch {torch.__version__}, {device}, {rounds} rounds, medians; ratios are of runs side by side", flush=True)
    parts: Mapping[str, Callable[[], list[Outcome]]] = {
        "clean": lambda: clean(rounds, device, 1000 // scale),
        "layers": lambda: layers(rounds, device, 200 // scale),
        "narrow": lambda: narrow(rounds + 1, device, 80 // scale) if device == "cuda" else [],  # else that is layers
        "training": lambda: training(rounds, device, 200 // scale),
        "million": lambda: million(rounds, device, 1_000_000 // scale),
        "loading": lambda: loading(8 * rounds),
    }
    outcomes: list[Outcome] = []
    for name in chosen:
        print(f"  measuring: {name}", flush=True)
        outcomes += parts[name]()
    print("\n".join(Table(COLUMNS, tuple(outcome.row() for outcome in outcomes)).lines(120)))
    return all(outcome.passed is not False for outcome in outcomes)


def environment(folder: Path, history: bool = False) -> Mapping[str, str]:
    """One thread, no other plugin, and Python files compiled once, as everywhere."""
    asked = {"BENCH_HISTORY": "1"} if history else {}
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return os.environ | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "OMP_NUM_THREADS": "1",
        "BENCH_OUT": str(folder / OUT),
        **asked,
    }


def _outcomes(name: str, off: Sequence[Run], on: Sequence[Run], judged: str, limit: float | None) -> list[Outcome]:
    return [
        _outcome(f"{name}: {label}", off, on, key, limit) if key == judged else _outcome(f"  {label}", off, on, key)
        for key, label in sorted(LABELS.items(), key=lambda pair: pair[0] != judged)
    ]


def _outcome(name: str, off: Sequence[Run], on: Sequence[Run], key: str, limit: float | None = None) -> Outcome:
    ratios = [getattr(b, key) / getattr(a, key) for a, b in zip(off, on, strict=True)]
    ratio = statistics.median(ratios)
    before, after = (statistics.median(getattr(run, key) for run in runs) for runs in (off, on))
    allowed, passed = ("", None) if limit is None else (f"{limit:.2f}", ratio <= limit)
    return Outcome(name, f"{before:.2f} s", f"{after:.2f} s", f"{ratio:.3f}{_quartiles(ratios)}", allowed, passed)


def _quartiles(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return ""
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f", {low:.3f} to {high:.3f}"


def _shares(off: Sequence[Run], on: Sequence[Run]) -> list[Outcome]:
    before, after = (statistics.median(run.tests_cpu / run.count for run in runs) * 1e6 for runs in (off, on))
    return [
        Outcome("  each test, CPU", f"{before:,.0f} us", f"{after:,.0f} us", f"{after - before:+,.0f} us", "", None)
    ]


def _growth(name: str, off: Sequence[Run], on: Sequence[Run], part: int, limit: int) -> Outcome:
    before, after = (statistics.median(run.growth[part] for run in runs) / 2**20 for runs in (off, on))
    texts = f"{before:.1f} MiB", f"{after:.1f} MiB", f"+{after - before:.1f} MiB", f"{limit} MiB"
    return Outcome(name, *texts, after - before <= limit)


def _calibrate(device: str, width: int, batch: int, seconds: float = 0.010) -> int:
    """How many layers take about that long."""
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.Linear(width, width, device=device)
    x = torch.ones(batch, width, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(20):
                x = torch.relu(layer(x))
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - start) / 20)
    return max(1, round(seconds / best))


LOADING = """
import time
import pytest
from _pytest.config import get_config
parser = get_config()._parser
start = time.process_time()
import cudamem_testing.plugin
cudamem_testing.plugin.pytest_addoption(parser)
print((time.process_time() - start) * 1000)
"""


def _loading_ms(folder: Path) -> float:
    """What the plugin takes when pytest is there already, in milliseconds."""
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the plugin was not loaded: {done.stderr[-2000:]}")
    return float(done.stdout)
