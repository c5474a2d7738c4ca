"""Chains of references as text: ``Step`` and ``Path``.

They hold strings and ids only, so a result that is stored, pickled or shown keeps no user object alive.

A path has two texts: ``text`` for people, and ``stable``, which is the same in every run: in it each key and position
of a container is ``[*]``, because a key may be a number, a uuid or a temporary path.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum

from cudamem_testing.model.edges import Kind, Reference

#: Longest chain that is shown in full; longer ones lose their middle.
#: Replaces keys and positions of containers in causes, because another run may have others.
ANY_KEY = "[*]"
#: Varying parts of thread names: a uuid, a long hexadecimal number, digits.
PASSING_NAME = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{8,}|\d+(?:_\d+)*")

SHOWN_STEPS = 14


class RootKind(str, Enum):
    """The kind of object at which a chain starts."""

    MODULE = "module"
    CLASS = "class"
    LRU_CACHE = "lru_cache"
    THREAD = "thread"
    EXECUTOR = "executor"
    EVENT_LOOP = "event loop"
    LOGGER = "logger"
    FINALIZER = "finalizer"
    SIGNAL = "signal handler"
    CONTEXT = "context"
    #: A fixture of pytest, which outlives the tests that use it.
    FIXTURE = "fixture"
    #: Another object of the harness, such as a collected test: the user did not create such a chain.
    HARNESS = "harness"
    FRAME = "frame"
    #: No root at all: the first object of a chain that nothing in Python holds.
    UNHELD = "unheld"


class Reach(str, Enum):
    """The result of a search for a target."""

    #: A root reaches it.
    REACHABLE = "reachable"
    #: Only a root of the harness reaches it (pytest's session, its frames).
    HARNESS = "held by the harness"
    #: Python objects hold it, and no root reaches them: C++ holds them, or they wait for the collector.
    UNREACHABLE = "held by unreachable objects"
    #: No object that Python can see holds it.
    NOT_HELD = "no python holder"
    #: The search stopped at its limit before it found out.
    UNKNOWN = "not found within the budget"


class Unsure(str, Enum):
    """What a search for holders could not find out."""

    #: The search was not made for this block.
    NOT_REACHED = "not reached"
    #: The search stopped at its limit of time or objects.
    BUDGET = "budget"
    #: The search met an object with too many holders to examine all of them.
    CROWDED = "crowded"
    #: Garbage was not collected before, because a stream was capturing a CUDA graph.
    UNCOLLECTED = "uncollected"
    #: This version of torch does not show what autograd saved for backward.
    HIDDEN_GRAPH = "hidden graph"
    #: It may be a library workspace, which is not released while a CUDA graph is live.
    LIBRARY = "library"


#: Kinds whose text is appended to the text before it: ``x.grad.grad_fn[MulBackward0].saved self``.
_CHAINED = frozenset({Kind.SUBMODULE, Kind.GRAD, Kind.GRAD_FN, Kind.NEXT, Kind.SAVED, Kind.STORAGE, Kind.CALL})
#: Kinds that name the referent, so that its type follows in parentheses: ``_CACHE (dict)['k']``.
_NAMING = frozenset({Kind.GLOBAL, Kind.ATTRIBUTE, Kind.LOCAL, Kind.CLOSURE, Kind.CALLBACK, Kind.ROOT})
#: Kinds with a class in their brackets.
_OF_A_CLASS = frozenset({Kind.GRAD_FN, Kind.NEXT})
#: Containers whose keys are names in the source code.
_NAMESPACES = frozenset({".__dict__", "._modules", "._parameters", "._buffers"})
_COMPILED = re.compile(r"\b__compiled_fn_\d+\w*")
_LINE_OF_FRAME = re.compile(r"(\([^()\s]+):\d+\)")
_THREAD = re.compile(r"thread '.*?'(?= > frame |$)")


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a search could not find out, with the limit or the version that caused it."""

    why: Unsure
    of: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a path and the object it leads to: a short type word (``dict``, ``Encoder``, ``function f``)."""

    reference: Reference
    type_name: str
    #: Whether the reference is the kept value of a ``functools.cached_property``.
    cached_property: bool = False
    #: ``id()`` of the referent while it was alive; for joining with other results, not part of equality.
    referent_id: int = field(default=0, compare=False, repr=False)


def is_frame(step: Step) -> bool:
    """Whether a step leads to a frame, which clearing frees."""
    return step.type_name.startswith("frame ")


@dataclass(frozen=True, slots=True)
class Path:
    """Chain of references from a root to an object.

    ``root`` is a readable description (``module project.cache``, ``frame step (train.py:12)``), ``root_name``
    its own name in them (``project.cache``, ``step``). ``str(path)`` is one line::

        module project.cache > _CACHE (dict)['layer0'] > list[0]
    """

    root: str
    root_kind: RootKind
    steps: tuple[Step, ...] = ()
    root_name: str = ""
    #: The name of the thread in whose frame it begins, if that is not the test's thread.
    thread: str = ""
    root_id: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The path as one line; long ones lose their middle."""
        return self._joined(f" > ... {self._left_out()} more ...")

    @property
    def stable(self) -> str:
        """The path as one line, without parts that change with the run, the order of tests or edits of a file: keys
        and positions (except in namespaces), the line of a frame, numbers in names of threads and of compiled
        functions, and the length of a left-out middle.
        """
        steps = tuple(map(stable_step, (None, *self.steps), self.steps))
        return replace(self, root=_stable_root(self.root), steps=steps)._joined(" > ...")

    def _joined(self, middle: str) -> str:
        pieces = [self.root]
        edge = len(self.steps) > SHOWN_STEPS
        for index, step in enumerate(self.steps):
            if edge and SHOWN_STEPS // 2 <= index < len(self.steps) - SHOWN_STEPS // 2:
                if index == SHOWN_STEPS // 2:
                    pieces.append(middle)
                continue
            previous = self.steps[index - 1] if index else None
            pieces.append(_joined(previous, step.reference))
        return "".join(pieces)

    def _left_out(self) -> int:
        """Number of steps that the text leaves out, including those that the search had left out."""
        middle = self.steps[SHOWN_STEPS // 2 : len(self.steps) - SHOWN_STEPS // 2]
        counts = (re.fullmatch(r"\.\.\. (\d+) more \.\.\.", step.reference.text) for step in middle)
        return sum(int(count[1]) if count else 1 for count in counts)

    @property
    def length(self) -> int:
        """Number of references in the path."""
        return len(self.steps)


def stable_step(before: Step | None, step: Step) -> Step:
    """A step without its key or position; ``before`` is the step to its holder."""
    kind, text = step.reference.kind, step.reference.text
    if kind in (Kind.KEY, Kind.HOOK):
        text = f"{kind.value} {ANY_KEY}"
    elif kind is Kind.OTHER and text.startswith("..."):
        text = "..."
    elif kind not in _OF_A_CLASS and not (kind is Kind.ITEM and _is_name(before, text)):
        text = _without_key(text)
    reference = Reference(kind, _COMPILED.sub("__compiled_fn", text))
    return replace(step, reference=reference, type_name=_COMPILED.sub("__compiled_fn", step.type_name))


def _is_name(before: Step | None, text: str) -> bool:
    """Whether the text of an item is a name in a namespace."""
    return before is not None and before.reference.text in _NAMESPACES and text[1:2] in ("'", '"')


def _without_key(text: str) -> str:
    """A label with ``[*]`` for each of its brackets; a long one may have lost the last."""
    before, bracket, rest = text.partition("[")
    return f"{before}{ANY_KEY}{rest.rpartition(']')[2] if ']' in rest else ''}" if bracket else text


def _stable_root(root: str) -> str:
    root = _THREAD.sub(lambda name: PASSING_NAME.sub(ANY_KEY, name.group()), root)
    return _LINE_OF_FRAME.sub(r"\1)", root)


def _joined(previous: Step | None, reference: Reference) -> str:
    """The text of an edge with its separator."""
    text = reference.text
    separated = text if text[:1] in ".[" else f" {text}" if reference.kind is not Kind.GLOBAL else f" > {text}"
    if reference.kind is Kind.ROOT:
        return ""
    if previous is None:
        return separated
    before = previous.reference.kind
    if text.startswith("..."):
        return f" > {text}"
    if before in (Kind.GRAD_FN, Kind.NEXT) and text.startswith("."):
        return text
    if reference.kind in _CHAINED and before is not Kind.CACHED:
        return separated
    if before in _NAMING:
        return f" ({previous.type_name}){separated}"
    return f" > {previous.type_name}{separated}"
