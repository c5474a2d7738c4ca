"""The operator memories of one test, as the fixture ``operator_memory`` makes them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.entered import HandedOut
from cudamem_testing.operators.recording import OperatorMemory
from cudamem_testing.show.usage import hide_wrong_arguments

if TYPE_CHECKING:
    from cudamem_testing.run.session import Session

__tracebackhide__ = hide_wrong_arguments
CHECK = ".assert_by_module(), or another assert_ method,"


class OperatorMemories:
    """Makes those of one test."""

    def __init__(self) -> None:
        self.handed_out: HandedOut[OperatorMemory] = HandedOut("operator_memory(...)", CHECK)

    def record(self, *args: Any, **kwargs: Any) -> OperatorMemory:
        """Make a block; the arguments are those of ``OperatorMemory``."""
        unknown = sorted({*kwargs} - {"model", "device", "say"})
        if unknown:
            raise TypeError(f"operator_memory() has no argument {', '.join(unknown)}: it takes model, device")
        return self.handed_out.add(OperatorMemory(*args, **kwargs))


def exhibit_operators(session: Session | None, memories: Sequence[OperatorMemory]) -> None:
    """Show the tables of a failed test in its report."""
    if session is not None and session.evidence.curves is not None:
        for memory in memories:
            session.evidence.curves.exhibit(session.running, "Operators", memory.summary)
            session.evidence.curves.exhibit(session.running, "Modules", partial(memory.by_module, 3))
