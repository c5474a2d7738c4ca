"""Known findings in a run: recorded, a note afterwards, larger, unseen, broken; audits; first uses; three in full."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from cudamem_testing.model.findings import Severity, Standing
from cudamem_testing.model.options import recording_command
from cudamem_testing.model.records import Unseen
from cudamem_testing.report.failures import notes
from cudamem_testing.wording.findings import details
from fixtures import legacy
from suites.plugin.inner import KIB, Inner, run_inner

ONE = """
    import torch
    KEPT = []

    def test_leaks():
        KEPT.append(torch.zeros(32 << 10))

    def test_clean(): pass
"""
CAUSE = "leak | reachable | test_it.py::test_leaks | module test_it > KEPT (list)[*]"
FILE = "__cudamem__/known.jsonl"


def line(cause: str = CAUSE, size: int = 128 * KIB, tests: tuple[str, ...] = ("test_it.py::test_leaks",), **more: str):
    values: dict[str, Any] = {"cause": cause, "device": "cpu", "bytes": size, "tests": [*tests], "reason": "", **more}
    return json.dumps(values) + "\n"


def run(pytester: pytest.Pytester, files: dict[str, str] | str, *arguments: str) -> Inner:
    return run_inner(pytester, files, "--cudamem", "--cudamem-device=cpu", *arguments)


def known(pytester: pytest.Pytester, name: str = FILE) -> str:
    return (pytester.path / name).read_text(encoding="utf-8")


def standing(inner: Inner, name: str = "test_leaks") -> list[tuple[Severity, Standing | None]]:
    return [(one.severity, one.standing) for one in inner.test(name).findings]


class TestRecorded:
    """The flag that records, and the run after it."""

    def test_recorded_then_a_note(self, pytester: pytest.Pytester) -> None:
        first = run(pytester, ONE, "--cudamem-update=known")
        assert (first.status, standing(first)) == (0, [(Severity.NOTE, Standing.KNOWN)])
        assert known(pytester) == line()
        assert f"note: known findings: 1 new ({FILE} was written)" in first.summary
        assert "known: 1 finding of 1 cause" in first.summary
        again = run(pytester, {}, "--cudamem-update=known")
        assert f"note: known findings: 1 the same ({FILE} is unchanged)" in again.summary
        after = run(pytester, {})
        assert (after.status, standing(after)) == (0, [(Severity.NOTE, Standing.KNOWN)])
        assert details(after.test("test_leaks").findings[0])[-1] == f"   known: no reason given ({FILE}:1)"
        assert "known: 1 finding of 1 cause" in after.summary
        assert after.run.notes == ()

    def test_reasons_survive_an_update(self, pytester: pytest.Pytester) -> None:
        text = line("leak | reachable | other.py::f", tests=()) + line(reason="geht im März", size=8 * 128 * KIB)
        inner = run(pytester, {"test_it.py": ONE, FILE: text}, "--cudamem-update=known")
        assert f"note: known findings: 1 changed ({FILE} was written)" in inner.summary
        assert [json.loads(one)["reason"] for one in known(pytester).splitlines()] == ["", "geht im März"]
        assert json.loads(known(pytester).splitlines()[1])["bytes"] == 128 * KIB

    def test_a_file_of_its_own(self, pytester: pytest.Pytester) -> None:
        run(pytester, ONE, "--cudamem-known=faults/old.jsonl", "--cudamem-update=known")
        assert known(pytester, "faults/old.jsonl") == line()
        assert not (pytester.path / FILE).exists()
        ini = "[pytest]\ncudamem_known = faults/old.jsonl\n"
        assert run(pytester, {"pytest.ini": ini}).status == 0

    def test_nothing_to_record_makes_no_file(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, "import torch\ndef test_clean(): torch.zeros(9)", "--cudamem-update=known")
        assert f"note: known findings: none ({FILE} is unchanged)" in inner.summary
        assert not (pytester.path / FILE).exists()

    def test_without_the_accounting_the_file_is_not_even_read(self, pytester: pytest.Pytester) -> None:
        inner = run_inner(pytester, {"test_it.py": ONE, FILE: "broken"})
        assert inner.status == 0

    def test_larger_fails_and_says_what_was_known(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": ONE, FILE: line(size=8 * KIB)})
        assert (inner.status, standing(inner)) == (1, [(Severity.FAIL, Standing.LARGER)])
        assert inner.section("ERROR at teardown of test_leaks")[-1] == (
            f"   larger than the recorded 8.0 KiB, 1%|64KiB more allowed ({FILE}:1)"
        )

    def test_another_cause_is_new(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": ONE, FILE: line(CAUSE.replace("KEPT", "OTHER"))})
        assert (inner.status, standing(inner)) == (1, [(Severity.FAIL, None)])

    def test_what_another_run_added_meanwhile_stays(self, pytester: pytest.Pytester) -> None:
        """The test itself stands for a run that ends first."""
        other = line("leak | reachable | other.py::f", tests=())
        writes = (
            ONE
            + f"""
    def test_writes():
        import pathlib
        pathlib.Path({FILE!r}).write_text({other!r})
"""
        )
        inner = run(pytester, {"test_it.py": writes, FILE: ""}, "--cudamem-update=known")
        assert known(pytester) == other + line()
        assert f"note: known findings: 1 new ({FILE} was written)" in inner.summary


class TestWrittenByHand:
    """A line with ``*``."""

    PATTERN = "leak | reachable | *::test_leaks | module test_it > *"

    def test_a_pattern_makes_a_note_of_what_it_matches(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": ONE, FILE: line(self.PATTERN, tests=())})
        assert (inner.status, standing(inner)) == (0, [(Severity.NOTE, Standing.KNOWN)])

    def test_and_nothing_else(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": ONE.replace("KEPT", "_KEPT"), FILE: line(f"{self.PATTERN} (dict)[*]")})
        assert (inner.status, standing(inner)) == (1, [(Severity.FAIL, None)])

    def test_an_update_keeps_it(self, pytester: pytest.Pytester) -> None:
        run(pytester, {"test_it.py": ONE, FILE: line(self.PATTERN, tests=())}, "--cudamem-update=known")
        assert known(pytester) == line(self.PATTERN)


class TestUnseen:
    """A cause that is gone."""

    GONE = line("leak | reachable | test_it.py::f | module test_it > OLD (list)[*]")
    LEFT = Unseen("--cudamem-prune", ("leak | reachable | test_it.py::f | module test_it > OLD (list)[*] (cpu)",))

    def test_it_is_reported_and_dropped(self, pytester: pytest.Pytester) -> None:
        files = {"test_it.py": "import torch\ndef test_leaks(): torch.zeros(9)", FILE: self.GONE}
        inner = run(pytester, files)
        assert (inner.status, inner.run.unseen, known(pytester)) == (0, self.LEFT, self.GONE)
        assert "note: 1 known cause was not seen (--cudamem-prune drops what is gone):" in inner.summary
        pruned = run(pytester, {}, "--cudamem-prune")
        assert pruned.run.notes == (f"known findings: 1 dropped ({FILE} was written)",)
        assert known(pytester) == ""
        again = run(pytester, {}).run
        assert (again.notes, again.unseen) == ((), Unseen())

    def test_many_are_reported_briefly(self, pytester: pytest.Pytester) -> None:
        text = "".join(line(f"leak | {name}") for name in "abcde")
        inner = run(pytester, {"test_it.py": "import torch\ndef test_leaks(): torch.zeros(9)", FILE: text})
        assert notes(inner.run) == (
            (
                "5 known causes were not seen (--cudamem-prune drops what is gone):\n"
                "leak | a (cpu)\nleak | b (cpu)\nleak | c (cpu)\n... and 2 more"
            ),
        )

    @pytest.mark.parametrize(
        ("arguments", "body"),
        [
            (("-k", "leaks"), "torch.zeros(9)"),
            (("test_it.py::test_leaks",), "torch.zeros(9)"),
            (("--cudamem-leaks=off",), "torch.zeros(9)"),
            (("--cudamem-stacks=off",), "torch.zeros(9)"),
            (("--deselect=test_it.py::test_other",), "torch.zeros(9)"),
            ((), "pytest.skip('not here')"),
            ((), "assert not torch.zeros(9).sum"),
            ((), "pytest.xfail('ends before what leaked')"),
        ],
    )
    def test_it_is_not_gone_when_it_was_not_looked_for(
        self, pytester: pytest.Pytester, arguments: tuple[str, ...], body: str
    ) -> None:
        file = f"import pytest, torch\ndef test_leaks(): {body}\ndef test_other(): torch.zeros(9)"
        inner = run(pytester, {"test_it.py": file, FILE: self.GONE}, "--cudamem-prune", *arguments)
        assert known(pytester) == self.GONE
        assert "not seen" not in inner.out

    @pytest.mark.parametrize(("arguments", "dropped"), [(("test_it.py",), True), (("sub",), False), ((".",), True)])
    def test_its_file_must_be_among_what_was_asked_for(
        self, pytester: pytest.Pytester, arguments: tuple[str, ...], dropped: bool
    ) -> None:
        clean = "import torch\ndef test_leaks(): torch.zeros(9)"
        files = {"test_it.py": clean, "sub/test_sub.py": clean, FILE: self.GONE}
        run(pytester, files, "--cudamem-prune", *arguments)
        assert known(pytester) == ("" if dropped else self.GONE)

    def test_a_hook_that_leaves_tests_out(self, pytester: pytest.Pytester) -> None:
        conftest = """
            def pytest_collection_modifyitems(config, items):
                config.hook.pytest_deselected(items=[items.pop()])
        """
        file = "import torch\ndef test_leaks(): torch.zeros(9)\ndef test_other(): pass"
        run(pytester, {"conftest.py": conftest, "test_it.py": file, FILE: self.GONE}, "--cudamem-prune")
        assert known(pytester) == self.GONE


class TestBroken:
    """Files that cannot be read or written."""

    @pytest.mark.parametrize("arguments", [(), ("--cudamem-update=known",), ("--cudamem-prune",)])
    def test_one_error_before_any_test(self, pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
        text = line() + "<<<<<<< HEAD\n"
        inner = run(pytester, {"test_it.py": ONE, FILE: text}, *arguments)
        assert inner.status == 4
        assert inner.err.splitlines()[0] == (
            f"ERROR: cudamem: {FILE}:2: an unresolved merge conflict: keep one line of each entry"
        )
        assert (known(pytester), inner.record) == (text, None)

    def test_broken_while_the_tests_ran(self, pytester: pytest.Pytester) -> None:
        breaks = (
            ONE
            + f"""
    def test_breaks():
        import pathlib
        pathlib.Path({FILE!r}).write_text("half a li")
"""
        )
        inner = run(pytester, {"test_it.py": breaks, FILE: ""}, "--cudamem-update=known")
        assert (inner.status, known(pytester)) == (1, "half a li")
        assert inner.run.notes == (
            f"known findings were not written: {FILE}:1: is no JSON: Expecting value (column 1)",
        )

    def test_a_place_that_cannot_be_written(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, ONE, "--cudamem-known=test_it.py/known.jsonl", "--cudamem-update=known")
        assert inner.status == 1
        assert [note.partition(": [")[0] for note in inner.run.notes] == ["known findings were not written"]

    def test_a_file_that_cannot_be_read(self, pytester: pytest.Pytester) -> None:
        (pytester.path / FILE).mkdir(parents=True)
        inner = run(pytester, ONE)
        assert inner.status == 4
        assert inner.err.splitlines()[0] == (
            f"ERROR: cudamem: known findings cannot be read: [Errno 21] Is a directory: '{pytester.path / FILE}'"
        )


FAULTS = """
    import pytest, torch
    KEPT = []

    @pytest.mark.parametrize("size", [1, 2])
    def test_leaks(size):
        KEPT.append(torch.zeros(size << 15))

    class Node: pass

    def test_cycle():
        node = Node()
        node.me, node.x = node, torch.zeros(32 << 10)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_over():
        torch.zeros(512)
"""


class TestAudit:
    """``--cudamem-audit``."""

    def test_nothing_fails_and_the_largest_causes_are_last(self, pytester: pytest.Pytester) -> None:
        inner = run_inner(
            pytester, FAULTS, "--cudamem-audit", "--cudamem-device=cpu", "--cudamem-cycles=fail", "--cudamem-top=0"
        )
        assert inner.status == 0
        assert inner.last == "4 passed"
        assert {one.severity for test in inner.run.tests for one in test.findings} == {Severity.WARN}
        assert inner.summary[:4] == [
            "budget: 1 finding (over budget, warning) in 1 test",
            "cycle: 1 finding (cycle, warning) in 1 test",
            "leak: 2 findings (reachable, warning) in 2 tests",
            "measured 4 tests on cpu",
        ]
        audit = inner.summary[inner.summary.index("audit: 3 tests, 2 causes; no test fails for that") :]
        assert audit[1:8] == [
            "1. 2 tests, 384.0 KiB, first in test_it.py::test_leaks[1]",
            "cudamem: 256.0 KiB leaked (1 block, cpu)",
            "   256.0 KiB  float32[65536] on cpu  reachable",
            "      allocated  test_it.py:6 in test_leaks",
            "      held by    module test_it > KEPT (list)[1]",
            "   hint: call test_it.KEPT.clear() at the end of the test",
            "   more: python -m cudamem_testing explain reachable, docs/hints.md#module-global",
        ]
        assert audit[8] == "2. 1 test, 128.0 KiB, first in test_it.py::test_cycle"
        assert audit[-2] == "to record them as known:"
        assert audit[-1].startswith("  pytest --cudamem --cudamem-update=known -p ")
        assert audit[-1].endswith(" --cudamem-device=cpu --cudamem-cycles=fail --cudamem-top=0")

    def test_an_audit_keeps_other_failures_and_omits_known_ones(self, pytester: pytest.Pytester) -> None:
        files = {"test_it.py": ONE + "\n    def test_fails(): assert 0\n", FILE: line()}
        inner = run(pytester, files, "--cudamem-audit", "-q")
        assert inner.status == 1
        assert "audit: nothing was found that is not known" in inner.lines

    def test_it_says_what_each_line_matched_last(self, pytester: pytest.Pytester) -> None:
        pattern = "leak | reachable | test_it.py::* | module test_it > *"
        old = "leak | reachable | x.py::f | module x > C (dict)['a1']"
        files = {"test_it.py": ONE, FILE: line(pattern) + line(old, tests=()) + line()}
        inner = run(pytester, files, "--cudamem-audit")
        assert inner.status == 0
        start = inner.summary.index("3 lines of known findings, with what each matched last:")
        assert inner.summary[start + 1 :] == [
            f"  {FILE}:1: {pattern} (cpu)",
            f"    {CAUSE} in test_it.py::test_leaks",
            f"  {FILE}:2: leak | reachable | x.py::f | module x > C (dict)[*] (cpu)",
            "    nothing",
            f"  {FILE}:3: {CAUSE} (cpu)",
            "    test_it.py::test_leaks",
        ]

    def test_the_command(self) -> None:
        arguments = ["--cudamem", "--cudamem-audit", "-k", "a b", "tests"]
        assert recording_command(arguments) == "pytest --cudamem --cudamem-update=known -k 'a b' tests"


class TestFirstUse:
    """ini ``cudamem_first_use``."""

    FILES = """
        import functools
        import pytest, torch
        KEPT = []

        @functools.lru_cache
        def table(): return torch.zeros(32 << 10)

        def test_cache(): table()
        def test_cache_again(): table()

        @pytest.mark.parametrize("n", [1, 2])
        def test_grows(n): KEPT.append(torch.zeros(32 << 10))
    """
    INI = "[pytest]\ncudamem_first_use = warn\n"

    def test_a_warning_at_first_sight_and_a_failure_when_it_grows(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": self.FILES, "pytest.ini": self.INI}, "--cudamem-update=expected")
        first, fails = [(Severity.WARN, Standing.FIRST_USE)], [(Severity.FAIL, None)]
        assert {name: standing(inner, name) for name in inner.outcomes} == {
            "test_cache": first,
            "test_cache_again": [],
            "test_grows[1]": first,
            "test_grows[2]": fails,
        }
        assert details(inner.test("test_cache").findings[0])[-1] == (
            "   first use: fails if the same cause keeps more later"
        )

    def test_a_first_use_is_not_recorded(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, {"test_it.py": self.FILES, "pytest.ini": self.INI}, "--cudamem-update=known")
        assert inner.status == 0
        assert [json.loads(one)["tests"] for one in known(pytester).splitlines()] == [["test_it.py::test_grows"]]
        more = {"test_it.py": self.FILES.replace("append(torch.zeros(32 << 10))", "append(torch.zeros(32 << 16))")}
        inner = run(pytester, more)
        assert standing(inner, "test_grows[1]") == [(Severity.FAIL, Standing.LARGER)]  # on record, so no first use


SAME = """
    import pytest, torch
    KEPT = []

    @pytest.mark.parametrize("n", range(4))
    def test_leaks(n): KEPT.append(torch.zeros(32 << 10))
"""
FULL = "      allocated  test_it.py:5 in test_leaks"
BRIEF = "cudamem: 128.0 KiB leaked (1 block, cpu): the same cause as in test_it.py::test_leaks[0]"


class TestThreeInFull:
    """Failures of one cause."""

    def test_the_rest_have_one_line(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, SAME)
        for n in range(4):
            section = inner.section(f"ERROR at teardown of test_leaks[{n}]")
            assert section == [BRIEF] if n > 2 else FULL in section
        assert inner.summary[:3] == [
            "leak: 4 findings (reachable) in 4 tests",
            "4 tests, 1 cause:",
            "  4 tests  512.0 KiB  leak, reachable  test_it.py::test_leaks | module test_it > KEPT (list)[*]",
        ]
        assert sum(one.startswith("LEAKED test_it.py::test_leaks[3] - Failed: cudamem: 128") for one in inner.lines)

    def test_all_in_full_with_vv(self, pytester: pytest.Pytester) -> None:
        inner = run(pytester, SAME, "-vv")
        assert FULL in inner.section("ERROR at teardown of test_leaks[3]")


@pytest.mark.subprocess
def test_a_broken_file_is_one_error_of_all_workers(run_outer) -> None:
    files = {"test_it.py": SAME, FILE: "[]\n"}
    inner = run_outer(files, "--cudamem", "-n2", plugins=["xdist.plugin"], report=False)
    assert inner.status == 4
    assert inner.err.count(f"cudamem: {FILE}:1: is no object") == 1
    assert "INTERNALERROR" not in inner.out


#: Tests, leaks and causes of the old suite.
SUITE = (500, 300, 12) if os.environ.get("HYPOTHESIS_PROFILE") == "full" else (12, 5, 4)
NEW = """
import torch

KEPT = []


def test_new():
    KEPT.append(torch.ones(32 * 1024))
"""


PRUNED = """
    import torch
    A, B = [], []
    def test_a(): A.append(torch.ones(32 * 1024))
    def test_b(): B.append(torch.ones(32 * 1024))
"""
NOT_PRUNED = (
    "not pruned: this run did not judge them (tests left out, another device, a check that is off, or a higher "
    "--cudamem-ignore-below)"
)


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (("-k", "test_b"), 1),
        (("--deselect=test_it.py::test_a",), 1),
        (("--cudamem-leaks=off",), 2),
        (("--cudamem-ignore-below=1MiB",), 2),
    ],
)
def test_what_was_not_judged_is_not_pruned_and_said(pytester: pytest.Pytester, arguments, number) -> None:
    run_inner(pytester, PRUNED, "--cudamem", "--cudamem-update=known")
    before = known(pytester)
    inner = run_inner(pytester, PRUNED, "--cudamem", "--cudamem-prune", "-q", *arguments)
    assert known(pytester) == before
    assert inner.run.notes == (f"known findings: {number} {NOT_PRUNED}",)
    assert any(line.startswith(f"note: known findings: {number} not pruned") for line in inner.lines)
    inner = run_inner(pytester, PRUNED.replace("A.append", ""), "--cudamem", "--cudamem-prune", "-q")
    assert inner.run.notes == (f"known findings: 1 dropped ({FILE} was written)",)


def test_an_old_suite_adopts_the_plugin_with_three_commands(pytester: pytest.Pytester) -> None:
    """The first names the causes, the second records them, the third is green."""
    tests, leaks, causes = SUITE
    legacy.write(pytester.path, *SUITE)

    def command(*arguments: str, files: dict[str, str] | None = None) -> Inner:
        return run_inner(pytester, files or {}, "-q", "--cudamem-device=cpu", *arguments)

    began = time.monotonic()
    audit = command("--cudamem-audit")
    assert audit.status == 0
    assert f"audit: {leaks} tests, {causes} causes; no test fails for that" in audit.lines
    assert sum(one.startswith("cudamem: 128.0 KiB leaked") for one in audit.lines) == 3
    assert f"  ... {causes - 3} more cause{'s' if causes > 4 else ''}" in audit.lines

    recorded = command("--cudamem", "--cudamem-update=known")
    assert recorded.status == 0
    lines = [json.loads(one) for one in known(pytester).splitlines()]
    assert len(lines) == causes
    assert {one["bytes"] - legacy.SIZE for one in lines} <= {0, 4}  # a loss beside its graph
    assert sum(len(one["tests"]) for one in lines) == leaks
    assert recorded.run.notes == (f"known findings: {causes} new ({FILE} was written)",)

    green = command("--cudamem")
    assert (green.status, green.last) == (0, f"{tests} passed")
    assert sum(one.standing is Standing.KNOWN for test in green.run.tests for one in test.findings) == leaks
    assert f"known: {leaks} findings of {causes} causes" in green.lines
    print(f"{tests} tests, {leaks} leaks, {causes} causes: {time.monotonic() - began:.0f} s for three runs")

    new = command("--cudamem", "tests/test_new.py", files={"tests/test_new.py": NEW})
    assert (new.status, new.last) == (1, "1 passed, 1 error")
    (finding,) = new.test("test_new").failing
    assert finding.cause == "leak | reachable | tests/test_new.py::test_new | module test_new > KEPT (list)[*]"


def test_a_file_of_known_findings_that_is_not_there_is_named(pytester: pytest.Pytester) -> None:
    """Else a misspelt name looks as if every known finding were new."""
    note = f"--cudamem-known: there is no {pytester.path / 'knwon.jsonl'}; --cudamem-update=known writes it"
    inner = run_inner(pytester, PRUNED, "--cudamem", "--cudamem-known=knwon.jsonl", "-q")
    assert inner.run.notes == (note,)
    inner = run_inner(pytester, PRUNED, "--cudamem", "--cudamem-known=knwon.jsonl", "--cudamem-update=known")
    assert note not in inner.run.notes
    inner = run_inner(pytester, PRUNED, "--cudamem", "--cudamem-known=knwon.jsonl")
    assert (inner.status, inner.run.notes) == (0, ())
    assert run_inner(pytester, PRUNED, "--cudamem").run.notes == ()
