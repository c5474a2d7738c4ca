"""Finds where an operation was called: the project's line, its source, and the module whose forward was running.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Iterable, Iterator, Mapping

import torch

from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.model.source import source_line
from cudamem_testing.model.stacks import Locator, RawFrame, Stack
from cudamem_testing.objects.frames import frame_locals
from cudamem_testing.safe_access import is_a, type_name
from cudamem_testing.show.tables import begin

#: Characters of a line of source that are shown.
LONGEST_SOURCE = 100
#: Libraries whose lines say least, used if there is no line of the project.
_INNER = ("torch/", "cudamem_testing/")
#: How ``nn.Module`` calls a forward, across versions of torch: the module is the local variable ``self``.
_CALLS = ("_call_impl", "_wrapped_call_impl")


class CapturePlaces:
    """Finds places for one function. ``names`` are the paths of modules, by ``id``."""

    def __init__(self, locator: Locator, names: Mapping[int, str] | None = None) -> None:
        self._locator = locator
        self.names = dict(names or {})
        self._project: dict[types.CodeType, bool] = {}
        #: Project functions that were seen running.
        self.codes: dict[types.CodeType, None] = {}

    def of_frame(self, frame: types.FrameType | None, end: types.CodeType | None = None) -> SourceLine:
        """The place of the innermost project frame before the first frame that runs ``end``."""
        return self._place([*_outwards(frame, end)])

    def of_traceback(self, raised: types.TracebackType | None) -> SourceLine:
        """The place where an exception was raised, seen from the project."""
        return self._place([*traceback.walk_tb(raised)][::-1])

    def of_code(self, code: types.CodeType, line: int | None = None) -> SourceLine:
        """A line of a function, by default its first."""
        line = code.co_firstlineno if line is None else line
        return self._text((code.co_filename, line, _qualname(code)), "")

    def stack(self, frame: types.FrameType | None, end: types.CodeType | None = None) -> Stack:
        """All frames outwards, as text."""
        return self._locator.stack(_raw(frame, line) for frame, line in _outwards(frame, end))

    def note(self, frame: types.FrameType | None, end: types.CodeType | None = None) -> None:
        """Remember the running function of the project, inside the first frame that runs ``end``."""
        while frame is not None and frame.f_code is not end:
            code = frame.f_code
            if self.is_project(code):
                self.codes[code] = None
                return
            frame = frame.f_back

    def is_project(self, code: types.CodeType) -> bool:
        """Whether a function is written in the project."""
        known = self._project.get(code)
        if known is None:
            frame = self._locator.frame((code.co_filename, 0, ""))
            known = self._project[code] = frame.origin == "project"
        return known

    def _place(self, frames: list[tuple[types.FrameType, int]]) -> SourceLine:
        module = next(filter(None, (self._module(frame) for frame, _ in frames)), "")
        raws = [_raw(frame, line) for frame, line in frames]
        own = next((raw for raw in raws if self._locator.frame(raw).origin == "project"), None)
        if own is None and raws:  # a library's function was passed itself
            outer = [raw for raw in raws if not self._locator.frame(raw).file.startswith(_INNER)]
            not_ours = [raw for raw in raws if not self._locator.frame(raw).file.startswith(_INNER[1])]
            own = next(iter((*outer, *not_ours, *raws)))
        return (
            SourceLine("(no Python stack)", "(no Python stack)", "", module) if own is None else self._text(own, module)
        )

    def _text(self, raw: RawFrame, module: str) -> SourceLine:
        frame = self._locator.frame(raw)
        source = " ".join(source_line(raw[0], raw[1]).split())
        shown = begin(source, LONGEST_SOURCE)
        return SourceLine(str(frame), f"{frame.file} in {frame.function}", shown, module)

    def _module(self, frame: types.FrameType) -> str:
        if not self.names or frame.f_code.co_name not in _CALLS:
            return ""
        return next((self.names.get(id(value), "") for name, value in frame_locals(frame) if name == "self"), "")


def module_names(roots: Iterable[tuple[str, object]]) -> dict[int, str]:
    """Paths of all modules below the roots, by ``id``; a root without a name has its class's name."""
    names: dict[int, str] = {}
    for name, root in roots:
        if is_a(root, torch.nn.Module):
            for path, module in root.named_modules():
                names.setdefault(id(module), ".".join(filter(None, (name, path))) or type_name(root))
    return names


def _outwards(frame: types.FrameType | None, end: types.CodeType | None) -> Iterator[tuple[types.FrameType, int]]:
    while frame is not None and frame.f_code is not end:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _raw(frame: types.FrameType, line: int) -> RawFrame:
    return frame.f_code.co_filename, line, _qualname(frame.f_code)


def _qualname(code: types.CodeType) -> str:
    name: str = getattr(code, "co_qualname", code.co_name)  # 3.11
    return name
