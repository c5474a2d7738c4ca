"""The text: numbers, columns, wrapping, filters, names, regions."""

from __future__ import annotations

import textwrap

import pytest
import torch

from cudamem_testing.trace.graph import Name, data_flow
from cudamem_testing.trace.profile import MemoryProfile
from suites.trace.synthetic import alloc, op, read, tensor

X, Y, Z, BIG = tensor(7), tensor(5), tensor(6), tensor(2, sizes=[1024])


def flow(*roots, **named):
    trace = read(*roots)
    by_number = {storage.number: storage for storage in trace.storages}
    names = tuple(Name(text, by_number.get(number), given=text != "out") for text, number in named.items())
    return data_flow(trace, names)


def example():
    """Reads of x and y; z is made, written and freed."""
    return (
        op("aten::sub", X, Y, 1, children=[alloc(Z, 16)]),
        op("aten::mul_", Z, X),
        op("aten::add_", BIG, Z, 1),
        alloc(Z, -16),
    )


def shown(text, **options):
    return textwrap.dedent(text).strip("\n")


def test_numbers_by_first_use_with_the_operands_in_their_order():
    assert flow(*example()).text() == shown(
        """\
        aten::sub                 T0(v0), T1(v0)   ->  T2(v0)
        aten::mul_                T2(v0), T0(v0)   ->  T2(v1)
        aten::add_                T3(v0), T2(v1)   ->  T3(v1)
        [memory]                  T2(v1*)          ->"""
    )


def test_numbers_of_the_profiler_in_ascending_order():
    assert flow(*example()).text(ids="profiler") == shown(
        """\
        aten::sub                 T5(v0), T7(v0)   ->  T6(v0)
        aten::mul_                T6(v0), T7(v0)   ->  T6(v1)
        aten::add_                T2(v0), T6(v1)   ->  T2(v1)
        [memory]                  T6(v1*)          ->"""
    )


def test_names_of_what_was_there_before_are_numbered_first():
    assert flow(*example(), y=5, x=7, gone=99, out=6).text() == shown(
        """\
        y:       T0
        x:       T1
        gone:    unused
        out:     T2

        aten::sub                 T1(v0), T0(v0)   ->  T2(v0)
        aten::mul_                T2(v0), T1(v0)   ->  T2(v1)
        aten::add_                T3(v0), T2(v1)   ->  T3(v1)
        [memory]                  T2(v1*)          ->"""
    )


def test_names_that_would_break_a_line():
    text = flow(op("a\nregion", role="USER_SCOPE", children=[op("aten::sin", X)]), **{"x\ny": 7}).text(regions=True)
    assert text == "\n".join(
        [
            r"x\ny:    T0",
            "",
            r"-- a\nregion ".ljust(80, "-"),
            "aten::sin                 T0(v0)           ->",
        ]
    )


def test_long_names_widen_the_columns():
    text = flow(op("ScaledDotProductAttentionBackward0", X, role="BACKWARD_FUNCTION"), **{"a.long.parameter": 7}).text()
    assert text == shown(
        """\
        a.long.parameter: T0

        ScaledDotProductAttentionBackward0 T0(v0)           ->  T0(v1)"""
    )


def test_long_lists_wrap_in_a_fixed_way():
    many = [tensor(number) for number in range(10, 19)]
    text = flow(op("aten::_foreach_neg_", many), op("aten::sin", many[0])).text()
    assert text == shown(
        """\
        aten::_foreach_neg_       T0(v0), T1(v0), T2(v0), T3(v0), T4(v0), T5(v0),  ->  T0(v1), T1(v1), T2(v1), T3(v1), T4(v1), T5(v1),
                                  T6(v0), T7(v0), T8(v0)                               T6(v1), T7(v1), T8(v1)
        aten::sin                 T0(v1)                                           ->"""  # noqa: E501
    )


def test_the_profilers_layout_does_not_wrap_or_widen():
    many = [tensor(number) for number in range(10, 14)]
    assert flow(op("aten::_foreach_neg_", many), op("aten::sin", many[0])).text(ids="profiler") == shown(
        """\
        aten::_foreach_neg_       T10(v0), T11(v0), T12(v0), T13(v0)  ->  T10(v1), T11(v1), T12(v1), T13(v1)
        aten::sin                 T10(v1)          ->"""
    )


def test_hidden_storages_have_no_numbers():
    assert flow(*example()).text(min_bytes="1KiB") == shown("aten::add_                T0(v0)           ->  T0(v1)")
    assert flow(*example(), out=6).text(min_bytes=1024) == shown(
        """\
        out:     T0

        aten::sub                                  ->  T0(v0)
        aten::mul_                T0(v0)           ->  T0(v1)
        aten::add_                T1(v0), T0(v1)   ->  T1(v1)
        [memory]                  T0(v1*)          ->"""
    )


def test_rows_by_operator():
    rows = {
        "include": flow(*example()).text(include=("aten::mul*", "[memory]")),
        "one": flow(*example()).text(include="aten::sub"),
        "exclude": flow(*example()).text(exclude=("aten::???_", "[memory]")),
        "set": flow(*example()).text(include="[m]emory"),
    }
    assert [line.split()[0] for line in rows["include"].splitlines()] == ["aten::mul_", "[memory]"]
    assert rows["one"] == "aten::sub                 T0(v0), T1(v0)   ->  T2(v0)"
    assert [line.split()[0] for line in rows["exclude"].splitlines()] == ["aten::sub"]
    assert rows["set"] == ""


def test_short_names_of_autograd_nodes_are_shown_and_matched():
    accumulate = op("torch::autograd::AccumulateGrad", X, role="BACKWARD_FUNCTION", children=[op("aten::detach", X)])
    assert flow(accumulate).text(include="Accumulate*") == "AccumulateGrad            T0(v0)           ->"


def test_frees_can_be_left_out():
    flows = flow(*example(), op("aten::sin", X, children=[alloc(X, -16)]))
    assert flows.text(frees=False, include=("aten::sin", "[memory]")) == "aten::sin                 T0(v0)           ->"
    assert flows.text(include="aten::sin") == "aten::sin                 T0(v0*)          ->"


def test_regions_have_lines_of_their_own():
    text = flow(
        op("forward", role="USER_SCOPE", start=0, end=20),
        op("aten::sin", X, start=1),
        op("block", role="USER_SCOPE", start=2, end=10),
        op("aten::cos", X, start=3),
        op("aten::tan", X, start=11),
        op("aten::exp", X, start=30),
    ).text(regions=True)
    assert text == "\n".join(
        [
            "-- forward ".ljust(80, "-"),
            "aten::sin                 T0(v0)           ->",
            "-- forward / block ".ljust(80, "-"),
            "aten::cos                 T0(v0)           ->",
            "-- forward ".ljust(80, "-"),
            "aten::tan                 T0(v0)           ->",
            "-- (no region) ".ljust(80, "-"),
            "aten::exp                 T0(v0)           ->",
        ]
    )


def test_an_unknown_kind_of_numbers_and_a_bad_size_are_errors():
    with pytest.raises(ValueError, match="ids='torch' is not known: write ids='first-use' or ids='profiler'"):
        flow(*example()).text(ids="torch")
    with pytest.raises(ValueError, match="1 parsec"):
        flow(*example()).text(min_bytes="1 parsec")


def test_the_text_of_a_program_is_the_same_every_time():
    def step(x, w):
        ((x @ w).relu() * 2).sum().backward()

    def text():
        profile = MemoryProfile()(step, x=torch.ones(3, 4), w=torch.ones(4, 2, requires_grad=True))
        return str(profile.data_flow())

    first = text()
    keep = [torch.ones(100) for _ in range(3)]
    assert text() == first
    del keep
    assert first.splitlines()[:4] == ["x:       T0", "w:       T1", "w.grad:  T10", ""]
