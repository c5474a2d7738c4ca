"""Reads what ``CUDAGraph.debug_dump`` writes: the driver's DOT file of a captured graph.

Only the words that name a node's kind, the name in front of a kernel's launch parameters (``name<<<...>>>``) and the
arrows are read. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re

from cudamem_testing.graphs.nodes import Node, NodeList

#: The driver's words for kinds of nodes.
KINDS = {
    "KERNEL": "kernel",
    "MEMCPY": "copy",
    "MEMSET": "memset",
    "HOST": "host",
    "GRAPH": "child graph",
    "EMPTY": "empty",
    "EVENT_RECORD": "event record",
    "EVENT_WAIT": "event wait",
    "WAIT_EVENT": "event wait",
    "MEM_ALLOC": "allocation",
    "MEM_FREE": "free",
    "CONDITIONAL": "conditional",
}
_NODE = re.compile(r'"(?P<name>[^"\n]+)"\s*\[(?P<fields>(?:[^"\]]|"(?:[^"\\]|\\.)*")*)\]', re.DOTALL)
_LABEL = re.compile(r'\blabel\s*=\s*"(?P<text>(?:[^"\\]|\\.)*)"', re.DOTALL)
_EDGE = re.compile(r'"(?P<source>[^"\n]+)"\s*->\s*"(?P<target>[^"\n]+)"')
_WORD = re.compile(r"[A-Z][A-Z_]+")
_KERNEL = re.compile(r"([^|{}\n]+?)\s*<<<")


def read_dot(text: str) -> NodeList:
    """The nodes and edges of a dump, in its own order, which is that of the capture.

    Raises:
        ValueError: if the text is not such a dump.
    """
    if "digraph" not in text:
        raise ValueError("this is not a DOT file of a CUDA graph: 'digraph' is missing")
    edges = [(match["source"], match["target"]) for match in _EDGE.finditer(text)]
    without = _EDGE.sub(" ", text)
    places: dict[str, int] = {}
    nodes: list[Node] = []
    for match in _NODE.finditer(without):
        label = _LABEL.search(match["fields"])
        if label is not None and match["name"] not in places:
            places[match["name"]] = len(nodes)
            nodes.append(_node(label["text"]))
    known = [(places[source], places[target]) for source, target in edges if source in places and target in places]
    return NodeList(tuple(nodes), tuple(known))


def _node(label: str) -> Node:
    word = _WORD.search(label)
    kind = KINDS.get(word[0], word[0].lower().replace("_", " ")) if word else "unknown"
    kernel = _KERNEL.search(label.replace("\\<", "<").replace("\\>", ">")) if kind == "kernel" else None
    return Node(kind, kernel[1].strip() if kernel else "")
