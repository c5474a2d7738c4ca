"""Limits: one grammar, resolution against a naive reference, contradictions, and the exact words of a breach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.model.limits import (
    COUNTS,
    METRICS,
    SHARES,
    SIZES,
    Breach,
    Budget,
    Limit,
    LimitError,
    budget,
    called,
    contradictions,
    effective,
    parse_budget,
)
from cudamem_testing.model.windows import Window
from cudamem_testing.windows.judge import over_budget
from cudamem_testing.wording.findings import texts

MIB = 2**20
CUDA, CUDA0, CUDA1, CPU, HOST = map(Device.parse, ("cuda", "cuda:0", "cuda:1", "cpu", "host"))
CONCRETE = (CUDA0, CUDA1, CPU, HOST)
HINT = "write bytes as an int, or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
ARGUMENTS = "absolute, allocations, at_least, device, fragmentation, peak, reserved, retained, retries, warmup"
METRIC_NAMES = ", ".join(("peak", "reserved", "retained", "allocations", "retries", "fragmentation"))


def test_a_size_alone_means_at_most_on_every_device() -> None:
    assert budget(peak="512MiB", allocations=3).limits == (
        Limit("peak", 512 * MIB, "at most", None),
        Limit("allocations", 3, "at most", None),
    )


def test_every_argument() -> None:
    found = budget(
        peak={"cuda": "1GiB", torch.device("cuda", 1): None, "cpu": "5KiB"},
        reserved=7,
        retained=0,
        retries=2,
        at_least={"peak": "1KiB", "allocations": {0: 4}},
        absolute=True,
        warmup=3,
        source="here",
    )
    assert found == Budget(
        (
            Limit("peak", 2**30, "at most", CUDA, True),
            Limit("peak", None, "at most", CUDA1, True),
            Limit("peak", 5120, "at most", CPU, True),
            Limit("reserved", 7, "at most", None, True),
            Limit("retained", 0, "at most", None, True),
            Limit("retries", 2, "at most", None, True),
            Limit("peak", 1024, "at least", None, True),
            Limit("allocations", 4, "at least", CUDA0, True),
        ),
        3,
        "here",
    )
    assert str(found) == (
        "peak at most 1.0 GiB on cuda, peak at most anything on cuda:1, peak at most 5.0 KiB on cpu, "
        "reserved at most 7 B, retained at most 0 B, retries at most 2, peak at least 1.0 KiB, "
        "allocations at least 4 on cuda:0"
    )


def test_device_is_the_scope_of_plain_limits() -> None:
    assert budget(peak=1, at_least=0, device=0).limits == (
        Limit("peak", 1, "at most", CUDA0),
        Limit("peak", 0, "at least", CUDA0),
    )


def test_a_mapping_may_narrow_the_scope() -> None:
    assert budget(peak={"cuda:1": 1}, device="cuda").limits == (Limit("peak", 1, "at most", CUDA1),)


def test_a_warm_up_needs_no_limit() -> None:
    assert budget(warmup=1) == Budget((), 1)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({}, ["sets no limit: write for example peak='512MiB'"]),
        ({"peak": -1}, [f"peak: size -1 is negative: {HINT}"]),
        ({"peak": True}, [f"peak: size True is a bool: {HINT}"]),
        ({"peak": {}}, ["peak={} names no device"]),
        ({"peak": {"gpu": 1}}, ["peak: device 'gpu' is not known: write cpu, cuda, cuda:N or host"]),
        ({"peak": {"cpu": "x"}}, [f"peak: size 'x' is not understood: {HINT}"]),
        ({"peak": {0: 1, "cuda:0": 2}}, ["peak names cuda:0 twice"]),
        ({"peak": {"cpu": 1}, "device": "cuda"}, ["peak: names cpu beside device=cuda"]),
        ({"peak": 1, "device": "tpu"}, ["device 'tpu' is not known: write cpu, cuda, cuda:N or host"]),
        ({"allocations": "3"}, ["allocations: '3' is not a count: write an int of 0 or more"]),
        ({"allocations": True}, ["allocations: True is not a count: write an int of 0 or more"]),
        ({"retries": -1}, ["retries: -1 is not a count: write an int of 0 or more"]),
        ({"retries": 1.0}, ["retries: 1.0 is not a count: write an int of 0 or more"]),
        (
            {"at_least": {"peek": 1}},
            [f"at_least has the unknown metric 'peek': write {METRIC_NAMES}"],
        ),
        ({"peak": 1, "absolute": 1}, ["absolute=1 is not True or False"]),
        ({"peak": 1, "warmup": -1}, ["warmup=-1 is not a number of runs"]),
        ({"peak": 1, "warmup": True}, ["warmup=True is not a number of runs"]),
        ({"peak": 1, "warmup": "1"}, ["warmup='1' is not a number of runs"]),
        ({"peak": 1024, "at_least": 2048}, ["at_least peak of 2.0 KiB is above the limit of 1.0 KiB"]),
        (
            {"peak": "x", "retries": -1, "device": "tpu", "warmup": -1},
            [
                "device 'tpu' is not known: write cpu, cuda, cuda:N or host",
                "warmup=-1 is not a number of runs",
                f"peak: size 'x' is not understood: {HINT}",
                "retries: -1 is not a count: write an int of 0 or more",
            ],
        ),
    ],
)
def test_wrong_arguments_are_all_named(arguments: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(LimitError) as caught:
        budget(**arguments)
    assert [*caught.value.problems] == problems
    assert str(caught.value) == "; ".join(problems)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("peak=2GiB,retained=0", (Limit("peak", 2**31), Limit("retained", 0))),
        (" peak = 5B ,, allocations=7, ", (Limit("peak", 5), Limit("allocations", 7))),
    ],
)
def test_the_option(text: str, limits: tuple[Limit, ...]) -> None:
    assert parse_budget(text, "--cudamem-budget") == Budget(limits, 0, "--cudamem-budget")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["sets no limit: write for example peak='512MiB'"]),
        (
            "2GiB",
            [f"'2GiB' is not METRIC=SIZE with a metric of {METRIC_NAMES}"],
        ),
        (
            "peek=1",
            [f"'peek=1' is not METRIC=SIZE with a metric of {METRIC_NAMES}"],
        ),
        ("peak=1B,peak=2B", ["peak is given twice"]),
        ("peak=4", [f"peak: size '4' has no unit: {HINT}"]),
        ("peak=", [f"peak: size '' is not understood: {HINT}"]),
        ("allocations=x", ["allocations: 'x' is not a count: write an int of 0 or more"]),
        ("peak=1B,peak=2B,retained=x", ["peak is given twice", f"retained: size 'x' is not understood: {HINT}"]),
    ],
)
def test_wrong_options_are_all_named(text: str, problems: list[str]) -> None:
    with pytest.raises(LimitError) as caught:
        parse_budget(text)
    assert [*caught.value.problems] == problems


# -- resolution -------------------------------------------------------------------------------------------

SPELLINGS = st.sampled_from(["cuda", "cuda:0", "cuda:1", "cpu", "host"])
VALUES = st.one_of(st.none(), st.integers(0, 9))
SIDE = st.dictionaries(
    st.sampled_from(METRICS), st.one_of(st.integers(0, 9), st.dictionaries(SPELLINGS, VALUES, min_size=1)), max_size=3
)
WRITTEN = st.tuples(SIDE, SIDE).filter(lambda sides: any(sides))


def bound(written: Any, device: Device) -> tuple[bool, int | None]:
    """Whether one written argument speaks about the device, and what it says."""
    if not isinstance(written, dict):
        return device.kind != "host", written  # pinned host memory must be named
    for spelling in (str(device), device.kind):
        if spelling in written:
            return True, written[spelling]
    return False, None


def reference(stack: list[tuple[dict[str, Any], dict[str, Any]]], device: Device) -> dict[tuple[str, str], int]:
    """The bounds in force: walk from the nearest budget outwards until one speaks about metric, side and device."""
    found = {}
    for metric in METRICS:
        for place, side in enumerate(("at most", "at least")):
            for written in stack:
                speaks, value = bound(written[place][metric], device) if metric in written[place] else (False, None)
                if speaks:
                    if value is not None:
                        found[metric, side] = value
                    break
    return found


def in_percent(written: dict[str, Any]) -> dict[str, Any]:
    """Shares as they are written, of numbers that are hundredths of a percent."""

    def share(value: Any) -> Any:
        if isinstance(value, dict):
            return {device: share(one) for device, one in value.items()}
        return value if value is None else f"0.0{value}%"

    return {metric: share(value) if metric in SHARES else value for metric, value in written.items()}


def parsed(written: tuple[dict[str, Any], dict[str, Any]]) -> Budget | None:
    """The budget; ``None`` when it contradicts itself."""
    try:
        return budget(**in_percent(written[0]), at_least=in_percent(written[1]) or None)
    except LimitError as error:
        if all(problem.startswith("at_least ") for problem in error.problems):
            return None
        raise


@given(st.lists(WRITTEN, min_size=1, max_size=3))
def test_the_nearest_budget_and_the_most_specific_device_win(stack: list[Any]) -> None:
    written = [one for one in stack if parsed(one) is not None]
    budgets = [one for one in map(parsed, written) if one is not None]
    for device in CONCRETE:
        limits = effective(budgets, device)
        assert {(limit.metric, limit.side): limit.value for limit in limits} == reference(written, device)
        assert len(limits) == len({(limit.metric, limit.side) for limit in limits})
        order = [(METRICS.index(limit.metric), limit.side != "at most") for limit in limits]
        assert order == sorted(order)
        assert all(limit.covers(device) for limit in limits)


@given(WRITTEN)
def test_a_budget_contradicts_itself_if_no_number_satisfies_it(written: Any) -> None:
    broken = False
    for device in (*CONCRETE, Device("cuda", 9)):
        bounds = reference([written], device)
        broken |= any(bounds.get((metric, "at least"), 0) > bounds.get((metric, "at most"), 9) for metric in METRICS)
    assert (parsed(written) is None) == broken


def test_a_contradiction_is_reported_once_where_it_applies() -> None:
    low, high = Limit("peak", 300, "at least"), Limit("peak", 100, device=CUDA)
    message = "at_least peak of 300 B is above the limit of 100 B"
    assert contradictions([low, high, Limit("peak", 200, device=CUDA0)]) == [
        message,
        "at_least peak of 300 B is above the limit of 200 B",
    ]
    assert contradictions([low, high]) == [message]
    assert contradictions([Limit("peak", 300, "at least", CUDA0), high, Limit("peak", 500, device=CUDA0)]) == []
    assert contradictions([Limit("peak", 300, "at least", CUDA0), high, Limit("peak", None, device=CUDA0)]) == []
    assert contradictions([Limit("reserved", 300, "at least"), high]) == []


# -- judging ----------------------------------------------------------------------------------------------

WINDOW = Window(
    "call", CUDA0, 100, 1124, 90, reserved_start=10, reserved_peak=2058, retained=-10, allocations=4, retries=1
)


@pytest.mark.parametrize(
    ("limit", "measured"),
    [
        (Limit("peak", 0), 1024),
        (Limit("peak", 0, absolute=True), 1124),
        (Limit("reserved", 0), 2048),
        (Limit("reserved", 0, absolute=True), 2058),
        (Limit("retained", 0), -10),
        (Limit("allocations", 0), 4),
        (Limit("retries", 0), 1),
        (Limit("fragmentation", 0), 0),
    ],
)
def test_what_is_measured(limit: Limit, measured: int) -> None:
    assert limit.measured(WINDOW) == measured
    assert limit.measured(Window("call", CUDA0)) is None


@pytest.mark.parametrize("side", ["at most", "at least"])
def test_a_limit_holds_at_its_value_and_breaks_one_byte_beyond(side: Any) -> None:
    step = -1 if side == "at most" else 1
    assert Limit("peak", 1024, side).judge(WINDOW) is None
    broken = Limit("peak", 1024 + step, side)
    assert broken.judge(WINDOW) == Breach(broken, 1024 + step, 1024, WINDOW)
    found = broken.judge(WINDOW)
    assert found is not None
    assert found.excess == 1


def test_what_is_unknown_or_lifted_is_not_judged() -> None:
    assert Limit("peak", 0).judge(Window("call", CUDA0)) is None
    assert Limit("peak", None).judge(WINDOW) is None


def test_the_metrics_are_all_there_is() -> None:
    assert (*SIZES, *COUNTS, *SHARES) == METRICS
    window = Window("call", CPU, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert [Limit(metric, 0).measured(window) for metric in METRICS] == [0] * len(METRICS)


MIB = 2**20


@pytest.mark.parametrize(
    ("start", "most", "peak", "share"),
    [
        (0, 100, 60, 4000),  # 40 of 100 were not needed
        (0, 100, 100, 0),
        (90, 100, 10, 0),  # 10 are within what cannot be avoided
        (40, 100, 10, 6000),  # what was reserved before is not its fault
        (100, 100, 10, 0),  # it added nothing
        (0, 82, 60, 0),
        (0, 83, 60, 2771),
    ],
)
def test_fragmentation_of_a_window(start: int, most: int, peak: int, share: int) -> None:
    window = Window("call", CUDA0, 0, peak * MIB, 0, reserved_start=start * MIB, reserved_peak=most * MIB)
    assert window.fragmentation == share
    broken = Limit("fragmentation", 2770).judge(window)
    assert (broken is not None) is (share > 2770)


@pytest.mark.parametrize(
    ("text", "value"), [("20%", 2000), ("0.5 %", 50), ("100%", 10_000), ("0%", 0), ("12.345%", 1234)]
)
def test_shares(text: str, value: int) -> None:
    (limit,) = budget(fragmentation=text).limits
    assert limit.value == value
    assert parse_budget(f"fragmentation={text}").limits == (limit,)


@pytest.mark.parametrize("wrong", ["20", "101%", "-1%", 20, 0.2, True, "a%"])
def test_wrong_shares(wrong: object) -> None:
    with pytest.raises(LimitError) as raised:
        budget(fragmentation=wrong)
    assert raised.value.problems == (f"fragmentation: {wrong!r} is not a share: write a percentage, such as '20%'",)


def test_a_share_as_text() -> None:
    assert str(budget(fragmentation={"cuda": "12.5%"})) == "fragmentation at most 12.5 % on cuda"


def test_the_sentence_of_a_broken_share() -> None:
    window = Window("call", CUDA0, 0, 60 * MIB, 0, reserved_start=0, reserved_peak=100 * MIB)
    found = over_budget(Limit("fragmentation", 2000).judge(window))  # type: ignore[arg-type]
    assert found.bytes is None
    assert texts([found]).splitlines()[:2] == [
        "cudamem: fragmentation 40.0 % is over its budget of 20.0 % by 20.0 % (cuda:0)",
        "reserved at the start 0 B, at its peak 100.0 MiB, allocated at its peak 60.0 MiB",
    ]


@pytest.mark.parametrize(
    ("arguments", "keywords", "problem"),
    [
        ((3,), {}, "takes keyword arguments only, such as peak=3"),
        ((), {"top": 1, "best": 2, "peak": 3}, f"has no argument best, top: it takes {ARGUMENTS}"),
        ((), {"source": "x"}, f"has no argument source: it takes {ARGUMENTS}"),
        ((), {"peak": -1}, f"peak: size -1 is negative: {HINT}"),
    ],
)
def test_wrong_arguments_of_a_marker(arguments: tuple[int, ...], keywords: dict[str, int], problem: str) -> None:
    with pytest.raises(LimitError) as raised:
        called(budget, arguments, keywords, "peak")
    assert raised.value.problems == (problem,)


def test_the_arguments_of_a_marker() -> None:
    assert called(budget, (), {"peak": 3, "warmup": 1}, "peak") == budget(peak=3, warmup=1)
