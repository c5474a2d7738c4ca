"""Finds cycles: in every collection while a watch lasts, or in one collection of its own.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.results import Cycle
from cudamem_testing.cycles.source import Sources, worded
from cudamem_testing.cycles.watch import CycleWatch
from cudamem_testing.guards import collect_garbage
from cudamem_testing.model.stacks import Locator
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.records.expected.lines import compare_lines
from cudamem_testing.safe_access import error_text
from cudamem_testing.show.atomic_files import replace_file
from cudamem_testing.show.notebook import InNotebook
from cudamem_testing.show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

_log = logging.getLogger("cudamem_testing")


class ReferenceCycles(InNotebook):
    """The reference cycles that keep memory, made inside a ``with`` block.

    Garbage from before the block is collected when it begins; a full collection ends it. In between, the collector runs
    as usual, and what it finds counts too. Afterwards ``found`` has the cycles, the largest first. The block ends with
    a ``RuntimeError`` if garbage with tensors could not be explained, and begins or ends with one while a stream
    captures a CUDA graph, because garbage collection is paused then.
    """

    def __init__(self, question: Callable[[], Question | None] | None = None, kind: type | None = None) -> None:
        self.entered = False
        self.left = False
        self.is_read = True  # or there is nothing to read
        self._found: tuple[Cycle, ...] = ()
        self._failures: list[BaseException] = []
        self._watch = CycleWatch(question, self._failures.append, kind)

    def __enter__(self) -> ReferenceCycles:
        self.entered = True
        collect_garbage(needed=True)
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                collect_garbage(needed=True)
        finally:
            self._watch.stop()
            self.left = True
            self._found = _worded(self._watch)
        if kind is None:
            _raise(self._failures)
            self.is_read = False

    @property
    def found(self) -> tuple[Cycle, ...]:
        """What was found; cycles of one signature are one.

        Raises:
            RuntimeError: before the block has ended.
        """
        if not self.left:
            raise RuntimeError("nothing is found yet: leave the with block of reference_cycles first")
        self.is_read = True
        return self._found

    def assert_none(self) -> None:
        """Fail if a cycle was found.

        Raises:
            AssertionError: with the explanation of each.
        """
        __tracebackhide__ = True
        if self.found:
            raise AssertionError("\n\n".join(("reference cycles keep memory:", *map(str, self.found))))

    def assert_cycle(self, expected: str | None = None) -> None:
        """Compare the cycles found with the text written at the call; see ``text``.

        Raises:
            TextMismatchError: an ``AssertionError`` with a diff.
        """
        __tracebackhide__ = True
        assert_text(self.text, expected, depth=2, compare=compare_lines)

    @property
    def text(self) -> str:
        """The chain of each cycle and what it keeps; no lines of source, no addresses."""
        return "\n\n".join("\n".join(cycle.lines) for cycle in self.found) or "no cycles"

    def dot(self) -> str:
        """The largest cycle for Graphviz; empty without one."""
        return self.found[0].dot() if self.found else ""

    def html(self) -> str:
        """The largest cycle as a page that needs no network; empty without one."""
        return self.found[0].html() if self.found else ""

    def __len__(self) -> int:
        return len(self.found)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.found)) or "no cycles"


def reference_cycles(kind: type | None = None) -> ReferenceCycles:
    """Find the cycles that are made in a ``with`` block.

    ``kind`` looks for cycles that keep instances of that class instead of tensors.
    """
    return ReferenceCycles(kind=kind)


def find_cycles(kind: type | None = None) -> tuple[Cycle, ...]:
    """Collect garbage now, and explain the cycles in it that kept tensors (or instances of ``kind``).

    Raises: RuntimeError: if garbage with tensors could not be explained, or while a stream captures a CUDA graph.
    """
    failures: list[BaseException] = []
    watch = CycleWatch(None, failures.append, kind)
    watch.start()
    try:
        collect_garbage(needed=True)
    finally:
        watch.stop()
    _raise(failures)
    return _worded(watch)


def _worded(watch: CycleWatch, sources: Sources | None = None) -> tuple[Cycle, ...]:
    cycles = [cycle for together in watch.take() for cycle in together]
    return tuple(worded(cycles, sources or _sources())) if cycles else ()


def _sources() -> Sources:
    return Sources(Locator(os.getcwd()))


def _raise(failures: Sequence[BaseException]) -> None:
    for error in failures:
        message = f"garbage with tensors was not explained: {error_text(error)}"
        raise RuntimeError(message) from error


def watch_cycles(callback: Callable[[Cycle], object], kind: type | None = None) -> Callable[[], None]:
    """Call ``callback`` with each cycle that a collection of this process finds; returns a function that ends the
    watch.

    It is called in the main thread, between two bytecodes soon after the collection. The watch ends by itself when the
    interpreter exits. An exception of the callback goes to ``sys.unraisablehook``, as for any callback of the
    collector. While CUDA's memory history is on (``torch.cuda.memory._record_memory_history()``), cycles name the lines
    that allocated.

    Args:
        callback: gets a ``Cycle``: texts and numbers, so it may be kept.
        kind: a class; report cycles that keep its instances instead of those that keep tensors.

    Raises:
        RuntimeError: collections cannot be watched here.
    """
    sources = _sources()

    def tell() -> None:
        for cycle in _worded(watch, sources):
            try:
                callback(cycle)
            except Exception as error:
                _Reported(error)

    watch = CycleWatch(None, None, kind, tell)

    def remove() -> None:
        atexit.unregister(remove)
        watch.stop()

    watch.start()
    atexit.register(remove)
    return remove


class _Reported:
    """Has the interpreter pass an error to ``sys.unraisablehook``, which accepts only arguments made by itself."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


def warn_cycles(folder: str | None = None) -> Callable[[], None]:
    """Log a warning for each cycle that keeps tensors, with a link to a page that shows it; returns a function that
    ends this.

    Pages are written to ``folder``, by default to the folder for temporary files, and stay there. Where none can be
    written, the warning says why.
    """

    def warn(cycle: Cycle) -> None:
        page = Path(folder or tempfile.gettempdir()) / f"cycle-{os.urandom(6).hex()}.html"
        try:
            replace_file(page, cycle.html().encode())
        except OSError as error:
            _log.warning("a reference cycle %s\n%s\nno page was written: %s", cycle.keeps, cycle, error)
        else:
            _log.warning("a reference cycle %s\n%s\nshown in %s", cycle.keeps, cycle, page)

    return watch_cycles(warn)
