"""A comment on a pull request, to the letter: what failed, what changed, what was not checked."""

from __future__ import annotations

from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord, Unchecked
from cudamem_testing.report.markdown import markdown
from cudamem_testing.report.named import named_lines
from suites.report.pages import LINE, everything, leak, over_budget, regression
from suites.report.test_causes import CPU, KNOWN, MANY, MIB, exactly, fault, measured, run


def limit(text: str, kind: Kind = Kind.BUDGET, severity: Severity = Severity.FAIL, *details: str) -> Finding:
    return Finding(kind, Verdict.OVER, severity, Reported(f"cudamem: {text}", details), 9, CPU)


def test_causes_name_their_tests_and_one_finding() -> None:
    lines = markdown(MANY).splitlines()
    cause = "`cache.py::put | module cache > K (list)[*]`"
    named = ", ".join(f"`tests/test_{number}.py::test`" for number in range(5))
    assert lines[:9] == [
        "### Memory: 50 of 54 tests failed because of memory",
        "",
        "#### Leaks: 51 tests, 4 causes",
        "",
        f"- **188.0 MiB in 47 findings**, reachable: {cause} in {named} and 42 more",
        "  ```",
        f"  {4 * MIB} B by cache",
        "     more",
        "  ```",
    ]
    items = [line.partition(": `")[0] for line in lines if line.startswith("- ")]
    assert items[1:] == [
        "- **3.0 MiB in 2 findings**, reachable (larger than known)",
        "- **512.0 KiB in 1 finding**, reachable (warning, first use)",
        "- **8 B in 1 finding**, held by C++",
        "- **1.0 MiB in 1 finding**, cycle (warning)",
    ]
    assert lines[-3:] == ["Known: 2 findings of 1 cause.", "", "nothing was measured; 54 tests without torch"]


def test_nothing_new() -> None:
    assert markdown(RunRecord(tests=(measured(KNOWN),))) == exactly("""
        ### Memory: No fault: 1 test

        Known: 1 finding of 1 cause.

        nothing was measured
        """)
    assert markdown(RunRecord()).startswith("### Memory: Nothing was measured\n")


def test_what_was_not_checked_and_why_the_run_failed() -> None:
    stopped = RunRecord(
        tests=(measured(),),
        failures=("interrupted: KeyboardInterrupt",),
        unenforced={"cuda is not measured here": 2},
        unchecked={Unchecked("baseline", "recorded with 2 threads, this run has 1 thread"): 1},
    )
    assert markdown(stopped) == exactly("""
        ### Memory: The run failed

        - failed: interrupted: KeyboardInterrupt
        - NOT CHECKED: 2 budgets: cuda is not measured here
        - NOT CHECKED: 1 baseline: recorded with 2 threads, this run has 1 thread

        nothing was measured
        """)


def test_limits_and_baselines_with_their_lines_beside_a_leak() -> None:
    grew = limit("requested 9 KiB | 1 KiB allowed", Kind.BASELINE, Severity.FAIL, "   +3 MiB  a.py:3 in f", "``` in it")
    over = limit("peak 3.0 MiB is over its budget")
    assert markdown(RunRecord(tests=(measured(over), measured(grew, grew, fault("a", 1))))) == exactly("""
        ### Memory: 1 of 1 test failed because of memory

        #### Budgets: 1 test, 1 finding

        - `tests/test_x.py::test`: peak 3.0 MiB is over its budget

        #### Baselines: 1 test, 2 findings

        - `tests/test_x.py::test`: requested 9 KiB | 1 KiB allowed
          ````
             +3 MiB  a.py:3 in f
          ``` in it
          ````
        - `tests/test_x.py::test`: requested 9 KiB | 1 KiB allowed
          ````
             +3 MiB  a.py:3 in f
          ``` in it
          ````

        #### Leaks: 1 test, 1 cause

        - **1 B in 1 finding**, reachable: `a.py::put | module a > K (list)[*]` in `tests/test_x.py::test`
          ```
          1 B by a
             more
          ```

        nothing was measured
        """)


def test_what_takes_less_is_said_with_how_to_record_it() -> None:
    better = Finding(
        Kind.BASELINE, Verdict.IMPROVED, Severity.NOTE, Reported("cudamem: requested 1 MiB, was 2 MiB"), 9, CPU
    )
    assert markdown(RunRecord(tests=(measured(better),))) == exactly("""
        ### Memory: No fault: 1 test

        #### Improved: 1 test

        - `tests/test_x.py::test`: requested 1 MiB, was 2 MiB

        Record it with `--cudamem-update=baselines`.

        nothing was measured
        """)


def test_a_comment_has_an_end() -> None:
    many = run(*(fault(f"f{number}", 1) for number in range(3000)))
    text = markdown(many)
    assert len(text) < 65_536
    shown = len([line for line in text.splitlines() if line.startswith("- **")])
    assert f"**{3000 - shown} more findings**: a comment has no room for them; the report has" in text


def test_a_long_finding_loses_its_end() -> None:
    text = markdown(RunRecord(tests=(measured(limit("much", Kind.BUDGET, Severity.FAIL, *map(str, range(40)))),)))
    assert "  13\n  ... 26 more lines\n  ```" in text


def test_code_cannot_be_left() -> None:
    assert "`a'b.py::put" in markdown(run(fault("a`b", 1)))


def test_lines_by_test_for_commands() -> None:
    found = leak()
    assert named_lines(everything())[:2] == [
        "test_a.py::test_over: peak 64.0 MiB above start is over its budget of 48.0 MiB by 16.0 MiB (cuda:0)",
        f"test_a.py::test_leak: 12.0 MiB leaked (1 block, cuda:0), allocated {LINE}, held by {found.holder}",
    ]
    lines = named_lines(RunRecord(findings=(leak(), fault("a", 3, Severity.WARN), over_budget(), regression())), most=3)
    assert [line.partition(" ")[0] for line in lines[:3]] == ["the", "the", "the"]
    assert lines[3] == "... 1 more finding"
    assert named_lines(RunRecord(findings=(fault("a", 3, Severity.WARN), KNOWN))) == [
        "warning: the run itself: 3 B by a"
    ]
    assert KNOWN.standing is Standing.KNOWN
