"""Has every CPU storage follow the recorder from the import of torch on.

A storage keeps the allocator that was in place when it was made, and whoever resizes it later takes memory from that
one (`out=`, `resize_`, the storages that sharded modules resize). A recorder that came after it would see nothing of
this. So where every test is accounted for, the recorder is put in place as soon as torch is there, before modules are
collected that make tensors. It only counts until the devices are chosen and tests run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing import torch_api
from cudamem_testing.guards.imports import AfterImport
from cudamem_testing.recorders.build import RecorderUnavailable


class EarlyRecorder:
    """The CPU recorder in place, at once where torch is imported already, else right after its import."""

    def __init__(self) -> None:
        self.said: list[str] = []
        """What takes seconds, one line each."""
        self._undo = _nothing
        self._after = AfterImport("torch", self._install)

    def start(self) -> None:
        """Begin. Where it cannot be had, whoever opens the recorders says why."""
        if torch_api.imported():
            self._install()
        else:
            self._after.start()

    def close(self) -> None:
        """Take it out, unless it was in place before; closing again does nothing."""
        self._after.stop()
        undo, self._undo = self._undo, _nothing
        undo()

    def _install(self) -> None:
        from cudamem_testing.recorders.native import NativeRecorder

        try:
            native = NativeRecorder.load(self.said.append)
            if not native.is_installed():
                self._undo = native.uninstall  # before: an interrupt may come between any two steps
                native.install()
        except RecorderUnavailable:
            self._undo = _nothing


def _nothing() -> None:
    pass
