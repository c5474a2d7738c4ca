"""Names of cards, from NVML alone: asking CUDA would initialise it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os

from cudamem_testing.model.devices import Device


def name(device: Device) -> str | None:
    """The card's name; ``None`` without the optional NVML bindings, or when the visible cards are not plain indices."""
    names = visible_names() if device.kind == "cuda" else ()
    index = device.index or 0
    return names[index] if index < len(names) else None


def visible_names() -> tuple[str, ...]:
    """Names of the visible cards in CUDA's order; empty when NVML is not there or cannot tell which are visible."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        names = [_text(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(place))) for place in range(count)]
        pynvml.nvmlShutdown()
    except (pynvml.NVMLError, OSError):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(names)
    chosen = []
    for part in visible.split(","):
        if not part.strip().isdecimal() or int(part) >= count:
            return ()
        chosen.append(names[int(part)])
    return tuple(chosen)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
