"""The timeline of made-up events: what happens in which order, and that it never contradicts itself."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.trace.categories import categories
from cudamem_testing.trace.changes import Action
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.measured import Measured
from cudamem_testing.trace.series import NAMES, NamedSpan, Series
from cudamem_testing.trace.timeline import timeline
from suites.trace.synthetic import Module, Tensor, alloc, call, op, read, tensor


def made(*roots, measured=()):
    return timeline(categories(data_flow(read(*roots))), measured)


def rows(line):
    return [
        (
            change.time,
            change.action.name,
            change.nbytes,
            None if change.storage is None else f"T{change.storage.number}(v{change.version})",
            None if change.category is None else change.category.name,
        )
        for change in line.changes
    ]


def test_a_module_in_a_forward_pass():
    x, w, y, z = (tensor(number) for number in range(4))
    line = made(
        call(
            "forward",
            op("aten::mm", x, w, children=[alloc(y, 64)]),
            op("aten::relu", y, children=[alloc(z, 64)]),
            op("aten::mul_", z, x),
            alloc(y, -64),
            module=Module(1, "Linear", [("weight", w, None)]),
        )
    )
    assert rows(line) == [
        (-1, "PREEXISTING", 16, "T1(v0)", "PARAMETER"),
        (-1, "PREEXISTING", 16, "T0(v0)", "INPUT"),
        (3, "CREATE", 64, "T2(v0)", "ACTIVATION"),
        (7, "CREATE", 64, "T3(v0)", "ACTIVATION"),
        (10, "INCREMENT_VERSION", 64, "T3(v0)", "ACTIVATION"),
        (12, "DESTROY", 64, "T2(v0)", "ACTIVATION"),
    ]
    assert line.devices == ("cpu",)
    assert line.start == 3
    assert line.maximum("cpu") == (3, 160)
    columns = line.series()
    assert list(columns.times) == [0, 0, 0, 4, 7, 9]
    assert list(columns.totals) == [16, 32, 96, 160, 160, 96]
    assert columns.at(columns.peak) == {"PARAMETER": 16, "INPUT": 16, "ACTIVATION": 128}
    assert columns.to_dict() == {
        "device": "cpu",
        "times": [0, 0, 0, 4, 7, 9],
        "sizes": {
            "PARAMETER": [16, 16, 16, 16, 16, 16],
            "INPUT": [0, 16, 16, 16, 16, 16],
            "ACTIVATION": [0, 0, 64, 128, 128, 64],
        },
        "peak": {"time": 4, "bytes": 160},
        "regions": [],
    }


def test_memory_without_tensors():
    line = made(
        alloc(None, -4096, pointer=1),
        alloc(None, 256, pointer=2),
        alloc(None, -256, pointer=2),
        alloc(None, 100, pointer=3),
        alloc(None, 50, pointer=3),
    )
    assert rows(line) == [
        (-1, "PREEXISTING", 4096, None, None),
        (1, "DESTROY", 4096, None, None),
        (3, "CREATE", 256, None, None),
        (5, "DESTROY", 256, None, None),
        (7, "CREATE", 100, None, None),
        (9, "DESTROY", 100, None, None),  # given out twice: taken back in between
        (9, "CREATE", 50, None, None),
    ]


def test_what_a_recorder_knew_is_there_and_its_frees_count():
    x, y = tensor(1), tensor(2)  # at 4097 and 4098
    live = {4097: 512, 5000: 1000, 6000: 300}
    line = made(
        op("aten::sin", x, children=[alloc(y, 64)]),
        alloc(y, -64),
        alloc(None, 20, pointer=7000),
        measured=[
            Measured(
                "cpu",
                live,
                {4097: 512, 5000: 1000, 7000: 20},
                start=1812,
                peak=1876,
                end=1532,
                moves=((0, 4098, 64), (1, 6000, -300), (2, 4098, -64), (3, 8000, 7), (4, 8000, -7), (5, 7000, 20)),
            )
        ],
    )
    assert [(action, nbytes) for _, action, nbytes, _, _ in rows(line)] == [
        ("PREEXISTING", 512),  # the block, not the extent of the tensor
        ("PREEXISTING", 1000),
        ("PREEXISTING", 300),
        ("CREATE", 64),
        ("DESTROY", 300),
        ("DESTROY", 64),
        ("CREATE", 7),
        ("DESTROY", 7),
        ("CREATE", 20),
    ]
    assert line.maximum("cpu")[1] == 1876
    assert list(line.series().totals)[-1] == 1532


def test_a_storage_at_a_used_address_is_created_then():
    first, second = tensor(1, storage_data_ptr=4096), tensor(2, storage_data_ptr=4096)
    line = made(op("aten::sin", first), op("aten::cos", second))
    assert rows(line) == [
        (-1, "PREEXISTING", 16, "T1(v0)", None),
        (3, "DESTROY", 16, "T1(v0)", None),
        (3, "CREATE", 16, "T2(v0)", None),
    ]


def test_devices():
    import torch

    x = Tensor(1, 1, 4096, device=torch.device("cuda:0"))
    line = made(op("aten::sin", x), op("aten::cos", tensor(2, sizes=[100])))
    assert line.devices == ("cuda:0", "cpu")
    assert json.loads(json.dumps(line.to_dict())) == {
        "devices": [
            {
                "device": name,
                "times": [0],
                "sizes": {"unknown": [size]},
                "peak": {"time": 0, "bytes": size},
                "regions": [],
            }
            for name, size in (("cuda:0", 16), ("cpu", 400))
        ],
        "notes": [],
    }
    assert [line.choose(), line.choose("cpu"), line.choose("cuda")] == ["cuda:0", "cpu", "cuda:0"]
    with pytest.raises(ValueError, match=r"^no memory of cuda:1 is in the trace \(devices: cuda:0, cpu\)$"):
        line.choose("cuda:1")
    with pytest.raises(ValueError, match=r"^no memory of any device is in the trace \(devices: none\)$"):
        made().choose()


@st.composite
def histories(draw):
    """Events that need not make sense: frees of what was not there, creations twice, writes afterwards."""
    tensors = [tensor(number, storage_data_ptr=4096 + draw(st.integers(0, 3))) for number in range(5)]
    events = []
    for _ in range(draw(st.integers(0, 25))):
        one = draw(st.sampled_from([*tensors, None]))
        kind = draw(st.sampled_from(["give", "take", "read", "write"]))
        if kind in ("give", "take"):
            size = draw(st.sampled_from([16, 32]))
            events.append(alloc(one, size if kind == "give" else -size, pointer=draw(st.integers(1, 3))))
        elif one is not None:
            events.append(op("aten::sin", one) if kind == "read" else op("aten::mul_", one, tensors[0]))
    return events


@given(histories())
def test_nothing_is_negative_and_parts_add_up(events):
    line = made(*events)
    for device in line.devices:
        columns = line.series(device)
        for name in NAMES:
            assert min(columns.sizes[name]) >= 0
        assert [sum(columns.sizes[name][place] for name in NAMES) for place in range(len(columns.times))] == [
            *columns.totals
        ]
        assert [*columns.times] == sorted(columns.times)
        assert line.maximum(device)[1] == max(columns.totals)
    there = set()
    for change in line.changes:
        place = (change.device, change.pointer)
        if change.action in (Action.CREATE, Action.PREEXISTING):
            assert place not in there
            there.add(place)
        elif change.action is Action.DESTROY:
            there.remove(place)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(10, 100))
def test_thinned_series_keep_their_peak_and_their_end(totals, most):
    from array import array

    columns = Series("cpu", array("q", range(len(totals))), {"unknown": array("q", totals)}, array("q", totals))
    thin = columns.thinned(most)
    assert len(thin.times) <= max(most + 1, len(totals) if len(totals) <= most else 0)
    assert max(thin.totals) == max(totals)
    assert thin.times[thin.peak] == totals.index(max(totals))
    assert (thin.times[-1], thin.totals[-1]) == (len(totals) - 1, totals[-1])
    assert [*thin.totals] == [totals[time] for time in thin.times]
    assert [*thin.sizes["unknown"]] == [*thin.totals]


def test_the_peak_of_a_stretch_includes_its_start():
    from array import array

    columns = Series("cpu", array("q", [0, 10, 20, 30]), {}, array("q", [5, 9, 2, 7]))
    assert [columns.highest(*span) for span in ((0, 40), (15, 40), (20, 40), (21, 25), (-5, 5), (50, 60))] == [
        1,
        1,
        3,
        2,
        0,
        3,
    ]
    assert NamedSpan("a", 0, 1) == ("a", 0, 1, 0)
    assert dataclasses.is_dataclass(columns)
