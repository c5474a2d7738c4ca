"""The CPU recorder alone with a test: what a session around it notes is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cudamem_testing.recorders.native import NativeRecorder


@contextmanager
def in_place() -> Iterator[NativeRecorder]:
    """The recorder in its place, noting nothing and without events; everything is as it was found afterwards."""
    native = NativeRecorder.load()
    was_installed = native.is_installed()
    native.install()
    recording = native.set_recording(stacks=False, events=False)
    events = native.events_capacity()
    native.restart_events(0)
    stop_codes = native.swap_stop_codes([])
    owner, limit = native.set_owner(0), native.set_limit(None)
    try:
        yield native
    finally:
        native.set_limit(limit)
        native.set_owner(owner)
        native.swap_stop_codes(stop_codes)
        native.restart_events(events)
        native.set_recording(stacks=recording.stacks, events=recording.events)
        native.trim_stacks()
        if was_installed:
            native.install()
        else:
            native.uninstall()
