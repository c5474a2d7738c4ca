"""Cycles as text: never more than ten lines, and cycles of one signature as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.cycles.results import Cycle, KeptTensor, merged
from cudamem_testing.model.stacks import Frame, Stack

WORD = st.text("abcdefgh._[]'", min_size=1, max_size=120)
TENSORS = st.builds(
    KeptTensor,
    WORD,
    WORD,
    st.integers(1, 2**40),
    st.sampled_from(["cpu", "cuda:0"]),
    st.integers(1, 99),
    st.none() | st.builds(Stack, st.builds(Frame, WORD, st.integers(1, 99), WORD).map(lambda frame: (frame,))),
)
CYCLES = st.builds(
    Cycle,
    st.lists(WORD, min_size=1, max_size=40).map(tuple),
    st.lists(TENSORS, max_size=6).map(tuple),
    st.sampled_from("abc"),
    closed_by=st.none() | WORD,
    hanging=st.integers(0, 3),
    count=st.integers(1, 3),
)


@given(CYCLES)
def test_at_most_ten_lines(cycle: Cycle) -> None:
    assert len(cycle.text.splitlines()) <= 10
    assert cycle.text.startswith(cycle.chain[0])


@given(st.lists(CYCLES, max_size=8))
def test_merging_loses_nothing(cycles: list[Cycle]) -> None:
    found = merged(cycles)
    assert sum(one.bytes for one in found) == sum(one.bytes for one in cycles)
    assert sum(one.count for one in found) == sum(one.count for one in cycles)
    assert sorted(one.signature for one in found) == sorted({one.signature for one in cycles})
    assert [one.bytes for one in found] == sorted((one.bytes for one in found), reverse=True)
    for one in found:
        assert sum(one.on(device).bytes for device in one.devices) == one.bytes


def test_a_whole_text() -> None:
    tensors = tuple(
        KeptTensor(name, "float32[4]", 2**20, "cuda:0", place, Stack((Frame("model.py", place, "f"),)))
        for place, name in enumerate(("a", "b", "", ""), 1)
    )
    cycle = Cycle(("A.x", "B.y", "A"), tensors, "s", closed_by="model.py:9: self.x = b", hanging=2, count=3)
    assert str(cycle).splitlines() == [
        "A.x -> B.y -> A",
        "keeps 4.0 MiB in 4 tensors: a float32[4], b float32[4], float32[4], ...",
        "allocated  model.py:1 in f (a)",
        "allocated  model.py:2 in f (b)",
        "closed by  model.py:9: self.x = b",
        "2 more cycles connected to it",
        "found 3 times",
    ]
