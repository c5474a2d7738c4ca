"""pytest-xdist: workers measure, the controller puts together, prints and writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.nodeids import without_groups
from cudamem_testing.model.records import RunCoverage, Unchecked
from cudamem_testing.run.outcomes import INCOMPLETE, LOST
from suites.plugin.inner import KIB, Inner
from suites.plugin.inner import run_outer as run_in_a_process

pytestmark = pytest.mark.subprocess

FILES = {
    "conftest.py": """
        import os
        import pytest

        os.environ["CUDA_VISIBLE_DEVICES"] = "94,96"  # there are no such cards

        def pytest_configure(config):
            where = "worker" if hasattr(config, "workerinput") else "controller"
            config.add_cleanup(lambda: open(f"{where}.txt", "a").write(
                f"{'torch' in __import__('sys').modules}\\n"))

        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if item.name != "test_left_out"]
    """,
    "test_one.py": """
        import pytest, torch

        @pytest.fixture(scope="module")
        def wide():
            return torch.empty(7 * 256)

        @pytest.mark.xdist_group("a@b")
        @pytest.mark.memory_budget(peak="1KiB")
        def test_over(wide):
            torch.empty(512)

        @pytest.mark.xdist_group("a@b")
        @pytest.mark.parametrize("text", ["x@y", "z"])
        def test_text(text, cuda_memory):
            with cuda_memory.window("inside"):
                torch.empty(256)

        @pytest.mark.memory_budget(peak="1KiB", device="cuda")
        def test_absent():
            torch.empty(3 * 256)

        def test_left_out(): torch.zeros(9)
    """,
    "test_two.py": """
        import pytest, torch

        @pytest.mark.xfail(strict=True)
        @pytest.mark.memory_budget(peak="1KiB")
        def test_expected():
            torch.empty(512)

        def test_kept():
            assert 1 == 2
    """,
    "sub/test_three.py": """
        import pytest, torch

        @pytest.mark.xdist_group("of one card")
        class TestGrouped:
            def test_leaves(self):
                type(self).kept = torch.zeros(64 << 10)

        def test_left_out(): torch.zeros(9)
    """,
    "test_half.py": """
        import pytest, torch

        def test_other(): torch.zeros(9)

        class TestIt:
            @pytest.mark.parametrize("wrong", [1])
            def test_b(self): torch.zeros(9)
            def test_c(self): torch.zeros(9)
    """,
    "test_cards.py": """
        import os
        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_card(number):
            open(os.environ["PYTEST_XDIST_WORKER"] + ".txt", "w").write(os.environ["CUDA_VISIBLE_DEVICES"])
    """,
    "test_texts.py": """
        import pytest, torch

        def test_data_flow(memory_profile):
            memory_profile(lambda x: {"y": x.sin()}, x=torch.ones(256)).assert_data_flow("old")

        class Node:
            pass

        @pytest.mark.parametrize("n", ["", "Node.__dict__['me'] -> Node"])
        def test_cycles(reference_cycles, n):
            with reference_cycles() as cycles:
                one = Node()
                one.me, one.big = one, torch.zeros(16)
                del one
            cycles.assert_cycle()
    """,
}
FLAGS = ("--cudamem", "--cudamem-gpus=auto", "--cudamem-update=expected", "--junitxml=junit.xml")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    """One run of two workers, each with a card of its own."""
    place = cast("pytest.Pytester", SimpleNamespace(path=tmp_path_factory.mktemp("workers")))
    return run_in_a_process(place, FILES, *FLAGS, "-n2", "--dist=loadgroup", plugins=["xdist.plugin"], new=True)


def test_a_group_is_no_part_of_an_owner(ran: Inner) -> None:
    assert ran.test("test_leaves").outcome == "error"
    assert [entry.owner for entry in ran.run.ledger if entry.bytes == 256 * KIB] == [
        "sub/test_three.py::TestGrouped::test_leaves"
    ]


def test_workers_send_and_only_the_controller_writes(ran: Inner) -> None:
    # One error is a leak; each worker fails to collect a class.
    assert (ran.status, ran.last) == (1, "5 failed, 7 passed, 1 xfailed, 3 errors")
    assert {test.nodeid: test.outcome for test in ran.run.tests} == {
        "test_one.py::test_over": "failed",
        "test_one.py::test_text[x@y]": "passed",
        "test_one.py::test_text[z]": "passed",
        "test_one.py::test_absent": "passed",
        "test_two.py::test_expected": "xfailed",
        "test_two.py::test_kept": "failed",
        "sub/test_three.py::TestGrouped::test_leaves": "error",
        "test_half.py::test_other": "passed",
        "test_cards.py::test_card[0]": "passed",
        "test_cards.py::test_card[1]": "passed",
        "test_texts.py::test_data_flow": "failed",
        "test_texts.py::test_cycles[]": "failed",
        "test_texts.py::test_cycles[Node.__dict__['me'] -> Node]": "failed",
    }
    assert ran.window("test_text[z]", "inside").peak_growth == KIB
    assert ran.test("test_over").findings[0].bytes == KIB
    (setup, *_) = ran.fixture("wide")
    assert (setup.windows[0].retained, setup.first_used_by.partition("@")[0]) == (7 * KIB, "test_one.py::test_over")
    assert ran.run.environment.devices == ("cpu",)
    assert ran.run.unenforced == {"cuda is not measured here": 1}
    summary = ran.summary
    assert summary.count("measured 13 tests on cpu") == 1
    assert "NOT CHECKED: 1 budget: cuda is not measured here" in summary
    assert [line for line in summary if line.startswith("budget: ")] == [
        "budget: 1 finding (over budget) in 1 test",
        "budget: 1 finding (over budget, xfail) in 1 test",
    ]
    assert any(line.startswith("OVER BUDGET test_one.py::test_over") for line in ran.lines)
    assert sum("cudamem: device auto" in line for line in ran.lines) == 1
    assert sum("report written" in line for line in ran.lines) == 1
    assert (ran.folder / "controller.txt").read_text() == "False\n"  # the controller never imports torch
    assert 'name="cudamem.cpu.peak" value="3072"' in (ran.folder / "junit.xml").read_text()


def test_workers_tell_what_was_left_out(ran: Inner) -> None:
    """What they could not collect as well: they run the rest."""
    assert ran.run.extent == RunCoverage(
        (".",),
        ("sub/test_three.py::test_left_out", "test_half.py::TestIt", "test_one.py::test_left_out"),
        ("cycle", "leak", "outside allocator", "pool"),
        {"cpu": 64 * 1024},
    )


def test_a_group_may_have_an_at_sign_in_its_name() -> None:
    """Before pytest 9.2 an id ends in its group there."""
    assert [*without_groups("test_it.py::test_a")] == []
    assert "test_it.py::test_a" in [*without_groups("test_it.py::test_a@a@b")]
    assert "test_it.py::test_a[x@y]" in [*without_groups("test_it.py::test_a[x@y]@a@b")]


def test_a_card_for_each_worker(ran: Inner) -> None:
    said = {path.name: path.read_text() for path in ran.folder.glob("gw*.txt")}
    assert said == {name: card for name, card in (("gw0.txt", "94"), ("gw1.txt", "96")) if name in said}
    assert said


def test_workers_accept_no_text_their_report_has_it(ran: Inner, monkeypatch, capsys) -> None:
    refused = "not accepted: texts are not accepted under pytest-xdist: run without -n"
    assert ran.lines.count(refused) == 3
    monkeypatch.chdir(ran.folder)
    capsys.readouterr()
    assert main(["accept", "report.json", "--expected"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (said[0], said[-1]) == ("3 expected texts written", "    test_texts.py  1")


CRASH = {
    "test_it.py": """
        import os
        import pytest

        def test_before(): pass

        @pytest.mark.memory_budget(peak="1KiB")
        def test_over():
            import torch
            torch.empty(512)

        def test_crashes():
            os._exit(9)

        def test_after(): pass
    """,
}


def test_a_crashed_worker_leaves_what_arrived(run_outer):
    """What the worker knew beside its tests is lost, and each of them says so."""
    inner = run_outer(CRASH, "-n1", "--cudamem", "--cudamem-device=cpu", plugins=["xdist.plugin"])
    assert inner.last == "2 failed, 2 passed"
    assert "worker 'gw0' crashed while running 'test_it.py::test_crashes'" in inner.out
    lost = f"incomplete: {LOST} (worker gw0 crashed later)"
    assert {test.nodeid.partition("::")[2]: (test.outcome, test.notes) for test in inner.run.tests} == {
        "test_before": ("passed", (lost,)),
        "test_over": ("failed", (lost,)),
        "test_crashes": ("failed", (INCOMPLETE,)),
        "test_after": ("passed", ()),
    }
    assert inner.run.unchecked == {Unchecked("test", f"{LOST}: its worker crashed"): 2}
    assert f"NOT CHECKED: 2 tests: {LOST}: its worker crashed" in " ".join(map(str.strip, inner.summary))
    assert inner.run.extent.left_out == ("test_it.py::test_crashes",)


@pytest.mark.slow
def test_nothing_enforced_and_wrong_markers(run_outer):
    file = """
        import pytest

        @pytest.mark.memory_budget(peak="1KiB")
        def test_marked(): pass
    """
    inner = run_outer(file, "--no-cudamem", "-n2", report=False, plugins=["xdist.plugin"])
    assert inner.lines.count("cudamem: off (--no-cudamem): 1 test has a memory marker that was not enforced") == 1
    assert inner.status == 0
    wrong = run_outer(file.replace("1KiB", "1XB"), "-n1", report=False, plugins=["xdist.plugin"])
    assert wrong.status == 4
    assert wrong.err.startswith("ERROR: cudamem: test_it.py::test_marked: memory_budget peak: size '1XB' has the ")
    assert "INTERNALERROR" not in wrong.out
