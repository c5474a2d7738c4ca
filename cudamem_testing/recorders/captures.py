"""Notices captures of CUDA graphs, and their streams, in any thread. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cudamem_testing import torch_api
from cudamem_testing.guards import replaced


class Captures:
    """Notices captures of ``torch.cuda.CUDAGraph`` from its creation to ``close``.

    The streams are stored on the replaced function, where :func:`~cudamem_testing.torch_api.capturing` finds them
    and where a nested session shares those of the first. A capture that C++ starts is
    not noticed.
    """

    def __init__(self) -> None:
        #: Whether a capture was started; the owner resets it.
        self.begun = False
        graph: Any = torch_api.graph_class()
        begin, end = graph.capture_begin, graph.capture_end
        streams: set[Any] = getattr(begin, torch_api.NOTICED, set())

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
            noticed()
            streams.add(torch_api.current_stream())
            begin(self, *args, **kwargs)

        def capture_end(self: Any) -> None:
            stream = torch_api.current_stream()
            try:
                end(self)
            finally:
                streams.discard(stream)  # torch refuses to end a capture on a different stream

        def noticed() -> None:
            self.begun = True

        capture_begin.__dict__[torch_api.NOTICED] = streams
        self._replaced = ExitStack()
        changes = [(graph, "capture_begin", capture_begin), (graph, "capture_end", capture_end)]
        self._replaced.enter_context(replaced(changes))

    def close(self) -> None:
        """Stop noticing captures."""
        self._replaced.close()
