"""What importing the package brings along, and that no layer imports from above."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cudamem_testing

ROOT = Path(cudamem_testing.__file__).parent.parent


def python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("cudamem_testing", {"torch", "pytest", "numpy", "json", "dataclasses"}),
        ("cudamem_testing.plugin", {"torch", "numpy", "pynvml"}),
        ("cudamem_testing.model.limits", {"torch", "pytest", "numpy"}),
        ("cudamem_testing.report.report_files", {"torch", "pytest", "numpy"}),
        ("cudamem_testing.__main__", {"torch", "pytest", "numpy"}),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module: str, unwanted: set[str]) -> None:
    imported = python("-c", f"import sys, {module}; print(*sys.modules)").split()
    assert module in imported
    assert unwanted.intersection(imported) == set()


CLEAN = """
import torch

def test_clean():
    torch.empty(1024)
"""
CYCLIC = """
import functools, gc, sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
        self.hooks = [lambda: self, self.step, functools.partial(self.step)]
        self.steps = self.step()
        next(self.steps)

    def step(self):
        yield self

def test_cyclic():
    gc.disable()
    net = Net()
    net.last = net.linear(torch.ones(8, 256)).relu()
    net.linear(torch.ones(8, 256)).sum().backward()
    del net
    before = {*sys.modules}
    assert gc.collect(0) > 5
    assert {*sys.modules} == before
    gc.enable()
"""
#: All that a run needs which finds nothing: no holders, no cycles, no captures, no baselines, no texts of findings.
NEEDED = {
    "cycles": {"watch"},
    "guards": {"imports"},
    "model": {
        "allocator_settings",
        "counters",
        "devices",
        "errors",
        "findings",
        "nodeids",
        "options",
        "override",
        "records",
        "settings",
        "simulated_cards",
        "sizes",
        "windows",
    },
    "plugin": {
        *(
            "collector",
            "expected",
            "failures",
            "fixtures",
            "items",
            "keys",
            "markers",
        ),
        *("hooks", "reports", "settings", "start", "run_coverage", "higher_scoped_fixtures"),
    },
    "ranks": {"watch"},
    "recorders": {
        *("base", "build", "cache", "capture", "captures", "cards", "choose", "cpu", "early", "identity", "layout"),
        *("native", "native_calls", "native_python", "native_records"),
    },
    "report": {"failures", "header", "terminal"},
    "run": {
        "allocator",
        *(
            "attribution",
            "baselines",
            "by_address",
            "by_owner",
            "calls",
            "checks",
            "cycles",
            "evidence",
            "finished",
            "fixtures",
        ),
        *("failures", "gathered", "leaks"),
        *("ledger", "outcomes", "outside"),
        *("pools", "retained", "running", "session", "process_summary", "without_owners"),
    },
    "show": {"places", "printable", "tables", "usage"},
    "snapshots": {"evidence"},
    "torch_api": {
        "accelerator",
        "cuda",
        "headers",
        "history",
        "lacking",
        "operators",
        "process",
        "profiler",
        "tensors",
    },
    "verdicts": {"policy"},
    "windows": {"defaults", "owners", "phases", "spans", "tracker"},
}
#: What reads garbage: loaded when the watch over the collector begins, because nothing is imported inside a collection.
READING = {
    "cycles": {"allocations", "draft", "explain", "memory", "native", "origins", "results", "words"},
    "model": {"edges", "remarks", "source", "stacks"},
    "objects": {"arrays", "frames", "names", "references", "tensors", "torch_references"},
    "recorders": {"history"},
    "show": {"notebook"},
    "torch_api": {"nodes"},
}


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_clean_run_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    """And the first garbage that is read imports nothing."""
    (tmp_path / "test_it.py").write_text(CLEAN)
    (tmp_path / "test_cyclic.py").write_text(CYCLIC)
    arguments = ["-p", "no:cacheprovider", "-p", "no:benchmark", "--cudamem", "--cudamem-device=cpu"]
    clean, cyclic = ([*arguments, str(tmp_path / name)] for name in ("test_it.py", "test_cyclic.py"))
    code = f"import sys, pytest; assert not pytest.main({clean}); print('IMPORTED', *sys.modules)"
    told = python("-c", f"{code}; assert not pytest.main({cyclic})").partition("IMPORTED ")[2].partition("\n")
    imported = told[0].split()
    assert "cycle: 1 finding" in told[2]
    names = [name.split(".")[1:] for name in imported if name.startswith("cudamem_testing.")]
    found: dict[str, set[str]] = {}
    for package, module in (name for name in names if len(name) == 2):
        found.setdefault(package, set()).add(module)
    both = {*NEEDED, *READING}
    assert found == {package: NEEDED.get(package, set()) | READING.get(package, set()) for package in both}


@pytest.mark.subprocess
def test_layers_are_kept() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed beside this Python")
    done = subprocess.run(
        [str(lint), "--no-cache"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken." in done.stdout


def test_every_public_name_is_there_and_documented() -> None:
    for name in cudamem_testing.__all__:
        value = getattr(cudamem_testing, name)
        assert value.__doc__, name
        assert value.__module__.startswith("cudamem_testing.")
    assert {*cudamem_testing.__all__} <= {*dir(cudamem_testing)}
    assert sorted(cudamem_testing.__all__) == cudamem_testing.__all__


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"^module 'cudamem_testing' has no attribute 'Memroy'$"):
        _ = cudamem_testing.Memroy
