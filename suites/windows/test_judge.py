"""The judge: what is judged where, what it says, and what it could not enforce."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.model.churn import Churn
from cudamem_testing.model.counters import Counters
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import Shown
from cudamem_testing.model.facts import OverLimit
from cudamem_testing.model.findings import Kind, Severity, Verdict
from cudamem_testing.model.limits import Breach, Limit, budget
from cudamem_testing.model.windows import Window
from cudamem_testing.windows.defaults import cycles_fail, ignored_below
from cudamem_testing.windows.judge import Judge
from cudamem_testing.wording.findings import details, text, title

CARD, CPU = Device("cuda", 0), Device("cpu")
ON_CARD = Window(
    "call",
    CARD,
    start=1024,
    peak=5120,
    end=2048,
    reserved_start=0,
    reserved_peak=2**21,
    retained=1024,
    allocations=3,
    retries=0,
    notes=("setup of fixture 'm' changed cuda:0 by 1.0 KiB, not counted here",),
)
ON_CPU = Window("call", CPU, start=0, peak=100, end=0, retained=0, allocations=1, retries=0, notes=("no cache",))
WINDOWS = (ON_CARD, ON_CPU)


def test_a_broken_limit_with_its_numbers() -> None:
    (found,) = Judge().call([budget(peak="2KiB", device="cuda")], WINDOWS)
    assert (found.kind, found.verdict, found.severity) == (Kind.BUDGET, Verdict.OVER, Severity.FAIL)
    assert (found.bytes, found.device, found.cause) == (2048, CARD, "budget peak at most")
    limit = Limit("peak", 2048, device=Device("cuda"))
    assert found.fact == OverLimit(Breach(limit, 2048, 4096, ON_CARD))
    assert text(found) == (
        "cudamem: peak 4.0 KiB above start is over its budget of 2.0 KiB by 2.0 KiB (cuda:0)\n"
        "start 1.0 KiB, peak 5.0 KiB, end 2.0 KiB\n"
        "note: setup of fixture 'm' changed cuda:0 by 1.0 KiB, not counted here"
    )


@pytest.mark.parametrize(
    ("arguments", "message", "size", "numbers"),
    [
        (
            {"reserved": 0, "device": "cuda"},
            "cudamem: reserved 2.0 MiB above start is over its budget of 0 B by 2.0 MiB (cuda:0)",
            2**21,
            ["start 0 B, peak 2.0 MiB"],
        ),
        (
            {"allocations": 1},
            "cudamem: allocations 3 is over its budget of 1 by 2 (cuda:0)",
            None,
            [],
        ),
        (
            {"at_least": {"peak": {"cpu": "1KiB"}}},
            "cudamem: peak 100 B above start is under its lower bound of 1.0 KiB by 924 B (cpu)",
            924,
            ["start 0 B, peak 100 B, end 0 B", "note: no cache"],
        ),
    ],
)
def test_what_each_metric_says(
    arguments: dict[str, object], message: str, size: int | None, numbers: list[str]
) -> None:
    (found,) = Judge().call([budget(**arguments)], WINDOWS)
    assert (title(found), found.bytes) == (message, size)
    assert [*details(found)] == numbers + ([] if found.device == CPU else [f"note: {ON_CARD.notes[0]}"])
    assert found.verdict is (Verdict.UNDER if "at_least" in arguments else Verdict.OVER)


def test_retained_judges_the_whole_test_other_metrics_the_call() -> None:
    limits = [budget(peak=0, retained=0, device="cuda")]
    judge = Judge()
    assert [finding.cause for finding in judge.call(limits, WINDOWS)] == ["budget peak at most"]
    assert [finding.cause for finding in judge.whole(limits, WINDOWS)] == ["budget retained at most"]
    assert [details(finding)[0] for finding in judge.whole(limits, WINDOWS)] == ["start 1.0 KiB, end 2.0 KiB"]
    assert [finding.cause for finding in judge.all(limits, WINDOWS)] == [
        "budget peak at most",
        "budget retained at most",
    ]


def test_each_device_is_judged_by_the_nearest_limit() -> None:
    near, far = budget(peak={"cuda": None, "cpu": 99}), budget(peak=0, reserved=2**21)
    assert [str(finding.device) for finding in Judge().call([near, far], WINDOWS)] == ["cpu"]
    assert [str(finding.device) for finding in Judge().call([far], WINDOWS)] == ["cuda:0", "cpu"]


def test_the_largest_share_of_a_limit() -> None:
    assert Judge().used([budget(peak={"cuda": 8192, "cpu": 125})], WINDOWS) == 0.8
    assert Judge().used([budget(peak=0)], WINDOWS) == 4096
    assert Judge().used([budget(at_least=1)], WINDOWS) is None
    assert Judge().used([budget(retained=1)], WINDOWS) is None
    assert Judge().used([budget(reserved={"cpu": 1})], WINDOWS) is None
    assert Judge().used([], WINDOWS) is None


def test_unenforced_budgets_are_counted_by_reason_and_test() -> None:
    judge = Judge()
    limits = [
        budget(peak={"cuda:1": 1, "cpu": 1000}, reserved={"cpu": 1}),
        budget(peak={"cuda:1": 2}, retained={"host": 1}),
    ]
    judge.call(limits, WINDOWS)
    judge.call(limits[:1], WINDOWS)
    assert judge.unenforced == {
        "cuda:1 is not measured here": 2,
        "host is not measured here": 1,
        "reserved is unknown on cpu: no cache": 2,
    }


def test_a_lifted_limit_and_one_that_is_judged_are_not_missed() -> None:
    judge = Judge()
    judge.call([budget(peak={"cuda:1": None, "cpu": 1000}), budget(reserved=2**21, allocations=9)], WINDOWS)
    assert not judge.unenforced


def test_a_run_that_measures_nothing_enforces_nothing() -> None:
    judge = Judge()
    assert judge.call([budget(peak=0, device=0), budget(reserved=0)], []) == []
    assert judge.unenforced == {"cuda:0 is not measured here": 1, "nothing is measured here": 1}
    judge = Judge()
    judge.call([budget(allocations=0)], [Window("call", CARD)])
    assert judge.unenforced == {"allocations is unknown on cuda:0": 1}


def test_evidence_is_read_once_and_only_for_a_broken_limit() -> None:
    asked: list[str] = []

    def explainer() -> object:
        asked.append("opened")

        def explain(breach: Breach) -> tuple[Shown, ...]:
            asked.append(str(breach.window.device))
            return (Shown((f"live on {breach.window.device}",)),)

        return explain

    judge = Judge(explainer)  # type: ignore[arg-type]
    assert judge.call([budget(peak=2**20)], WINDOWS) == []
    assert asked == []
    found = judge.call([budget(peak=0)], WINDOWS)
    assert asked == ["opened", "cuda:0", "cpu"]
    assert [details(finding)[-1] for finding in found] == ["live on cuda:0", "live on cpu"]


def test_limits_on_sums_may_be_left_out() -> None:
    """A window that holds others adds up their allocations: an upper limit meant for each is not judged on the sum."""
    limits = [budget(allocations=1, peak=0, device="cuda"), budget(at_least={"allocations": {"cuda": 9}})]
    causes = {summed: [one.cause for one in Judge().call(limits, WINDOWS, summed=summed)] for summed in (True, False)}
    assert causes[True] == ["budget peak at most", "budget allocations at most", "budget allocations at least"]
    assert causes[False] == ["budget peak at most", "budget allocations at least"]
    assert [one.cause for one in Judge().each(limits, WINDOWS)] == ["budget peak at most", "budget allocations at most"]
    assert Judge().used(limits, WINDOWS, summed=True) == 4096
    assert Judge().used([budget(allocations=6)], WINDOWS) == 0.5
    assert Judge().used([budget(allocations=6)], WINDOWS, summed=False) is None


def test_without_stacks_there_is_no_picture_and_no_churn() -> None:
    none = Counters()
    with pytest.raises(ValueError, match="no picture: stacks and events are not recorded here"):
        Judge().draw(WINDOWS, none, "memory.png")
    with pytest.raises(ValueError, match="churn is unknown: stacks and events are not recorded here"):
        Judge().churn(WINDOWS, none)
    found = Churn(CPU, ())
    judge = Judge(draw=lambda windows, now, path: Path(path), churn=lambda windows, now: found)
    assert judge.draw(WINDOWS, none, "memory.png") == Path("memory.png")
    assert judge.churn(WINDOWS, none) is found


@pytest.mark.parametrize(("kind", "fails", "ignored"), [("cuda", True, 0), ("cpu", False, 65_536), ("xpu", False, 0)])
def test_what_is_judged_on_a_kind_of_device(kind: str, fails: bool, ignored: int) -> None:
    assert (cycles_fail(Device(kind, 0)), ignored_below(Device(kind, 0))) == (fails, ignored)
    assert cycles_fail(Device("zzz")) is cycles_fail(Device("aaa")) is False
