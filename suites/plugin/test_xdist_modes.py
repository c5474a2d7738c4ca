"""pytest-xdist: every way of distributing tests gives the verdicts, the ledger and the counts of a run without it.

Those that differ in what they hand to the plugin run in ``make test-all``: an id with its group, and each test in each
worker; the others, whose workers only get other tests, in ``make test-full``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cudamem_testing.recorders.cards import portion, share
from suites.plugin.inner import Inner
from suites.plugin.inner import run_outer as run_in_a_process

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
MODES = ("load", "loadscope", "loadfile", "loadgroup", "worksteal") if FULL else ("loadgroup",)
FILE = """
    import pytest, torch
    KEPT = []

    @pytest.fixture(scope="module")
    def wide():
        return torch.empty(512)

    @pytest.mark.xdist_group("group")
    @pytest.mark.memory_budget(peak="1KiB")
    def test_over(wide): torch.empty(512)

    @pytest.mark.xdist_group("group")
    def test_leaks(): KEPT.append(torch.empty(2**16))

    class TestIt:
        def test_fine(self): torch.empty(512)

        @pytest.mark.xfail
        def test_expected(self): assert 0

    @pytest.mark.memory_budget(peak="1KiB", device="cuda")
    def test_absent(): torch.empty(5)
"""
FILES = {"test_a.py": FILE, "test_b.py": FILE.replace("KEPT", "LEFT")}


def run(folder: Any, *flags: str) -> Inner:
    place = cast("pytest.Pytester", SimpleNamespace(path=folder))
    return run_in_a_process(place, FILES, "--cudamem", "--cudamem-device=cpu", *flags, plugins=["xdist.plugin"])


def facts(inner: Inner) -> dict[str, list[object]]:
    """What must be the same."""
    run = inner.run
    return {
        "tests": sorted((one.nodeid, one.outcome, tuple(map(str, one.findings))) for one in run.tests),
        "ledger": sorted(run.ledger),
        "fixtures": sorted((one.name, one.windows[0].name) for one in run.fixtures),
        "counts": [*run.unenforced.items(), *run.unchecked.items(), *run.failures, run.extent],
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    return run(tmp_path_factory.mktemp("alone"))


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_changes_no_verdict(tmp_path: Any, alone: Inner, mode: str) -> None:
    distributed = run(tmp_path, "-n2", f"--dist={mode}")
    assert facts(distributed) == facts(alone)
    assert distributed.last == alone.last


@pytest.mark.slow
@pytest.mark.subprocess
def test_each_worker_may_run_every_test(tmp_path: Any, alone: Inner) -> None:
    """Each test is reported once for each worker, with its own outcome and the worker's name."""
    each = facts(run(tmp_path, "--dist=each", "--tx=2*popen"))
    for name in ("tests", "ledger", "fixtures"):
        assert each[name] == sorted(2 * facts(alone)[name])  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("visible", "count", "workers", "expected"),
    [
        (None, 2, 2, [("0", 1), ("1", 1)]),
        (None, 1, 2, [("0", 0.5), ("0", 0.5)]),
        ("4, 6", 8, 3, [("4", 0.5), ("6", 1), ("4", 0.5)]),
        ("GPU-1a", 8, 4, [("GPU-1a", 0.25)] * 4),
        ("", 8, 2, [(None, 0.5)] * 2),
    ],
)
def test_workers_share_the_visible_cards(
    visible: str | None, count: int, workers: int, expected: list[tuple[str | None, float]]
) -> None:
    cards = [share(worker, visible, count) for worker in range(workers)]
    parts = [portion(worker, workers, card, visible, count) for worker, card in enumerate(cards)]
    assert [*zip(cards, parts, strict=True)] == expected
