"""Fixtures that grow with each use: the third in a row fails, also with other tests between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind
from cudamem_testing.model.facts import Allocation, Retained, RetainedBlock
from cudamem_testing.model.findings import Finding, Severity, Verdict
from cudamem_testing.model.findings import Kind as FaultKind
from cudamem_testing.model.references import Doubt, Path, Reach, Unsure
from cudamem_testing.model.stacks import Frame
from cudamem_testing.verdicts.fixtures import GrownFixtures
from cudamem_testing.wording.findings import text
from suites.made import path

KIB = 2**10
CPU, CARD = Device("cpu"), Device("cuda", 0)
LINE = Frame("test_it.py", 9, "test_it")


def left(kib: int, fixture: str = "cache", device: Device = CPU, key: str = "a") -> Finding:
    steps = (Kind.ATTRIBUTE, ".cached_result", "tuple"), (Kind.ITEM, "[0]", "dict"), (Kind.ITEM, f"['{key}']", "Tensor")
    return retained(kib, path(f"fixture '{fixture}'", *steps), device)


def retained(kib: int, holder: Path, device: Device = CPU) -> Finding:
    block = RetainedBlock(kib * KIB, "float32[1]", Allocation(LINE), Reach.HARNESS, holder)
    return Finding(
        FaultKind.LEAK,
        Verdict.FIXTURE,
        Severity.NOTE,
        Retained((block,), 1, doubts=(Doubt(Unsure.NOT_REACHED),)),
        bytes=kib * KIB,
        device=device,
        allocated=str(LINE),
        holder=holder.text,
        cause=f"leak | fixture | test_it.py::test_it | {holder.text}",
    )


class Uses:
    """Tests in turn."""

    def __init__(self) -> None:
        self.grown = GrownFixtures()

    def __call__(
        self,
        *findings: Finding,
        used: tuple[str, ...] = ("cache",),
        number: int | None = 1,
        gained: int | None = 2**30,
        device: Device = CPU,
    ) -> list[Severity]:
        numbers = dict.fromkeys(used, number)
        return [one.severity for one in self.grown.judged(findings, numbers, {device: gained}, Severity.FAIL)]


NOTE, FAIL = [Severity.NOTE], [Severity.FAIL]


def test_the_third_use_in_a_row_fails_once() -> None:
    use = Uses()
    assert [use(left(64)) for _ in range(5)] == [NOTE, NOTE, FAIL, NOTE, NOTE]


def test_what_the_finding_says() -> None:
    grown = GrownFixtures()
    for kib, key in ((100, "a"), (200, "b"), (300, "c")):
        (found,) = grown.judged([left(kib, key=key)], {"cache": 1}, {CPU: 2**30}, Severity.WARN)
    assert text(found) == (
        "cudamem: fixture 'cache' grows by 200.0 KiB per test: 600.0 KiB in 3 uses in a row (cpu)\n"
        "   300.0 KiB  float32[1]  fixture\n"
        "      allocated  test_it.py:9 in test_it\n"
        "      kept by    fixture 'cache'.cached_result (tuple)[0] > dict['c']\n"
        "   note: the search did not reach it\n"
        "   hint: limit what the fixture keeps, or remove at the end of each test what the test added\n"
        "   more: python -m cudamem_testing explain fixture, docs/hints.md#growing-fixture"
    )
    assert (found.severity, found.bytes, found.allocated) == (Severity.WARN, 300 * KIB, "test_it.py:9 in test_it")
    assert found.holder == "fixture 'cache'.cached_result (tuple)[0] > dict['c']"
    assert found.cause == "leak | fixture | test_it.py::test_it | fixture 'cache'"


@pytest.mark.parametrize(
    ("between", "last"),
    [
        ({"used": ("other",)}, FAIL),  # a test that does not use it
        ({"used": ("cache", "other")}, NOTE),  # a use that left nothing
    ],
)
def test_a_plateau_ends_the_row(between: dict[str, tuple[str, ...]], last: list[Severity]) -> None:
    use = Uses()
    assert (use(left(64)), use(left(64)), use(**between), use(left(64))) == (NOTE, NOTE, [], last)
    assert use.grown.watching


@pytest.mark.parametrize("number", [1, None])  # without one, pytest does not tell which fixture it was
def test_the_end_of_the_fixture_ends_the_row(number: int | None) -> None:
    use = Uses()
    assert (use(left(64), number=number), use(left(64), number=number)) == (NOTE, NOTE)
    use.grown.ended("cache", 2)
    use.grown.ended("other", 1)
    assert use.grown.watching is (number == 1)
    use.grown.ended("cache", 1)
    assert not use.grown.watching
    assert [use(left(64), number=number) for _ in range(3)] == [NOTE, NOTE, FAIL]


def test_fixtures_of_one_name_are_counted_apart() -> None:
    use = Uses()
    assert [use(left(64), number=number) for number in (1, 2, 1, 2)] == [NOTE] * 4
    assert use(number=2) == []  # ends the row of this one alone
    assert [use(left(64), number=number) for number in (2, 1)] == [NOTE, FAIL]


def test_what_takes_the_place_of_another_is_no_growth() -> None:
    use = Uses()
    assert [use(left(64), gained=gained) for gained in (64 * KIB, 0, 64 * KIB, 0, -1, 64 * KIB)] == [NOTE] * 6


def test_other_leaks_of_the_test_do_not_make_it_grow() -> None:
    use = Uses()
    leak = replace(retained(100, path("module a")), verdict=Verdict.REACHABLE, severity=Severity.FAIL)
    for _ in range(3):
        assert use(leak, left(64), gained=100 * KIB) == [Severity.FAIL, Severity.NOTE]
    assert not use.grown.watching


def test_fixtures_and_devices_are_counted_apart() -> None:
    use = Uses()
    assert use(left(64)) == NOTE
    assert use(left(64, device=CARD), device=CARD) == NOTE
    assert use(left(64, "other"), used=("other",)) == NOTE
    assert use(left(64), left(64, device=CARD)) == NOTE * 2
    assert use(left(64), left(64, device=CARD)) == [Severity.NOTE, Severity.FAIL]  # the second left nothing on the CPU


def test_without_counters_what_is_held_counts() -> None:
    use = Uses()
    assert [use(left(64), gained=None) for _ in range(3)] == [NOTE, NOTE, FAIL]


def test_the_largest_of_several_is_named() -> None:
    use = Uses()
    both = [left(64, key="a"), left(100, key="b")]
    assert [use(*both) for _ in range(3)] == [NOTE * 2, NOTE * 2, [Severity.NOTE, Severity.FAIL]]


def test_parameters_are_no_fixtures() -> None:
    use = Uses()
    parameter = retained(64, path("CallSpec2", (Kind.ATTRIBUTE, ".params", "dict")))
    assert [use(parameter) for _ in range(4)] == [NOTE] * 4
    assert not use.grown.watching
