"""Statements on tables of rows inside each other, which come before their diff."""

from __future__ import annotations

import textwrap

from cudamem_testing.trace.columns import compare_columns

TIMELINE = """\
    KiB on cpu     peak  PARAMETER  ACTIVATION
    everything      273        130           2
      Block         154        130          22
        Linear      142        130          10
        Linear      152        130          20
"""
MODULES = """\
    module               allocated     freed  forward kept
    (model)              174.8 KiB   5.0 KiB      22.1 KiB
      n                    3.6 KiB         -       2.1 KiB
    (between operators)          -  40.1 KiB      -2.0 KiB
"""


def statements(before: str, after: str) -> list[str] | None:
    found = compare_columns(textwrap.dedent(before).strip("\n"), textwrap.dedent(after).strip("\n"))
    return None if found is None else found[0]


def test_each_row_that_differs_is_named_with_its_columns() -> None:
    changed = """\
        KiB on cpu     peak  PARAMETER  TEMPORARY  ACTIVATION
        everything      273        130                      2
          Block         160        130          6          22
            Linear      142        130                     10
            Linear      148        130                     16
          Tail           20                                20
    """
    assert statements(TIMELINE, changed) == [
        "everything > Block: peak 154 -> 160 KiB, TEMPORARY 0 -> 6 KiB",
        "everything > Block > Linear (2.): peak 152 -> 148 KiB, ACTIVATION 20 -> 16 KiB",
        "everything > Tail is new: peak 20 KiB, ACTIVATION 20 KiB",
    ]
    assert statements(changed, TIMELINE)[-1] == "everything > Tail is gone"  # type: ignore[index]
    assert statements(TIMELINE, TIMELINE) == []


def test_sizes_with_their_units() -> None:
    changed = MODULES.replace("3.6 KiB         -", "4.6 KiB   1.0 KiB").replace("-2.0", "-3.0")
    assert statements(MODULES, changed) == [
        "(model) > n: allocated 3.6 KiB -> 4.6 KiB, freed - -> 1.0 KiB",
        "(between operators): forward kept -2.0 KiB -> -3.0 KiB",
    ]


def test_an_empty_text_has_a_diff_alone() -> None:
    assert compare_columns("", "module  peak\n(model)  1 B") == compare_columns("nothing", "module  peak\n(model)  1 B")


def test_what_is_no_such_table_has_a_diff_alone() -> None:
    assert statements(TIMELINE, TIMELINE.replace("KiB", "MiB")) is None
    assert statements("nothing", TIMELINE) is None
