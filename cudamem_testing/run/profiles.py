"""The profiles of one test, as the fixture ``memory_profile`` makes them. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.entered import HandedOut
from cudamem_testing.run.recording import recording
from cudamem_testing.safe_access import type_name
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.profile import MemoryProfile

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.run.session import Session
    from cudamem_testing.windows.tracker import Tracker

__tracebackhide__ = hide_wrong_arguments
CHECK = ".assert_categories(), or another assert_ method,"


class Profiles:
    """Makes the profiles of one test; ``explains`` is whether a limit uses them without the test reading them.

    Enter ``leaving`` around the test: it closes the recorders of a test that is not measured.
    """

    def __init__(self, session: Session | None, device: str | Device, root: str, *, explains: bool) -> None:
        self._trackers: list[Tracker] = [] if session is None else [session.tracker]
        self._device, self._root = device, root
        self._measured, self._explains = session is not None, explains
        self.leaving = ExitStack()
        made = None if session is None else session.evidence.profiles
        self.handed_out: HandedOut[MemoryProfile] = HandedOut("memory_profile(...)", CHECK, made)

    def record(self, function: Callable[..., object] | None = None, /, *args: Any, **kwargs: Any) -> MemoryProfile:
        """Record a call, or make a block whose options are the arguments."""
        options = kwargs if function is None else {}
        unknown = sorted({*options} - {"collect", "dispatched"})
        if unknown:
            raise TypeError(
                f"memory_profile() as a block has no argument {', '.join(unknown)}: it takes collect, dispatched; name "
                f"tensors in the block with p.name({unknown[0]}=...), or give a function: memory_profile(step, ...)"
            )
        if function is not None and not callable(function):
            raise TypeError(
                f"memory_profile() records a function, or a block without one: {type_name(function)} is not callable"
            )
        if not self._trackers:
            self._trackers.append(self.leaving.enter_context(recording(self._device)))
        profile = MemoryProfile(tracker=self._trackers[0], root=self._root, compared=self._measured, **options)
        self.handed_out.add(profile, must_be_read=not self._explains)
        return profile if function is None else profile(function, *args, **kwargs)
