"""Tolerances, spreads and changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.changes import (
    SIMULATED_MARGINS,
    TRACKED,
    Change,
    ChangedPlace,
    Comparison,
    Spread,
    Tolerance,
    comparison,
    parse_conditions,
)
from cudamem_testing.model.limits import LimitError

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("text", "metric", "recorded", "slack"),
    [
        ("5%|10MiB", "requested", 100 * MIB, 10 * MIB),
        ("5%|10MiB", "requested", 1000 * MIB, 50 * MIB),
        ("10MiB | 5 %", "peak", 1000 * MIB, 50 * MIB),
        ("1%", "requested", 12_345, 123),
        ("0.5%", "requested", 1000, 5),
        ("0.0001%", "reserved", 10**6, 1),
        ("150%", "retained", 10, 15),
        ("2%|1%", "requested", 100, 2),
        ("10%", "retained", -100, 10),
        ("64KiB", "requested", 0, 64 * KIB),
        ("64KiB", "allocations", 1000, 0),
        ("1%|64KiB", "allocations", 1000, 10),
        ("5%|10", "allocations", 20, 10),
        ("5%|10", "requested", 20, 10),
        (7, "segments", 1, 7),
        (7, "requested", 1, 7),
        ("0", "retries", 9, 0),
    ],
)
def test_slack(text: object, metric: str, recorded: int, slack: int) -> None:
    assert Tolerance.parse(text).slack(metric, recorded) == slack
    assert str(Tolerance.parse(text)) == str(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("5%", (50_000, 0, 0)), ("7", (0, 7, 7)), ("2KiB", (0, 2048, 0)), (0, (0, 0, 0)), ("1%|2%|9|3", (20_000, 9, 9))],
)
def test_the_parts_of_a_tolerance(text: object, parts: tuple[int, int, int]) -> None:
    assert Tolerance.parse(text) == Tolerance(*parts, text=str(text))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "tolerance None is not understood: write for example '5%|10MiB'"),
        (True, "tolerance True is not understood: write for example '5%|10MiB'"),
        (1.5, "tolerance 1.5 is not understood: write for example '5%|10MiB'"),
        (
            "5%|10MB|x",
            (
                "tolerance '5%|10MB|x' has the part 'x': write a share such as 5%, a size such as 10MiB, or both with "
                "| between them"
            ),
        ),
        (
            "-1%",
            (
                "tolerance '-1%' has the part '-1%': write a share such as 5%, a size such as 10MiB, or both with | "
                "between them"
            ),
        ),
        (
            "",
            "tolerance '' has the part '': write a share such as 5%, a size such as 10MiB, or both with | between them",
        ),
        (
            -1,
            (
                "tolerance '-1' has the part '-1': write a share such as 5%, a size such as 10MiB, or both with | "
                "between them"
            ),
        ),
    ],
)
def test_what_is_no_tolerance(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Tolerance.parse(value)
    assert str(caught.value) == message


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**12))
def test_the_larger_part_counts(recorded: int, tenths: int, size: int) -> None:
    share = Tolerance.parse(f"{tenths // 10}.{tenths % 10}%").slack("requested", recorded)
    both = Tolerance.parse(f"{tenths // 10}.{tenths % 10}%|{size}").slack("requested", recorded)
    assert share == recorded * tenths // 1000
    assert both == max(share, size)


def test_spreads() -> None:
    assert Spread.of(3, 1, 2) == Spread(1, 3)
    assert Spread(1, 2) | Spread(5, 6) == Spread(1, 6)
    assert Spread(2, 3) in Spread(1, 3)
    assert Spread(1, 3) in Spread(1, 3)
    assert Spread(0, 3) not in Spread(1, 3)
    assert Spread(2, 4) not in Spread(1, 3)
    assert Spread(MIB, MIB).text("peak") == "1.0 MiB"
    assert Spread(MIB, 2 * MIB).text("peak") == "1.0 MiB to 2.0 MiB"
    assert Spread(7, 9).text("allocations") == "7 to 9"


@pytest.mark.parametrize(
    ("growth", "saved", "recorded", "is_for_backward"),
    [(4, 2, False, True), (5, 2, False, False), (5, 0, True, True), (0, 0, True, False), (-1, 2, True, False)],
)
def test_growth_that_is_kept_for_backward(growth: int, saved: int, recorded: bool, is_for_backward: bool) -> None:
    place = ChangedPlace("a.py::f", None, (), 10, 10 + growth, saved=7 + saved, saved_before=7, recorded=recorded)
    assert (place.growth, place.is_for_backward) == (growth, is_for_backward)


def test_how_far_a_simulated_card_may_be_from_a_real_one() -> None:
    assert {metric: str(margin) for metric, margin in SIMULATED_MARGINS.items()} == {
        "requested": "3%|64KiB",
        "peak": "3%|64KiB",
        "reserved": "5%|2MiB",
        "retained": "3%|64KiB",
    }


@pytest.mark.parametrize(
    ("before", "after", "growth", "grew", "shrank"),
    [
        ((100, 100), (110, 110), 10, False, False),
        ((100, 100), (111, 111), 11, True, False),
        ((100, 100), (90, 90), -10, False, False),
        ((100, 100), (89, 89), -11, False, True),
        ((100, 200), (150, 150), 0, False, False),
        ((100, 200), (210, 210), 10, False, False),
        ((100, 200), (89, 300), 100, True, False),
        ((100, 200), (80, 150), -20, False, True),
    ],
)
def test_changes(before: tuple[int, int], after: tuple[int, int], growth: int, grew: bool, shrank: bool) -> None:
    change = Change("requested", Spread(*before), Spread(*after), 10)
    assert (change.growth, change.grew, change.shrank) == (growth, grew, shrank)


def test_the_arguments_of_a_comparison() -> None:
    assert comparison() == Comparison()
    assert comparison() == comparison(tolerance="1%|64KiB", metrics=("requested",), warmup=0)
    assert comparison(metrics="peak").metrics == ("peak",)
    assert comparison(metrics=["retries", "requested"], warmup=2) == Comparison(
        ("requested", "retries"), Tolerance.parse("1%|64KiB"), 2
    )
    with pytest.raises(LimitError) as caught:
        comparison(tolerance="x", metrics=("speed", "peak", 3), warmup=-1)
    assert caught.value.problems == (
        "tolerance 'x' has the part 'x': write a share such as 5%, a size such as 10MiB, or both with | between them",
        f"metrics 'speed', 3 is not known: write some of {', '.join(TRACKED)}",
        "warmup=-1 is not a number of runs",
    )
    for nothing in ((), 5, None):
        with pytest.raises(LimitError) as caught:
            comparison(metrics=nothing)
        assert caught.value.problems == (f"metrics {nothing!r} is not known: write some of {', '.join(TRACKED)}",)
    with pytest.raises(LimitError):
        comparison(warmup=True)


def test_conditions() -> None:
    assert parse_conditions(["requested:5%|10MiB", "allocations : 3"]) == {
        "requested": Tolerance.parse("5%|10MiB"),
        "allocations": Tolerance.parse(" 3"),
    }
    assert parse_conditions([]) == {}
    for word in ("speed:5%", "requested"):
        with pytest.raises(ValueError) as caught:
            parse_conditions([word])
        assert str(caught.value) == f"{word!r} is not METRIC:TOLERANCE with a metric of {', '.join(TRACKED)}"
    with pytest.raises(ValueError) as caught:
        parse_conditions(["peak:5%", "peak: 10MiB"])
    assert str(caught.value) == "peak has two tolerances: write 'peak:5%|10MiB', of which the larger one counts"


@pytest.mark.parametrize(
    ("after", "share"), [((30, 30), "+50.0%"), ((5, 5), "-50.0%"), ((10, 20), "+0.0%"), ((10, 21), "+5.0%")]
)
def test_a_share_is_of_the_end_of_the_spread_that_was_passed(after: tuple[int, int], share: str) -> None:
    assert Change("requested", Spread(10, 20), Spread(*after), 0).share == share


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [(3, 4, "+33.3%"), (6, 10, "+66.7%"), (400, 401, "+0.3%"), (0, 5, ""), (3, 0, "-100.0%")],
)
def test_a_share_is_rounded_to_tenths_of_a_percent(before: int, after: int, share: str) -> None:
    assert Change("requested", Spread(before, before), Spread(after, after), 0).share == share
