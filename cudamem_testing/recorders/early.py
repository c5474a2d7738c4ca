"""Installs the CPU recorder at the import of torch, so that it follows every CPU storage.

A storage keeps the allocator that was installed when it was created, and a later resize takes memory from that
one (`out=`, `resize_`, the storages that sharded modules resize). A recorder installed later would not see
this. So if every test is measured, the recorder is installed as soon as torch is imported, before test modules that
create tensors are collected. It only counts until the devices are chosen and tests run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing import torch_api
from cudamem_testing.guards.imports import WholeImport
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.native import NativeRecorder


class EarlyRecorder:
    """Installs the CPU recorder: at once if torch is already imported, else right after its import."""

    def __init__(self) -> None:
        self.said: list[str] = []
        """Lines about steps that take seconds."""
        self._undo = _nothing
        self._import = WholeImport("torch", self._install)

    def start(self) -> None:
        """Start. If it is not available, opening the recorders later reports why."""
        if torch_api.imported():
            self._install()
        else:
            self._import.start()

    def close(self) -> None:
        """Remove it, unless it was installed before; closing again does nothing."""
        self._import.stop()
        undo, self._undo = self._undo, _nothing
        undo()

    def _install(self) -> None:
        try:
            native = NativeRecorder.load(self.said.append)
            if not native.is_installed():
                self._undo = native.uninstall  # before: an interrupt may come between any two steps
                native.install()
        except RecorderUnavailable:
            self._undo = _nothing


def _nothing() -> None:
    pass
