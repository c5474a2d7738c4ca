"""The review at the end of a run: what was not compared and why, and entries of tests that are gone."""

from __future__ import annotations

from pathlib import Path

from cudamem_testing.model.baselines import Measured
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.records import TestRecord, Unchecked
from cudamem_testing.records.baselines import BaselineKey
from cudamem_testing.records.review import RECORD, Review, review
from cudamem_testing.records.update import update

CPU, CARD = Device("cpu"), Device("cuda", 0)
HERE, OLD = "x86_64, 1 thread, torch 2.13", "x86_64, 1 thread, torch 2.11"
FILE = "__cudamem__/test_x.json"


def record(
    name: str,
    environment: str = HERE,
    device: Device = CPU,
    *,
    module: str = "test_x.py",
    asked: bool = False,
    allocations: int = 1,
    metrics: tuple[str, ...] = ("requested",),
    takes: int = 5,
) -> TestRecord:
    values = {"requested": Spread.of(takes), "allocations": Spread.of(allocations)}
    return TestRecord(f"{module}::{name}", measured=(Measured(device, environment, values, (), metrics, asked),))


def look(root: Path, records: list[TestRecord], *also: str, whole: bool = True) -> Review:
    seen = {record.nodeid for record in records} | set(also)
    return review(root, records, seen, lambda file: whole)


def test_nothing_is_said_where_nothing_is_recorded(tmp_path: Path) -> None:
    assert look(tmp_path, [record("test_a"), record("test_b", allocations=0)]) == Review()
    assert Review().lines(pruned=False) == []


def test_tests_without_a_baseline(tmp_path: Path) -> None:
    assert look(tmp_path, [record("test_a", asked=True, allocations=0), record("test_b")]) == Review(without=1)
    update(tmp_path, [record("test_a")])
    new = [record("test_a"), record("test_b"), record("test_c", allocations=0), record("test_d", metrics=())]
    found = look(tmp_path, new)
    assert found == Review(without=1)
    assert found.unchecked == {Unchecked("test", f"no baseline ({RECORD})"): 1}


def test_metrics_that_a_baseline_was_recorded_without(tmp_path: Path) -> None:
    update(tmp_path, [record("test_a"), record("test_b"), record("test_c", metrics=("allocations",))])
    found = look(
        tmp_path,
        [
            record("test_a", metrics=("requested", "allocations", "reserved")),  # the CPU has no reserved bytes
            record("test_b", metrics=("requested", "reserved")),
            record("test_c", metrics=("requested",)),
            record("test_new", metrics=("requested", "allocations")),
        ],
    )
    assert found == Review(without=1, lacking={"allocations": 1, "requested": 1})
    assert found.unchecked == {
        Unchecked("test", f"no baseline ({RECORD})"): 1,
        Unchecked("test", f"no baseline of allocations ({RECORD})"): 1,
        Unchecked("test", f"no baseline of requested ({RECORD})"): 1,
    }


def test_metrics_that_a_device_does_not_have(tmp_path: Path) -> None:
    records = [record(name, asked=True, metrics=("reserved", "segments")) for name in ("test_a", "test_b")]
    assert str(update(tmp_path, records)) == "no baseline"  # an entry without numbers would say that there is one
    found = look(tmp_path, records)
    assert found == Review(unknown={"reserved, segments on cpu": 2})
    assert found.unchecked == {Unchecked("test", "no reserved, segments on cpu to compare"): 2}
    card = Measured(CARD, HERE, {"reserved": Spread(1, 1)}, (), ("reserved",), True)
    both = TestRecord("test_x.py::test_c", measured=(*record("test_c", metrics=("reserved",)).measured, card))
    assert look(tmp_path, [both]) == Review(without=1)


def test_baselines_of_other_environments(tmp_path: Path) -> None:
    names = [f"test_{number}" for number in range(5)]
    update(tmp_path, [record(name, OLD) for name in names[:3]])
    update(tmp_path, [record(name, "aarch64, 1 thread, torch 2.13") for name in names[2:]])
    update(tmp_path, [record(names[2], "aarch64, 4 threads, torch 2.9")])
    found = look(tmp_path, [record(name) for name in names])
    older = "recorded with torch 2.11, this run has torch 2.13"
    other = "recorded with aarch64, this run has x86_64"
    assert found == Review({other: 3, older: 2})
    assert found.unchecked == {
        Unchecked("baseline", f"{other} ({RECORD})"): 3,
        Unchecked("baseline", f"{older} ({RECORD})"): 2,
    }
    assert found.lines(pruned=False) == []
    assert look(tmp_path, [record("test_0", device=CARD)]).elsewhere == {}  # of another device: no baseline at all


def test_baselines_of_another_number_of_threads(tmp_path: Path) -> None:
    """They hold, unless those of two numbers differ."""
    four, two = "x86_64, 4 threads, torch 2.13", "x86_64, 2 threads, torch 2.13"
    update(tmp_path, [record("test_a", four), record("test_gone", four), record("test_c", OLD)])
    update(tmp_path, [record("test_b", four), record("test_b", two, takes=9)])
    (tmp_path / "test_x.py").touch()
    found = look(tmp_path, [record("test_a"), record("test_b"), record("test_c")])
    assert found.elsewhere == {
        "recorded with 2 threads, this run has 1 thread": 1,
        "recorded with torch 2.11, this run has torch 2.13": 1,
    }
    assert found.unseen == {tmp_path / FILE: (BaselineKey("test_gone", CPU, four),)}


def test_tests_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").touch()
    update(tmp_path, [record("test_kept"), record("test_gone")])
    update(tmp_path, [record("test_gone", OLD), record("test_old", OLD)])
    found = look(tmp_path, [record("test_kept")])
    gone = (BaselineKey("test_gone", CPU, OLD), BaselineKey("test_gone", CPU, HERE))
    assert found == Review(unseen={tmp_path / FILE: gone})
    assert found.lines(pruned=False) == [
        "1 baseline belongs to a test that is no longer there: test_x.py::test_gone (--cudamem-prune drops them)"
    ]
    assert found.lines(pruned=True) == []
    assert look(tmp_path, [record("test_kept")], "test_x.py::test_gone") == Review()  # it was skipped, or failed
    assert look(tmp_path, [record("test_kept")], whole=False) == Review()
    assert look(tmp_path, [record("test_kept", OLD)], "test_x.py::test_gone").unseen == {
        tmp_path / FILE: (BaselineKey("test_old", CPU, OLD),)
    }
    only_other = review(tmp_path, [record("test_kept")], {"test_x.py::test_kept"}, lambda file: file != "test_x.py")
    assert only_other == Review()


def test_many_are_named_in_part(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").touch()
    update(tmp_path, [record(f"test_{number}") for number in range(6)])
    assert look(tmp_path, [record("test_0")]).lines(pruned=False) == [
        (
            "5 baselines belong to tests that are no longer there: test_x.py::test_1, test_x.py::test_2, "
            "test_x.py::test_3 and 2 more (--cudamem-prune drops them)"
        )
    ]


def test_a_module_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").touch()
    update(tmp_path, [record("test_a"), record("test_b", OLD, module="test_gone.py")])
    assert look(tmp_path, [record("test_a")]).unseen == {
        tmp_path / "__cudamem__/test_gone.json": (BaselineKey("test_b", CPU, OLD),)
    }
    (tmp_path / "test_gone.py").touch()  # it is there, and was just not collected
    assert look(tmp_path, [record("test_a")]) == Review()


def test_a_module_without_tests(tmp_path: Path) -> None:
    (tmp_path / "test_empty.py").touch()
    update(tmp_path, [record("test_a"), record("test_b", module="test_empty.py"), record("test_c", OLD)])
    gone = {tmp_path / "__cudamem__/test_empty.json": (BaselineKey("test_b", CPU, HERE),)}
    assert look(tmp_path, [record("test_a")], "test_empty.py").unseen == gone
    assert look(tmp_path, [record("test_a", OLD)], "test_empty.py", "test_x.py::test_c").unseen == {}
    assert look(tmp_path, [record("test_a")], "test_empty.py", whole=False).unseen == {}


def test_a_broken_file_is_named_once_and_not_judged(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_text("{}", encoding="utf-8")
    found = look(tmp_path, [record("test_a"), record("test_b")])
    reason = f'{path}:1: does not begin with {{"kind": "baselines", "schema": 2, "entries": ['
    assert found == Review(broken=(f"baselines not compared: {reason}",))
    part = look(tmp_path, [TestRecord("test_x.py::test_a")], whole=False)  # held to nothing, so not measured either
    assert part == found
