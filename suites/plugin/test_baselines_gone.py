"""Baselines of tests that are no longer there, and of tests that are, though this run did not meet them."""

from __future__ import annotations

import os

import pytest

from cudamem_testing.model.records import Unchecked
from suites.plugin.recorded import SMALL, UPDATE, entries

pytestmark = pytest.mark.usefixtures("one_thread")


def test_gone_tests_are_named_and_pruned_after_a_whole_run_only(run_inner, pytester):
    files = {"test_it.py": SMALL, "test_other.py": SMALL, "test_gone.py": SMALL}
    run_inner(files, UPDATE)
    (pytester.path / "test_gone.py").unlink()
    renamed = {"test_it.py": SMALL.replace("def test_b", "def test_c")}
    run = run_inner(renamed).run
    assert run.unchecked == {Unchecked("test", "no baseline (record with --cudamem-update=baselines)"): 1}
    assert run.notes == (
        (
            "1 baseline looks renamed: test_it.py::test_b -> test_c (same function body) "
            "(--cudamem-update=baselines renames it)"
        ),
        (
            "2 baselines belong to tests that are no longer there: test_gone.py::test_a, test_gone.py::test_b "
            "(--cudamem-prune drops them)"
        ),
    )
    part_of_one = ["--deselect=test_it.py::test_c", "test_it.py"]
    for part in (["-k", "test_a"], ["test_it.py::test_a"], ["-x", "-k", "test_a"], part_of_one):
        inner = run_inner({}, "--cudamem-prune", *part)
        assert inner.status == 0
        assert "dropped" not in inner.out
    assert "test_b" in entries(pytester)
    inner = run_inner({}, "--cudamem-prune", "test_it.py")
    assert "note: 3 baselines of tests that are no longer there dropped" in inner.summary
    assert [*entries(pytester)] == ["test_a"]
    assert [*entries(pytester, "__cudamem__/test_other.json")] == ["test_a", "test_b"]
    assert not (pytester.path / "__cudamem__/test_gone.json").exists()
    assert "no longer there" not in run_inner({}).out


LEAVES = """
    def pytest_collection_modifyitems(config, items):
        left = [item for item in items if item.name == "test_b"]
        {said}
        items[:] = [item for item in items if item not in left]
"""
SAID = LEAVES.format(said="config.hook.pytest_deselected(items=left)")


@pytest.mark.parametrize("conftest", [SAID, LEAVES.format(said="")], ids=["said", "silent"])
@pytest.mark.parametrize("on", [[], ["--cudamem"]], ids=["marker", "on"])
def test_tests_that_a_hook_left_out_are_still_there(run_inner, pytester, conftest, on):
    """Also where measuring begins only with the tests, which is after that."""
    run_inner(SMALL, UPDATE)
    inner = run_inner({"conftest.py": conftest}, "--cudamem-prune", *on)
    assert (inner.status, inner.run.notes) == (0, ())
    assert [*entries(pytester)] == ["test_a", "test_b"]


def test_tests_that_did_not_run_any_more_are_still_there(run_inner, pytester):
    """A run that a test has ended is not told by its status from one that came to its end."""
    run_inner({"test_it.py": SMALL, "test_later.py": SMALL}, UPDATE)
    ends = {"test_it.py": f"{SMALL}\n    def test_ends(): pytest.exit('enough', 0)"}
    inner = run_inner(ends, "--cudamem", "--cudamem-prune")
    assert (inner.status, inner.run.notes, [*inner.outcomes]) == (0, (), ["test_a", "test_b"])
    assert [*entries(pytester, "__cudamem__/test_later.json")] == ["test_a", "test_b"]


def test_a_class_that_fails_to_collect_keeps_its_baselines(run_inner, pytester):
    group = """
    class TestIt:
        {mark}
        def test_a(self): torch.empty(256 * 1024)
        @pytest.mark.memory_baseline
        def test_b(self): torch.empty(256 * 1024)
"""
    run_inner(SMALL + group.format(mark="@pytest.mark.memory_baseline"), UPDATE)
    there = [*entries(pytester)]
    assert there == ["TestIt::test_a", "TestIt::test_b", "test_a", "test_b"]
    broken = SMALL + group.format(mark="@pytest.mark.parametrize('x', [1])")
    arguments = ("--continue-on-collection-errors", "--cudamem-prune")
    inner = run_inner({"test_it.py": broken}, *arguments)
    assert (inner.last, inner.run.notes) == ("2 passed, 1 error", ())
    assert [*entries(pytester)] == there


def test_a_file_in_which_no_test_is_left(run_inner, pytester):
    run_inner({"test_it.py": SMALL, "test_other.py": SMALL}, UPDATE)
    skipping = {"test_other.py": "import pytest\npytest.skip(allow_module_level=True)"}
    assert run_inner(skipping, "--cudamem", "--cudamem-prune").run.notes == ()  # it does not tell what it would have
    empty = {"test_other.py": "class TestOfNothing: pass"}
    assert run_inner(empty, "--cudamem", "--cudamem-prune", "test_it.py").run.notes == ()
    moved = (
        "2 baselines belong to tests that are no longer there: test_other.py::test_a, test_other.py::test_b "
        "(--cudamem-prune drops them)"
    )
    assert run_inner({}, "--cudamem").run.notes == (moved,)
    dropped = ("2 baselines of tests that are no longer there dropped",)
    assert run_inner({}, "--cudamem", "--cudamem-prune").run.notes == dropped
    assert not (pytester.path / "__cudamem__/test_other.json").exists()


def test_the_only_baselines_are_of_a_file_that_is_gone(run_inner, pytester):
    """No test of the run is compared: the folder alone tells that there is something to review."""
    run_inner({"test_gone.py": SMALL}, UPDATE)
    (pytester.path / "test_gone.py").unlink()
    files = {"test_it.py": "def test_plain(): pass"}
    gone = "2 baselines belong to tests that are no longer there: test_gone.py::test_a, test_gone.py::test_b "
    assert run_inner(files, "--cudamem").run.notes == (f"{gone}(--cudamem-prune drops them)",)
    assert run_inner({}, "--cudamem", "--cudamem-baseline=off").run.notes == ()


def test_tests_outside_rootdir_have_no_baselines(run_inner, pytester):
    """Their ids do not tell where their files lie, and may be those of others."""
    plain = "import torch\ndef test_plain(): torch.empty(256 * 1024)"
    files = {f"{folder}/test_it.py": SMALL for folder in ("tests/a", "tests/b", "ci")}
    files |= {"ci/pytest.ini": "[pytest]", "ci/test_in.py": SMALL, "tests/test_plain.py": plain}
    run_inner(files, "--co")
    arguments = ("-c", "ci/pytest.ini", "--import-mode=importlib")

    def told(*more):
        inner = run_inner({}, *arguments, *more)
        unchecked = tuple(f"{number} {what}" for what, number in inner.run.unchecked.items())
        return inner.last, inner.status, (*unchecked, *inner.run.notes)

    note = ": outside rootdir (ci) there are no baselines: give a folder with all tests: --rootdir=."
    both = ("tests/a", "tests/b")
    assert told(*both) == ("4 passed", 0, (f"4 test{note}",))
    assert told("tests/a/test_it.py::test_a") == ("1 passed", 0, (f"1 test{note}",))
    assert told(*both, "--cudamem-baseline=require") == ("4 passed", 1, (f"4 tests{note}",))
    assert told("tests/test_plain.py", "--cudamem") == ("1 passed", 0, ())  # nothing was requested
    for paths, number in ((both, 4), (("tests/test_plain.py",), 1), (("tests/a", "ci/test_it.py"), 4)):
        assert told(*paths, "--cudamem", UPDATE) == (
            f"{number} passed",
            1,
            (f"{number} {'test' if number == 1 else 'tests'}{note}",),
        )
    assert not [*pytester.path.rglob("__cudamem__")]

    recorded = ("2 baselines: 2 new", "written: ci/__cudamem__/test_in.json")
    assert told("tests/a", "ci/test_in.py", UPDATE) == ("4 passed", 1, (f"2 tests{note}", *recorded))
    misplaced = pytester.path / "ci/__cudamem__/test_it.json"
    misplaced.write_text("broken", encoding="utf-8")
    assert told(*both, "--cudamem-prune") == ("4 passed", 0, (f"4 test{note}",))
    assert misplaced.read_text(encoding="utf-8") == "broken"
    assert told(*both, "--rootdir=.", UPDATE)[:2] == ("4 passed", 0)
    assert len([*pytester.path.glob("tests/[ab]/__cudamem__/test_it.json")]) == 2


@pytest.mark.slow
@pytest.mark.subprocess
def test_under_xdist_tests_that_a_hook_left_out_are_still_there(run_outer, pytester):
    files = {"test_a.py": SMALL, "test_b.py": SMALL}
    assert "note: 4 baselines: 4 new" in run_outer(files, UPDATE).summary
    files = {"conftest.py": SAID, "test_b.py": "import pytest, torch\nclass TestOfNothing: pass"}
    inner = run_outer(files, "-n1", "--cudamem-prune", plugins=["xdist.plugin"])
    assert (inner.last, inner.run.extent.left_out) == ("1 passed", ("test_a.py::test_b",))
    assert "note: 2 baselines of tests that are no longer there dropped" in inner.summary  # those of test_b.py
    assert os.listdir(pytester.path / "__cudamem__") == ["test_a.json"]
    assert (pytester.path / "__cudamem__/test_a.json").read_text().count('"requested": 1048576') == 2
