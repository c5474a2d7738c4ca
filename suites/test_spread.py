"""The benchmark of spread: what it makes of the reports of its runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from suites import forked
from suites.benchmarks import spread
from suites.benchmarks.spread import Plan, Run, holds, told

KIB, MIB = 2**10, 2**20
CPU = Device("cpu")


def took(requested: int | None, allocations: int = 1) -> tuple[Measured, ...]:
    values = {} if requested is None else {"requested": requested, "allocations": allocations}
    return (Measured(CPU, "here", {name: Spread.of(number) for name, number in {**values, "retries": 0}.items()}),)


def steady(varying: int, **others: str) -> Run:
    tests = {f"test_{number}": took(MIB) for number in range(19)}
    return Run({**tests, "test_varies": took(varying), "test_idle": took(0, 0)}, others)


def test_figures_of_runs_in_which_nothing_spreads() -> None:
    runs = [steady(MIB), steady(MIB), steady(MIB)]
    assert told(runs, 3) == [
        "3 of 3 runs ended",
        "20 tests that allocate, in every run: spread of 0 bytes for 20 (100.0%)",
        "false alarms of baselines that the first run recorded: 0",
        "tests that could alarm, whichever run had recorded: 0",
        "  peak: the same in every run for 0 of 0",
        "  reserved: the same in every run for 0 of 0",
        "  retained: the same in every run for 0 of 0",
        "  allocations: the same in every run for 20 of 20",
        "  segments: the same in every run for 0 of 0",
        "  retries: the same in every run for 20 of 20",
        "left out: 1 that allocates nothing, 0 skipped, 0 failed, 0 not measured",
        "not run: tests that start processes, and on a card those that do not use it",
    ]
    assert holds(runs)


def test_spread_and_alarms() -> None:
    """64 KiB, the least that a baseline allows, are a spread; more of it is an alarm, in one order or the other."""
    within = [steady(MIB), steady(MIB + 64 * KIB)]
    assert told(within, 2)[1:4] == [
        "20 tests that allocate, in every run: spread of 0 bytes for 19 (95.0%)",
        "false alarms of baselines that the first run recorded: 0",
        "tests that could alarm, whichever run had recorded: 0",
    ]
    assert "    64.0 KiB  test_varies" in told(within, 2)
    assert holds(within)
    grew = [steady(MIB), steady(2 * MIB), steady(MIB), steady(2 * MIB)]
    assert told(grew, 20)[:5] == [
        "4 of 20 runs ended",
        "20 tests that allocate, in every run: spread of 0 bytes for 19 (95.0%)",
        "false alarms of baselines that the first run recorded: 2",
        "  alarm in 2 of 3 runs: test_varies",
        "tests that could alarm, whichever run had recorded: 1",
    ]
    assert not holds(grew)
    shrank = [steady(2 * MIB), steady(MIB)]
    assert told(shrank, 2)[2:4] == [
        "false alarms of baselines that the first run recorded: 0",
        "tests that could alarm, whichever run had recorded: 1",
    ]


def test_what_is_left_out_and_why() -> None:
    first = steady(MIB, test_flaky="failed", test_odd="xfailed", test_away="skipped")
    second = steady(MIB, test_odd="xfailed", test_away="skipped")
    second = second._replace(taken={**second.taken, "test_flaky": took(5), "test_0": took(None), "test_late": took(1)})
    assert told([first, second], 2)[-6:] == [
        "left out: 1 that allocates nothing, 1 skipped, 1 failed, 2 not measured",
        "  failed in 1 of 2 runs: test_flaky",
        "  not measured in every run: test_late",
        "  not measured in every run: test_odd",
        "  peak not known in 1 of 2 runs: test_0",
        "not run: tests that start processes, and on a card those that do not use it",
    ]
    assert not holds([Run({}, {})])


def test_runs_are_kept_and_the_rest_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Of a run that is stopped nothing counts, and one whose report is there is not repeated."""
    empty = '{"schema": 1, "kind": "report", "environment": {"devices": [], "torch": "2", "allocator": "native"}, '
    empty += '"tests": [], "run": {"fixtures": [], "findings": [], "ledger": [], "notes": []}}'
    begun: list[dict[str, Any]] = []

    def run(command: list[str], **options: Any) -> Any:
        seed = options["env"][spread.SEED]
        report = Path(next(word for word in command if word.startswith("--cudamem-json=")).partition("=")[2])
        report.write_text(empty, encoding="utf-8")
        begun.append({"seed": seed, "workers": command[command.index("-n") + 1] if "-n" in command else None})
        if seed == "1" and len(begun) < 3:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, int(seed == "2"), "F\n1 failed in 2s\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    arguments = ["--runs", "3", "--reports", str(tmp_path), "--workers", "0,2", "some"]
    assert spread.main([*arguments, "--limit", "100"]) == 1
    assert capsys.readouterr().out.splitlines()[:5] == [
        "run 0, 0 workers: 1 failed in 2s",
        "run 1: stopped, it had not ended",
        "run 2, 0 workers: 1 failed in 2s",
        "  F",
        "2 of 3 runs ended",
    ]
    assert [one.name for one in sorted(tmp_path.iterdir()) if one.suffix == ".json"] == ["run-00.json", "run-02.json"]
    assert spread.main([*arguments, "--limit", "-1"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["run 1: not begun", "2 of 3 runs ended"]
    spread.main(arguments)
    assert capsys.readouterr().out.splitlines()[:2] == ["run 1, 2 workers: 1 failed in 2s", "3 of 3 runs ended"]
    assert begun == [
        {"seed": number, "workers": workers} for number, workers in zip("0121", (None, "2", None, "2"), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.subprocess
def test_orders_are_random_and_the_same_in_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of few tests, alone and over two workers."""
    monkeypatch.setattr(sys, "executable", forked.python())
    file = tmp_path / "test_it.py"
    file.write_text(
        "import torch, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_it(n): torch.ones(n + 1)\n"
    )
    plan = Plan([str(file)], "cpu", None, (0, 2), time.monotonic() + 500)
    orders = []
    for number in range(2):
        report = tmp_path / f"{number}.json"
        said = spread.measure(number, plan, report)
        assert said.startswith(f"run {number}, {2 * (number % 2)} workers: 9 passed in ")
        orders.append([test["nodeid"][-2] for test in json.loads(report.read_text())["tests"]])
    assert [sorted(order) for order in orders] == [[*"012345678"]] * 2
    assert len({*map(tuple, (*orders, sorted(orders[0])))}) == 3
    runs = [Run.read(tmp_path / f"{number}.json") for number in range(2)]
    assert told(runs, 2)[1] == "9 tests that allocate, in every run: spread of 0 bytes for 9 (100.0%)"
