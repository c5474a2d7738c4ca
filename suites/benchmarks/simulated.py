"""``python -m suites.benchmarks.simulated``: how long a step of training takes on the simulated card.

First a step of GPT-2 XL by shapes alone, which may take 10 s. Then steps of smaller models with values, in turn on the
CPU and on the card, which may take 1.3 times as long: the median of pairs, in processor time, the first ones left out.
Then tests of models with few elements (``small_tests.py``) as pytest runs them (``whole_tests.py``), with the same
limit by the clock; and their functions alone, which have no limit. With ``--shapes`` only the first. Exit status 1 if
one takes longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from cudamem_testing import simulated_cuda
from suites.benchmarks.small_tests import TESTS
from suites.benchmarks.whole_tests import ratios

LARGEST_RATIO, LONGEST_S = 1.3, 10.0
ROUNDS, ROUNDS_OF_TESTS, FIRST = 21, 63, 2


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.ask(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


def gpt(device: str, layers: int, width: int, heads: int, words: int, tokens: int) -> Callable[[], None]:
    """A step of training GPT-2 of some size, with AdamW."""
    with torch.device(device):
        embed, places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        for table in (embed, places):  # as GPT-2: larger ones make gradients so small that processors take other ways
            nn.init.normal_(table.weight, std=0.02)
        blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        ids = torch.randint(words, (1, tokens))
        at = torch.arange(tokens)
    optimizer = torch.optim.AdamW([*embed.parameters(), *places.parameters(), *blocks.parameters()])

    def step() -> None:
        x = blocks(embed(ids) + places(at))
        nn.functional.cross_entropy((x @ embed.weight.T).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def layers(device: str) -> Callable[[], None]:
    """A step of a network of linear layers."""
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).to(device)
    x = torch.ones(128, 512, device=device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def convolutions(device: str) -> Callable[[], None]:
    """A step of a small convolutional network."""
    parts = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *parts).to(device)
    x = torch.ones(4, 3, 48, 48, device=device)

    def step() -> None:
        model(x).mean().backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step


def recurrent(kind: type[nn.RNNBase], device: str) -> Callable[[], None]:
    """A step of two recurrent layers."""
    model = kind(64, 128, 2).to(device)
    x = torch.ones(32, 8, 64, device=device)

    def step() -> None:
        model(x)[0].square().mean().backward()
        model.zero_grad()

    return step


MODELS: dict[str, Callable[[str], Callable[[], None]]] = {
    "GPT-2, 4 layers of 256": lambda device: gpt(device, 4, 256, 4, 4096, 256),
    "6 linear layers of 512": layers,
    "5 convolutions": convolutions,
    "2 LSTM layers of 128": lambda device: recurrent(nn.LSTM, device),
    "2 GRU layers of 128": lambda device: recurrent(nn.GRU, device),
}


def seconds(step: Callable[[], None]) -> float:
    """Processor time of one step."""
    began = time.process_time()
    step()
    return time.process_time() - began


def compare(name: str, on_cpu: Callable[[], None], on_card: Callable[[], None], rounds: int) -> bool:
    """Print how much longer the card takes; whether that is no more than it may."""
    ratios = [1 / seconds(on_cpu) * seconds(on_card) for _ in range(rounds)][FIRST:]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    print(f"{name}: {ratio:.2f} times the time on the CPU, half of them {low:.2f} to {high:.2f}", flush=True)
    return ratio <= LARGEST_RATIO


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks.simulated", description=__doc__)
    parser.add_argument("--shapes", action="store_true", help="GPT-2 XL by shapes alone, and nothing else")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with simulated_cuda("h100", values=False):
        taken = seconds(lambda: gpt("cuda", 48, 1600, 25, 50257, 1024)())
        peak = torch.cuda.max_memory_allocated()
    passed = taken <= LONGEST_S
    print(f"GPT-2 XL by shapes alone, made and trained once: {taken:.1f} s, peak {peak / 2**30:.1f} GiB", flush=True)
    if given.shapes:
        return 0 if passed else 1
    for name, make in MODELS.items():
        on_cpu = make("cpu")
        with simulated_cuda("h100"):
            on_card = make("cuda")
            passed &= compare(name, on_cpu, on_card, ROUNDS)
            del on_card
    for name, ratio in ratios():
        passed &= ratio <= LARGEST_RATIO
        print(f"test in pytest: {name}: {ratio:.2f} times the time on the CPU", flush=True)
    with simulated_cuda("h100"):
        for name, test in TESTS.items():
            compare(f"its function: {name}", partial(test, "cpu"), partial(test, "cuda"), ROUNDS_OF_TESTS)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
