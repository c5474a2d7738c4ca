"""Which allocation is made to fail, and which one did. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.model.sizes import count, format_size, parse_size

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding

_LINE = re.compile(r"(.+):(\d+)")
EXAMPLES = 'above="1GiB", nth=5 or at="model.py:88"'


@dataclass(frozen=True, slots=True)
class Wanted:
    """The allocations that fail: those of more than ``above`` bytes, made ``at`` a line (file and number).

    The ``nth`` of them fails, counted from 1; each one if it is ``None``. Without any condition none does.
    """

    above: int | None = None
    nth: int | None = None
    at: tuple[str, int] | None = None

    @classmethod
    def parse(cls, above: object = None, nth: object = None, at: object = None) -> Wanted:
        """Read what a user wrote. A line without ``nth`` means the first allocation there.

        Raises:
            ValueError: for no condition, and a wrong one.
        """
        if above is None and nth is None and at is None:
            raise ValueError(f"which allocation shall fail? Write {EXAMPLES}, or several of them")
        size = None if above is None else parse_size(above)
        if nth is not None and (type(nth) is not int or nth < 1):
            raise ValueError(f"nth={nth!r}: write a whole number from 1")
        line = None
        if at is not None:
            found = _LINE.fullmatch(at) if isinstance(at, str) else None
            if found is None:
                raise ValueError(f'at={at!r}: write a file and a line, such as at="model.py:88"')
            line = found[1], int(found[2])
        return cls(size, 1 if nth is None and line is not None else nth, line)

    def __str__(self) -> str:
        parts = [] if self.above is None else [f"of more than {format_size(self.above)}"]
        parts += [] if self.at is None else [f"at {self.at[0]}:{self.at[1]}"]
        which = "each allocation" if self.nth is None else f"allocation {self.nth}"
        return " ".join((which, *parts))


class Trapped(NamedTuple):
    """What a trap met: ``requests`` so far, how many ``failed``, the ``number`` and ``size`` of the last of these.

    ``made`` is how many allocations had succeeded until then.
    """

    requests: int = 0
    failed: int = 0
    number: int = 0
    size: int = 0
    made: int = 0


@dataclass(frozen=True, slots=True)
class Sweep:
    """A step in which allocations failed, one in each run.

    ``allocations`` is how many the step makes, ``tried`` how many of them failed once, ``places`` and ``places_tried``
    the number of distinct stacks among both. ``findings`` are the places that did not recover. ``seconds`` is the wall
    time of all runs; ``notes`` say what was not tried.
    """

    device: Device
    allocations: int
    tried: int
    places: int
    places_tried: int
    seconds: float
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def coverage(self) -> str:
        """``all 34 allocations tried in 1.2 s``, or how many of them, with their places."""
        if self.tried == self.allocations:
            return f"all {count(self.tried, 'allocation')} tried in {self.seconds:.1f} s"
        places = f"{self.places_tried} of {count(self.places, 'place')}"
        return f"{self.tried} of {self.allocations} allocations at {places} tried in {self.seconds:.1f} s"

    def __str__(self) -> str:
        end = "the step recovers from each" if not self.findings else f"{len(self.findings)} places do not recover"
        return "\n".join((f"{self.coverage} ({self.device}): {end}", *(f"note: {note}" for note in self.notes)))
