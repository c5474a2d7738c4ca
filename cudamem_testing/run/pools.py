"""The pool check: finds private pools that a test's captures leave behind for good.

A CUDA graph allocates from a pool of its own. A capture that fails leaves it reserved, and no counter of allocated
bytes shows that. Only a test that began a capture is examined: its garbage is collected and cached segments are
returned to the driver, so what is then reserved for a pool belongs to a graph, or is lost. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudamem_testing import torch_api
from cudamem_testing.guards import collect_garbage
from cudamem_testing.recorders.captures import Captures

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.model.pools import Pool
    from cudamem_testing.run.evidence import Evidence
    from cudamem_testing.windows.tracker import Tracker


class PoolCheck:
    """Notices captures from its making to ``close``, and judges the tests that made some."""

    def __init__(self, tracker: Tracker, evidence: Evidence) -> None:
        self._tracker, self._evidence = tracker, evidence
        self._captures = Captures()
        self._known: set[tuple[Device, Pool]] = set()

    def judge(self, nodeid: str, leaked: Sequence[Finding] = ()) -> list[Finding]:
        """Findings of leaks, and a warning for each pool that is new, reserved and empty at the end of a test that
        captured. What a graph keeps besides such a pool is no separate finding: it is freed with the graph.
        """
        if not self._captures.begun or torch_api.capturing():  # a capture that the test left open allows no collection
            return [*leaked]
        from cudamem_testing.verdicts.pools import judged  # few tests capture

        self._captures.begun = False
        collect_garbage()
        torch_api.empty_cache()
        found = [*leaked]
        for recorder in self._tracker.recorders:
            if not recorder.has_pools:
                continue
            self._tracker.read(recorder)  # what is reserved now
            capture = recorder.capture()
            if capture is not None:
                recording = self._evidence.recording(capture)
                found = judged(found, recording, nodeid, self._known, torch_api.compiler_pools())
        return found

    def close(self) -> None:
        """Notice no more captures."""
        self._captures.close()
