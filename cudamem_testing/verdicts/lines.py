"""The lines of a live set, as a baseline keeps them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from cudamem_testing.model.baselines import TOP, PeakLine
from cudamem_testing.model.blocks import Block, LiveSet
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.show.tables import begin
from cudamem_testing.snapshots.backward import ENGINE

_COMMON = {"torch", *sys.stdlib_module_names}
DIGITS = 4
#: Characters of a line's text that are kept.
LONGEST = 100

Written = Callable[[Frame], tuple[str, int]]
"""The text at a line of the project, and how many lines above it in its function have the same."""


def unwritten(frame: Frame) -> tuple[str, int]:
    """Nothing, without source."""
    return "", 0


@dataclass(frozen=True, slots=True)
class Line:
    """The blocks of one line, or of a function whose source is not known; ``order`` is that of the first block.

    Where the line calls a model of a library, each function of the library that allocates has a line of its own: its
    ``name`` is ``test_a.py::test_step > transformers/modeling_gpt2.py::GPT2MLP.forward``. ``saved`` and ``recorded``
    are bytes that autograd kept for backward, and that were made in grad mode (``None``: unknown). ``call`` is the
    library call of most bytes behind the line, ``caller`` the project's line that called its function.
    """

    name: str
    text: str
    nth: int
    frame: Frame | None
    bytes: int
    blocks: int
    saved: int = 0
    recorded: int | None = None
    order: int = 0
    call: str = ""
    caller: Frame | None = None

    @property
    def place(self) -> PeakLine:
        """The line for a baseline."""
        return PeakLine(self.name, self.bytes, self.text, self.blocks, self.saved, self.nth, self.is_recorded)

    @property
    def is_recorded(self) -> bool | None:
        """Whether most of it was made in grad mode; ``None`` if unknown."""
        return None if self.recorded is None else 2 * self.recorded > self.bytes


def lines_of(
    live: LiveSet,
    written: Written = unwritten,
    saved: Collection[int | None] = (),
    recorded: Collection[int | None] | None = None,
) -> tuple[Line, ...]:
    """The lines of a live set, largest first, those of equal size by name.

    ``saved`` and ``recorded`` are orders of allocation of blocks; ``recorded`` is ``None`` if unknown.
    """
    found: dict[tuple[str, str, int], list[Block]] = {}
    known: dict[int, tuple[str, str, int]] = {}
    for block in live:
        key = known.get(id(block.stack))
        if key is None:
            frame, library = block.stack.where, _library_line(block.stack)
            text, nth = ("", 0) if frame is None else written(frame)
            name = block.stack.place if library is None else f"{block.stack.place} > {library.place}"
            key = known[id(block.stack)] = name, begin(text, LONGEST), nth
        found.setdefault(key, []).append(block)
    lines = (_line(*key, blocks, saved, recorded) for key, blocks in found.items())
    return tuple(sorted(lines, key=lambda line: (-line.bytes, line.name, line.text, line.nth)))


def fingerprint(name: str, text: str, nth: int) -> str:
    """Four digits for a line of the project."""
    line = f"{name.partition(' > ')[0]}\n{text}\n{nth}"
    return hashlib.sha256(line.encode("utf-8", "backslashreplace")).hexdigest()[:DIGITS]


def fingerprints(stacks: Iterable[Stack], written: Written) -> str:
    """Those of the lines of stacks, in order, each once."""
    found = set()
    for frame in {stack.project_frame for stack in stacks}:
        if frame is not None:
            text, nth = written(frame)
            found.update([fingerprint(frame.place, begin(text, LONGEST), nth)] if text else [])
    return "".join(sorted(found))


def top_of(lines: Sequence[Line], most: int = TOP) -> tuple[PeakLine, ...]:
    """The largest lines, so that the same run gives the same entry."""
    return tuple(line.place for line in lines[:most])


def _line(
    name: str,
    text: str,
    nth: int,
    blocks: Sequence[Block],
    saved: Collection[int | None],
    recorded: Collection[int | None] | None,
) -> Line:
    calls: dict[tuple[str, Frame | None], int] = {}
    frames: dict[Frame | None, int] = {}
    for block in blocks:
        source = _call(block.stack), block.stack.called_from
        calls[source] = calls.get(source, 0) + block.size
        size = frames.pop(block.stack.where, 0) + block.size  # of equals the last one counts
        frames[block.stack.where] = size
    call, caller = max(calls, key=lambda one: calls[one])
    return Line(
        name,
        text,
        nth,
        max(reversed(frames), key=lambda frame: frames[frame]),
        sum(block.size for block in blocks),
        len(blocks),
        sum(block.size for block in blocks if block.order in saved),
        None if recorded is None else sum(block.size for block in blocks if block.order in recorded),
        min(block.order or 0 for block in blocks),
        call,
        caller,
    )


def _library_line(stack: Stack) -> Frame | None:
    """The innermost line of a library other than torch and Python's own below the project's line."""
    if stack.project_frame is None:
        return None
    inner = takewhile(lambda frame: frame.origin != "project", stack.frames)
    return next((frame for frame in inner if frame.origin == "library" and _package(frame) not in _COMMON), None)


def _package(frame: Frame) -> str:
    return frame.file.partition("/")[0].removesuffix(".py")


def _call(stack: Stack) -> str:
    """``softmax``, or the line of another library: ``modeling_gpt2.py:231 in GPT2MLP.forward``."""
    line = _library_line(stack)
    if line is None:
        call = stack.library.rpartition(" ")[2]
        return "backward" if call == ENGINE[1] else call
    return str(line._replace(file=line.file.rpartition("/")[2]))
