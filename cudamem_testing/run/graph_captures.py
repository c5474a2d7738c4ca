"""The captures of one test, as the fixture ``graph_capture`` makes them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cudamem_testing.graphs.description import describe
from cudamem_testing.graphs.session import GraphCapture
from cudamem_testing.model.entered import add_new

if TYPE_CHECKING:
    from cudamem_testing.run.session import Session


class GraphCaptures:
    """Captures for one test; ``unavailable`` is called with the reason where none can be made."""

    def __init__(self, root: str, nodeid: str, *, unavailable: Callable[..., object]) -> None:
        self.graphs = GraphCapture(root=root, owner=nodeid, unavailable=unavailable)
        self.problems: list[str] = []

    def end(self) -> None:
        """Free the graphs; blocks that were never entered are ``problems``."""
        add_new(self.problems, self.graphs.blocks.problems)
        self.graphs.blocks.clear()
        self.graphs.close()

    def exhibit(self, session: Session | None) -> None:
        """Show the graphs of a failed test in its report."""
        if session is not None and session.evidence.curves is not None:
            for captured in self.graphs.captured:
                session.evidence.curves.exhibit(session.running, "Captured graph", partial(describe, captured))
