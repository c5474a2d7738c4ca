"""Leaves, touches and versions; traces that contradict themselves are analysed to the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.trace.flow import find_leaves
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.schemas import Effects
from suites.trace.synthetic import alloc, call, op, read, tensor

X, Y, Z = tensor(1), tensor(2), tensor(3)


def uses(flow):
    """What every node does: ``(name, [(number, before, after)])``."""
    return [(n.name, [(u.storage.number, u.before, u.after) for u in n.uses]) for n in flow.nodes]


def analyse(*roots):
    return data_flow(read(*roots))


def test_the_topmost_calls_that_a_schema_recognises_are_nodes():
    trace = read(
        call(
            "a.py(1): f",
            op("Note", role="USER_SCOPE", children=[op("aten::zero_", X, children=[op("aten::fill_", X, 0)])]),
            op("unknown::op", X, children=[op("aten::sin", X)]),
            op("SinBackward0", X, role="BACKWARD_FUNCTION", children=[op("aten::cos", X)]),
            alloc(Y, 16),
        )
    )
    assert [getattr(trace.events[index], "name", "[memory]") for index in find_leaves(trace, Effects())] == [
        "aten::zero_",
        "aten::sin",
        "SinBackward0",
        "[memory]",
    ]


def test_reads_writes_creations_frees_and_intermediates():
    flow = analyse(
        op("aten::mul", X, Y, children=[alloc(Z, 16)]),
        op("aten::add_", Z, X, 1),
        op("aten::sin", X, Y),
        op("aten::cos", Z, children=[alloc(tensor(4), 8), op("aten::neg", tensor(4)), alloc(tensor(4), -8)]),
        alloc(Z, -16),
    )
    assert uses(flow) == [
        ("aten::mul", [(1, 0, 0), (2, 0, 0), (3, None, 0)]),
        ("aten::add_", [(3, 0, 1), (1, 0, 0)]),
        ("aten::sin", [(1, 0, 0), (2, 0, 1)]),
        ("aten::cos", [(3, 1, 1), (4, None, None)]),
        ("[memory]", [(3, 1, None)]),
    ]
    mul, add, sin, cos, free = flow.nodes
    assert [u.storage.number for u in mul.inputs] == [1, 2]
    assert [u.storage.number for u in mul.outputs] == [3]
    assert [(u.is_written, u.is_output, u.is_freed) for u in add.uses] == [(True, True, False), (False, False, False)]
    assert [s.number for s in cos.intermediates] == [4]
    assert free.uses[0].is_freed
    assert flow.diagnostics == ()
    assert str(sin) == "aten::sin (2 inputs, 1 outputs)"


def test_calls_without_schema_are_assumed_to_write():
    flow = analyse(
        op("MineBackward", X, Y, role="BACKWARD_FUNCTION", children=[op("aten::sin", Y)]),
        op("aten::sin", X),
    )
    assert uses(flow) == [("MineBackward", [(1, 0, 1), (2, 0, 0)]), ("aten::sin", [(1, 1, 1)])]


def test_writes_inside_a_node_make_one_version():
    flow = analyse(op("aten::relu", X, children=[op("aten::fill_", X, 0), op("aten::fill_", X, 1)]))
    assert uses(flow) == [("aten::relu", [(1, 0, 1)])]


def test_a_list_is_taken_tensor_by_tensor():
    flow = analyse(op("aten::_foreach_mul_", [X, Y], 2.0), op("aten::cat", [Y, X], 0))
    assert uses(flow) == [("aten::_foreach_mul_", [(1, 0, 1), (2, 0, 1)]), ("aten::cat", [(2, 1, 1), (1, 1, 1)])]


@pytest.mark.parametrize("allocated", [(Y, Z), (Z, Y)])
def test_what_a_node_makes_is_in_order_of_its_next_use(allocated):
    flow = analyse(
        op("aten::sin", X, children=[alloc(one, 16) for one in allocated]),
        op("aten::cos", Z),
        op("aten::cos", Y),
    )
    assert uses(flow)[0] == ("aten::sin", [(1, 0, 0), (3, None, 0), (2, None, 0)])
    assert flow.text().splitlines()[0] == "aten::sin                 T0(v0)           ->  T1(v0), T2(v0)"


def test_nodes_of_all_threads_are_in_order_of_time():
    flow = analyse(
        op("aten::sin", X, start=10, tid=1),
        op("aten::neg_", X, start=30, tid=1),
        op("aten::exp_", X, start=20, tid=2),
    )
    assert [(n.name, n.thread, n.uses[0].after) for n in flow.nodes] == [
        ("aten::sin", 0, 0),
        ("aten::exp_", 1, 1),
        ("aten::neg_", 0, 2),
    ]


@pytest.mark.parametrize(
    ("roots", "diagnostics", "expected"),
    [
        (
            lambda: (alloc(X, -8), alloc(X, -8)),
            ["node 1: storage 0 was freed twice"],
            [("[memory]", [(1, 0, None)]), ("[memory]", [(1, 0, None)])],
        ),
        (
            lambda: (op("aten::sin", X, children=[alloc(X, -8), alloc(X, -8)]),),
            ["node 0: storage 0 was freed twice"],
            [("aten::sin", [(1, 0, None)])],
        ),
        (
            lambda: (alloc(X, 8), alloc(X, -8), op("aten::neg_", X), op("aten::sin", X)),
            ["node 2: storage 0 was used after it was freed", "node 3: storage 0 was used after it was freed"],
            [
                ("[memory]", [(1, None, 0)]),
                ("[memory]", [(1, 0, None)]),
                ("aten::neg_", [(1, 0, 1)]),
                ("aten::sin", [(1, 1, 1)]),
            ],
        ),
        (
            lambda: (
                op("aten::neg_", X, start=1, children=[op("aten::fill_", X, 0, start=20)]),
                op("aten::sin", Y, start=10, tid=2, children=[alloc(X, 8, start=0, tid=2)]),
                op("aten::cos", X, start=30),
            ),
            ["node 1: storage 0 was created after its first use"],
            [
                ("aten::neg_", [(1, 0, 1)]),
                ("aten::sin", [(2, 0, 0), (1, None, 2)]),
                ("aten::cos", [(1, 2, 2)]),
            ],
        ),
        (
            lambda: (
                op("aten::neg_", X, start=1, children=[op("aten::fill_", X, 0, start=20)]),
                op(
                    "aten::sin",
                    Y,
                    start=10,
                    tid=2,
                    children=[alloc(X, 8, start=0, tid=2), alloc(X, -8, start=12, tid=2)],
                ),
                op("aten::neg_", X, start=30),
            ),
            ["node 1: storage 0 was created after its first use", "node 2: storage 0 was used after it was freed"],
            [
                ("aten::neg_", [(1, 0, 1)]),
                ("aten::sin", [(2, 0, 0), (1, None, None)]),
                ("aten::neg_", [(1, 1, 2)]),
            ],
        ),
    ],
)
def test_contradictions_are_diagnostics(roots, diagnostics, expected):
    flow = analyse(*roots())
    assert [str(d) for d in flow.diagnostics] == diagnostics
    assert uses(flow) == expected


TENSORS = st.integers(1, 4).map(tensor) | st.just(tensor(None))
LEAVES = st.one_of(
    st.builds(
        lambda t, n, s, tid: alloc(t, n, start=s, tid=tid),
        TENSORS,
        st.sampled_from([8, -8]),
        st.integers(0, 40),
        st.integers(1, 3),
    ),
    st.builds(
        lambda name, a, b, s, tid: op(name, a, b, start=s, tid=tid),
        st.sampled_from(["aten::mul", "aten::mul_", "Noise", "aten::sin"]),
        TENSORS,
        st.one_of(TENSORS, st.lists(TENSORS, max_size=2), st.none(), st.just(1.5)),
        st.integers(0, 40),
        st.integers(1, 3),
    ),
)
FORESTS = st.lists(
    st.recursive(
        LEAVES,
        lambda inner: st.builds(
            lambda name, role, t, children, s: op(name, t, children=children, role=role, start=s),
            st.sampled_from(["aten::relu", "Region", "XBackward"]),
            st.sampled_from(["FUNCTION", "USER_SCOPE", "BACKWARD_FUNCTION"]),
            TENSORS,
            st.lists(inner, max_size=4),
            st.integers(0, 40),
        ),
        max_leaves=12,
    ),
    max_size=8,
)


@given(FORESTS)
def test_any_forest_is_analysed_to_the_end(roots):
    """For any trace each version has one author, versions only grow, and every text is made."""
    flow = analyse(*roots)
    assert [n.start for n in flow.nodes] == sorted(n.start for n in flow.nodes)
    authors = set()
    version = {}
    for node in flow.nodes:
        assert len({use.storage for use in node.uses}) == len(node.uses)
        for use in node.uses:
            if use.before is not None:
                assert use.before == version.get(use.storage, 0)
            if use.is_output:
                assert (use.storage, use.after) not in authors
                authors.add((use.storage, use.after))
                assert use.after > version.get(use.storage, -1)
                version[use.storage] = use.after
    for ids in ("first-use", "profiler"):
        flow.text(ids=ids, regions=True)
        flow.text(ids=ids, device_aliases=True, frees=False)
        flow.to_dict(ids)
        flow.dot(ids=ids)
    flow.longest_lived()
