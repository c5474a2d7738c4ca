"""``python -m suites.neighbours``: run each neighbour beside this plugin, and write the table of docs/neighbours.md.

Each runs in a process of its own; those that are not installed keep the row that the page has. ``--path`` names a
folder with more of them (``pip install --target``). Exit status 1 if one of them does something else than the row says.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cudamem_testing.show.tables import Column, Table
from suites import forked

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "neighbours.md"
BEGIN, END = "<!-- generated: neighbours -->\n", "<!-- end -->\n"
HEAD = "import pytest, torch\nKEPT = []\ndef leak(): KEPT.append(torch.empty(2**18))\n"


@dataclass(frozen=True)
class Neighbour:
    """What is run of one, and what comes out: outcomes by test, which must be as the sentence says.

    ``plugins`` are loaded by name. ``leaks`` are the tests that have a finding of a leak.
    """

    name: str
    distribution: str
    happens: str
    file: str
    outcomes: dict[str, str]
    leaks: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


NEIGHBOURS = (
    Neighbour(
        "hypothesis",
        "hypothesis",
        "each example is a region; fixtures of this plugin need no suppressed check ([page](hypothesis.md))",
        """
        from hypothesis import given, settings, strategies as st

        @settings(database=None, deadline=None, max_examples=5)
        @given(n=st.integers(1, 9))
        def test_budget(cuda_memory, n):
            with cuda_memory.budget(peak="1KiB"):
                torch.empty(n)

        @settings(database=None, deadline=None, max_examples=5)
        @given(n=st.integers(1, 9))
        def test_leaks(n):
            leak()
        """,
        {"test_budget": "passed", "test_leaks": "error"},
        ("test_leaks",),
        ("_hypothesis_pytestplugin",),
    ),
    Neighbour(
        "pytest-benchmark",
        "pytest-benchmark",
        "times without records; peak, retained and allocations of one more call are in `extra_info` and in its tables",
        """
        def test_benchmark(benchmark):
            benchmark.pedantic(torch.empty, (256,), rounds=2)
            assert benchmark.extra_info == {"peak": 1024, "retained": 0, "allocations": 1}
        """,
        {"test_benchmark": "passed"},
        plugins=("pytest_benchmark.plugin",),
    ),
    Neighbour(
        "pytest-xdist",
        "pytest-xdist",
        "every `--dist` mode gives the same verdicts and one report; see [below](#pytest-xdist)",
        """
        def test_clean(): torch.empty(256)
        def test_leaks(): leak()
        """,
        {"test_clean": "passed", "test_leaks": "error"},
        ("test_leaks",),
        ("xdist.plugin",),
        ("-n2",),
    ),
    Neighbour(
        "pytest-asyncio",
        "pytest-asyncio",
        "async tests and fixtures are measured as others are; `warmup` is refused",
        """
        @pytest.mark.asyncio
        async def test_clean(): torch.empty(256)

        @pytest.mark.asyncio
        async def test_leaks(): leak()
        """,
        {"test_clean": "passed", "test_leaks": "error"},
        ("test_leaks",),
        ("pytest_asyncio.plugin",),
    ),
    Neighbour(
        "pytest-randomly",
        "pytest-randomly",
        "the order changes no verdict: a leak is charged to the test that allocated it",
        """
        def test_first(): torch.empty(256)
        def test_second(): leak()
        """,
        {"test_first": "passed", "test_second": "error"},
        ("test_second",),
        ("randomly",),
        ("--randomly-seed=1",),
    ),
    Neighbour(
        "pytest-rerunfailures",
        "pytest-rerunfailures",
        "each attempt has a record; what a failed attempt leaked stays with the test",
        """
        def test_second_try():
            leak()
            assert len(KEPT) > 1
        """,
        {"test_second_try": "error"},
        ("test_second_try",),
        ("pytest_rerunfailures",),
        ("--reruns=1", "-W", "ignore"),
    ),
    Neighbour(
        "pytest-timeout",
        "pytest-timeout",
        "a test that runs too long fails, and is measured up to then (`signal`); with `thread` the process ends",
        """
        import time
        @pytest.mark.timeout(0.2, method="signal")
        def test_slow():
            x = torch.empty(256)
            time.sleep(20)
        """,
        {"test_slow": "failed"},
        plugins=("pytest_timeout",),
    ),
    Neighbour(
        "pytest-cov",
        "pytest-cov",
        "numbers and verdicts are the same while coverage is measured",
        """
        @pytest.mark.memory_budget(peak="1KiB", allocations=1)
        def test_clean(): torch.empty(256)
        def test_leaks(): leak()
        """,
        {"test_clean": "passed", "test_leaks": "error"},
        ("test_leaks",),
        ("pytest_cov.plugin",),
        ("--cov=.", "--cov-report="),
    ),
    Neighbour(
        "pytest-mock",
        "pytest-mock",
        "tensors among the recorded calls of a mock are freed when the test ends",
        """
        def test_mock(mocker):
            seen = mocker.patch("torch.nn.functional.relu")
            torch.nn.functional.relu(torch.empty(2**18))
            seen.assert_called_once()
        """,
        {"test_mock": "passed"},
        plugins=("pytest_mock",),
    ),
    Neighbour(
        "subtests",
        "pytest",
        "a failed subtest fails its test; all subtests are in its windows (part of pytest 9)",
        """
        def test_parts(subtests):
            with subtests.test("first"):
                torch.empty(256)
            with subtests.test("second"):
                assert 0
        """,
        {"test_parts": "failed"},
    ),
    Neighbour(
        "pytest-forked",
        "pytest-forked",
        "with pytest 9.2 every test fails, also without this plugin: it cannot send the ids of tests; the report has "
        "such a test as failed and incomplete",
        """
        def test_clean(): torch.empty(256)
        def test_leaks(): leak()
        """,
        {"test_clean": "failed", "test_leaks": "failed"},
        (),
        ("pytest_forked",),
        ("--forked",),
    ),
    Neighbour(
        "unittest",
        "",
        "the call of a test is `setUp`, the method, `tearDown` and cleanups; `warmup` is refused",
        """
        import unittest
        class TestIt(unittest.TestCase):
            def setUp(self): self.x = torch.empty(2**18)
            def test_clean(self): assert self.x.shape == (2**18,)
            def test_leaks(self): leak()
        """,
        {"test_clean": "passed", "test_leaks": "error"},
        ("test_leaks",),
    ),
    Neighbour(
        "doctest",
        "",
        "measured as tests; the value of the last expression, which doctest keeps, is a note",
        '''
        def double(x):
            """
            >>> double(torch.ones(2**18)).shape
            torch.Size([262144])
            """
            return x + x
        ''',
        {"test_it.double": "passed"},
        flags=("--doctest-modules",),
    ),
)


def version_of(distribution: str) -> str | None:
    """The installed version; that of Python for what comes with it, ``None`` if it is not installed."""
    if not distribution:
        return f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def differences(one: Neighbour) -> list[str]:
    """Run one; what is not as its row says."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in one.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / "test_it.py").write_text(HEAD + textwrap.dedent(one.file), encoding="utf-8")
        loaded = [part for name in ("cudamem", *one.plugins) for part in ("-p", name)]
        flags = [
            "--cudamem",
            "--cudamem-device=cpu",
            "--cudamem-json=report.json",
            "-p",
            "no:cacheprovider",
            *one.flags,
        ]
        done = subprocess.run(
            [forked.python(), "-m", "pytest", *loaded, *flags],
            cwd=folder,
            env={
                **os.environ,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        report = folder / "report.json"
        if not report.exists():
            return [done.stdout + done.stderr]
        tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
    found = {test["nodeid"].rpartition("::")[2]: test["outcome"] for test in tests}
    leaks = {
        test["nodeid"].rpartition("::")[2]
        for test in tests
        if any(finding["kind"] == "leak" and finding["severity"] == "fail" for finding in test["findings"])
    }
    problems = [] if found == one.outcomes else [f"outcomes {found}, not {one.outcomes}\n{done.stdout}{done.stderr}"]
    return problems + (
        [] if leaks == {*one.leaks} else [f"leaks {sorted(leaks)}, not {sorted(one.leaks)}\n{done.stdout}"]
    )


def in_ipython() -> list[str]:
    """The same numbers in a cell of IPython, whose history keeps results; what is not so."""
    code = """
from cudamem_testing import Memory
import torch
with Memory.on("cpu") as memory, memory.window("cell") as window:
    torch.empty(256)
print(window.peak_growth, window.allocations)
"""
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "-c", code], capture_output=True, text=True, check=False
    )
    return [] if done.stdout.split()[-2:] == ["1024", "1"] else [done.stdout + done.stderr]


def rows() -> dict[str, tuple[str, str, str]]:
    """The rows of the page by name."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    cells = (line.strip("| ").split(" | ") for line in text.splitlines()[2:])
    return {name: (name, version, happens) for name, version, happens in cells}


def found() -> Iterator[tuple[str, str | None, str, list[str]]]:
    """Name, version, sentence and problems of each."""
    for one in NEIGHBOURS:
        version = version_of(one.distribution)
        yield one.name, version, one.happens, [] if version is None else differences(one)
    version = version_of("ipython")
    happens = "context managers and tables work in cells; `Out` keeps what a cell shows, so end cells with `;`"
    yield "IPython", version, happens, [] if version is None else in_ipython()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all and write the table."""
    parser = argparse.ArgumentParser(prog="python -m suites.neighbours", description=__doc__)
    parser.add_argument("--path", help="a folder with more of them")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    if options.path:
        sys.path.append(options.path)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH"), options.path))
        )
    before, table, status = rows(), [], 0
    for name, version, happens, problems in found():
        for problem in problems:
            print(f"{name}: {problem}")
            status = 1
        if version is not None:
            table.append((name, version, happens))
        elif name in before:
            table.append(before[name])
        print(f"{name} {version or 'is not installed'}: {'differs' if problems else 'as the row says'}")
    text = PAGE.read_text(encoding="utf-8")
    shown = Table((Column("neighbour"), Column("version"), Column("what happens")), ())
    lines = [shown.markdown(), *(f"| {' | '.join(row)} |" for row in table)]
    new = re.sub(f"{BEGIN}.*{END}", lambda match: f"{BEGIN}{chr(10).join(lines)}\n{END}", text, flags=re.S)
    PAGE.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
