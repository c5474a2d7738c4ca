"""Where an allocation came from, in terms of the tested project.

The only place that shortens a path and that picks the project's own line. A :class:`Locator` knows the project's
root; it turns raw ``(file, line, function)`` triples into a :class:`Stack` whose frames are marked ``project``,
``library`` or ``generated``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Literal, NamedTuple

from cudamem_testing.model.source import equal_lines_above, source_line
from cudamem_testing.show.printable import one_line

Origin = Literal["project", "library", "generated"]
RawFrame = tuple[str, int, str]

NO_STACK = "(no Python stack)"
_PACKAGES = r"(?:.*[/\\])?(?:site|dist)-packages[/\\]"
_LIBRARY = r"(?:.*[/\\])?lib[/\\]python3\.\d+t?[/\\]"  # the standard library of another machine
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
_STANDARD = os.path.dirname(os.__file__) + os.sep  # `sysconfig` takes a millisecond to say the same
_PASSING_ON = ("torch/utils/_device.py", "torch/overrides.py")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Frame(NamedTuple):
    """One call: a path relative to the project or to its library, a line (0 if unknown), a qualified name.

    Frames from a :class:`Locator` are safe to show: control characters in names are escaped.
    """

    file: str
    line: int
    function: str
    origin: Origin = "project"

    @property
    def place(self) -> str:
        """``file::qualname``, which stays the same when the code around it changes."""
        return f"{self.file}::{self.function}"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} in {self.function}" if self.function else place


class Stack(NamedTuple):
    """Calls from the innermost outwards; empty if the recorder had none."""

    frames: tuple[Frame, ...] = ()

    @property
    def project_frame(self) -> Frame | None:
        """The innermost frame of the project: the line that its author can change."""
        return next((frame for frame in self.frames if frame.origin == "project"), None)

    @property
    def library_call(self) -> Frame | None:
        """The innermost frame before the project's own; ``None`` if the project's line allocated itself.

        An anonymous function is skipped if a named one called it, and what only passes a call on in any case: the mode
        behind ``torch.set_default_device`` and ``with torch.device()``.
        """
        calls: list[Frame] = []
        for frame in self.frames:
            if frame.origin == "project":
                break
            if frame.file not in _PASSING_ON:
                calls.append(frame)
        named = (frame for frame in calls if not frame.function.endswith("<lambda>"))
        return next(named, calls[0] if calls else None)

    @property
    def called_from(self) -> Frame | None:
        """The project's frame around its innermost one: the caller of a helper that allocates."""
        project = (frame for frame in self.frames if frame.origin == "project")
        next(project, None)
        return next(project, None)

    @property
    def caller(self) -> Frame | None:
        """The outermost frame of the project if it is not the innermost: the call in the test."""
        project = [frame for frame in self.frames if frame.origin == "project"]
        return project[-1] if len(project) > 1 else None

    @property
    def in_thread(self) -> bool:
        """Whether the calls began in a thread that Python started; also false if the record cut them off."""
        outermost = self.frames[-1] if self.frames else None
        return (
            outermost is not None
            and outermost.file == "threading.py"
            and outermost.function.rpartition(".")[2] == "_bootstrap"
        )

    @property
    def where(self) -> Frame | None:
        """Where to look: the project's line, else the innermost frame."""
        return self.project_frame or (self.frames[0] if self.frames else None)

    @property
    def line(self) -> str:
        """Where to look, as text; ``(no Python stack)`` without one."""
        return NO_STACK if self.where is None else str(self.where)

    @property
    def place(self) -> str:
        """``file::qualname`` of the line, which stays the same when the code around it changes."""
        return NO_STACK if self.where is None else self.where.place

    @property
    def library(self) -> str:
        """The library call behind the project's line, as ``torch/nn/functional.py softmax``; empty without one."""
        frame = self.library_call
        if frame is None or self.project_frame is None:
            return ""
        return f"{frame.file} {frame.function}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.frames)) or NO_STACK


class Locator:
    """Turns raw frames into :class:`Frame` objects for a project whose root folder is ``root``.

    A file below ``root`` is the project's unless it lies in a ``site-packages`` folder; everything else that does not
    belong to an installed package, to the standard library or to this plugin also counts as the project's, because
    people run tests against neighbouring checkouts.
    """

    __slots__ = ("_files", "_frames", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self._files: dict[str, tuple[str, Origin]] = {}
        self._frames: dict[RawFrame, Frame] = {}

    def frame(self, raw: RawFrame) -> Frame:
        """One raw frame, shortened and marked."""
        found = self._frames.get(raw)
        if found is None:
            file, line, function = raw
            known = self._files.get(file)
            if known is None:
                short, origin = self._locate(file)
                known = self._files[file] = one_line(short), origin
            found = self._frames[raw] = Frame(known[0], line, one_line(_readable(function)), known[1])
        return found

    def stack(self, raw: Iterable[RawFrame]) -> Stack:
        """Raw frames, innermost first; a comprehension is part of the function around it."""
        frames: list[Frame] = []
        inner: Frame | None = None  # a comprehension whose function has not come yet
        for one in raw:
            frame = self.frame(one)
            comprehension = one[2].rpartition(".")[2] in _COMPREHENSIONS
            if inner is not None and inner.file == frame.file:
                if not comprehension:
                    frames.append(Frame(inner.file, inner.line, frame.function, inner.origin))
                    inner = None
                continue
            frames += [inner] if inner is not None else []
            inner = frame if comprehension else None
            frames += [] if comprehension else [frame]
        return Stack((*frames, inner) if inner is not None else tuple(frames))

    def path(self, frame: Frame) -> str:
        """The full name of a frame's file, before this locator shortened it."""
        files = (file for file, (shown, _) in self._files.items() if shown == frame.file)
        return next(files, f"{self.root}/{frame.file}")

    def source(self, frame: Frame) -> str:
        """The text of a line of the project, as :func:`source_line`; empty if there is no such file."""
        if frame.origin != "project":
            return ""
        return source_line(os.path.join(self.root, frame.file), frame.line)

    def written(self, frame: Frame) -> tuple[str, int]:
        """What is written at a line of the project, and how many lines above it in its function say the same."""
        if frame.origin != "project":
            return "", 0
        file = self.path(frame)
        text = source_line(file, frame.line)
        return text, equal_lines_above(file, frame.line) if text else 0

    def _locate(self, file: str) -> tuple[str, Origin]:
        if file.startswith("<") or not file:
            return _locate_without_file(file)
        file = _whole(file, self.root)
        package = re.match(_PACKAGES, file)
        if package is not None:
            return _slashes(file[package.end() :]), "library"
        if "torchinductor_" in file:
            return "<torch.compile>", "generated"
        if "ipykernel_" in file:
            return "<notebook>", "project"
        if file.startswith(_OWN):
            return "cudamem_testing/" + _slashes(file[len(_OWN) :]), "library"
        if file.startswith(_STANDARD):
            return _slashes(file[len(_STANDARD) :]), "library"
        prefix = self.root.rstrip("/\\") + os.sep
        if self.root and file.startswith(prefix):
            return _slashes(file[len(prefix) :]), "project"
        library = re.match(_LIBRARY, file)
        if library is not None:
            return _slashes(file[library.end() :]), "library"
        return "/".join(_slashes(file).split("/")[-2:]), "project"


def _whole(file: str, root: str) -> str:
    """The full path of a file: torch's profiler cuts off the folder of ``sys.path``."""
    if os.path.isabs(file):
        return file
    found = (os.path.join(folder, file) for folder in (root, *sys.path))
    return next((path for path in found if os.path.isfile(path)), file)


def is_library(file: str) -> bool:
    """Whether a file belongs to Python or an installed package, rather than to a project."""
    return Locator("")._locate(file)[1] == "library"


def _locate_without_file(file: str) -> tuple[str, Origin]:
    """Code that was typed or created at run time; numbers that differ from run to run are left out."""
    if file.startswith("<frozen "):
        return file[8:-1].replace(".", "/") + ".py", "library"
    if file.startswith(("<ipython-input", "<stdin>")):
        return ("<stdin>" if file == "<stdin>" else "<notebook>"), "project"
    if file.startswith("<eval_with_key>"):
        return "<torch.fx>", "generated"
    return file or "<unknown>", "generated"


def _readable(function: str) -> str:
    """A qualified name without the compiler's additions: ``f.<locals>.g`` becomes ``f.g``."""
    name = function.replace(".<locals>.", ".")
    head, _, last = name.rpartition(".")
    return head if head and last in _COMPREHENSIONS else name


def _slashes(path: str) -> str:
    return path.replace("\\", "/")
