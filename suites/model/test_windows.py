"""Windows: growth is never clamped, unknown stays unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.counters import ZERO
from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import MOST_SHARED, SharedWindows, Window

CPU = Device("cpu")
SIZE = st.one_of(st.none(), st.integers(0, 2**40))


@given(SIZE, SIZE)
def test_growth(start: int | None, peak: int | None) -> None:
    growth = None if start is None or peak is None else peak - start
    assert Window("w", CPU, start=start, peak=peak).peak_growth == growth
    assert Window("w", CPU, requested_start=start, requested_peak=peak).requested_growth == growth
    assert Window("w", CPU, reserved_start=start, reserved_peak=peak).reserved_growth == growth


def test_nothing_is_known_unless_given() -> None:
    window = Window("w", CPU)
    assert {name: value for name, value in window._asdict().items() if value is not None} == {
        "name": "w",
        "device": CPU,
        "complete": True,
        "notes": (),
    }


def test_end_readings_are_ignored_in_comparisons() -> None:
    window, read = Window("w", CPU, start=1), Window("w", CPU, start=1, opened=ZERO, closed=ZERO)
    assert (window == read, window != read, hash(window) == hash(read)) == (True, False, True)
    other = Window("w", CPU, start=1, notes=("late",))
    assert (window == other, window != other) == (False, True)
    assert window != tuple(window)


def test_as_text() -> None:
    assert str(Window("call", Device("cuda", 1), 0, 1536, 512)) == (
        "call on cuda:1: start 0 B, peak 1.5 KiB, end 512 B"
    )
    assert str(Window("decode", CPU, complete=False)) == "decode on cpu: start ?, peak ?, end ?, incomplete"


def test_equal_windows_share_one_object_without_end_readings() -> None:
    shared = SharedWindows()
    first = [Window("setup", CPU, start=1, opened=ZERO, closed=ZERO), Window("call", CPU, start=1, peak=5, closed=ZERO)]
    again = [Window("setup", CPU, start=1), Window("call", CPU, start=1, peak=6)]
    (setup, call), (same, other) = shared.of(first), shared.of(again)
    assert (setup, call, same, other) == (*first, *again)
    assert (setup is same, call is other) == (True, False)
    assert {(one.opened, one.closed) for one in (setup, call, same, other)} == {(None, None)}
    assert shared.of([]) == ()


def test_equal_tuples_of_windows_are_one_object() -> None:
    shared = SharedWindows()
    setup, call = Window("setup", CPU, start=1), Window("call", CPU, start=1, peak=5)
    both = shared.of([setup, call])
    assert shared.of([setup._replace(opened=ZERO), call]) is both
    assert (shared.of([setup]), shared.of([call, setup])) == ((setup,), (call, setup))
    for number in range(MOST_SHARED // 10):
        shared.of([setup] * (number + 3))
    again = shared.of([setup, call])
    assert (again == both, again is both) == (True, False)


def test_not_all_of_very_many_windows_are_remembered() -> None:
    shared = SharedWindows()
    many = [Window("call", CPU, start=number) for number in range(MOST_SHARED + 1)]
    kept = shared.of(many)
    assert kept == tuple(many)
    assert shared.of(many[-1:])[0] is kept[-1]
    assert shared.of(many[:1])[0] is not kept[0]
