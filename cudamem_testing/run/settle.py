"""Settling: fixed steps that free what is no leak before the rest is judged.

They run only when something is retained, in this order, and stop as soon as nothing is:

1. the frames of a failed test are cleared;
2. each device finishes its work, so that blocks that wait for a stream are free;
3. a collection of young garbage, and one of all garbage, unless a stream is capturing; that of all only while a block
   is left whose holder is not known to be more than garbage;
4. for blocks that no Python object holds, libraries release their workspaces, unless a live CUDA graph may use them,
   and CUDA memory that other processes have dropped is collected. If blocks have the sizes of workspaces and nothing
   else is left, this comes first.

What a step freed is shown: it is the evidence for the verdicts ``traceback`` and ``cycle``; what the second one freed
was not kept by anything. The fourth needs the holders, so it is where they are found (``library workspace``).
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import Verdict
from cudamem_testing.recorders.base import NOTHING, Owned

Left = Mapping[Device, Owned]


@dataclass(frozen=True, slots=True)
class SettlingStep:
    """One step: its name, what it does, and the verdict for what it frees (``None``: it was not kept).

    ``needed`` is asked when its turn comes: a step that cannot free what is left is passed over.
    """

    name: str
    action: Callable[[], object]
    verdict: Verdict | None = None
    needed: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class Freed:
    """What one step freed on one device, in bytes and blocks."""

    step: str
    verdict: Verdict | None
    device: Device
    owned: Owned


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the steps freed, and what is left."""

    freed: tuple[Freed, ...] = ()
    left: Left = field(default_factory=dict)


def settle(
    steps: Iterable[SettlingStep], left: Callable[[], Left], before: Callable[[SettlingStep], None] | None = None
) -> Settlement:
    """Run the steps until nothing is left.

    ``left`` returns what is retained on each device that has some. ``before`` is called before each step: it is
    the last moment at which what the step frees can be looked at.
    """
    freed: list[Freed] = []
    now = left()
    for step in steps:
        if not now:
            break
        if not step.needed():
            continue
        now = left()  # asking takes time: what went meanwhile, the step did not free
        if before is not None:
            before(step)
        step.action()
        after = left()
        for device, owned in now.items():
            rest = after.get(device, NOTHING)
            difference = owned.without(rest)
            if difference.bytes > 0 or difference.blocks > 0:
                freed.append(Freed(step.name, step.verdict, device, difference))
        now = after
    return Settlement(tuple(freed), now)
