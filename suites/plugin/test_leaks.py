"""The leak check in a run: what fails and how, what is only said, what is ignored, and who left what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from cudamem_testing import guards
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.run import holders
from cudamem_testing.run.by_owner import ByOwner
from cudamem_testing.run.holders import BlockHolders
from cudamem_testing.run.retained_analysis import Reading
from cudamem_testing.run.running import LeakSubject
from cudamem_testing.wording.findings import text, title
from suites.plugin.inner import KIB, Inner

LEAKS = """
    import pytest, torch

    KEPT = []

    def remember(size):
        KEPT.append(torch.zeros(size // 4))

    def test_clean():
        torch.zeros(1 << 20)

    def test_leaks():
        remember(128 << 10)

    def test_below_the_threshold():
        remember(32 << 10)

    def test_below_in_parts():
        for _ in range(3):
            remember(32 << 10)

    @pytest.mark.xfail
    def test_expected_failure():
        remember(128 << 10)
        assert False

    @pytest.mark.xfail
    def test_expected_leak():
        remember(128 << 10)

    def test_fails():
        remember(128 << 10)
        assert False

    def test_skips():
        remember(128 << 10)
        pytest.skip("in the middle")

    @pytest.mark.cudamem(leaks="warn", reason="by design")
    def test_warns():
        remember(128 << 10)

    @pytest.mark.cudamem(leaks="off", reason="by design")
    def test_off():
        remember(128 << 10)

    @pytest.mark.cudamem(device="cuda:0", reason="only the card counts")
    def test_other_device():
        remember(128 << 10)

    @pytest.mark.cudamem(leaks="warn", reason="all of the class")
    class TestOverride:
        def test_inherits(self):
            remember(128 << 10)

        @pytest.mark.cudamem(leaks="fail", reason="not this one")
        def test_nearest_wins(self):
            remember(128 << 10)

    def test_starts_with_what_others_left(cuda_memory):
        assert cuda_memory.statistics().allocated >= 128 << 10
"""


@pytest.fixture
def ran(run_inner) -> Inner:
    """One run of all of them."""
    return run_inner(LEAKS, "--cudamem", "--cudamem-device=cpu", "--cudamem-json=report.json")


def test_outcomes(ran: Inner) -> None:
    fails, warns = [("reachable", "fail")], [("reachable", "warn")]
    assert {
        test.nodeid.rpartition("::")[2]: (
            test.outcome,
            [(one.verdict.value, one.severity.value) for one in test.findings],
        )
        for test in ran.run.tests
    } == {
        "test_clean": ("passed", []),
        "test_leaks": ("error", fails),
        "test_below_the_threshold": ("passed", []),
        "test_below_in_parts": ("error", fails),
        "test_expected_failure": ("xfailed", warns),
        "test_expected_leak": ("xfailed", fails),
        "test_fails": ("failed", warns),
        "test_skips": ("error", fails),
        "test_warns": ("passed", warns),
        "test_off": ("passed", []),
        "test_other_device": ("passed", []),
        "test_inherits": ("passed", warns),
        "test_nearest_wins": ("error", fails),
        "test_starts_with_what_others_left": ("passed", []),
    }


def test_the_words_of_the_run(ran: Inner) -> None:
    assert "LEAKED test_it.py::test_leaks - Failed: cudamem: 128.0 KiB leaked (1 block, cpu)" in ran.out
    assert ran.section("ERROR at teardown of test_leaks") == [
        "cudamem: 128.0 KiB leaked (1 block, cpu)",
        "   128.0 KiB  float32[32768] on cpu  reachable",
        "      allocated  test_it.py:6 in remember <- test_it.py:12 in test_leaks",
        "      held by    module test_it > KEPT (list)[0]",
        "   hint: call test_it.KEPT.clear() at the end of the test",
        "   more: python -m cudamem_testing explain reachable, docs/hints.md#module-global",
    ]
    assert [line for line in ran.summary if line.startswith("leak: ")] == [
        "leak: 4 findings (reachable) in 4 tests",
        "leak: 3 findings (reachable, warning) in 3 tests",
        "leak: 2 findings (reachable, xfail) in 2 tests",
    ]


def test_the_report_names_who_left_what(ran: Inner) -> None:
    report = json.loads((ran.folder / "report.json").read_text())
    left = {entry["owner"].partition("::")[2]: (entry["bytes"], entry["blocks"]) for entry in report["run"]["ledger"]}
    assert left["test_leaks"] == (128 * KIB, 1)
    assert left["test_below_in_parts"] == (96 * KIB, 3)
    assert left["test_off"] == (128 * KIB, 1)
    assert "test_clean" not in left
    (finding,) = next(one for one in report["tests"] if one["nodeid"].endswith("test_leaks"))["findings"]
    assert finding["holder"] == "module test_it > KEPT (list)[0]"
    assert finding["cause"] == "leak | reachable | test_it.py::remember | module test_it > KEPT (list)[*]"


ONE = """
    import torch
    KEPT = []

    def test_leaks():
        KEPT.append(torch.zeros(32 << 10))
"""


class TestSettings:
    """The flag and the threshold."""

    @pytest.mark.parametrize(
        ("arguments", "outcome", "severity"),
        [
            ((), "error", Severity.FAIL),
            (("--cudamem-leaks=fail",), "error", Severity.FAIL),
            (("--cudamem-leaks=warn",), "passed", Severity.WARN),
            (("--cudamem-leaks=off",), "passed", None),
            (("--cudamem-ignore-below=129KiB",), "passed", None),
            (("--cudamem-ignore-below=128KiB",), "error", Severity.FAIL),
        ],
    )
    def test_flags(self, run_inner, arguments: tuple[str, ...], outcome: str, severity: Severity | None) -> None:
        inner = run_inner(ONE, "--cudamem", "--cudamem-device=cpu", *arguments)
        test = inner.test("test_leaks")
        assert (test.outcome, [one.severity for one in test.findings]) == (outcome, [severity] if severity else [])

    def test_a_warning_passes_and_is_reported(self, run_inner) -> None:
        inner = run_inner(ONE, "--cudamem", "--cudamem-leaks=warn")
        assert inner.status == 0
        assert "leak: 1 finding (reachable, warning) in 1 test" in inner.summary

    def test_without_the_flag_nothing_is_judged(self, run_inner) -> None:
        inner = run_inner(ONE)
        assert inner.status == 0
        assert "cudamem" not in inner.out.partition("collected")[2]


def ini(*rules: str) -> str:
    return "[pytest]\ncudamem_ignore =\n" + "".join(f"    {rule}\n" for rule in rules)


class TestRules:
    """``cudamem_ignore``."""

    @pytest.mark.parametrize(
        "rule",
        ["holder: module test_it > KEPT (list)[*]", "file: test_*.py", "function: test_leaks"],
    )
    def test_what_is_ignored_is_counted(self, run_inner, rule: str) -> None:
        inner = run_inner({"test_it.py": ONE, "pytest.ini": ini(f"{rule}  # by design")}, "--cudamem")
        assert inner.status == 0
        assert inner.test("test_leaks").findings == ()
        assert f"ignored 1 finding by rule '{rule}' (by design)" in inner.run.notes

    def test_a_rule_that_matched_nothing_is_named(self, run_inner) -> None:
        files = {"test_it.py": ONE, "pytest.ini": ini("file: vendor/*  # not ours", "file: test_it.py  # by design")}
        inner = run_inner(files, "--cudamem")
        assert inner.run.notes == (
            "rule 'file: vendor/*' (not ours) ignored nothing: it can be removed from cudamem_ignore",
            "ignored 1 finding by rule 'file: test_it.py' (by design)",
        )
        assert "note: rule 'file: vendor/*' (not ours) ignored nothing: it can be removed from" in inner.summary

    @pytest.mark.parametrize(
        "arguments",
        [
            ("-k", "test"),
            ("-m", "not slow"),
            ("--deselect=test_it.py::test_other",),
            ("test_it.py",),
            ("test_it.py::test_leaks",),
            ("-x",),
            ("--maxfail=1",),
            ("--ignore=other",),
            ("--collect-only",),
            ("--cudamem-leaks=off",),
        ],
    )
    def test_nothing_is_said_of_it_when_the_run_was_not_whole(self, run_inner, arguments: tuple[str, ...]) -> None:
        test = ONE + "\n    def test_other(): pass\n"
        files = {"test_it.py": test, "pytest.ini": ini("file: vendor/*  # not ours")}
        inner = run_inner(files, "--cudamem", *arguments)
        assert "ignored nothing" not in inner.out
        assert inner.record is None or inner.record.notes == ()

    def test_a_folder_is_whole(self, run_inner) -> None:
        files = {"tests/test_it.py": ONE, "pytest.ini": ini("file: vendor/*  # not ours")}
        inner = run_inner(files, "--cudamem", "tests")
        assert any("ignored nothing" in note for note in inner.run.notes)

    def test_quiet(self, run_inner) -> None:
        files = {"test_it.py": ONE, "pytest.ini": ini("file: test_it.py  # by design", "file: x  # never")}
        inner = run_inner(files, "--cudamem", "-q")
        assert not inner.has_section("cudamem summary")
        assert len(inner.run.notes) == 2

    def test_malformed_rules_stop_the_run(self, run_inner) -> None:
        inner = run_inner({"test_it.py": ONE, "pytest.ini": ini("file: x", "where: y  # z")}, "--cudamem")
        assert inner.status == 4
        grammar = "is not FIELD: PATTERN  # REASON with a field of holder, file, function"
        assert inner.err.splitlines()[:2] == [
            f"ERROR: cudamem: ini cudamem_ignore: 'file: x' {grammar}",
            f"cudamem: ini cudamem_ignore: 'where: y  # z' {grammar}",
        ]


FIXTURES = """
    import pytest, torch

    @pytest.fixture(scope="module")
    def model():
        return {"weight": torch.zeros(32 << 10)}

    @pytest.fixture(scope="session", autouse=True)
    def table():
        yield torch.zeros(32 << 10)

    @pytest.fixture
    def narrow():
        return torch.zeros(32 << 10)

    def test_first_use(model, narrow): pass
    def test_second_use(model): pass

    def test_grows_it(model):
        model["cache"] = torch.zeros(32 << 10)

    def test_lazily(request):
        request.getfixturevalue("narrow")
        request.getfixturevalue("model")

    class TestInstance:
        def test_sets(self):
            self.x = torch.zeros(32 << 10)

        def test_after(self):
            assert not hasattr(self, "x")
"""


def test_fixtures_and_instances_are_not_charged_to_tests(run_inner) -> None:
    inner = run_inner(FIXTURES, "--cudamem", "--cudamem-ignore-below=0")
    assert inner.status == 0
    found = {name: [one.verdict for one in inner.test(name).findings] for name in inner.outcomes}
    assert found == {
        "test_first_use": [],
        "test_second_use": [],
        "test_grows_it": [Verdict.FIXTURE],
        "test_lazily": [],
        "test_sets": [Verdict.TEST_INSTANCE],
        "test_after": [],
    }
    (grown,) = inner.test("test_grows_it").findings
    assert (grown.severity, grown.bytes) == (Severity.NOTE, 128 * KIB)
    assert grown.holder == "fixture 'model'.cached_result (tuple)[0] > dict['cache']"


TRACEBACKS = """
    import sys
    import pytest, torch, weakref
    ALIVE = {}

    def fail(name):
        x = torch.zeros(32 << 10)
        ALIVE[name] = weakref.ref(x)
        raise ValueError(name)

    @pytest.fixture
    def nothing_lives():
        assert {name: ref() is not None for name, ref in ALIVE.items() if ref() is not None} == {}

    def test_fails(): fail("test")

    def test_after_failure(nothing_lives): pass

    @pytest.mark.xfail
    def test_xfails(): fail("xfail")

    def test_after_xfail(nothing_lives): pass

    @pytest.fixture
    def broken(): fail("setup")

    def test_fails_in_setup(broken): pass

    def test_after_setup(nothing_lives): pass

    @pytest.fixture
    def breaks():
        yield
        fail("teardown")

    def test_fails_in_teardown(breaks): pass

    def test_after_teardown(nothing_lives): pass

    def test_chained():
        try:
            fail("inner")
        except ValueError as error:
            raise KeyError("outer") from error

    def test_after_chained(nothing_lives): pass

    def test_skips():
        x = torch.zeros(32 << 10)
        ALIVE["skip"] = weakref.ref(x)
        pytest.skip("in the middle")

    def test_after_skip(nothing_lives): pass
"""


def test_tracebacks_are_cleared_before_the_next_test(run_inner) -> None:
    inner = run_inner(TRACEBACKS, "--cudamem")
    after = {name: outcome for name, outcome in inner.outcomes.items() if name.startswith("test_after")}
    assert {*after.values()} == {"passed"}, inner.out
    for name in ("test_fails", "test_xfails", "test_fails_in_setup", "test_chained"):
        (finding,) = inner.test(name).findings
        assert (finding.verdict, finding.severity, finding.bytes) == (Verdict.TRACEBACK, Severity.NOTE, 128 * KIB), name
    assert "E       ValueError: test" in inner.out  # pytest's report is whole


WARNINGS = """
    import warnings
    import pytest, torch

    class Heavy(UserWarning):
        pass

    def test_argument():
        warnings.warn(Heavy(torch.ones(2**15)))

    def test_source():
        warnings.warn("x", UserWarning, source=torch.ones(2**15))

    def test_caught():
        with pytest.warns(Heavy):
            warnings.warn(Heavy(torch.ones(2**15)))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("whole_heap")  # the module ``warnings`` holds them
def test_what_pytest_records_of_warnings_is_not_the_tests(run_inner) -> None:
    inner = run_inner(WARNINGS, "--cudamem", "-W", "default")
    assert inner.last == "3 passed, 2 warnings"
    for name in ("test_argument", "test_source"):
        (finding,) = inner.test(name).findings
        assert (finding.verdict, finding.severity, finding.bytes) == (Verdict.HARNESS, Severity.NOTE, 128 * KIB)
    assert inner.test("test_caught").findings == ()


def test_a_leak_is_reported_once_by_the_test_that_made_it(run_inner) -> None:
    files = {f"test_{name}.py": ONE for name in "abc"} | {"test_d.py": "def test_nothing(): pass"}
    inner = run_inner(files, "--cudamem")
    assert [len(test.findings) for test in inner.run.tests] == [1, 1, 1, 0]
    assert inner.run.findings == ()


def test_the_first_failure_stops_the_run(run_inner) -> None:
    inner = run_inner(ONE + "\n    def test_other(): pass\n", "--cudamem", "-x")
    assert [*inner.outcomes] == ["test_leaks"]
    assert inner.status == 1


COLLECTOR = """
    import gc
    import pytest, torch
    KEPT = []

    class Node: pass

    def test_leaks_with_the_collector_off():
        gc.disable()
        node = Node()
        node.me = node
        KEPT.append(torch.zeros(32 << 10))

    def test_it_is_still_off():
        assert not gc.isenabled()
        gc.enable()

    def test_leaks_with_flags():
        gc.set_debug(gc.DEBUG_SAVEALL)
        KEPT.append(torch.zeros(32 << 10))

    def test_flags_are_still_on():
        assert gc.get_debug() == gc.DEBUG_SAVEALL
        gc.set_debug(0)
        gc.garbage.clear()

    def test_leaks_frozen():
        KEPT.append(torch.zeros(32 << 10))
        gc.freeze()

    def test_it_is_still_frozen():
        assert gc.get_freeze_count()
        gc.unfreeze()
"""


@pytest.mark.usefixtures("whole_heap")  # it freezes objects
def test_the_collector_is_unchanged(run_inner) -> None:
    inner = run_inner(COLLECTOR, "--cudamem")
    for name, outcome in inner.outcomes.items():
        assert outcome == ("error" if name.startswith("test_leaks") else "passed"), inner.out
    for name in ("test_leaks_with_the_collector_off", "test_leaks_with_flags", "test_leaks_frozen"):
        assert [one.holder for one in inner.test(name).failing] == [inner.test(name).failing[0].holder]


def test_blocks_are_read_once_where_settling_changes_nothing(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = ByOwner.blocks

    def counted(self: ByOwner, subject: LeakSubject) -> list[Block]:
        read.append(subject.owner.label.partition("::")[2])
        return original(self, subject)

    monkeypatch.setattr(ByOwner, "blocks", counted)
    cycle = """
    def test_cycle():
        cycle = [torch.zeros(32 << 10)]
        cycle.append(cycle)
"""
    run_inner(ONE + cycle, "--cudamem", "--cudamem-cycles=off", "--cudamem-device=cpu")
    assert read == ["test_leaks", "test_cycle"]  # of a test of whose blocks nothing is left nothing is read again


def test_possible_garbage_is_no_leak_while_a_stream_captures(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = """
    def test_cycle():
        cycle = [torch.zeros(32 << 10)]
        cycle.append(cycle)
"""
    for module in (guards, holders):
        monkeypatch.setattr(module, "capturing", lambda: True)
    inner = run_inner(ONE + cycle, "--cudamem", "--cudamem-device=cpu")
    assert inner.outcomes == {"test_leaks": "error", "test_cycle": "passed"}
    (finding,) = inner.test("test_cycle").findings
    assert text(finding).splitlines() == [
        "cudamem: 128.0 KiB retained (1 block, cpu)",
        "   128.0 KiB  float32[32768] on cpu  unattributed",
        "      allocated  test_it.py:8 in test_cycle",
        "      from       list[0]",
        "   unattributed: holder unknown",
        "   note: it may be garbage: garbage collection is paused during graph capture",
    ]


def test_a_reading_holds_while_nothing_is_allocated_or_freed() -> None:
    then = Counters(allocated=8, allocations=3, blocks=2)
    reading = Reading(then, [])
    assert reading.holds(then)
    assert not reading.holds(then._replace(allocations=4))  # one was freed as well: as many are live
    assert not reading.holds(then._replace(blocks=1))
    assert not Reading(Counters(), []).holds(Counters())


# -- a card that has failed -------------------------------------------------------------------------------

UNJUDGED = "cudamem: what the test retains could not be judged: RuntimeError: CUDA error: device-side assert triggered"


def test_a_failed_verdict_is_reported_and_the_next_test_judged(run_inner) -> None:
    inner = run_inner(
        {
            "conftest.py": """
                import pytest
                from cudamem_testing.recorders.cpu import CpuRecorder

                BROKEN = []
                finish = CpuRecorder.finish

                def failed(self):
                    if BROKEN:
                        raise RuntimeError("CUDA error: device-side assert triggered\\nand so on")
                    finish(self)

                CpuRecorder.finish = failed

                @pytest.hookimpl(tryfirst=True)
                def pytest_runtest_setup(item):
                    BROKEN[:] = [] if "after" in item.name else [item]

                def pytest_unconfigure():
                    CpuRecorder.finish = finish
            """,
            "test_it.py": """
                import torch

                KEPT = []

                def test_passes():
                    KEPT.append(torch.ones(1 << 18))

                def test_fails():
                    KEPT.append(torch.ones(1 << 18))
                    raise ValueError("its own")

                def test_after():
                    KEPT.append(torch.ones(1 << 18))
            """,
        },
        "--cudamem",
    )
    assert inner.outcomes == {"test_passes": "error", "test_fails": "failed", "test_after": "error"}
    passes, fails, after = (inner.test(name) for name in ("test_passes", "test_fails", "test_after"))
    assert [(title(one), one.severity) for one in passes.findings] == [(UNJUDGED, Severity.FAIL)]
    assert [(title(one), one.severity) for one in fails.findings] == [(UNJUDGED, Severity.NOTE)]
    assert [one.verdict for one in after.findings] == [Verdict.REACHABLE]
    assert [window.retained for window in (*passes.whole, *fails.whole, *after.whole)] == [1 << 20] * 3


HIDDEN: list[Any] = []
GONE = """
    import torch
    from suites.plugin.test_leaks import HIDDEN

    def test_it():
        HIDDEN.append(torch.utils.dlpack.to_dlpack(torch.empty(2**18)))
"""


@pytest.mark.parametrize(("gone", "last"), [(True, "1 passed"), (False, "1 passed, 1 error")])
def test_what_a_thread_frees_during_the_search_is_no_leak(
    run_inner, monkeypatch: pytest.MonkeyPatch, gone: bool, last: str
) -> None:
    original = BlockHolders.of

    def of(self: BlockHolders, device: Device, blocks: Sequence[Block]) -> Any:
        found = original(self, device, blocks)
        if gone:
            HIDDEN.clear()
        return found

    monkeypatch.setattr(BlockHolders, "of", of)
    try:
        assert run_inner(GONE, "--cudamem").last == last
    finally:
        HIDDEN.clear()


RERUN = """
    import functools, pytest, torch

    @functools.lru_cache
    def table(): return torch.empty(2**18)

    HELD, TRIES = [], []

    def test_cached(): table()

    def test_freed_in_the_second_attempt():
        if TRIES:
            HELD.clear()
        else:
            HELD.append(torch.empty(2**18))
            TRIES.append(1)
"""


def test_a_second_attempt_does_not_hide_an_earlier_leak(run_inner):
    """A cache is filled once, so only the first attempt allocates; what it leaked is still held by it."""
    options = ("--cudamem", "--reruns=2", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    inner = run_inner(RERUN, *options, plugins=["rerunfailures"])
    assert inner.last == "5 passed, 1 error, 3 rerun"
    assert [(test.attempt, test.outcome) for test in inner.run.tests] == [
        (1, "rerun"),
        (2, "rerun"),
        (3, "error"),
        (1, "rerun"),
        (2, "passed"),
    ]
    assert "cudamem: an earlier attempt: 1.0 MiB leaked (1 block, cpu)" in inner.section(
        "ERROR at teardown of test_cached"
    )


SKIPS_AT_ITS_END = """
    import pytest, torch

    KEPT = []

    @pytest.fixture
    def late():
        yield
        pytest.skip("late")

    @pytest.fixture(scope="class")
    def wide():
        yield
        pytest.skip("late")

    def test_leaks(late): KEPT.append(torch.empty(2**18))

    def test_clean(late): torch.empty(2**18)

    @pytest.mark.memory_budget(retained=0)
    @pytest.mark.cudamem(leaks="off", reason="the budget counts")
    def test_budget(late): KEPT.append(torch.empty(2**18))

    class TestWide:
        def test_wide(self, wide): KEPT.append(torch.empty(2**18))
"""


def test_a_fixture_that_skips_as_it_ends_hides_nothing(run_inner):
    inner = run_inner(SKIPS_AT_ITS_END, "--cudamem")
    assert (inner.status, inner.last) == (1, "4 passed, 1 skipped, 3 errors")
    assert {test.nodeid.rpartition("::")[2]: test.outcome for test in inner.run.tests} == {
        "test_leaks": "error",
        "test_clean": "skipped",
        "test_budget": "error",
        "test_wide": "error",
    }
    assert "cudamem: 1.0 MiB leaked (1 block, cpu)" in inner.section("ERROR at teardown of test_leaks")


NESTED = """
    import torch

    KEPT = []

    def test_nested():
        KEPT.append(torch.nested.nested_tensor([torch.ones(1000, 100), torch.ones(20, 100)]))
"""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_sizes_inside_a_nested_tensor_belong_to_it(run_inner):
    inner = run_inner(NESTED, "--cudamem")
    (found,) = inner.test("test_nested").findings
    assert (found.verdict.value, found.bytes) == ("reachable", 1020 * 100 * 4 + 32 + 32 + 16)
    assert found.holder == "module test_it > KEPT (list)[0]"
