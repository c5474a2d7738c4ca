"""The doctor: says what can be measured on this machine, and what to do about the rest. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudamem_testing import torch_api
from cudamem_testing.recorders import build
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.simulated import TRIED, unavailable
from cudamem_testing.simulated.native import LIBRARY

if TYPE_CHECKING:
    from cudamem_testing.recorders.base import Recorder


def _state(recorder: Recorder) -> str:
    state = recorder.incomplete or "measured completely"
    if recorder.device.pseudo or recorder.tells_blocks:
        return state
    if recorder.tells_storages:
        return f"{getattr(recorder, 'why_untold', None)}; leaks are looked for among objects"
    return f"{getattr(recorder, 'why_untold', None) or state}; leaks and cycles are not checked"


def _simulated() -> str:
    version = ".".join((torch_api.version() or "").split(".")[:2])
    text = "with --cudamem-device=simulated (docs/simulated.md)"
    return text if version in TRIED else f"{text}; tested with torch {', '.join(TRIED)}, not with {version}"


def examine() -> Table:
    """Try every recorder; builds the CPU recorder if it was never built. CUDA is not initialised."""
    rows = [("torch", torch_api.version() or "not installed: pip install torch")]
    if torch_api.version() is not None:
        torch_api.load()  # the recorders need it
        recorders = Recorders("all")
        try:
            opened = recorders.open()
            names = {name.partition(" ")[0]: name for name in recorders.environment.devices}
            for recorder in opened:
                device = str(recorder.device)
                rows.append((names.get(device, device), _state(recorder)))
            rows.append(("allocator", str(recorders.environment.allocator)))
            rows += [("note", note) for note in recorders.notes]
            if not torch_api.cuda_device_count():
                rows.append(("simulated card", unavailable() or build.obstacle(LIBRARY) or _simulated()))
        finally:
            recorders.close()
    return Table((Column("what"), Column("state")), tuple(rows))
