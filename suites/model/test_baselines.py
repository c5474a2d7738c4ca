"""What was measured of a test, once and several times."""

from __future__ import annotations

from cudamem_testing.model.baselines import Entry, Measured, PeakLine, fold
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device

CPU, CARD = Device("cpu"), Device("cuda", 0)


def measured(requested: int, top: tuple[PeakLine, ...] | None, device: Device = CPU, **more: int) -> Measured:
    values = {"requested": Spread.of(requested), **{name: Spread.of(number) for name, number in more.items()}}
    return Measured(device, "here", values, top, ("requested", "retries"), True)


def test_an_entry_keeps_what_its_metrics_name() -> None:
    one = measured(3, (PeakLine("a.py::f", 3),), allocations=2)
    assert one.entry == Entry({"requested": Spread(3, 3)}, (PeakLine("a.py::f", 3),))
    assert measured(3, None).entry == Entry({"requested": Spread(3, 3)}, ())
    assert (measured(0, None, allocations=0).idle, one.idle, measured(0, None).idle) == (True, False, False)


def test_a_measurement_beside_what_is_recorded_of_its_metrics() -> None:
    one, entry = measured(3, None, retries=1), Entry({"requested": Spread(2, 2), "allocations": Spread(9, 9)})
    assert one.compared(("requested", "retries"), entry).recorded == {"requested": Spread(2, 2)}
    assert one.compared(("retries",), None) == one.but(metrics=("retries",))
    assert one.with_values({}) == one.but(values={})


def test_several_runs_as_one() -> None:
    low, high = (PeakLine("a.py::f", 1),), (PeakLine("a.py::f", 9),)
    runs = [
        (measured(5, None, allocations=2), measured(1, low, CARD)),
        (measured(9, high, allocations=1, segments=4), measured(1, high, CARD)),
        (measured(7, low, allocations=2), measured(0, high, CARD)),
    ]
    assert fold(runs) == (
        Measured(
            CPU, "here", {"requested": Spread(5, 9), "allocations": Spread(1, 2)}, high, ("requested", "retries"), True
        ),
        Measured(CARD, "here", {"requested": Spread(0, 1)}, low, ("requested", "retries"), True),
    )
    assert fold([]) == ()
    assert fold(runs[:1]) == runs[0]


def test_a_run_with_an_unknown_peak_is_ignored_beside_others() -> None:
    known, other = measured(5, None), measured(7, None)
    unknown = Measured(CPU, "here", {"retries": Spread(0, 0)}, (), (), True)
    both = measured(5, None).but(values={"requested": Spread(5, 7)})
    assert fold([(unknown,), (known,), (unknown,), (other,)]) == (both,)
    assert fold([(unknown,), (unknown,)]) == (unknown,)


def test_numbers_of_two_environments_are_not_merged() -> None:
    here, there = measured(5, ()), measured(6, ()).but(environment="there")
    assert fold([(here,), (there,)]) == (here, there)
