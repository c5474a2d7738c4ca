"""pytest-xdist: workers measure, the controller puts together, prints and writes."""

from __future__ import annotations

import pytest

from suites.plugin.inner import KIB

pytestmark = pytest.mark.subprocess

FILES = {
    "conftest.py": """
        import pytest
        def pytest_configure(config):
            where = "worker" if hasattr(config, "workerinput") else "controller"
            config.add_cleanup(lambda: open(f"{where}.txt", "a").write(
                f"{'torch' in __import__('sys').modules}\\n"))
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
}


GROUPED = """
    import pytest, torch

    @pytest.mark.xdist_group("of one card")
    class TestGrouped:
        def test_leaves(self):
            type(self).kept = torch.zeros(64 << 10)
"""


def test_a_group_is_no_part_of_an_owner(run_outer):
    inner = run_outer(GROUPED, "--cudamem", "-n1", "--dist=loadgroup", plugins=["xdist.plugin"])
    assert inner.last == "1 passed, 1 error"
    assert [entry.owner for entry in inner.run.ledger if entry.bytes == 256 * KIB] == [
        "test_it.py::TestGrouped::test_leaves"
    ]


def test_workers_send_and_only_the_controller_writes(run_outer, pytester):
    inner = run_outer(FILES, "--cudamem", "-n2", "--dist=loadgroup", "--junitxml=junit.xml", plugins=["xdist.plugin"])
    assert inner.last == "2 failed, 3 passed, 1 xfailed"
    assert {test.nodeid: test.outcome for test in inner.run.tests} == {
        "test_one.py::test_over": "failed",
        "test_one.py::test_text[x@y]": "passed",
        "test_one.py::test_text[z]": "passed",
        "test_one.py::test_absent": "passed",
        "test_two.py::test_expected": "xfailed",
        "test_two.py::test_kept": "failed",
    }
    assert inner.window("test_text[z]", "inside").peak_growth == KIB
    assert inner.test("test_over").findings[0].bytes == KIB
    (setup, *_) = inner.fixture("wide")
    assert (setup.windows[0].retained, setup.first_used_by.partition("@")[0]) == (7 * KIB, "test_one.py::test_over")
    assert inner.run.environment.devices == ("cpu",)
    assert inner.run.unenforced == {"cuda is not measured here": 1}
    summary = inner.summary
    assert summary.count("measured 6 tests on cpu") == 1
    assert "not enforced: 1 budget (cuda is not measured here)" in summary
    assert [line for line in summary if line.startswith("budget: ")] == ["budget: 2 findings (over budget) in 2 tests"]
    assert any(line.startswith("OVER BUDGET test_one.py::test_over") for line in inner.lines)
    assert sum("cudamem: device auto" in line for line in inner.lines) == 1
    assert sum("report written" in line for line in inner.lines) == 1
    assert (pytester.path / "controller.txt").read_text() == "False\n"  # the controller never imports torch
    assert 'name="cudamem.cpu.peak" value="3072"' in (pytester.path / "junit.xml").read_text()


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
    """Plugin off: only the marked test is measured."""
    inner = run_outer(CRASH, "-n1", plugins=["xdist.plugin"])
    assert inner.last == "2 failed, 2 passed"
    assert "worker 'gw0' crashed while running 'test_it.py::test_crashes'" in inner.out
    assert [(test.nodeid, test.outcome) for test in inner.run.tests] == [("test_it.py::test_over", "failed")]


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


CARDS = """
    import os
    import pytest

    @pytest.mark.parametrize("number", range(2))
    def test_card(number):
        open(os.environ["PYTEST_XDIST_WORKER"] + ".txt", "w").write(os.environ["CUDA_VISIBLE_DEVICES"])
"""


def test_a_card_for_each_worker(run_outer, pytester):
    files = {"test_it.py": CARDS, "conftest.py": "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '4,6'\n"}
    inner = run_outer(files, "-n2", "--cudamem-gpus=auto", report=False, plugins=["xdist.plugin"])
    assert inner.last == "2 passed"
    said = {path.name: path.read_text() for path in pytester.path.glob("gw*.txt")}
    assert said == {name: card for name, card in (("gw0.txt", "4"), ("gw1.txt", "6")) if name in said}
    assert said
