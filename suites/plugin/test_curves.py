"""Memory over time in a report: of tests that failed and of the largest, and of no others."""

from __future__ import annotations

import pytest

from cudamem_testing.model.curves import Part
from cudamem_testing.model.options import rerun_flags
from cudamem_testing.report.report_files import read_json
from suites.plugin.inner import KIB, MIB

TESTS = """
    import pytest, torch

    def test_small(): torch.empty(256)

    @pytest.mark.memory_budget(peak="1MiB")
    def test_over():
        a = torch.empty(MIB); b = torch.empty(MIB)
        del a
        torch.empty(256)

    def test_fails():
        kept = torch.empty(64)
        assert not kept.numel()

    MIB = 2**18
"""


def test_the_curve_of_a_budget_that_broke(run_inner):
    inner = run_inner(TESTS, "--cudamem", "--cudamem-json=report.json", "-k", "over")
    (curve,) = inner.test("test_over").curves
    assert curve.totals == [0, MIB, 2 * MIB, MIB, MIB + KIB, MIB, 0]
    assert [(band.label, band.origin) for band in curve.bands] == [
        ("test_it.py:7 in test_over", "project"),
        ("test_it.py:9 in test_over", "project"),
    ]
    assert [(one.name, one.first, one.last) for one in curve.stretches] == [
        ("setup", 0, 0),
        ("call", 0, 6),
        ("teardown", 6, 6),
    ]
    assert (curve.peak, curve.events, curve.notes) == (2, 6, ())
    (part,) = curve.live
    assert (part.bytes, part.blocks, str(part.stack)) == (2 * MIB, 2, "test_it.py:7 in test_over")
    assert read_json(inner.folder / "report.json").tests == inner.run.tests


def test_failed_tests_and_the_largest_have_one(run_inner):
    inner = run_inner(TESTS, "--cudamem", "--cudamem-html=report.html")
    assert {test.nodeid.rpartition("::")[2]: len(test.curves) for test in inner.run.tests} == {
        "test_small": 0,
        "test_over": 1,
        "test_fails": 1,
    }


def test_the_largest_so_far_have_one(run_inner):
    sizes = [100, 90, *range(200, 212), 50, 300]
    file = f"""
        import pytest, torch
        @pytest.mark.parametrize("kib", {sizes})
        def test_it(kib): torch.empty(kib * 256)
    """
    inner = run_inner(file, "--cudamem", "--cudamem-json=report.json")
    with_one = [int(test.nodeid.rpartition("[")[2][:-1]) for test in inner.run.tests if test.curves]
    assert with_one == [100, 90, *range(200, 212), 300]


def test_without_a_report_nothing_is_read(run_inner):
    assert not any(test.curves for test in run_inner(TESTS, "--cudamem").run.tests)


def test_a_curve_that_cannot_be_made_is_a_note(run_inner, monkeypatch):
    def broken(*args: object) -> None:
        raise RuntimeError("no record")

    monkeypatch.setattr("cudamem_testing.run.curves.curve", broken)
    inner = run_inner(TESTS, "--cudamem", "--cudamem-json=report.json", "-k", "over")
    test = inner.test("test_over")
    assert test.curves == ()
    assert test.notes == ("memory over time: RuntimeError: no record",)
    assert [finding.verdict.value for finding in test.findings] == ["over budget"]


def test_what_earlier_tests_left_is_named(run_inner):
    file = """
        import torch
        KEPT = []
        def test_leaks(): KEPT.append(torch.empty(2**18))
        def test_fails():
            torch.empty(2**18)
            assert False
    """
    (curve,) = run_inner(file, "--cudamem", "--cudamem-json=report.json").test("test_fails").curves
    assert [part for part in curve.live if part.origin == "before"] == [
        Part(MIB, 1, None, "(left by test_it.py::test_leaks)", "before")
    ]
    assert curve.totals == [MIB, 2 * MIB, MIB]


def test_a_profile_of_a_failed_test_is_a_curve_by_category(run_inner):
    file = """
        import torch
        def test_it(memory_profile):
            layer, x = torch.nn.Linear(64, 64), torch.empty(64, 64)
            memory_profile(lambda: layer(x).sum().backward())
            assert False
    """
    curves = run_inner(file, "--cudamem", "--cudamem-json=report.json").test("test_it").curves
    assert [curve.by for curve in curves] == ["line", "category"]
    assert "PARAMETER" in [band.label for band in curves[1].bands]


def test_without_events_there_is_none(run_inner):
    inner = run_inner(TESTS, "--cudamem", "--cudamem-stacks=off", "--cudamem-json=report.json")
    assert not any(test.curves or test.notes for test in inner.run.tests)


@pytest.mark.parametrize("flag", ["json", "html"])
def test_a_report_that_cannot_be_written_fails_the_run(run_inner, flag):
    inner = run_inner({"test_it.py": "def test_it(): pass", "file": ""}, "--cudamem", f"--cudamem-{flag}=file/a")
    assert inner.status == 1
    assert any("the report was not written to" in line for line in inner.summary)


def test_flags_of_a_run_are_those_that_a_test_needs_again(run_inner):
    given = [
        "--cudamem",
        "--cudamem-leaks=warn",
        "--cudamem-cycles",
        "off",
        "--cudamem-json=r.json",
        "--cudamem-top",
        "3",
    ]
    assert run_inner("def test_it(): pass", *given).run.flags == (
        "--cudamem",
        "--cudamem-leaks=warn",
        "--cudamem-cycles",
        "off",
    )


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ((), ()),
        (("--cudamem-device", "cpu"), ("--cudamem-device", "cpu")),
        (("tests", "--cudamem-device"), ("--cudamem-device",)),
    ],
)
def test_flags_of_any_command_line(arguments: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """A bare ``pytest`` has none; a flag may be the last word."""
    assert rerun_flags(arguments) == flags


def test_fixtures_of_a_failed_test_show_what_they_made(run_inner):
    file = """
        import torch
        def test_fails(operator_memory, memory_profile):
            layer, x = torch.nn.Linear(64, 64), torch.empty(64, 64)
            with operator_memory(layer) as memory:
                layer(x).relu()
            memory_profile(lambda: layer(x).sum())
            assert False

        def test_passes(operator_memory):
            with operator_memory():
                torch.empty(256) + 1
    """
    inner = run_inner(file, "--cudamem", "--cudamem-json=report.json", "--cudamem-leaks=off")
    shown = inner.test("test_fails").exhibits
    assert [one.title for one in shown] == ["What the peak of the profile was for", "Operators", "Modules"]
    assert "relu" in shown[1].text
    assert "by category" in shown[0].text
    assert inner.test("test_passes").exhibits == ()
    assert read_json(inner.folder / "report.json").test("test_fails").exhibits == shown
