"""What has changed between two summaries of operator calls."""

from __future__ import annotations

import pytest

from cudamem_testing.operators.summary_text import compare_summaries
from cudamem_testing.records.expected.errors import TextMismatchError
from suites.operators.synthetic import FORWARD, KIB, Maker


def maker(*, clone: bool = False, wide: bool = False, small: int = 0, device: str = "cpu") -> Maker:
    made = Maker(device)
    for _ in range(small):
        made.add("sum", "head", FORWARD, 4, 4)
    made.add("addmm", "body.0", FORWARD, 8 * KIB)
    if clone:
        made.add("clone", "body", FORWARD, 6 * KIB)
    for _ in range(2):
        made.add("relu", "body.1", FORWARD, (10 if wide else 5) * KIB)
    return made.add("mm", "head", FORWARD, 2 * KIB, temporary=KIB)


def summary(top: int = 20, **given: object) -> str:
    return str(maker(**given).table().summary(top))  # type: ignore[arg-type]


def changed(before: str, after: str) -> list[str]:
    """The statements about two summaries."""
    found = compare_summaries(before, after)
    assert found is not None
    return found[0]


def test_a_call_more_is_named_with_its_size_and_module() -> None:
    found = compare_summaries(summary(), summary(clone=True))
    assert found is not None
    assert found[0] == [
        "1 call more: aten::clone of body, forward, allocated 6.0 KiB",
        "total: allocated 20.0 KiB -> 26.0 KiB, after 20.0 KiB -> 26.0 KiB",
        "another level after 3 calls (not shown below), first aten::relu of body.1, forward: 13.0 KiB -> 19.0 KiB",
    ]
    assert [line for line in found[1].splitlines() if line[0] in "+-"][2:] == [
        "+   1  aten::clone  body    forward    6.0 KiB      -          -  14.0 KiB",
        "-      total                          20.0 KiB      -    1.0 KiB  20.0 KiB",
        "+      total                          26.0 KiB      -    1.0 KiB  26.0 KiB",
    ]
    assert changed(summary(clone=True), summary())[0] == "1 call fewer: aten::clone of body, forward, allocated 6.0 KiB"


def test_calls_of_one_operator_that_change_alike_are_counted() -> None:
    assert changed(summary(), summary(wide=True))[:2] == [
        "2 calls of aten::relu of body.1, forward: allocated 5.0 KiB -> 10.0 KiB",
        "total: allocated 20.0 KiB -> 30.0 KiB, after 20.0 KiB -> 30.0 KiB",
    ]


def test_a_call_that_had_no_room_is_not_said_to_be_gone() -> None:
    assert changed(summary(2), summary(2, clone=True))[:3] == [
        "1 call more: aten::clone of body, forward, allocated 6.0 KiB",
        "1 call no longer among the largest: aten::relu of body.1, forward, allocated 5.0 KiB",
        "(others): allocated 7.0 KiB -> 12.0 KiB, after 7.0 KiB -> 12.0 KiB",
    ]


def test_calls_that_only_have_another_number() -> None:
    found = compare_summaries(summary(3), summary(3, small=2))
    assert found is not None
    assert found[0] == [
        "(others): freed - -> 8 B",
        "total: freed - -> 8 B",
    ]
    found = compare_summaries("\n".join(summary(3).split("\n")[:4]), "\n".join(summary(3, small=2).split("\n")[:4]))
    assert found is not None
    assert found[0] == [
        (
            "3 calls with another number, first aten::addmm of body.0, forward: 0 -> 2: "
            "calls that allocate less came before"
        )
    ]
    assert "+   2  aten::addmm" in found[1]


def test_of_several_devices_each_row_names_its_own() -> None:
    def both(**given: object) -> str:
        tables = [maker(device=device, **given).table() for device in ("cuda:0", "cuda:1")]  # type: ignore[arg-type]
        table = tables[0]
        return str(type(table)((*table.rows, *tables[1].rows), (*table.levels, *tables[1].levels)).summary())

    assert changed(both(), both(wide=True))[:2] == [
        "2 calls of aten::relu of body.1, forward, cuda:0: allocated 5.0 KiB -> 10.0 KiB",
        "2 calls of aten::relu of body.1, forward, cuda:1: allocated 5.0 KiB -> 10.0 KiB",
    ]


@pytest.mark.parametrize(
    "text", ["", "call", "a\nb", "call  operator  module  phase  allocated  freed  temporary  after\nx"]
)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert compare_summaries(text, summary()) is None
    assert compare_summaries(summary(), text) is None


def test_a_failed_check_starts_with_the_statements() -> None:
    table = maker(clone=True).table()
    with pytest.raises(TextMismatchError) as caught:
        table.assert_summary(summary())
    lines = str(caught.value).splitlines()
    assert lines[0] == "1 call more: aten::clone of body, forward, allocated 6.0 KiB"
    assert lines[3].startswith("the text differs from the expected one, ")
