"""A live set as a flame graph. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from pathlib import Path

from cudamem_testing.model.blocks import LiveSet
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.plots import flame
from cudamem_testing.show.plots.style import save


def flamegraph(live: LiveSet, path: str | Path, title: str = "") -> Path:
    """Draw a live set by stack into a PNG or SVG file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed (extra ``plot``).
        ValueError: for another ending.
    """
    sizes: dict[tuple[flame.FlameCall, ...], int] = {}
    for block in live:
        calls = _calls(block.stack)
        if block.preexisting and not calls:
            calls = (flame.FlameCall("(live before)" if block.owner is None else f"(left by {block.owner})", ""),)
        calls = calls or (flame.FlameCall(f"({live.stackless})", ""),)
        sizes[calls] = sizes.get(calls, 0) + block.size
    title = title or f"{format_size(live.total)} in {count(len(live), 'block')} on {live.device}"
    return save(flame.draw(flame.Flame(title, tuple(sizes.items()))), path)


def calls_of(stack: Stack | None, reason: str) -> tuple[flame.FlameCall, ...]:
    """The calls of a stack, outermost first; the reason where there is none."""
    return (flame.FlameCall(reason, ""),) if stack is None else _calls(stack)


def _calls(stack: Stack) -> tuple[flame.FlameCall, ...]:
    frames = reversed(stack.frames)
    return tuple(flame.FlameCall(_name(frame), frame.file if frame.origin == "project" else None) for frame in frames)


def _name(frame: Frame) -> str:
    return f"{frame.function or '?'}  {frame.file}{f':{frame.line}' if frame.line else ''}"
