"""Tables: exact texts, sums, order, what is hidden, several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cudamem_testing import Device, OperatorMemory
from cudamem_testing.operators.rows import BETWEEN, Levels, Phase, is_on
from cudamem_testing.operators.summaries import STABLE, columns_of
from cudamem_testing.operators.table import OperatorTable
from cudamem_testing.records.expected.errors import TextMismatchError
from suites.operators.synthetic import BACKWARD, FORWARD, KIB, Maker, step


def text(expected: str) -> str:
    """The text of a literal: without its margin."""
    from cudamem_testing.records.expected.text import canonical

    return canonical(expected)


def test_summary() -> None:
    assert str(step().table().summary(4)) == text(
        """
        call  operator             module  phase      allocated     freed  temporary     after
           8  aten::addcdiv_               optimizer   16.0 KiB  16.0 KiB   16.0 KiB  12.1 KiB
           7  aten::mm             body.0  backward     8.0 KiB   4.0 KiB    3.0 KiB  12.1 KiB
           0  aten::addmm          body.0  forward      4.0 KiB         -          -   4.0 KiB
           1  aten::relu           body.1  forward      4.0 KiB         -          -   8.0 KiB
              (others)                                  5.1 KiB   2.0 KiB    2.0 KiB   3.1 KiB
              (between operators)                             -   8.0 KiB          -  -8.0 KiB
              total                                    37.1 KiB  30.0 KiB   16.0 KiB   7.1 KiB
        """
    )


def test_summary_without_what_is_small() -> None:
    assert str(step().table().summary(min_bytes="3KiB")) == text(
        """
        call  operator             module  phase      allocated     freed  temporary     after
           8  aten::addcdiv_               optimizer   16.0 KiB  16.0 KiB   16.0 KiB  12.1 KiB
           7  aten::mm             body.0  backward     8.0 KiB   4.0 KiB    3.0 KiB  12.1 KiB
           0  aten::addmm          body.0  forward      4.0 KiB         -          -   4.0 KiB
           1  aten::relu           body.1  forward      4.0 KiB         -          -   8.0 KiB
              (between operators)                             -   8.0 KiB          -  -8.0 KiB
              total                                    37.1 KiB  30.0 KiB   16.0 KiB   7.1 KiB
        """
    )


def test_by_module() -> None:
    assert str(step().table().by_module()) == text(
        """
        module               operators  allocated     freed  forward kept  backward kept  temporary      peak
        (model)                      6   19.1 KiB   4.0 KiB       9.1 KiB        6.0 KiB    3.0 KiB  15.1 KiB
          body                       3   16.0 KiB   4.0 KiB       8.0 KiB        4.0 KiB    3.0 KiB  15.1 KiB
            0                        2   12.0 KiB   4.0 KiB       4.0 KiB        4.0 KiB    3.0 KiB  15.1 KiB
            1                        1    4.0 KiB         -       4.0 KiB              -          -   8.0 KiB
          head                       2    3.1 KiB         -       1.1 KiB        2.0 KiB          -   9.1 KiB
        MSELoss()                    1    2.0 KiB   2.0 KiB           4 B              -    2.0 KiB   9.1 KiB
        (no module)                  2   16.0 KiB  16.0 KiB             -              -   16.0 KiB  28.1 KiB
        (between operators)          0          -   8.0 KiB      -2.0 KiB       -1.0 KiB          -  12.1 KiB
        total                        9   37.1 KiB  30.0 KiB       7.1 KiB        5.0 KiB   16.0 KiB  28.1 KiB
        """
    )


def test_by_module_to_a_depth() -> None:
    assert str(step().table().by_module(1, min_bytes=3 * KIB)) == text(
        """
        module               operators  allocated     freed  forward kept  backward kept  temporary      peak
        (model)                      6   19.1 KiB   4.0 KiB       9.1 KiB        6.0 KiB    3.0 KiB  15.1 KiB
          body                       3   16.0 KiB   4.0 KiB       8.0 KiB        4.0 KiB    3.0 KiB  15.1 KiB
          head                       2    3.1 KiB         -             -              -          -   9.1 KiB
        (no module)                  2   16.0 KiB  16.0 KiB             -              -   16.0 KiB  28.1 KiB
        (between operators)          0          -   8.0 KiB             -              -          -  12.1 KiB
        total                        9   37.1 KiB  30.0 KiB       7.1 KiB        5.0 KiB   16.0 KiB  28.1 KiB
        """
    )
    assert [row[0] for row in step().table().by_module(0).rows] == [
        "(model)",
        "MSELoss()",
        "(no module)",
        "(between operators)",
        "total",
    ]


def test_by_operator() -> None:
    assert str(step().table().by_operator()) == text(
        """
        operator             operators  allocated     freed  net after frees  temporary      peak
        aten::addcdiv_               1   16.0 KiB  16.0 KiB                -   16.0 KiB  28.1 KiB
        aten::mm                     2   10.0 KiB   4.0 KiB          6.0 KiB    3.0 KiB  15.1 KiB
        aten::addmm                  2    5.1 KiB         -          5.1 KiB          -   7.1 KiB
        aten::relu                   1    4.0 KiB         -          4.0 KiB          -   8.0 KiB
        aten::mse_loss               1    2.0 KiB   2.0 KiB              4 B    2.0 KiB   9.1 KiB
        aten::ones_like              1        4 B         -              4 B          -   7.1 KiB
        (others)                     1          -         -                -          -   7.1 KiB
        (between operators)          0          -   8.0 KiB         -8.0 KiB          -  12.1 KiB
        total                        9   37.1 KiB  30.0 KiB          7.1 KiB   16.0 KiB  28.1 KiB
        """
    )


def test_by_phase() -> None:
    assert str(step().table().by_phase()) == text(
        """
        phase      operators  allocated     freed  net after frees  temporary      peak
        forward            5   11.1 KiB   4.0 KiB          7.1 KiB    2.0 KiB   9.1 KiB
        backward           2   10.0 KiB   5.0 KiB          5.0 KiB    3.0 KiB  15.1 KiB
        optimizer          1   16.0 KiB  16.0 KiB                -   16.0 KiB  28.1 KiB
        other              1        4 B   5.0 KiB         -5.0 KiB          -  12.1 KiB
        total              9   37.1 KiB  30.0 KiB          7.1 KiB   16.0 KiB  28.1 KiB
        """
    )


def two_devices() -> OperatorTable:
    first = Maker("cuda:0", start=100).add("mm", "a", FORWARD, KIB).add("sin", "b", FORWARD, 2 * KIB, 512)
    second = Maker("cuda:1").add(BETWEEN, None, FORWARD, 512).add("sin", "b", FORWARD, 4 * KIB, call=1)
    rows = sorted([*first.rows, *second.rows], key=lambda row: (row.call, row.operator != BETWEEN))
    return OperatorTable(tuple(rows), (*first.table().levels, *second.table().levels))


def test_several_devices() -> None:
    table = two_devices()
    assert str(table.by_module()) == text(
        """
        module               operators  device  allocated  freed  forward kept  backward kept  temporary     peak
        (model)                      2  cuda:0    3.0 KiB  512 B       2.5 KiB              -          -  2.5 KiB
          a                          1  cuda:0    1.0 KiB      -       1.0 KiB              -          -  1.0 KiB
          b                          1  cuda:0    2.0 KiB  512 B       1.5 KiB              -          -  2.5 KiB
        total                        2  cuda:0    3.0 KiB  512 B       2.5 KiB              -          -  2.5 KiB
        (model)                      1  cuda:1    4.0 KiB      -       4.0 KiB              -          -  4.5 KiB
          b                          1  cuda:1    4.0 KiB      -       4.0 KiB              -          -  4.5 KiB
        (between operators)          0  cuda:1      512 B      -         512 B              -          -    512 B
        total                        1  cuda:1    4.5 KiB      -       4.5 KiB              -          -  4.5 KiB
        """
    )
    assert str(table.by_phase()) == text(
        """
        phase    operators  device  allocated  freed  net after frees  temporary     peak
        forward          2  cuda:0    3.0 KiB  512 B          2.5 KiB          -  2.5 KiB
        forward          1  cuda:1    4.5 KiB      -          4.5 KiB          -  4.5 KiB
        total            2  cuda:0    3.0 KiB  512 B          2.5 KiB          -  2.5 KiB
        total            1  cuda:1    4.5 KiB      -          4.5 KiB          -  4.5 KiB
        """
    )
    assert [row[1:5] for row in table.summary(1).rows] == [
        ("aten::sin", "b", "forward", "cuda:1"),
        ("(others)", "", "", "cuda:0"),
        ("(between operators)", "", "", "cuda:1"),
        ("total", "", "", "cuda:0"),
        ("total", "", "", "cuda:1"),
    ]
    assert str(table) == (
        "cuda:0: start 100 B, peak 2.5 KiB above start, end 2.5 KiB above start\n"
        "cuda:1: start 0 B, peak 4.5 KiB above start, end 4.5 KiB above start"
    )
    assert str(table.only(device="cuda:1").by_module(0)) == text(
        """
        module               operators  allocated  freed  forward kept  backward kept  temporary     peak
        (model)                      1    4.0 KiB      -       4.0 KiB              -          -  4.5 KiB
        (between operators)          0      512 B      -         512 B              -          -    512 B
        total                        1    4.5 KiB      -       4.5 KiB              -          -  4.5 KiB
        """
    )
    with pytest.raises(ValueError, match=r"^cpu is not measured \(measured: cuda:0, cuda:1\)$"):
        table.only(device="cpu")


def test_unknown_peaks() -> None:
    maker = Maker().add("mm", "a", FORWARD, KIB, peak=None).add("sin", "a", FORWARD, KIB)
    table = maker.table(notes=("why",))
    assert str(table.by_operator()) == text(
        """
        operator   operators  allocated  freed  net after frees  temporary     peak
        aten::mm           1    1.0 KiB      -          1.0 KiB          ?        ?
        aten::sin          1    1.0 KiB      -          1.0 KiB          -  2.0 KiB
        total              2    2.0 KiB      -          2.0 KiB          ?        ?
        """
    )
    assert str(table) == "cpu: start 0 B, peak ? above start, end 2.0 KiB above start\nnote: why"


def test_nothing_was_recorded() -> None:
    table = OperatorTable((), (Levels("cpu", 5, 5, 5),))
    assert str(table.summary()) == "call  operator  module  phase  allocated  freed  temporary  after"
    assert str(table.by_module()) == text(
        """
        module  operators  allocated  freed  forward kept  backward kept  temporary  peak
        total           0          -      -             -              -          -     -
        """
    )


def test_only() -> None:
    table = step().table()
    table = replace(
        table, rows=tuple(row._replace(region="decode/attention", step=row.call // 5) for row in table.rows)
    )

    def operators(**chosen: object) -> list[str]:
        rows = table.only(**chosen).rows  # type: ignore[arg-type]
        return [row.operator.removeprefix("aten::") for row in rows if row.operator != BETWEEN]

    assert operators(phase="backward") == ["mm", "mm"]
    assert operators(module="body") == ["addmm", "relu", "mm"]
    assert operators(module="b*.0") == ["addmm", "mm"]
    assert operators(module="") == ["addmm", "relu", "addmm", "add_", "mse_loss", "mm", "mm"]
    assert operators(operator="aten::add*", step=0) == ["addmm", "addmm", "add_"]
    assert operators(region="decode*", step=1) == ["ones_like", "mm", "mm", "addcdiv_"]
    assert operators(region="decode") == []
    assert operators(module="body", phase="forward", device="cpu") == ["addmm", "relu"]
    assert len(table.only().rows) == len(table.rows)
    assert table.only(phase="backward").by_phase().rows[-1][:2] == ("total", "2")
    assert table.only(phase=Phase.BACKWARD) == table.only(phase="backward")
    assert table.only(device=torch.device("cpu")) == table.only()
    with pytest.raises(
        ValueError, match=r"^phase 'backwards' is not known: write forward, backward, optimizer, other$"
    ):
        table.only(phase="backwards")
    with pytest.raises(ValueError, match=r"^cuda is not measured \(measured: cpu\)$"):
        table.only(device="cuda")


def test_a_recording_has_every_method_of_its_table() -> None:
    with OperatorMemory(device="cpu") as memory:
        kept = torch.ones(256).sin()
    assert kept.shape == (256,)
    assert memory.only(operator="aten::sin") == memory.table.only(operator="aten::sin")
    assert [row.allocated for row in memory.only(operator="aten::sin").rows] == [1024]
    methods = {name for name in vars(OperatorTable) if not name.startswith("_")} - {*OperatorTable.__slots__}
    assert methods == {"table"}  # all others are of both


def test_devices_in_every_spelling() -> None:
    assert [is_on("cuda:1", one) for one in (1, "cuda:1", "cuda", torch.device("cuda", 1), Device("cuda", 1))] == [
        True
    ] * 5
    assert [is_on("cuda:1", one) for one in (0, 11, "cuda:11", "cuda:", "cpu", "", None)] == [False] * 7
    assert [is_on("cpu", one) for one in ("cpu", torch.device("cpu"), "meta", 0)] == [True, True, False, False]


def test_counts_that_are_none() -> None:
    table = step().table()
    for ask, message in (
        (lambda: table.summary(-1), "top=-1 is not a number: write 0 or more"),
        (lambda: table.summary("3"), "top='3' is not a number: write 0 or more"),
        (lambda: table.by_module(-1), "depth=-1 is not a number: write 0 or more"),
    ):
        with pytest.raises(ValueError) as caught:
            ask()
        assert str(caught.value) == message


def test_names_that_would_break_a_line() -> None:
    table = Maker().add("mm", "a\nb.c\x1b", FORWARD, KIB).table()
    assert [line.rstrip("-0123456789 .KiB") for line in table.by_module().lines()[1:-1]] == [
        "(model)",
        r"  a\nb",
        r"    c\x1b",
    ]


def test_expected_text() -> None:
    table = step().table()
    table.assert_by_module(
        """
        module               operators  allocated     freed  forward kept  backward kept  temporary      peak
        (model)                      6   19.1 KiB   4.0 KiB       9.1 KiB        6.0 KiB          -  15.1 KiB
          body                       3   16.0 KiB   4.0 KiB       8.0 KiB        4.0 KiB          -  15.1 KiB
        (no module)                  2   16.0 KiB  16.0 KiB             -              -   16.0 KiB  28.1 KiB
        (between operators)          0          -   8.0 KiB             -              -          -  12.1 KiB
        total                        9   37.1 KiB  30.0 KiB       7.1 KiB        5.0 KiB   16.0 KiB  28.1 KiB
        """,
        depth=1,
        min_bytes="4KiB",
    )
    table.assert_summary(
        {
            "cuda": "another",
            "cpu": """
        call  operator             module  phase      allocated     freed  temporary     after
           8  aten::addcdiv_               optimizer   16.0 KiB  16.0 KiB   16.0 KiB  12.1 KiB
              (between operators)                             -   8.0 KiB          -  -8.0 KiB
              total                                    37.1 KiB  30.0 KiB   16.0 KiB   7.1 KiB
            """,
        },
        top=1,
        min_bytes=1,
    )
    with pytest.raises(TextMismatchError, match=r"^the text differs from the expected one"):
        table.assert_summary("call")
    with pytest.raises(TextMismatchError, match=r"^there is no expected text yet"):
        table.assert_by_module()
    with pytest.raises(ValueError, match=r"^size 'few' is not understood"):
        table.assert_summary("", min_bytes="few")


def test_a_phase_between_operators_counts() -> None:
    maker = Maker().add("mm", "a", BACKWARD, 100).add(BETWEEN, None, BACKWARD, 0, 100)
    assert maker.table().by_phase().rows[0] == ("backward", "1", "100 B", "100 B", "-", "-", "100 B")


def test_columns_of_the_tree_of_modules() -> None:
    table = step().table()
    wanted = text(
        """
        module               allocated     freed  forward kept  backward kept      peak
        (model)               19.1 KiB   4.0 KiB       9.1 KiB        6.0 KiB  15.1 KiB
          body                16.0 KiB   4.0 KiB       8.0 KiB        4.0 KiB  15.1 KiB
        (no module)           16.0 KiB  16.0 KiB             -              -  28.1 KiB
        (between operators)          -   8.0 KiB             -              -  12.1 KiB
        total                 37.1 KiB  30.0 KiB       7.1 KiB        5.0 KiB  28.1 KiB
        """
    )
    table.assert_by_module(wanted, depth=1, min_bytes="4KiB")  # the columns of the text
    with pytest.raises(TextMismatchError) as caught:
        table.assert_by_module("", depth=1, min_bytes="4KiB")  # those that do not move between versions
    assert "".join(f"\n    + {line}" for line in wanted.splitlines()) in str(caught.value).replace("\n+", "\n    + ")
    assert columns_of("module  operators  forward kept  peak\n(model) ...") == ("operators", "forward kept", "peak")
    assert columns_of(None) == columns_of("something else") == STABLE
    assert str(table.by_module(0, columns=["peak", "forward kept"])).splitlines() == [
        "module               forward kept      peak",
        "(model)                   9.1 KiB  15.1 KiB",
        "MSELoss()                     4 B   9.1 KiB",
        "(no module)                     -  28.1 KiB",
        "(between operators)      -2.0 KiB  12.1 KiB",
        "total                     7.1 KiB  28.1 KiB",
    ]
    names = "operators, allocated, freed, forward kept, backward kept, temporary, peak"
    with pytest.raises(ValueError, match=f"^there is no column 'kept': write some of {names}$"):
        table.by_module(columns="kept")
    with pytest.raises(ValueError, match=f"^columns is empty: write some of {names}$"):
        table.assert_by_module("", columns=())
