"""The identity of a device: what its numbers depend on, as one line of text.

``NVIDIA H100 80GB HBM3 (9.0), torch 2.11, native`` or ``x86_64, 1 thread, torch 2.13``: parts with ``, `` between them,
so two lines can be compared part by part. Numbers of different identities are not compared, unless they differ only in
the number of threads, on which most tests do not depend.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import platform
import re

from cudamem_testing import torch_api
from cudamem_testing.model.devices import Device
from cudamem_testing.model.simulated_cards import CARDS
from cudamem_testing.model.sizes import count
from cudamem_testing.torch_api.process import torch

_THREADS = r"\d+ threads?"
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def identity(device: Device) -> str | None:
    """The identity of a device; ``None`` for a card that was not used yet, and for pinned host memory."""
    if device.kind == "cpu":
        return f"{platform.machine()}, {count(torch.get_num_threads(), 'thread')}, torch {_version()}"
    if device.pseudo:
        return None
    if not device.is_card:
        if not torch_api.accelerator_started():
            return None
        name = torch_api.accelerator_name(device.kind, device.index or 0)
        return ", ".join((name, f"torch {_version()}", *allocator_settings(os.environ)))
    if not torch_api.cuda_initialized():
        return None
    card = torch.cuda.get_device_properties(device.index or 0)
    allocator = " ".join((torch_api.allocator_backend(), *allocator_settings(os.environ)))
    simulated = torch_api.simulated_cards()
    name = simulated[device.index or 0] if simulated else card.name
    return f"{name} ({card.major}.{card.minor}), torch {_version()}, {allocator}"


def _version() -> str:
    return ".".join((torch_api.version() or "?").split(".")[:2])


def allocator_settings(environ: os._Environ[str] | dict[str, str]) -> list[str]:
    """The allocator settings in the environment, normalised."""
    for name in SETTINGS:
        written = "".join(environ.get(name, "").split())
        if written:
            return [written]
    return []


def without_threads(identity: str) -> str:
    """The identity without its number of threads."""
    return ", ".join(part for part in identity.split(", ") if not re.fullmatch(_THREADS, part))


def is_real_card_of(real: str, simulated: str) -> bool:
    """Whether the first is the identity of a card of the model that the second simulates, with the same allocator.

    Their versions of torch may differ.
    """
    prefix, found = "simulated ", simulated.split(", ")
    model = CARDS.get(found[0].removeprefix(prefix).partition(" ")[0])
    if not simulated.startswith(prefix) or model is None:
        return False
    major, minor = model.capability
    parts = real.split(", ")
    return parts[0] == f"{model.name} ({major}.{minor})" and parts[2:] == found[2:]


def recorded_with(before: str, after: str) -> str:
    """``recorded with torch 2.11, this run has torch 2.13``: how a run differs from what was recorded."""
    return "recorded with {}, this run has {}".format(*apart(before, after))


def apart(before: str, after: str) -> tuple[str, str]:
    """The parts of two identities that differ."""
    old, new = before.split(", "), after.split(", ")
    if len(old) == len(new):
        pairs = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
        old, new = [one for one, _ in pairs], [other for _, other in pairs]
    return ", ".join(old), ", ".join(new)


def difference(before: str, after: str) -> str:
    """How two identities differ: ``torch 2.11 to 2.13``; empty if they are equal."""
    old, new = before.split(", "), after.split(", ")
    if len(old) != len(new):
        return f"{before} to {after}" if before != after else ""
    return ", ".join(_to(one, other) for one, other in zip(old, new, strict=True) if one != other)


def _to(before: str, after: str) -> str:
    first, _, rest = before.partition(" ")
    other, _, new = after.partition(" ")
    return f"{first} {rest} to {new}" if rest and new and first == other else f"{before} to {after}"
