"""The header line. It is printed before collection: torch may not be imported yet, and is not for its sake.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing import torch_api
from cudamem_testing.plugin.settings import Settings
from cudamem_testing.recorders.cards import visible_names


def header(settings: Settings) -> str:
    """``cudamem: device auto, budget peak=2GiB, torch 2.13.0, NVIDIA H100``."""
    parts = [f"device {settings.device}"]
    if settings.budget is not None:
        parts.append(f"budget {settings.budget}")
    if not settings.stacks:
        parts.append("stacks off")
    version = torch_api.version()
    parts.append("torch is not installed" if version is None else f"torch {version}")
    parts += dict.fromkeys(visible_names())
    return "cudamem: " + ", ".join(parts)
