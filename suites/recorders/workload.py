"""One training step whose profile is compared with and without a recorder around it."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from suites.versions import OLDER_TORCH

Events = list[tuple[str, int, tuple[tuple[int, ...], ...]]]


def step() -> torch.Tensor:
    """Forward, backward and an update of a small network."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    loss = model(torch.ones(4, 32)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad  # type: ignore[operator]
    return loss.detach()


def profiled() -> Events:
    """Name, own memory and shapes of every operator, in order, as the user's own profiler saw them.

    Older ones give memory to operators by rounded times, so that it varies: there the changes of memory stand
    for themselves.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as result:
        step()
    events = result.events()
    assert events is not None
    found = [
        (event.name, event.self_cpu_memory_usage, tuple(map(tuple, event.input_shapes)))
        for event in sorted(events, key=lambda event: (event.thread, event.time_range.start, -event.time_range.end))
    ]
    if not OLDER_TORCH:
        return found
    kineto = result.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [("[memory]", event.nbytes(), ()) for event in kineto if event.name() == "[memory]"]
    return [(name, 0, shapes) for name, _, shapes in found if name != "[memory]"] + changes
