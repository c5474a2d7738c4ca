"""Settings of torch that code changes for a while and must restore: modes, hooks, autocast, the current card.

Importing this module imports torch. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as modules

_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


class Setting(NamedTuple):
    """One setting: its name, its value, and what sets a value; ``None`` if nothing can."""

    name: str
    value: object
    restore: Callable[[Any], object] | None = None


def settings() -> list[Setting]:
    """The settings of this thread and of the process."""
    return [*_autograd(), *_autocast(), *_defaults(), *_modes(), *_cards()]


def drain_backward_queue() -> None:
    """Run a tiny backward pass: it drops what a failed one left in this thread's queue of autograd's engine.

    The queue holds the nodes that were ready, with the tensors that they saved, until the next pass on the thread.
    """
    if torch.is_inference_mode_enabled():
        return
    with torch.enable_grad():
        torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


def _autograd() -> Iterator[Setting]:
    yield Setting("grad mode", torch.is_grad_enabled(), torch.set_grad_enabled)
    yield Setting("inference mode", torch.is_inference_mode_enabled())
    yield Setting("anomaly mode", torch.is_anomaly_enabled(), torch.set_anomaly_enabled)
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is not None:
        found = top(True)
        pop = torch._C._autograd._pop_saved_tensors_default_hooks
        yield Setting(
            "saved tensor hooks", "set" if found else "none", lambda value: pop() if value == "none" else None
        )
    yield Setting("number of hooks of all modules", sum(len(getattr(modules, name, ())) for name in _GLOBAL_HOOKS))


def _autocast() -> Iterator[Setting]:
    for kind in ("cpu", "cuda"):
        yield Setting(f"autocast on {kind}", torch.is_autocast_enabled(kind), partial(torch.set_autocast_enabled, kind))
        dtype = torch.get_autocast_dtype(kind)
        yield Setting(f"autocast dtype on {kind}", dtype, partial(torch.set_autocast_dtype, kind))
    yield Setting("autocast cache", torch.is_autocast_cache_enabled(), torch.set_autocast_cache_enabled)


def _defaults() -> Iterator[Setting]:
    yield Setting("default dtype", torch.get_default_dtype(), torch.set_default_dtype)
    yield Setting("deterministic algorithms", torch.are_deterministic_algorithms_enabled())
    yield Setting("threads", torch.get_num_threads(), torch.set_num_threads)


def _modes() -> Iterator[Setting]:
    for kind in ("function", "dispatch"):
        length = getattr(torch._C, f"_len_torch_{kind}_stack", None)
        if length is not None:
            yield Setting(f"torch {kind} modes", length())


def _cards() -> Iterator[Setting]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    yield Setting("current card", torch.cuda.current_device(), torch.cuda.set_device)
    for index in range(torch.cuda.device_count()):
        stream = torch.cuda.current_stream(index)
        yield Setting(f"current stream of cuda:{index}", stream, torch.cuda.set_stream)
