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
        ("cudamem_testing.report.files", {"torch", "pytest", "numpy"}),
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
            "marks",
        ),
        *("hooks", "reports", "settings", "run_coverage", "higher_scoped_fixtures"),
    },
    "ranks": {"watch"},
    "recorders": {
        *("base", "build", "cache", "captures", "cards", "choose", "cpu", "early", "identity", "layout"),
        *("native", "native_calls", "native_python", "native_records"),
    },
    "report": {"header", "terminal"},
    "run": {
        "allocator",
        *("attribution", "baselines", "by_address", "by_owner", "calls", "cycles", "evidence", "finished", "fixtures"),
        *("failures", "gathered", "leaks"),
        *("ledger", "outcomes", "outside"),
        *("pools", "retained", "running", "session", "process_summary"),
    },
    "show": {"places", "printable", "tables", "usage"},
    "snapshots": {"evidence"},
    "torch_api": {"accelerator", "cuda", "headers", "history", "operators", "process", "profiler", "tensors"},
    "verdicts": {"policy"},
    "windows": {"judge", "owners", "tracker"},
}


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_clean_run_imports_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CLEAN)
    arguments = ["-p", "no:cacheprovider", "--cudamem", "--cudamem-device=cpu", str(tmp_path)]
    code = f"import sys, pytest; assert not pytest.main({arguments}); print('IMPORTED', *sys.modules)"
    imported = python("-c", code).partition("IMPORTED ")[2].split()
    names = [name.split(".")[1:] for name in imported if name.startswith("cudamem_testing.")]
    found: dict[str, set[str]] = {}
    for package, module in (name for name in names if len(name) == 2):
        found.setdefault(package, set()).add(module)
    assert found == NEEDED


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
