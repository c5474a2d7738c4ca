"""Queries, JSON and DOT."""

from __future__ import annotations

import json
import re

import pytest

from cudamem_testing.trace.graph import Name, data_flow
from suites.trace.synthetic import Module, alloc, call, op, read, tensor

X, Y, Z = tensor(7), tensor(5), tensor(6)


@pytest.fixture
def flow():
    """x*y -> z, z written twice and read between, z freed; y outlives the trace."""
    trace = read(
        op("step", role="USER_SCOPE", start=0, end=500),
        call(
            "nn.Module: Net",
            op("aten::mul", X, Y, children=[alloc(Z, 16), alloc(tensor(9), 8), alloc(tensor(9), -8)]),
            op("aten::sin", Z),
            op("aten::neg_", Z),
            module=Module(1, "Net", []),
        ),
        op("SinBackward0", Z, role="BACKWARD_FUNCTION", children=[op("aten::cos", Z)]),
        alloc(Z, -16),
    )
    x = next(storage for storage in trace.storages if storage.number == 7)
    return data_flow(trace, (Name("x", x, True), Name("lost", None)))


def test_who_reads_a_version(flow):
    assert [node.name for node in flow.readers("T2(v0)")] == ["aten::sin", "aten::neg_"]
    assert [node.name for node in flow.readers("T2(v1)")] == ["SinBackward0"]
    assert [node.name for node in flow.readers("T2")] == ["aten::sin", "aten::neg_", "SinBackward0"]
    assert [node.name for node in flow.readers("x")] == ["aten::mul"]
    assert [node.name for node in flow.readers("T6(v1)", ids="profiler")] == ["SinBackward0"]


def test_who_writes_a_version_and_when_it_is_freed(flow):
    assert flow.writer("T2").name == "aten::mul"
    assert flow.writer("T2(v1)").name == "aten::neg_"
    assert flow.writer("T0") is None
    assert flow.freed("T2").name == "[memory]"
    assert flow.freed("T1") is None


def test_lifetimes(flow):
    life = flow.lifetime("T2")
    assert (life.created.index, life.last_used.name, life.freed.index, life.nodes) == (0, "SinBackward0", 4, 4)
    before = flow.lifetime("x")
    assert (before.created, before.last_used.name, before.freed, before.nodes) == (None, "aten::mul", None, 5)
    assert [(life.storage.number, life.nodes) for life in flow.longest_lived()] == [(6, 4), (9, 0)]
    assert [life.storage.number for life in flow.longest_lived(1)] == [6]
    assert [life.label for life in flow.longest_lived(ids="profiler")] == ["T6", "T9"]


def test_labels_that_nothing_has(flow):
    for label in ("T9", "T", "lost", "t1"):
        with pytest.raises(KeyError, match=f"no tensor is called '{label}'"):
            flow.storage(label)


def test_versions_that_nothing_has(flow):
    for ask in (flow.readers, flow.writer, flow.freed, flow.storage):
        with pytest.raises(KeyError) as caught:
            ask("T2(v7)")
        assert caught.value.args == ("T2(v7): the last version of this tensor is v1",)


def test_edges_tie_the_author_of_a_version_to_those_who_take_it(flow):
    assert [(e.source, e.target, e.storage.number, e.version) for e in flow.edges] == [
        (None, 0, 7, 0),
        (None, 0, 5, 0),
        (0, 1, 6, 0),
        (0, 2, 6, 0),
        (2, 3, 6, 1),
        (2, 4, 6, 1),
    ]


def test_json(flow):
    data = json.loads(json.dumps(flow.to_dict()))
    assert data["tensors"] == [
        {"id": "T0", "device": "cpu", "bytes": 16, "names": ["x"]},
        {"id": "T1", "device": "cpu", "bytes": 16, "names": []},
        {"id": "T2", "device": "cpu", "bytes": 16, "names": []},
        {"id": "T3", "device": "cpu", "bytes": 8, "names": []},
    ]
    assert data["nodes"][0] == {
        "operator": "aten::mul",
        "thread": 0,
        "regions": ["step"],
        "modules": ["Net"],
        "backward": False,
        "reads": [["T0", 0], ["T1", 0]],
        "writes": [["T2", 0]],
        "frees": [],
        "intermediates": ["T3"],
    }
    assert [(n["operator"], n["backward"], n["frees"]) for n in data["nodes"][3:]] == [
        ("SinBackward0", True, []),
        ("[memory]", False, ["T2"]),
    ]
    assert (data["diagnostics"], data["notes"]) == ([], [])
    assert [tensor["id"] for tensor in flow.to_dict("profiler")["tensors"]] == ["T5", "T6", "T7", "T9"]


def test_dot(flow):
    dot = flow.dot().splitlines()
    assert [re.sub(", tooltip=.*]", "]", line) for line in dot] == [
        "digraph {",
        "  rankdir=LR;",
        "  node [shape=box];",
        '  n0 [label="aten::mul"];',
        '  n1 [label="aten::sin"];',
        '  n2 [label="aten::neg_"];',
        '  n3 [label="SinBackward0"];',
        '  n4 [label="x\\nT0", color=red];',
        '  n5 [label="T1", color=red];',
        '  n4 -> n0 [label="T0(v0)"];',
        '  n5 -> n0 [label="T1(v0)"];',
        '  n0 -> n1 [label="T2(v0)"];',
        '  n0 -> n2 [label="T2(v0)"];',
        '  n2 -> n3 [label="T2(v1)"];',
        "}",
    ]
    assert '  n4 -> n0 [label="T7(v0)", penwidth=2];' in flow.dot("x", ids="profiler").splitlines()
    assert "<title>Data flow</title>" in flow.html("x", ids="profiler")


def test_a_lifetime_in_words(flow):
    assert str(flow.lifetime("T2")) == (
        "T2, 16 B on cpu: made by aten::mul, last used by SinBackward0, freed in [memory]; 4 nodes"
    )
    assert str(flow.lifetime("x")) == "T0, 16 B on cpu: there before, last used by aten::mul, never freed; 5 nodes"
    assert repr(flow.lifetime("T2").created) == "<node 0 aten::mul (2 inputs, 1 outputs)>"
    assert repr(flow.storage("T2")) == "<storage 2, 16 bytes on cpu>"


def test_notes_name_what_the_profile_lacks():
    from cudamem_testing.trace.reader import read_events
    from suites.trace.synthetic import TYPES, tree

    trace = read_events(tree(op("aten::sin", X)), TYPES, ("with_stack=True",))
    assert data_flow(trace).notes == ("recorded without with_stack=True",)
    assert str(trace) == "trace of 1 events, 1 storages, 1 threads, recorded without with_stack=True"
