"""pytest-xdist: workers record and compare together, the controller alone writes: known findings and baselines."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest

from cudamem_testing.model.findings import Kind, Standing
from suites.plugin.inner import Inner
from suites.plugin.inner import run_outer as run_in_a_process
from suites.plugin.recorded import SMALL
from suites.plugin.test_known import BRIEF, FULL, SAME, line

pytestmark = pytest.mark.subprocess

FLAGS = ("--cudamem", "--cudamem-device=cpu", "-n2")
UPDATE = ("--cudamem-update=known,baselines", "--cudamem-repeat=2")
BIGGER = SMALL.replace("def test_a(): torch.empty(256 * 1024)", "def test_a(): torch.empty(2 ** 19)")
GONE = line("leak | z", tests=("test_it.py::test_gone",))
LEFT_OUT = """
    def pytest_collection_modifyitems(config, items):
        if hasattr(config, "workerinput"):
            left = next(item for item in items if item.name == "test_leaks[0]")
            items.remove(left)
            config.hook.pytest_deselected(items=[left])
"""


class Ran(NamedTuple):
    """A run, and the files beside the tests after it by their names."""

    inner: Inner
    files: dict[str, str]


def run(place: pytest.Pytester, files: dict[str, str], *flags: str) -> Ran:
    inner = run_in_a_process(place, files, *FLAGS, *flags, plugins=["xdist.plugin"])
    kept = (place.path / "__cudamem__").iterdir()
    return Ran(inner, {path.name: path.read_text(encoding="utf-8") for path in kept})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = cast("pytest.Pytester", SimpleNamespace(path=tmp_path_factory.mktemp("workers")))
    files = {f"test_{name}.py": SMALL for name in "abc"} | {"test_it.py": SAME}
    return run(place, files, *UPDATE)


@pytest.mark.slow
def test_workers_record_known_findings_together(recorded: Ran) -> None:
    assert (recorded.inner.status, recorded.inner.last) == (0, "10 passed")
    assert recorded.files["known.jsonl"] == line()
    assert [one for one in recorded.inner.lines if "known findings" in one] == [
        "note: known findings: 1 new (__cudamem__/known.jsonl was written)"
    ]


@pytest.mark.slow
def test_workers_record_baselines_together(recorded: Ran) -> None:
    assert "note: 10 baselines: 10 new" in recorded.inner.summary
    assert [recorded.files[f"test_{name}.json"].count('"requested": 1048576') for name in "abc"] == [2, 2, 2]


@pytest.fixture(scope="module")
def compared(recorded: Ran) -> Ran:
    """After the limits have changed: more leaks than are known, a larger test, and tests that are gone."""
    files = {
        "conftest.py": LEFT_OUT,
        "test_it.py": SAME.replace("range(4)", "range(5)"),
        "test_a.py": BIGGER,
        "test_b.py": SMALL.replace("test_b", "test_d"),
        "test_c.py": "class TestOfNothing: pass",
        "__cudamem__/known.jsonl": line(size=1) + GONE,
    }
    return run(cast("pytest.Pytester", SimpleNamespace(path=recorded.inner.folder)), files, "--cudamem-prune")


@pytest.mark.slow
def test_failures_of_all_workers_are_shortened_together(compared: Ran) -> None:
    assert (compared.inner.status, compared.inner.last) == (1, "1 failed, 7 passed, 4 errors")
    leaks = [one for test in compared.inner.run.tests for one in test.findings if one.kind is Kind.LEAK]
    assert [one.standing for one in leaks] == [Standing.LARGER] * 4
    assert compared.inner.lines.count(FULL) == 3
    assert sum(one.startswith(BRIEF[:-4]) for one in compared.inner.lines) == 1
    assert compared.files["known.jsonl"] == line(size=1) + GONE  # a test was left out


@pytest.mark.slow
def test_baselines_of_all_workers_are_compared_and_pruned(recorded: Ran, compared: Ran) -> None:
    outcomes = {test.nodeid: test.outcome for test in compared.inner.run.tests if "test_it" not in test.nodeid}
    assert outcomes == {
        "test_a.py::test_a": "failed",
        "test_a.py::test_b": "passed",
        "test_b.py::test_a": "passed",
        "test_b.py::test_d": "passed",
    }
    assert "grew: +1.0 MiB by test_a.py:4 in test_a, 1.0 MiB -> 2.0 MiB" in compared.inner.lines
    assert "note: 3 baselines of tests that are no longer there dropped" in compared.inner.summary
    assert compared.files["test_a.json"] == recorded.files["test_a.json"]
    assert '"test": "test_b"' not in compared.files["test_b.json"]
    assert sorted(os.listdir(compared.inner.folder / "__cudamem__")) == [
        "known.jsonl",
        "test_a.json",
        "test_b.json",
        "test_it.json",
    ]
