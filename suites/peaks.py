"""The peak of five models by category, beside what the recorder measured: ``python -m suites.peaks [DEVICE] [FOLDER]``.

Each model runs forward, through a training step, and through one under autocast with checkpoints, each time after one
step that makes gradients and optimizer state. Prints the table of ``docs/categories.md``; with a folder it draws the
timelines into it as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint_sequential

from cudamem_testing.model.sizes import format_size
from cudamem_testing.recorders.choose import Recorders
from cudamem_testing.show.tables import Column, Table
from cudamem_testing.trace.profile import MemoryProfile
from cudamem_testing.windows.tracker import Tracker
from fixtures import models

MODES = ("forward", "step", "autocast, checkpoints")
Loss = Callable[[Any, bool], torch.Tensor]


def _classified(model: Any, x: torch.Tensor, checkpoints: bool) -> torch.Tensor:
    y = checkpoint_sequential(model, 2, x, use_reentrant=False) if checkpoints else model(x)
    return torch.nn.functional.cross_entropy(y.float(), torch.zeros(len(x), dtype=torch.long, device=x.device))


def _language(model: Any, ids: torch.Tensor, checkpoints: bool) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def _pictures(model: Any, x: torch.Tensor, checkpoints: bool) -> torch.Tensor:
    labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
    loss: torch.Tensor = model(pixel_values=x, labels=labels).loss
    return loss


MODELS: dict[str, tuple[Callable[[], Any], Callable[[str], torch.Tensor], Callable[[Any, Any, bool], torch.Tensor]]] = {
    "MLP": (models.perceptron, lambda device: torch.randn(512, 256, device=device), _classified),
    "convolutional": (models.convolutional, lambda device: models.images(16, device), _classified),
    "GPT-2": (models.gpt2, lambda device: models.tokens(4, 128, device), _language),
    "Llama": (models.llama, lambda device: models.tokens(4, 128, device), _language),
    "ViT": (models.vit, lambda device: models.images(8, device), _pictures),
}


@contextmanager
def tracking(device: str) -> Iterator[Tracker]:
    """The recorder of a device, with its events."""
    recorders = Recorders(device, record=True)
    opened = recorders.open()
    for recorder in opened:
        recorder.wake(limited=True)
    try:
        yield Tracker(opened)
    finally:
        recorders.close()


def profiled(tracker: Tracker, name: str, mode: str, device: str) -> MemoryProfile:
    """One mode of one model."""
    torch.manual_seed(0)
    make, batch, loss_of = MODELS[name]
    model = make().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    x = batch(device)
    saving = mode == MODES[2]
    kind = device.partition(":")[0]

    def run(profile: MemoryProfile) -> None:
        checkpoints = models.checkpointed(model) if saving and name in ("GPT-2", "Llama", "ViT") else nullcontext()
        with profile.region("forward"), checkpoints, torch.autocast(kind, torch.bfloat16, enabled=saving):
            loss = loss_of(model, x, saving)
        if mode != MODES[0]:
            with profile.region("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    run(MemoryProfile())
    with MemoryProfile(tracker=tracker) as profile:
        run(profile)
    return profile


def table(device: str, folder: Path | None = None) -> Table:
    """A row for each model and mode."""
    rows = []
    with tracking(device) as tracker:
        for name in MODELS:
            for mode in MODES:
                profile = profiled(tracker, name, mode, device)
                peak = profile.peak(device)
                parts = ", ".join(f"{part.name} {format_size(part.nbytes)}" for part in peak.by_category[:3])
                apart = "" if peak.measured is None else str(peak.total - peak.measured)
                measured = "" if peak.measured is None else str(peak.measured)
                rows.append((name, mode, str(peak.total), measured, apart, parts))
                if folder is not None:
                    profile.timeline().plot(folder / f"{name}-{mode.split(',')[0]}.png", device, f"{name}, {mode}")
    numbers = (Column(title, "right") for title in ("timeline's maximum", "recorder's peak", "difference"))
    return Table((Column("model"), Column("run"), *numbers, Column("largest categories at the peak")), tuple(rows))


if __name__ == "__main__":
    print(
        table(sys.argv[1] if len(sys.argv) > 1 else "cpu", Path(sys.argv[2]) if len(sys.argv) > 2 else None).markdown()
    )
