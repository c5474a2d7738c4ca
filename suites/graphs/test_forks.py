"""Side streams: what the clocks say, against reachability in the graph of work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.graphs.forks import Forks
from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.guards import replaced


class Event:
    """One event. Weak references to it are refused: those to torch's events dangle once the event is gone."""

    __slots__ = ()


def place(number: int) -> SourceLine:
    return SourceLine(f"step.py:{number} in step", "step.py in step")


def test_joined_and_not() -> None:
    forks, start, done = Forks(lambda: 0), Event(), Event()
    forks.worked(0, "aten::mul", place(1))
    forks.recorded(start, 0)
    forks.waited(start, 1)
    forks.worked(1, "aten::add", place(2))
    forks.worked(1, "aten::sub", place(3))
    assert forks.unjoined(0) == ("aten::sub", place(3))
    forks.recorded(done, 1)
    forks.waited(done, 0)
    assert forks.unjoined(0) is None
    forks.worked(1, "aten::neg", place(4))
    assert forks.unjoined(0) == ("aten::neg", place(4))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.integers(0, 3)),
    ),
    max_size=25,
)


@given(STEPS)
def test_the_clocks_are_reachability(steps: list[tuple[Any, ...]]) -> None:
    forks = Forks(lambda: 0)
    nodes: list[tuple[int, set[int]]] = []  # stream and all that comes before
    before: dict[int, set[int]] = {stream: set() for stream in range(4)}
    for step in steps:
        if step[0] == "work":
            stream = step[1]
            forks.worked(stream, f"aten::{len(nodes)}", place(len(nodes)))
            nodes.append((stream, {*before[stream]}))
            before[stream] |= {len(nodes) - 1}
        else:
            event = Event()
            forks.recorded(event, step[1])
            forks.waited(event, step[2])
            before[step[2]] |= before[step[1]]
    last = {stream: number for number, (stream, _) in enumerate(nodes)}
    behind = [number for stream, number in last.items() if stream != 0 and number not in before[0]]
    found = forks.unjoined(0)
    if found is None:
        assert behind == []
    else:
        assert int(found[0].removeprefix("aten::")) in behind


def test_events_of_torch_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(torch.cuda.Event, "record", lambda event, stream=None: called.append("record"))
    monkeypatch.setattr(torch.cuda.Event, "wait", lambda event, stream=None: called.append("wait"))
    forks, event, side = Forks(lambda: 0), Event(), SimpleNamespace(cuda_stream=5)
    with replaced(forks.changes()):
        forks.worked(5, "aten::mul", place(1))
        assert forks.unjoined(0) is not None
        torch.cuda.Event.record(event, side)
        torch.cuda.Event.wait(event)
        assert forks.unjoined(0) is None
    assert called == ["record", "wait"]
    torch.cuda.Event.record(event, side)
    assert called == ["record", "wait", "record"]
