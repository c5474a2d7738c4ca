"""Writing what was measured: what stays, what changes, and what is refused."""

from __future__ import annotations

from pathlib import Path

from cudamem_testing.model.baselines import Entry, Measured, PeakLine
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import TestRecord
from cudamem_testing.records.baselines import BASELINES, BaselineKey
from cudamem_testing.records.update import Updated, drop, last_attempts, update
from cudamem_testing.show.places import baseline_file

CPU = Device("cpu")
HERE = "x86_64, 1 thread, torch 2.13"
TOP = (PeakLine("a.py::f", 5),)
FILE = "tests/__cudamem__/test_x.json"


def record(
    name: str,
    low: int = 5,
    high: int | None = None,
    *,
    top: tuple[PeakLine, ...] | None = TOP,
    metrics: tuple[str, ...] = ("requested",),
    asked: bool = False,
    allocations: int = 1,
    environment: str = HERE,
) -> TestRecord:
    values = {
        "requested": Spread(low, low if high is None else high),
        "retained": Spread(1, 1),
        "allocations": Spread.of(allocations),
    }
    return TestRecord(f"tests/test_x.py::{name}", measured=(Measured(CPU, environment, values, top, metrics, asked),))


def key(name: str, environment: str = HERE) -> BaselineKey:
    return BaselineKey(name, CPU, environment)


def entry(low: int, high: int | None = None, top: tuple[PeakLine, ...] = TOP) -> Entry:
    return Entry({"requested": Spread(low, low if high is None else high)}, top)


def test_another_number_of_threads_has_its_own_entry(tmp_path: Path) -> None:
    two, old = "x86_64, 2 threads, torch 2.13", "x86_64, 2 threads, torch 2.11"
    path = tmp_path / FILE
    update(tmp_path, [record("test_same"), record("test_other"), record("test_old")])
    before = BASELINES.read(path)
    found = [record("test_same", environment=two), record("test_other", 7, environment=two)]
    assert update(tmp_path, [*found, record("test_old", environment=old)]) == Updated(new=2, same=1, files=(path,))
    assert BASELINES.read(path) == before | {key("test_other", two): entry(7), key("test_old", old): entry(5)}
    assert update(tmp_path, [record("test_other", environment="x86_64, 8 threads, torch 2.13")]).new == 1


def test_what_is_recorded(tmp_path: Path) -> None:
    records = [
        record("test_a"),
        record("test_idle", 0, allocations=0),
        record("test_marked_and_idle", 0, allocations=0, asked=True, top=()),
        record("test_not_compared", metrics=()),
        record("test_retained", metrics=("requested", "retained", "peak")),
        record("test_spreads", 5, 9),
        TestRecord("tests/test_x.py::test_failed"),
    ]
    path = tmp_path / FILE
    assert update(tmp_path, records) == Updated(new=4, files=(path,))
    assert BASELINES.read(path) == {
        key("test_a"): entry(5),
        key("test_marked_and_idle"): entry(0, top=()),
        key("test_retained"): Entry({"requested": Spread(5, 5), "retained": Spread(1, 1)}, TOP),
        key("test_spreads"): entry(5, 9),
    }


def test_what_an_update_changes(tmp_path: Path) -> None:
    names = ("same", "more", "less", "inside", "outside", "unseen", "metrics", "not_looked_at", "elsewhere", "idle_now")
    first = [record(name, *((5, 9) if name in ("inside", "outside") else (5,))) for name in names]
    update(tmp_path, first)
    other = (PeakLine("b.py::g", 1),)
    second = [
        record("same", top=other),
        record("more", 6, top=other),
        record("less", 4, top=()),
        record("inside", 6, 8, top=other),
        record("outside", 6, 10, top=other),
        record("metrics", top=other, metrics=("requested", "allocations")),
        record("not_looked_at", 6, top=None),
        record("elsewhere", 7, environment="there"),
        record("idle_now", 0, allocations=0, top=()),
    ]
    path = tmp_path / FILE
    updated = update(tmp_path, second)
    assert updated == Updated(new=1, more=2, less=3, same=3, files=(path,))
    assert "\n".join(updated.lines).split("\n") == [
        "9 baselines: 1 new, 2 more, 3 less, 3 the same",
        "  more: peak 5 -> 6 B",
        "  less: peak 5 -> 4 B",
        "  outside: peak 5 to 9 -> 6 to 10 B",
        "  metrics: other metrics",
        "  idle_now: peak 5 -> 0 B",
        f"written: {path}",
    ]
    assert str(updated) == "\n".join(updated.lines)
    assert BASELINES.read(path) == {
        key("same"): entry(5),
        key("more"): entry(6, top=other),
        key("less"): entry(4, top=()),
        key("inside"): entry(5, 9),
        key("outside"): entry(6, 10, top=other),
        key("unseen"): entry(5),
        key("metrics"): Entry({"requested": Spread(5, 5), "allocations": Spread(1, 1)}, other),
        key("not_looked_at"): entry(5),
        key("elsewhere"): entry(5),
        key("elsewhere", "there"): entry(7),
        key("idle_now"): entry(0, top=()),
    }
    before = path.stat().st_mtime_ns
    assert update(tmp_path, second[:1]) == Updated(same=1)
    assert path.stat().st_mtime_ns == before


def test_only_the_last_attempt_counts(tmp_path: Path) -> None:
    attempts = [record("test_a", 9).ended("rerun"), record("test_a", 5).ended("passed")]
    assert last_attempts(attempts) == attempts[1:]
    update(tmp_path, attempts)
    assert BASELINES.read(tmp_path / FILE) == {key("test_a"): entry(5)}


def test_each_module_has_its_file(tmp_path: Path) -> None:
    other = TestRecord("other/test_y.py::test_b", measured=record("x").measured)
    updated = update(tmp_path, [record("test_a"), other])
    assert updated == Updated(new=2, files=(tmp_path / "other/__cudamem__/test_y.json", tmp_path / FILE))
    assert BASELINES.read(updated.files[0]) == {key("test_b"): entry(5)}


def test_an_unreadable_file_is_refused_and_others_are_written(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text("mine", encoding="utf-8")
    other = TestRecord("other/test_y.py::test_b", measured=record("x").measured)
    updated = update(tmp_path, [record("test_a"), other])
    reason = f'not written: {path}:1: does not begin with {{"kind": "baselines", "schema": 2, "entries": ['
    assert updated == Updated(new=1, files=(baseline_file(tmp_path, other.nodeid),), refused=(reason,))
    assert str(updated).splitlines()[-1] == reason
    assert path.read_text(encoding="utf-8") == "mine"
    assert str(Updated()) == "no baseline"


def test_dropping(tmp_path: Path) -> None:
    path = tmp_path / FILE
    update(tmp_path, [record("test_a"), record("test_b")])
    assert drop({path: [key("test_a"), key("test_never")]}) == Updated(dropped=1, files=(path,))
    assert BASELINES.read(path) == {key("test_b"): entry(5)}
    assert drop({path: [key("test_b")]}) == Updated(dropped=1, files=(path,))
    assert not path.exists()
    assert drop({}) == Updated()
