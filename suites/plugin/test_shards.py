"""What a run tells of its extent, so that shards can be judged together."""

from __future__ import annotations

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.records import RunCoverage
from cudamem_testing.report.report_files import read_json
from cudamem_testing.windows.defaults import IGNORED_BELOW

KINDS = ("cycle", "leak", "outside allocator", "pool")
FILES = {
    "sub/test_one.py": "import torch\ndef test_a(): torch.zeros(9)\ndef test_b(): torch.zeros(9)",
    "test_two.py": "import torch\ndef test_a(): torch.zeros(9)\ndef test_b(): torch.zeros(9)",
}
B = ("sub/test_one.py::test_b", "test_two.py::test_b")
GONE = '{"cause": "leak | old", "device": "cpu", "bytes": 1, "tests": ["test_two.py::test_a"], "reason": ""}\n'
SILENT = """
    def pytest_collection_modifyitems(items):
        items[:] = [item for item in items if item.name == "test_a"]
"""


@pytest.mark.parametrize(
    ("arguments", "paths", "left_out"),
    [
        ((), (".",), ()),
        (("-k", "test_a"), (".",), B),
        (("--deselect=test_two.py::test_b",), (".",), B[1:]),
        (("sub", "test_two.py::test_a"), ("sub",), ()),
        (("--ignore=sub",), (), ()),
        (("--lf",), (), ()),
        (("-x", "test_two.py"), ("test_two.py",), ()),
        (("--pyargs", "sub"), ("sub",), ()),
    ],
)
def test_what_was_looked_at(run_inner, arguments, paths, left_out):
    inner = run_inner(FILES, "--cudamem", *arguments)
    assert inner.run.extent == RunCoverage(paths, left_out, KINDS, IGNORED_BELOW)


def test_a_hook_that_says_nothing(run_inner):
    inner = run_inner({**FILES, "conftest.py": SILENT}, "--cudamem")
    assert inner.run.extent == RunCoverage((".",), B, KINDS, IGNORED_BELOW)


def test_a_run_that_stops_early(run_inner):
    inner = run_inner({"test_it.py": "import torch\ndef test_a(): 1 / 0\ndef test_b(): pass"}, "--cudamem", "-x")
    assert inner.run.extent == RunCoverage((), ("test_it.py::test_b",), KINDS, IGNORED_BELOW)


def test_what_is_not_looked_for(run_inner):
    inner = run_inner(FILES, "--cudamem", "--cudamem-leaks=off")
    assert inner.run.extent.kinds == ("cycle", "outside allocator", "pool")
    assert run_inner({}, "--cudamem", "--cudamem-stacks=off").run.extent.kinds == ()


def test_measuring_that_began_with_the_tests(run_inner):
    """Without the flag it does when one of them asks: what was left out before is known all the same."""
    marked = "import pytest, torch\n@pytest.mark.memory_budget(peak='1MiB')\ndef test_a(): pass\ndef test_b(): pass"
    assert run_inner({"test_it.py": marked}, "-k", "test_a").run.extent == RunCoverage((".",), ("test_it.py::test_b",))
    assert run_inner({}).run.extent == RunCoverage((".",))
    assert run_inner({"conftest.py": SILENT}).run.extent == RunCoverage((".",), ("test_it.py::test_b",))


def test_a_run_that_a_test_ends_as_if_all_were_well(run_inner):
    file = "import pytest, torch\ndef test_a(): pass\ndef test_b(): pytest.exit('enough', 0)\ndef test_c(): pass"
    inner = run_inner(file, "--cudamem")
    assert inner.status == 0
    assert inner.run.extent == RunCoverage((".",), ("test_it.py::test_b", "test_it.py::test_c"), KINDS, IGNORED_BELOW)


HALF = """
    import pytest, torch

    def test_a(): torch.zeros(9)

    class TestIt:
        @pytest.mark.parametrize("wrong", [1])
        def test_b(self): torch.zeros(9)
        def test_c(self): torch.zeros(9)
"""


def test_what_could_not_be_collected(run_inner):
    """It is unknown which tests it would have had."""
    files = {
        "test_half.py": HALF,
        "test_none.py": "import nothing_of_that_name",
        "test_skip.py": "import pytest\npytest.skip(allow_module_level=True)",
    }
    inner = run_inner(files, "--cudamem", "--continue-on-collection-errors")
    assert inner.last == "1 passed, 1 skipped, 2 errors"
    assert inner.run.extent == RunCoverage(
        (".",), ("test_half.py::TestIt", "test_none.py", "test_skip.py"), KINDS, IGNORED_BELOW
    )
    covers = inner.run.extent.covers()
    assert [covers(file) for file in (*files, "test_gone.py")] == [False, False, False, True]


def test_two_shards_are_whole_together(run_inner, pytester, monkeypatch, capsys):
    monkeypatch.chdir(pytester.path)
    known = pytester.path / "__cudamem__" / "known.jsonl"
    for number, chosen in enumerate(("test_a", "not test_a")):
        files = {**FILES, "__cudamem__/known.jsonl": GONE}
        inner = run_inner(files, "--cudamem", "-k", chosen, f"--cudamem-json={number}.json")
        assert inner.status == 0
        assert "not seen" not in inner.out
    assert main(["merge", "0.json", "-o", "all.json", "--prune"]) == 0
    assert known.read_text(encoding="utf-8") == GONE
    assert main(["merge", "0.json", "1.json", "-o", "all.json", "--prune"]) == 0
    assert known.read_text(encoding="utf-8") == ""


SMALL = """
    import torch
    A, B = [], []
    def test_a(): A.append(torch.ones(32 * 1024))
    def test_b(): B.append(torch.ones(2**20))
"""


def test_a_merge_prunes_nothing_that_its_shards_ignored(run_inner, pytester, monkeypatch):
    """One shard judged from 1 MiB on: it says nothing about the known leak of 128 KiB that is still there.

    The controls: one that judged it, and one that retained nothing.
    """
    monkeypatch.chdir(pytester.path)
    known = pytester.path / "__cudamem__" / "known.jsonl"
    run_inner(SMALL, "--cudamem", "--cudamem-update=known")
    assert len(known.read_text(encoding="utf-8").splitlines()) == 2
    fixed = SMALL.replace("B.append", "")
    for text, least, left in ((fixed, "1MiB", 1), (fixed, "0", 1), (fixed.replace("A.append", ""), "1MiB", 0)):
        inner = run_inner(text, "--cudamem", f"--cudamem-ignore-below={least}", "--cudamem-json=0.json")
        assert inner.status == 0
        assert main(["merge", "0.json", "-o", "all.json", "--prune"]) == 0
        assert len(known.read_text(encoding="utf-8").splitlines()) == left
        told = "known findings: 1 not pruned: these runs did not judge them (tests left out, another device, a check"
        notes = read_json(pytester.path / "all.json").notes
        assert any(note.startswith(told) for note in notes) is (least == "1MiB" and left == 1)


def test_a_run_prunes_nothing_below_its_default(run_inner, pytester):
    """What was recorded from the first byte on, and is smaller than 64 KiB, is not judged by default on the CPU."""
    known = pytester.path / "__cudamem__" / "known.jsonl"
    tiny = SMALL.replace("32 * 1024", "1024")
    run_inner(tiny, "--cudamem", "--cudamem-ignore-below=0", "--cudamem-update=known")
    assert len(known.read_text(encoding="utf-8").splitlines()) == 2
    inner = run_inner(tiny.replace("B.append", ""), "--cudamem", "--cudamem-prune")
    assert inner.last == "2 passed"
    assert [line.partition('"')[0] for line in known.read_text(encoding="utf-8").splitlines()] == ["{"]
    assert inner.run.notes[-1].startswith("known findings: 1 not pruned: this run did not judge them")
