"""Flags that would do nothing: each is a usage error that says what to add."""

from __future__ import annotations

import pytest

from cudamem_testing import Memory
from suites.plugin.recorded import UPDATE

PLAIN = "import torch\ndef test_it(): torch.empty(256)"
MARKED = "import pytest, torch\n@pytest.mark.memory_baseline\ndef test_it(): torch.empty(256)"
BUDGET = "import pytest, torch\n@pytest.mark.memory_budget(peak='1MiB')\ndef test_it(): torch.empty(256)"
USAGE = 4
EVERY_TEST = (
    "--cudamem-budget=peak=1KiB",
    "--cudamem-leaks=fail",
    "--cudamem-cycles=strict",
    "--cudamem-ignore-below=1MiB",
    "--cudamem-known=faults.jsonl",
)
MARKER = "requires --cudamem, or a test with @pytest.mark.memory_baseline: none is selected"


@pytest.mark.parametrize("flag", EVERY_TEST)
def test_flags_about_every_test_require_accounting(run_inner, flag):
    inner = run_inner(PLAIN, flag)
    name = flag.partition("=")[0]
    assert (inner.status, inner.err.strip()) == (USAGE, f"ERROR: cudamem: {name} requires --cudamem")
    for more in (["--cudamem"], ["--cudamem-audit"], ["--no-cudamem"], ["--collect-only"]):
        assert run_inner(PLAIN, flag, *more).err == ""


def test_all_of_them_are_named_together(run_inner):
    assert run_inner(PLAIN, *EVERY_TEST).err.count("requires --cudamem") == len(EVERY_TEST)
    assert run_inner(PLAIN, "--cudamem-leaks=off", "--cudamem-cycles=off").last == "1 passed"


def test_an_ini_file_may_hold_them_for_runs_that_measure(run_inner):
    lines = "\n".join(flag.lstrip("-").replace("-", "_").replace("_", "_", 1) for flag in EVERY_TEST)
    inner = run_inner({"test_it.py": PLAIN, "pytest.ini": f"[pytest]\n{lines}\ncudamem_baseline=require"})
    assert (inner.last, inner.err) == ("1 passed", "")


@pytest.mark.parametrize("flag", ["--cudamem-baseline=require", "--cudamem-repeat=3", "--cudamem-prune", UPDATE])
def test_flags_about_baselines_require_a_marker(run_inner, flag):
    for file in (PLAIN, BUDGET):
        inner = run_inner(file, flag)
        assert (inner.status, inner.err.strip()) == (USAGE, f"ERROR: cudamem: {flag} {MARKER}")
    for file, more in ((MARKED, ()), (PLAIN, ("--cudamem",)), (PLAIN, ("--no-cudamem",)), (PLAIN, ("-k", "none"))):
        assert run_inner(file, flag, *more).err == ""
    assert run_inner(PLAIN, "--cudamem-update").last == "1 passed"  # everything, of what there is


@pytest.mark.parametrize("flag", ["--cudamem-json=report.json", "--cudamem-device=cpu", "--cudamem-dump=folder"])
@pytest.mark.parametrize(
    ("file", "status"),
    [
        (PLAIN, USAGE),
        (BUDGET, 0),
        ("import torch\ndef test_it(cuda_memory): torch.empty(256)", 0),
        ("def test_it(memory_profile): pass", 0),
    ],
)
def test_some_flags_require_a_test_that_is_measured(run_inner, pytester, file, status, flag):
    inner = run_inner(file, flag)
    why = f"{flag.partition('=')[0]} requires --cudamem, or a test with a memory marker or fixture: none is selected"
    assert (inner.status, inner.err.strip()) == (status, f"ERROR: cudamem: {why}" if status else "")
    for more in (["--cudamem"], ["--no-cudamem"]):
        assert run_inner(file, flag, *more).status == 0


def test_cards_for_workers_require_workers(run_inner):
    inner = run_inner(PLAIN, "--cudamem", "--cudamem-gpus=auto")
    why = "--cudamem-gpus=auto requires workers of pytest-xdist: add -n 2, or leave it out"
    assert (inner.status, inner.err.strip()) == (USAGE, f"ERROR: cudamem: {why}")
    assert run_inner(PLAIN, "--cudamem", "--cudamem-gpus=auto", "-n0", plugins=["xdist.plugin"]).last == "1 passed"
    assert run_inner({"test_it.py": PLAIN, "pytest.ini": "[pytest]\ncudamem_gpus=auto"}, "--cudamem").last == "1 passed"


@pytest.mark.slow
@pytest.mark.subprocess
def test_workers_refuse_as_well(run_outer):
    inner = run_outer(PLAIN, "-n1", "--cudamem-repeat=3", plugins=["xdist.plugin"], report=False)
    assert inner.status == USAGE
    assert f"cudamem: --cudamem-repeat=3 {MARKER}" in inner.err


def test_which_of_two_flags_won_is_said(run_inner):
    inner = run_inner(BUDGET, "--cudamem", "--no-cudamem", "-q")
    line = "cudamem: off (--no-cudamem wins over --cudamem): 1 test has a memory marker that was not enforced"
    assert line in inner.lines
    assert "cudamem: off (--no-cudamem wins over --cudamem)" in run_inner(PLAIN, "--cudamem", "--no-cudamem").lines
    line = "cudamem: off (--no-cudamem wins over --cudamem-audit)"
    assert line in run_inner(PLAIN, "--cudamem-audit", "--no-cudamem", "-q").lines
    assert "cudamem" not in run_inner({"test_x.py": PLAIN}, "--no-cudamem", "--no-header").out


NO_CARD = "is not on this machine (torch finds no CUDA device)"


@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_a_card_that_is_asked_for_must_be_there(run_inner, device):
    """Else a job with a broken driver is green."""
    wrong = f"ERROR: cudamem: --cudamem-device={device}: {device} {NO_CARD}; auto measures the available devices"
    for file, more in ((PLAIN, ["--cudamem"]), (BUDGET, []), (MARKED, ["-q"])):
        inner = run_inner(file, f"--cudamem-device={device}", *more)
        assert (inner.status, inner.err.strip()) == (USAGE, wrong)
    ini = f"[pytest]\ncudamem_device={device}"
    assert run_inner({"test_it.py": BUDGET, "pytest.ini": ini}).status == USAGE
    for more in (["--no-cudamem"], ["--collect-only"], ["-k", "none"]):
        assert run_inner(BUDGET, f"--cudamem-device={device}", *more).err == ""


@pytest.mark.parametrize("device", ["auto", "all", "cpu"])
def test_other_selections_take_what_there_is(run_inner, device):
    assert run_inner(BUDGET, "--cudamem", f"--cudamem-device={device}").last == "1 passed"


def test_outside_pytest_it_is_an_error_on_entry(monkeypatch):
    monkeypatch.setattr("cudamem_testing.torch_api.cuda_device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"^cuda is not on this machine \(torch finds no CUDA device\)$"):
        Memory.on("cuda").__enter__()
    monkeypatch.setattr("cudamem_testing.torch_api.cuda_device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"^cuda:5 is not on this machine \(torch finds cuda:0, cuda:1\)$"):
        Memory.on("cuda:5").__enter__()
    with Memory.on("cpu") as memory:
        assert memory.statistics().allocated is not None
