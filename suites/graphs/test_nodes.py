"""Node lists: order, texts at each level, and the driver's dumps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.graphs.dot import read_dot
from cudamem_testing.graphs.nodes import LevelError, Node, NodeList, ordered, short_name, with_operators

KERNEL, COPY, MEMSET = Node("kernel", "void at::native::add<float>(int)"), Node("copy"), Node("memset")

# As cudaGraphDebugDotPrint writes it with all its flags.
DUMP = r"""digraph dot {
subgraph cluster_1 {
label="graph_1" graph[style="dashed"];
"graph_1_node_0"[style="solid" shape="rectangle" label="0
MEMSET
| {{ptr | pitch | value | elementSize | width | height} | {0x7f5c | 0 | 0 | 4 | 1 | 1}}
"];

"graph_1_node_1"[style="bold" shape="octagon" label="{KERNEL
| {ID | 1 (topoId: 2) | void at::native::vectorized_elementwise_kernel\<4, Fill\<float\> \>(int)\<\<\<16,128,0\>\>\>}
| {{node handle | func handle} | {0x000055F0 | 0x000055F1}}
| {accessPolicyWindow | {base_ptr | num_bytes | hitRatio} | {0x0 | 0 | 0.000000}}
}"];

"graph_1_node_2"[style="solid" shape="record" label="{
MEMCPY
| {{ID | node handle} | {2 | 0x000055F2}}
| {kind | DtoD (Device to Device)}
}"];

"graph_1_node_3"[style="solid" shape="rectangle" label="3
BATCH_MEM_OP
"];

"graph_1_node_2" -> "graph_1_node_1" [headlabel=0];
"graph_1_node_0" -> "graph_1_node_2" [headlabel=0];
"graph_1_node_1" -> "graph_1_node_3";
}
}
"""


def listed(nodes: Sequence[Node], edges: Sequence[tuple[int, int]]) -> NodeList:
    return ordered(NodeList(tuple(nodes), tuple(edges)))


def test_a_dump_is_read() -> None:
    assert read_dot(DUMP).text() == "memset\nkernel\ncopy\nbatch mem op"
    nodes = ordered(read_dot(DUMP))
    assert nodes.text() == "memset\ncopy\nkernel\nbatch mem op"
    assert nodes.edges == ((0, 1), (1, 2), (2, 3))
    assert nodes.text("kernels") == "memset\ncopy\nkernel vectorized_elementwise_kernel\nbatch mem op"
    assert nodes.nodes[2].name == "void at::native::vectorized_elementwise_kernel<4, Fill<float> >(int)"
    with pytest.raises(LevelError, match=r"was not recorded during the capture: not requested$"):
        nodes.text("operators")


@pytest.mark.parametrize("text", ["", "graph {}", "\x00\x01"])
def test_what_is_no_dump(text: str) -> None:
    with pytest.raises(ValueError, match=r"^this is not a DOT file of a CUDA graph: 'digraph' is missing$"):
        read_dot(text)


def test_an_empty_dump() -> None:
    assert read_dot("digraph dot {\n}").text() == "empty graph"


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert isinstance(read_dot("digraph" + text), NodeList)


def test_runs_are_counted_in_order() -> None:
    nodes = listed([KERNEL, KERNEL, COPY, KERNEL, MEMSET, MEMSET], [(at, at + 1) for at in range(5)])
    assert str(nodes) == "kernel x2\ncopy\nkernel\nmemset x2"
    assert (nodes.count("kernel"), nodes.count("copy"), nodes.count("host")) == (3, 1, 0)
    assert nodes.text(edges=True).splitlines()[:3] == ["0: kernel", "1: kernel  after 0", "2: copy  after 1"]


def test_an_extra_copy_is_a_line() -> None:
    fused = listed([KERNEL, KERNEL], [(0, 1)])
    copied = listed([KERNEL, COPY, KERNEL], [(0, 1), (1, 2)])
    assert fused.text() == "kernel x2"
    assert copied.text() == "kernel\ncopy\nkernel"


def test_operators() -> None:
    nodes = NodeList((Node("kernel", operator="aten::mm"), Node("kernel", operator="aten::mm"), COPY), (), "")
    assert nodes.text("operators") == "aten::mm  kernel x2\n(no operator)  copy"
    with pytest.raises(LevelError, match=r"^level 'lines' is not known: write kinds, operators, kernels$"):
        nodes.text("lines")  # type: ignore[arg-type]


def test_the_graph_is_drawn() -> None:
    diagram = listed([KERNEL, COPY], [(0, 1)]).diagram("kernels")
    assert [box.label for box in diagram.boxes] == ["kernel add", "copy"]
    assert diagram.boxes[0].detail == KERNEL.name
    assert 'n0 -> n1 [label=""]' in diagram.dot()


def test_circles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^the edges of the graph form a cycle$"):
        listed([COPY, COPY], [(0, 1), (1, 0)])


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_each_node_comes_after_those_it_waits_for(number: int, choose: random.Random) -> None:
    names = [*range(number)]
    choose.shuffle(names)
    rank = {name: at for at, name in enumerate(names)}
    edges = [(a, b) for a in names for b in names if rank[a] < rank[b] and choose.random() < 0.3]
    nodes = listed([Node("kernel", str(at)) for at in range(number)], edges)
    place = {int(node.name): at for at, node in enumerate(nodes.nodes)}
    assert sorted(place) == [*range(number)]
    assert all(place[a] < place[b] for a, b in edges)
    assert {*nodes.edges} == {(place[a], place[b]) for a, b in edges}


def test_without_edges_the_order_is_the_captures() -> None:
    assert [node.name for node in listed([Node("kernel", name) for name in "cab"], []).nodes] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)", None),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute", None),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(float*)", None),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(cutlass_80_simt_sgemm::Params)", None),
        ("std::enable_if<!false, void>::type internal::gemvx::kernel<int, int>(args)", None),
        ("triton_poi_fused_add_0", None),
        ("", ""),
    ],
)
def test_short_names(kernel: str, short: str | None) -> None:
    wanted = {
        "void at": "vectorized_elementwise_kernel",
        "sm90_xm": "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute",
        "void (a": "softmax_warp_forward",
        "void cu": "Kernel2",
        "std::en": "kernel",
        "triton_": "triton_poi_fused_add_0",
    }
    assert short_name(kernel) == (wanted[kernel[:7]] if short is None else short)


def test_operators_belong_to_nodes_in_the_order_of_the_capture() -> None:
    """On two streams the order of dependencies is another one."""
    captured = NodeList((Node("kernel", "c"), Node("kernel", "a"), Node("copy", "b")), ((1, 2), (2, 0)))
    told = ordered(with_operators(captured, [("aten::relu", 1), ("aten::t", 0), ("aten::mm", 1), ("aten::copy_", 1)]))
    assert told.text("operators") == "aten::mm  kernel\naten::copy_  copy\naten::relu  kernel"
    with pytest.raises(LevelError, match=r"during the capture: operators launched 1 of 3 nodes$"):
        with_operators(captured, [("aten::relu", 1)]).text("operators")
    with pytest.raises(LevelError, match=r"during the capture: capture with operators=True"):
        with_operators(captured, []).text("operators")
