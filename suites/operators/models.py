"""Small models of many kinds, each with a batch and a loss, and ways to train them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fixtures import models as transformers

Forward = Callable[[], torch.Tensor]


@dataclass
class Task:
    """A model, what it is called with, and its loss."""

    model: nn.Module
    batch: tuple[torch.Tensor, ...]
    loss: Callable[[Any], torch.Tensor] = lambda out: out.float().square().mean()

    def to(self, device: str) -> Task:
        """The task on a device; random tensors are made on the CPU, so they are the same everywhere."""
        return Task(self.model.to(device), tuple(one.to(device) for one in self.batch), self.loss)


class Recurrent(nn.Module):
    """A GRU over an embedding, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.head = nn.Embedding(50, 16), nn.GRU(16, 24, 2, batch_first=True), nn.Linear(24, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embed(ids))
        return self.head(states[:, -1])


class Residual(nn.Module):
    """Convolutions with batch norm around a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = functional.relu(x + self.body(x))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Hourglass(nn.Module):
    """Down and up again, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 2, stride=2)
        self.mix = nn.Conv2d(6, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.cat([self.up(functional.gelu(self.down(x))), x], dim=1))


class Experts(nn.Module):
    """Each row goes to one of four experts: indexing, and results written into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        best = torch.arange(len(x), device=x.device) % 4
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, (expert(x[rows]) * weights[rows, number, None]).to(out.dtype))
        return out


class Shared(nn.Module):
    """One layer under two names, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.first(x).tanh()).tanh())


class Attention(nn.Module):
    """Queries of one sequence over another, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attend(x, memory, memory, need_weights=False)[0])


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _language(model: nn.Module) -> Task:
    return Task(model, (transformers.tokens(2, 16),), lambda out: out.logits.float().square().mean())


TASKS: dict[str, Callable[[], Task]] = {
    "mlp": lambda: Task(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)), (torch.rand(6, 8),)
    ),
    "recurrent": lambda: Task(Recurrent(), (torch.randint(0, 50, (3, 7)),)),
    "residual": lambda: Task(Residual(), (torch.rand(2, 3, 16, 16),)),
    "hourglass": lambda: Task(Hourglass(), (torch.rand(2, 3, 16, 16),)),
    "experts": lambda: Task(Experts(), (torch.rand(12, 16),)),
    "shared": lambda: Task(Shared(), (torch.rand(5, 12),)),
    "attention": lambda: Task(Attention(), (torch.rand(2, 5, 16), torch.rand(2, 9, 16))),
    "encoder": lambda: Task(_encoder(), (torch.rand(2, 6, 16),)),
    "bag": lambda: Task(nn.EmbeddingBag(30, 8, mode="sum"), (torch.randint(0, 30, (4, 6)),)),
    "gpt2": lambda: _language(transformers.gpt2()),
    "llama": lambda: _language(transformers.llama()),
    "vit": lambda: Task(transformers.vit(), (transformers.images(2),), lambda out: out.logits.float().square().mean()),
}
IMAGES = ("residual", "hourglass", "vit")


def _channels_last(task: Task) -> Task:
    return Task(
        task.model.to(memory_format=torch.channels_last),
        tuple(one.to(memory_format=torch.channels_last) for one in task.batch),
        task.loss,
    )


def train(task: Task, way: str, device: str, steps: int = 2) -> Callable[[], None]:
    """Training steps in one of the ways ``plain``, ``autocast``, ``checkpoint``, ``reentrant``, ``foreach``, ``fused``
    or ``channels_last``; made ready, and begun by calling it.
    """
    if way == "channels_last":
        task = _channels_last(task)
    options: dict[str, Any] = {"foreach": way == "foreach"} if way != "fused" else {"fused": True}
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=0.01, **options)
    batch = task.batch
    if way == "reentrant":  # wants an input that needs a gradient
        batch = tuple(one.requires_grad_() if one.is_floating_point() else one for one in batch)

    def forward() -> torch.Tensor:
        if way in ("checkpoint", "reentrant"):
            return task.loss(checkpoint(task.model, *batch, use_reentrant=way == "reentrant"))
        return task.loss(task.model(*batch))

    def run() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16) if way == "autocast" else nullcontext():
                loss = forward()
            loss.backward()
            optimizer.step()

    return run
