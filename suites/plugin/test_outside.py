"""Memory of cards outside torch's allocator: told, and no reason to fail."""

from __future__ import annotations

from typing import Any

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.outside import OutsideUse
from cudamem_testing.recorders import cards
from cudamem_testing.run.outside import OutsideCheck
from cudamem_testing.windows.tracker import Tracker
from cudamem_testing.wording.findings import text, title
from cudamem_testing.wording.outside import OUTSIDE_HINT, outside
from suites.plugin.test_cost import ONE_CARD
from suites.windows.fake import FakeRecorder

MIB = 2**20


class Card(FakeRecorder):
    """Returns a given reading."""

    reading: OutsideUse | None = None

    def outside(self) -> OutsideUse | None:
        return self.reading


@pytest.fixture
def card() -> tuple[Card, OutsideCheck]:
    recorder, tracker = Card("cuda:0"), Tracker()
    tracker.attach([recorder])
    return recorder, OutsideCheck(tracker)


def taken(mib: int | None = None, **more: Any) -> OutsideUse:
    return OutsideUse(Device("cuda", 0), 100 * MIB, None if mib is None else (100 + mib) * MIB, **more)


def test_growth_is_reported_once_for_each_file(card: tuple[Card, OutsideCheck]) -> None:
    recorder, check = card
    check.begin()
    assert check.border("test_a.py") == []
    assert check.notes() == []
    recorder.reading = taken(500)
    check.begin()
    recorder.reading = taken(600)
    check.begin()  # only the first reading is taken there
    recorder.reading = taken(524, plans=3)
    (finding,) = check.border("test_b.py")
    assert text(finding) == (
        f"cudamem: 24.0 MiB more outside torch's allocator since test_b.py (cuda:0)\n   {outside(recorder.reading)}"
        f"\n   {OUTSIDE_HINT}"
    )
    assert (finding.kind.value, finding.verdict.value, finding.severity.value, finding.bytes, finding.cause) == (
        "outside allocator",
        "unattributed",
        "note",
        24 * MIB,
        "outside allocator | unattributed | test_b.py",
    )
    assert check.border("test_c.py") == []
    recorder.reading = taken(400)
    assert check.border("test_d.py") == []
    assert check.notes() == [outside(recorder.reading)]


def test_a_card_is_read_until_its_first_reading_is_known() -> None:
    tracker, asked = Tracker(), list[str]()

    class Counting(Card):
        def outside(self) -> OutsideUse | None:
            asked.append(str(self.device))
            return self.reading

    first, second = Counting("cuda:0"), Counting("cuda:1")
    tracker.attach([first, Counting("host"), Counting("cpu")])
    check = OutsideCheck(tracker)
    check.begin()
    first.reading = taken(500)
    for _ in range(3):
        check.begin()
    assert asked == ["cuda:0", "cuda:0"]
    tracker.attach([second])
    for _ in range(2):
        check.begin()
    assert asked[2:] == ["cuda:1", "cuda:1"]
    assert check.notes() == [outside(first.reading)]


@pytest.mark.parametrize("then", [taken(), taken(in_use=900 * MIB)])
def test_readings_of_two_kinds_are_not_compared(card: tuple[Card, OutsideCheck], then: OutsideUse) -> None:
    recorder, check = card
    recorder.reading = taken(500)
    check.begin()
    recorder.reading = then
    assert check.border("test_a.py") == []
    recorder.reading = taken(700)
    assert check.border("test_b.py") == []


def test_workers_on_one_card_judge_nothing_by_the_whole_card() -> None:
    """What the card holds may be another worker's; what the process holds is its own."""
    found = []
    for shared in (False, True):
        recorder, tracker = Card("cuda:0"), Tracker()
        tracker.attach([recorder])
        check = OutsideCheck(tracker, shared=shared)
        for reading in (taken(in_use=500 * MIB), taken(in_use=900 * MIB)):
            recorder.reading = reading
            check.begin()
            found.append(len(check.border("test_a.py")))
        for reading in (taken(500), taken(600)):
            recorder.reading = reading
            found.append(len(check.border("test_b.py")))
    assert found == [0, 1, 0, 1, 0, 0, 0, 1]


def test_a_run(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reading is at the first test, the others at the end of each file; nothing fails."""
    readings = iter([500, 500, 524])
    monkeypatch.setattr(cards, "this_process", lambda device: next(readings) * MIB)
    test = "def test_it(card): card.allocate(100)"
    inner = run_inner(
        {"conftest.py": ONE_CARD, "test_a.py": test, "test_b.py": test}, "--cudamem", "--cudamem-device=cuda"
    )
    assert (inner.status, inner.last) == (0, "2 passed")
    told = "522.0 MiB of cuda:0 are outside torch's allocator: the process uses 524.0 MiB, the allocator 2.0 MiB of it"
    assert inner.run.notes == (told,)
    assert " ".join(inner.summary).count("outside torch's allocator") == 1
    (finding,) = inner.run.findings
    assert title(finding) == "cudamem: 24.0 MiB more outside torch's allocator since test_b.py (cuda:0)"


def test_a_quiet_run_has_no_summary_for_it(run_inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context of a process alone takes hundreds of MiB, so every run on a card has that note."""
    monkeypatch.setattr(cards, "this_process", lambda device: 500 * MIB)
    test = "def test_it(card): card.allocate(100)"
    inner = run_inner({"conftest.py": ONE_CARD, "test_a.py": test}, "--cudamem", "--cudamem-device=cuda", "-q")
    assert (inner.status, inner.last, "summary" in inner.out) == (0, "1 passed", False)
    assert len(inner.run.notes) == 1
