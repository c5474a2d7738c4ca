"""Runs that broke: a crash, an interrupt, an internal error, a file that cannot be collected are in the report."""

from __future__ import annotations

import json

import pytest

from cudamem_testing.__main__ import main

GOOD = "import torch\ndef test_good(): torch.ones(10)\n"
CRASH = f"import os\n{GOOD}def test_crash(): os.abort()\n"


def merged(inner, capsys, monkeypatch, *more):
    """The status of merging the report of a run, and the lines that say why, as on a wide terminal."""
    monkeypatch.chdir(inner.folder)
    monkeypatch.setenv("COLUMNS", "120")
    capsys.readouterr()
    status = main(["merge", "report.json", *more, "-o", "all.json"])
    return status, [line for line in capsys.readouterr().out.splitlines() if line.startswith("failed: ")]


BROKEN = {
    "collection": (
        {"test_it.py": GOOD, "test_bad.py": "raise RuntimeError('cannot be collected\\nso')\n"},
        2,
        (
            "test_bad.py could not be collected: RuntimeError: cannot be collected",
            "interrupted: 1 error during collection",
        ),
    ),
    "interrupt": (f"{GOOD}def test_stop(): raise KeyboardInterrupt\n", 2, ("interrupted: KeyboardInterrupt",)),
    "exit": (
        f"{GOOD}import pytest\ndef test_stop(): pytest.exit('the card is gone', returncode=7)\n",
        7,
        ("interrupted: the card is gone",),
    ),
    "wanted exit": (f"{GOOD}import pytest\ndef test_stop(): pytest.exit('done', returncode=0)\n", 0, ()),
    "internal error": (
        {"test_it.py": GOOD, "conftest.py": "def pytest_runtest_logstart(nodeid): raise ValueError(f'no {nodeid}')\n"},
        3,
        ("internal error: ValueError: no test_it.py::test_good",),
    ),
    "another plugin": (
        {"test_it.py": GOOD, "conftest.py": "def pytest_sessionfinish(session): session.exitstatus = 1\n"},
        1,
        ("pytest ended with status 1",),
    ),
    "green": (GOOD, 0, ()),
    "no tests": ("import torch\n", 5, ()),
}


@pytest.mark.parametrize("case", BROKEN)
def test_why_a_run_failed(run_inner, capsys, monkeypatch, case):
    files, status, failures = BROKEN[case]
    inner = run_inner(files, "--cudamem", "--cudamem-json=report.json", "-q")
    assert (inner.status, inner.run.failures) == (status, failures)
    assert "failed: " not in inner.out  # pytest has said so
    assert merged(inner, capsys, monkeypatch) == (
        1 if failures else 0,
        [f"failed: report.json: {one}" for one in failures],
    )


def test_a_failing_test_needs_no_other_reason(run_inner, capsys, monkeypatch):
    inner = run_inner(f"{GOOD}def test_bad(): assert 0\n", "--cudamem", "--cudamem-json=report.json")
    assert (inner.status, inner.run.failures) == (1, ())
    assert merged(inner, capsys, monkeypatch) == (1, [])


def test_failures_of_tests_that_were_not_measured(run_inner, capsys, monkeypatch):
    """Without ``--cudamem`` the report has the tests that speak of memory; the others can fail the run as well."""
    inner = run_inner(
        """
        import pytest, torch
        @pytest.mark.memory_budget(peak="1MiB")
        def test_good(): torch.ones(10)
        def test_bad(): assert 0
        @pytest.fixture
        def broken(): raise ValueError
        def test_worse(broken): pass
        @pytest.mark.xfail
        def test_expected(): assert 0
        """,
        "--cudamem-json=report.json",
    )
    assert [test.nodeid for test in inner.run.tests] == ["test_it.py::test_good"]
    assert inner.run.failures == (
        "test_it.py::test_bad failed and was not measured",
        "test_it.py::test_worse had an error and was not measured",
    )
    assert merged(inner, capsys, monkeypatch)[0] == 1


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_worker_that_crashed(run_outer, capsys, monkeypatch):
    """Beside a shard that is green: the joined report says which one failed and why."""
    inner = run_outer(CRASH, "--cudamem", "-n1", plugins=["xdist.plugin"])
    why = "worker 'gw0' crashed while running 'test_it.py::test_crash'"
    assert (inner.status, inner.run.failures) == (1, (why,))
    assert inner.run.extent.left_out == ("test_it.py::test_crash",)
    green = json.loads((inner.folder / "report.json").read_text(encoding="utf-8"))
    green["run"]["failures"] = []
    for test in green["tests"]:
        test["outcome"] = "passed"
    (inner.folder / "green.json").write_text(json.dumps(green), encoding="utf-8")
    assert merged(inner, capsys, monkeypatch, "green.json") == (1, [f"failed: report.json: {why}"])
    assert main(["merge", "green.json", "-o", "other.json"]) == 0
    capsys.readouterr()
    assert main(["report", "all.json"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"failed: report.json: {why}"
    assert main(["report", "all.json", "--markdown"]) == 0
    assert f"- failed: report.json: {why}" in capsys.readouterr().out
    assert main(["compare", "green.json", "report.json"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: report.json: {why}"


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("body", "status", "failure"),
    [
        ("import os\nif os.environ.get('PYTEST_XDIST_WORKER') == 'gw0': os.abort()\n", None, "ended early: "),
        ("def test_stop(): raise KeyboardInterrupt\n", 2, "interrupted: <WorkerController gw0> received keyboard-int"),
    ],
    ids=["in collection", "interrupted"],
)
def test_a_worker_that_ended_early(run_outer, body, status, failure):
    wide = "import pytest\n@pytest.fixture(scope='session', autouse=True)\ndef wide(): return torch.ones(9)\n"
    inner = run_outer(GOOD + wide + body, "--cudamem", "-n1", "--max-worker-restart=0", plugins=["xdist.plugin"])
    assert inner.status == status or (status is None and inner.status)
    assert any(failure in one for one in inner.run.failures), inner.run.failures
    setups = [one for one in inner.fixture("wide") if "setup" in one.windows[0].name]
    assert len(setups) == (0 if status is None else 1)  # what a worker has sent counts once


@pytest.mark.slow
@pytest.mark.subprocess
def test_an_internal_error_of_a_worker(run_outer):
    conftest = "def pytest_runtest_logstart(nodeid): raise ValueError(f'no {nodeid}')\n"
    inner = run_outer({"test_it.py": GOOD, "conftest.py": conftest}, "--cudamem", "-n1", plugins=["xdist.plugin"])
    assert inner.status
    assert any(one.startswith("internal error: ValueError: no test_it.py::test_good") for one in inner.run.failures)
