"""Tests as users write them, of models with few elements: what an operator costs beside its kernel shows in these.

Each is a function of the device, and does all that such a test does: it makes the model, trains it, compares.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def train(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int = 3) -> None:
    """Some steps with Adam; the loss is a number afterwards."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
    assert torch.isfinite(found).item()


def perceptron(device: str) -> None:
    """Two linear layers are trained on numbers."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)).to(device)
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 1, device=device)
    train(model, lambda: nn.functional.mse_loss(model(x), y))


def convolutions(device: str) -> None:
    """A convolutional network is trained on classes."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).to(device)
    x, y = torch.randn(4, 3, 16, 16, device=device), torch.randint(10, (4,), device=device)
    train(model, lambda: nn.functional.cross_entropy(model(x), y))


def lstm(device: str) -> None:
    """A recurrent layer is trained on sequences."""
    layer, out = nn.LSTM(8, 16, batch_first=True).to(device), nn.Linear(16, 2).to(device)
    x, y = torch.randn(4, 5, 8, device=device), torch.randint(2, (4,), device=device)
    train(nn.ModuleList([layer, out]), lambda: nn.functional.cross_entropy(out(layer(x)[0][:, -1]), y))


def transformer(device: str) -> None:
    """An encoder with attention is trained, then evaluated."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    x = torch.randn(2, 6, 16, device=device)
    train(model, lambda: model(x).square().mean())
    model.eval()
    with torch.no_grad():
        assert model(x).shape == x.shape


def words(device: str) -> None:
    """An embedding and a classifier are trained on words."""
    embed, out = nn.Embedding(50, 16).to(device), nn.Linear(16, 50).to(device)
    ids = torch.randint(50, (4, 7), device=device)
    train(
        nn.ModuleList([embed, out]),
        lambda: nn.functional.cross_entropy(out(embed(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten()),
    )


def functions(device: str) -> None:
    """A function of own making has the values and the gradient of torch's."""
    x = torch.linspace(-3, 3, 32, device=device, requires_grad=True)
    for _ in range(5):
        own = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        torch.testing.assert_close(own, nn.functional.gelu(x, approximate="tanh"))
        (gradient,) = torch.autograd.grad(own.sum(), x)
        assert gradient.shape == x.shape
        scaled = (own - own.mean()) / (own.var() + 1e-5).sqrt()
        assert abs(scaled.mean().item()) < 1e-5


def tensors(device: str) -> None:
    """Tensors are made, indexed, joined, compared and printed."""
    x = torch.arange(12.0, device=device).view(3, 4)
    for _ in range(5):
        assert torch.equal(x[1], torch.tensor([4.0, 5.0, 6.0, 7.0], device=device))
        assert x[x > 5].sum().item() == 51
        assert torch.cat([x, torch.zeros(1, 4, device=device)]).shape == (4, 4)
        assert torch.stack([x[0], x[2]])[:, 1].tolist() == [1.0, 9.0]
        assert x[:, [0, 2]].max().item() == 10
        torch.testing.assert_close(x.t() @ x, (x.T @ x).clone())
        values, order = x.flatten().sort(descending=True)
        assert values[0] == 11
        assert order[0] == 11
    assert "11." in repr(x)


TESTS: dict[str, Callable[[str], None]] = {
    "perceptron with Adam": perceptron,
    "small convolutions": convolutions,
    "small LSTM": lstm,
    "small transformer": transformer,
    "embedding, cross entropy": words,
    "own functions": functions,
    "tensors": tensors,
}
