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
        *("native", "native_boundaries", "native_calls", "native_python", "native_records"),
    },
    "run": {
        "allocator",
        *(
            "attribution",
            "baselines",
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
        *("pools", "retained", "running", "session", "process_summary"),
    },
    "show": {"places", "printable", "usage"},
    "torch_api": {
        "accelerator",
        "cuda",
        "headers",
        "history",
        "lacking",
        "process",
        "tensors",
    },
    "verdicts": {"policy"},
    "windows": {"defaults", "owners", "phases", "spans", "tracker"},
}
#: What the header and the summary are made with, which -q leaves out.
SUMMARY = {"report": {"failures", "header", "terminal"}, "show": {"tables"}}
#: What reads garbage: loaded when the watch over the collector begins, because nothing is imported inside a collection.
READING = {
    "cycles": {"allocations", "draft", "explain", "memory", "native", "origins", "results", "words"},
    "model": {"edges", "remarks", "source", "stacks"},
    "objects": {"arrays", "frames", "names", "references", "tensors", "torch_references"},
    "show": {"notebook"},
    "torch_api": {"nodes"},
}
#: What a run on cards needs more, and what it does not need.
ON_CARDS = {
    "model": {"allocator_settings"},
    "plugin": {"requirements"},
    "recorders": {
        *("card_recorder", "cuda", "cuda_devices", "history", "host", "native_device", "peaks", "stats_patches"),
    },
    "run": {"by_address", "without_owners"},
    "snapshots": {"evidence"},
}
ONLY_CPU = {"cpu", "early"}
#: A simulated card also needs what simulates it, and a real one what reads and words memory outside of torch.
SIMULATED = {
    "model": {"failing"},
    "plugin": {"simulation"},
    "recorders": {"lines", "native_trap"},
    "simulated": {"bindings", "kernels", "native", "snapshot", "unsupported"},
    "torch_api": {"backward", "cuda_build", "operators"},
}
REAL = {"model": {"outside"}, "recorders": {"outside"}, "wording": {"outside"}}


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_clean_run_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    """And the first garbage that is read imports nothing."""
    (tmp_path / "test_it.py").write_text(CLEAN)
    (tmp_path / "test_cyclic.py").write_text(CYCLIC)
    arguments = ["-p", "no:cacheprovider", "-p", "no:benchmark", "--cudamem", "--cudamem-device=cpu"]
    clean, cyclic = ([*arguments, str(tmp_path / name)] for name in ("test_it.py", "test_cyclic.py"))
    code = "import sys, pytest; assert not pytest.main({}); print('IMPORTED', *sys.modules)"
    quiet = python("-c", code.format([*clean, "-q"]))
    plain = python("-c", f"{code.format(clean)}; assert not pytest.main({cyclic})")
    assert "cycle: 1 finding" in plain.partition("IMPORTED ")[2]
    assert imported_in(quiet) == together(NEEDED, READING)
    assert imported_in(plain) == together(NEEDED, READING, SUMMARY)


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    "device", [pytest.param("simulated", marks=pytest.mark.simulated_card), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_clean_run_on_a_card_imports_little_more(tmp_path: Path, device: str) -> None:
    (tmp_path / "test_it.py").write_text(CLEAN.replace("1024", "1024, device='cuda'"))
    arguments = ["-p", "no:cacheprovider", "-p", "no:benchmark", "--cudamem", f"--cudamem-device={device}", "-q"]
    code = f"import sys, pytest; assert not pytest.main({[*arguments, str(tmp_path)]}); print('IMPORTED', *sys.modules)"
    expected = together(NEEDED, READING, ON_CARDS, REAL if device == "cuda" else SIMULATED)
    expected["recorders"] -= ONLY_CPU
    assert imported_in(python("-c", code)) == expected


def imported_in(told: str) -> dict[str, set[str]]:
    """The modules of each package of ours that a run says it has."""
    found: dict[str, set[str]] = {}
    for name in told.partition("IMPORTED ")[2].partition("\n")[0].split():
        if name.startswith("cudamem_testing.") and name.count(".") == 2:
            found.setdefault(name.split(".")[1], set()).add(name.split(".")[2])
    return found


def together(*parts: dict[str, set[str]]) -> dict[str, set[str]]:
    """Several such lists as one."""
    return {package: {*()}.union(*(part.get(package, ()) for part in parts)) for package in {*()}.union(*parts)}


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
