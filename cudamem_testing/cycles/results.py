"""What is known of a cycle after its objects were freed: text and numbers only.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.remarks import Remark, Tied
from cudamem_testing.model.stacks import Stack
from cudamem_testing.show.notebook import InNotebook

if TYPE_CHECKING:  # what is made inside a collection needs neither facts nor words
    from cudamem_testing.model.facts import CycleKept, KeptBy
    from cudamem_testing.show.diagrams import Diagram

#: Tensors that are named, and lines that allocated them.
NAMED, PLACES = 3, 2
#: The signature of a cycle whose objects were not examined.
UNREAD = "(objects not examined)"


LineOfCode = tuple[str, str]
"""A file, and the qualified name of a class in it."""


class Link(NamedTuple):
    """One reference of a cycle, described so that the store can be found in source code.

    ``name`` is its attribute, key or local variable, ``None`` without one. ``classes`` are those of its holder in the
    order of resolution, ``function`` the code of a function, frame or generator that holds it: file, first line and
    name. ``stored`` says what it leads to: a word (``method``, ``function``, ``running``, ``instance``, or the name of
    a container) and a name.
    """

    name: str | int | None
    classes: tuple[LineOfCode, ...]
    function: tuple[str, int, str] | None
    stored: tuple[str, str]
    running: bool = False
    itself: bool = False
    frame: bool = False


class Origin(NamedTuple):
    """The facts that decide who made a cycle.

    ``near`` are lines of the project, innermost first, that allocated what the cycle kept. ``runs_project`` is whether
    a function of the project is part of it, ``library`` the name of a library of which functions are, or instances of
    classes other than tensors, modules and containers; empty without.
    """

    links: tuple[Link, ...] = ()
    near: tuple[tuple[str, int], ...] = ()
    runs_project: bool = False
    library: str = ""

    @property
    def is_project(self) -> bool:
        """Whether its parts say that the project made it: its functions are part of it, or it connected plain
        objects.
        """
        return self.runs_project or not self.library


class KeptTensor(NamedTuple):
    """A storage that a cycle kept: bytes, device and address, and its first tensor.

    ``name`` is its path from the cycle (``layer.0.weight``); empty beyond the first few. ``stack`` are the calls that
    allocated it, where a recorder knows, and ``allocated`` is the line among them that is the project's.
    """

    name: str
    shape: str
    bytes: int
    device: str
    address: int
    stack: Stack | None = None

    @property
    def allocated(self) -> str | None:
        """The line that allocated it; ``None`` if unknown."""
        return None if self.stack is None else self.stack.line

    def __str__(self) -> str:
        return f"{self.name} {self.shape}".strip()


@dataclass(frozen=True, slots=True)
class Cycle(InNotebook):
    """One cycle, and what it kept from being freed.

    ``chain`` are the pieces of the shortest cycle through or towards its largest tensor, the last as the first; empty
    where the cycle runs through C++. ``signature`` is the same for the same fault: types and labels of edges, no
    positions; ``plain`` is whether it names builtin containers alone. ``project`` is whether the project made it rather
    than a library, ``harness`` the part of the test harness in it. ``closed_by`` is the line of source that closes it.
    ``count`` is how many such cycles were found, ``estimated`` where that follows from blocks which do not agree on it;
    ``tensors`` is what all of them kept. ``tied`` is what no weak reference breaks in it.
    """

    chain: tuple[str, ...]
    tensors: tuple[KeptTensor, ...]
    signature: str
    project: bool = False
    harness: Remark | None = None
    closed_by: str | None = None
    hanging: int = 0
    count: int = 1
    diagram: Diagram | None = field(default=None, compare=False, repr=False)
    plain: bool = False
    origin: Origin = field(default=Origin(), compare=False, repr=False)
    estimated: bool = False
    tied: Tied | None = None

    @property
    def bytes(self) -> int:
        """Bytes that it kept, on all devices."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices on which it kept something."""
        return tuple(dict.fromkeys(tensor.device for tensor in self.tensors))

    def on(self, device: str) -> Cycle:
        """The same cycle with what it kept on one device."""
        return replace(self, tensors=tuple(tensor for tensor in self.tensors if tensor.device == device))

    @property
    def lines(self) -> tuple[str, ...]:
        """The chain and what it kept: the part that stays the same while lines of source move."""
        return (*_wording().chain_lines(self.chain), self.keeps)

    @property
    def keeps(self) -> str:
        """``keeps 48.0 MiB in 12 tensors: layer.0.weight float32[1024, 1024], ...``."""
        return str(_wording().keeps(self._named, len(self.tensors), self.bytes))

    @property
    def text(self) -> str:
        """At most ten lines: the chain, what it keeps, where that was allocated, what closes it."""
        return "\n".join(_wording().cycle_lines(self.fact, self.bytes))

    @property
    def fact(self) -> CycleKept:
        """The fact for a finding."""
        from cudamem_testing.model.facts import CycleKept

        kept = len(self.tensors), self._places()
        closed = self.closed_by, self.hanging
        said = CycleKept(self.chain, self._named, *kept, *closed, times=self.count, estimated=self.estimated)
        return said if self.tied is None else replace(said, tied=self.tied)

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str, self.tensors[:NAMED])))

    def _places(self) -> tuple[KeptBy, ...]:
        """The first lines that allocated, each with the names of its tensors as far as they are known."""
        from cudamem_testing.model.facts import KeptBy

        places: dict[str, list[str]] = {}
        for tensor in self.tensors:
            if tensor.allocated:
                names = places.setdefault(tensor.allocated, [])
                names += [tensor.name] if tensor.name else []
        return tuple(KeptBy(line, tuple(dict.fromkeys(names))) for line, names in [*places.items()][:PLACES])

    def dot(self) -> str:
        """The objects of the cycle and what leads to its tensors, for Graphviz."""
        return self._drawn.dot()

    def html(self) -> str:
        """The same as a page that needs no network."""
        return self._drawn.html()

    @property
    def _drawn(self) -> Diagram:
        from cudamem_testing.show.diagrams import Diagram

        return self.diagram or Diagram()

    def __str__(self) -> str:
        return self.text


def _wording() -> ModuleType:
    """What makes text of a cycle: few runs find one."""
    from cudamem_testing.wording import cycles

    return cycles


def merged(cycles: list[Cycle]) -> list[Cycle]:
    """Cycles of one signature as one, the largest first."""
    groups: dict[str, list[Cycle]] = {}
    for cycle in cycles:
        groups.setdefault(cycle.signature, []).append(cycle)
    found = []
    for group in groups.values():
        largest = max(group, key=lambda one: one.bytes / one.count)
        rest = [tensor for one in group if one is not largest for tensor in one.tensors]
        found.append(
            replace(
                largest,
                tensors=(*largest.tensors, *rest),
                count=sum(one.count for one in group),
                estimated=any(one.estimated for one in group),
            )
            if len(group) > 1
            else largest
        )
    return sorted(found, key=lambda one: -one.bytes)
