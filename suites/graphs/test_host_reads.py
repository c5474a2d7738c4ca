"""The table of operators that read on the host, held to captures of every operator on a card."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cudamem_testing.graphs.operators import CONDITIONAL, rule_of_call
from fixtures.recordings import host_reads

RECORD: dict[str, Any] = json.loads(host_reads.OUT.read_text(encoding="utf-8"))
BROKEN, CAPTURED = set(RECORD["breaks"]), set(RECORD["captures"])
_CALL = re.compile(r"(?P<overload>[^(]+)\((?P<tensors>.*)\)")
#: Operators of the lint that some samples capture: with a small matrix, or shapes that differ.
BY_SIZE = {"aten::_linalg_eigh", "aten::_linalg_svd", "aten::equal"}
#: Operators that a capture refuses only as the first use of a library on its stream: no value is read.
FIRST_USE = {
    "aten::cholesky",
    "aten::linalg_ldl_factor_ex",
    "aten::linalg_lu",
    "aten::linalg_lu_factor_ex",
    "aten::linalg_pinv",
}


def judged(call: str) -> object:
    """What the table says about a recorded call, for any arguments."""
    match = _CALL.fullmatch(call)
    assert match is not None
    tensors = match["tensors"].split(",") if match["tensors"] else []
    shapes = [(5,) * int(one[1:]) for one in tensors]
    return rule_of_call(match["overload"], [one[0] == "d" for one in tensors], shapes, (), {})


def name_of(call: str) -> str:
    return call.partition("(")[0].partition(".")[0]


def test_the_record_is_of_a_card_and_large() -> None:
    assert (RECORD["card"], RECORD["torch"], RECORD["operators"]) == ("NVIDIA H200", "2.11.0+cu130", 678)
    assert RECORD["calls"] == 4542
    assert (len(BROKEN), len(CAPTURED)) == (60, 1535)
    assert "aten::masked_fill.Tensor(d2,d2,d0)" in BROKEN
    assert "aten::masked_fill.Scalar(d2,d2)" in CAPTURED


@pytest.mark.parametrize("call", sorted(BROKEN - CAPTURED))
def test_operators_that_break_a_capture_are_in_the_table(call: str) -> None:
    assert judged(call) is not None or name_of(call) in CONDITIONAL


@pytest.mark.parametrize("call", sorted(BROKEN & CAPTURED))
def test_what_breaks_some_captures_is_known(call: str) -> None:
    assert name_of(call) in BY_SIZE | FIRST_USE | CONDITIONAL


def test_capturable_operators_are_not_in_the_table() -> None:
    wrong = {name_of(call) for call in CAPTURED - BROKEN if name_of(call) not in CONDITIONAL and judged(call)}
    assert wrong <= BY_SIZE
    assert not [call for call in CAPTURED if name_of(call) in FIRST_USE and judged(call)]


@pytest.mark.parametrize(
    ("overload", "shapes", "args", "options", "reads"),
    [
        ("aten::histc", [(8,)], (None, 4), {}, True),
        ("aten::histc", [(8,)], (None, 4, 1), {}, False),
        ("aten::histc", [(8,)], (None, 4, -1, 1), {}, False),
        ("aten::histc", [(8,)], (None, 4, 2, 2), {}, True),
        ("aten::mode", [(2048,)], (None,), {}, False),
        ("aten::mode", [(3000,)], (None,), {}, True),
        ("aten::mode", [(3000, 5)], (None, -1), {}, False),
        ("aten::mode", [(3000, 5)], (None, 0), {}, True),
        ("aten::mode", [()], (None,), {}, False),
        ("aten::isin.Tensor_Tensor", [(20,), (5,)], (), {}, False),
        ("aten::isin.Tensor_Tensor", [(5,), (20,)], (), {}, True),
        ("aten::segment_reduce", [(8,), (2,)], (), {}, True),
        ("aten::segment_reduce", [(8,), (2,)], (), {"unsafe": True}, False),
    ],
)
def test_what_reads_depends_on_arguments(
    overload: str, shapes: list[tuple[int, ...]], args: tuple[Any, ...], options: dict[str, Any], reads: bool
) -> None:
    on_device = [True] * len(shapes)
    assert (rule_of_call(overload, on_device, shapes, args, options) is not None) is reads
    assert rule_of_call(overload, [False] * len(shapes), shapes, args, options) is None


def test_a_value_of_the_host_is_not_read() -> None:
    """One number on the host stays there."""
    assert rule_of_call("aten::masked_fill.Tensor", [True, True, False], [(2,), (2,), ()], (), {}) is None
    assert rule_of_call("aten::linspace.Tensor_Tensor", [False, True], [(), ()], (), {}) is not None
    assert rule_of_call("aten::linspace.Tensor_Tensor", [False, False], [(), ()], (), {}) is None


def test_the_script_is_beside_its_record() -> None:
    assert Path(host_reads.__file__).with_suffix(".json") == host_reads.OUT
