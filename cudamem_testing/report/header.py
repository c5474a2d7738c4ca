"""The header line. It is printed before collection, and does not import torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os

from cudamem_testing import torch_api
from cudamem_testing.model.settings import Settings
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.recorders.cards import visible_names
from cudamem_testing.recorders.identity import allocator_settings
from cudamem_testing.safe_access import type_name

BACKEND = "backend:cudaMallocAsync"  # counts bytes, and does not show single blocks


def header(settings: Settings) -> str:
    """The line, or why there is none: names of cards are no reason to stop."""
    try:
        return _described(settings)
    except Exception as error:
        return f"cudamem: this machine cannot be described: {type_name(error)}: {error}"


def _described(settings: Settings) -> str:
    """``cudamem: device auto, torch 2.13.0, NVIDIA H100``: the device, what else was asked for, and where it runs."""
    measured = str(settings.device) if settings.simulated is None else str(settings.simulated)
    parts = [f"device {measured}"]
    if settings.audit:
        parts.append("audit")
    if settings.budget is not None:
        parts.append(f"budget {settings.budget}")
    if settings.leaks != "fail":
        parts.append(f"leaks {settings.leaks}")
    if settings.cycles is not None:
        parts.append(f"cycles {settings.cycles}")
    if settings.ignore_below is not None:
        parts.append(f"ignore below {format_size(settings.ignore_below)}")
    if settings.ignore:
        parts.append(f"ignore {count(len(settings.ignore), 'rule')}")
    if settings.first_use != "fail":
        parts.append(f"first use {settings.first_use}")
    if settings.baseline != "compare":
        parts.append(f"baseline {settings.baseline}")
    if settings.repeat > 1:
        parts.append(f"repeat {settings.repeat}")
    if not settings.stacks:
        parts.append("stacks off")
    if settings.gpus:
        parts.append("a card for each worker")
    if settings.dump is not None:
        parts.append(f"dump {settings.dump.name}")
    parts += [f"{one} (leaks are looked for among objects)" for one in allocator_settings(os.environ) if BACKEND in one]
    version = torch_api.version()
    parts.append("torch is not installed" if version is None else f"torch {version}")
    if settings.simulated is None:
        parts += dict.fromkeys(visible_names())
    return "cudamem: " + ", ".join(parts)
