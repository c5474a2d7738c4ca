"""Programs whose data flow is one text on every device, kept in ``texts/``.

``python -m suites.trace.programs`` records the texts on the CPU; what changes shows in the diff. How memory is laid out
must not depend on the device: fused kernels of attention put their result in an order of their own, so several heads,
which a copy has to bring together, would be several texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cudamem_testing import MemoryProfile

TEXTS = Path(__file__).parent / "texts"
TORCH = "2.13"
"""With which the texts were recorded: other versions have other operators."""


class Program(NamedTuple):
    """What is recorded, with arguments made for a device, and how it is shown."""

    make: Callable[[str], tuple[Callable[..., Any], dict[str, Any]]]
    options: dict[str, Any]


PROGRAMS: dict[str, Program] = {}


def program(**options: Any) -> Callable[[Any], Any]:
    """Register a function that makes a program for a device."""

    def register(make: Any) -> Any:
        PROGRAMS[make.__name__] = Program(make, options)
        return make

    return register


def recorded(name: str, device: str) -> MemoryProfile:
    """The program's profile on a device, after one run that has made what libraries make once."""
    for measured in (False, True):
        torch.manual_seed(0)
        function, arguments = PROGRAMS[name].make(device)
        if measured:
            return MemoryProfile()(function, **arguments)
        function(**arguments)
    raise AssertionError("unreachable")


@program()
def elementwise(device: str):
    def run(x, y):
        z = x.sin().mul_(2).add(y)
        torch.exp(z, out=y)
        return {"z": z.cumsum(0).clamp(min=0)}

    return run, {"x": torch.ones(8, 8, device=device), "y": torch.ones(8, 8, device=device)}


@program()
def views_and_lists(device: str):
    def run(x):
        left, right = x.split(4)
        left.t().add_(right)
        both = torch.cat([left, right.flip(0)])
        torch._foreach_mul_([left, right], 2.0)
        return {"both": torch.stack([both, x]).flatten(0, 1), "picked": x[torch.arange(4, device=x.device)]}

    return run, {"x": torch.ones(8, 4, device=device)}


@program(frees=False)
def perceptron_step(device: str):
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def run(model, x, y):
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return run, {"model": model, "x": torch.ones(8, 4, device=device), "y": torch.ones(8, 1, device=device)}


@program()
def convolutional_step(device: str):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def run(model, x, y):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run, {
        "model": model,
        "x": torch.ones(2, 3, 8, 8, device=device),
        "y": torch.zeros(2, dtype=torch.long, device=device),
    }


@program(regions=True)
def embedding_step(device: str):
    model = nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 20)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def run(model, tokens):
        with torch.profiler.record_function("forward"):
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        with torch.profiler.record_function("backward"):
            loss.backward()
        optimizer.step()

    return run, {"model": model, "tokens": torch.zeros(2, 6, dtype=torch.long, device=device)}


@program()
def attention(device: str):
    def run(q, k, v):
        weights = (q @ k.transpose(-1, -2) / 4).softmax(-1)
        (weights @ v).sum().backward()

    shape = 2, 3, 8, 16
    return run, {name: torch.ones(shape, device=device, requires_grad=True) for name in "qkv"}


@program()
def checkpointed(device: str):
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)

    def run(block, x):
        inner = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        checkpoint(block, inner, use_reentrant=False, preserve_rng_state=False).sum().backward()

    return run, {"block": block, "x": torch.ones(4, 8, device=device, requires_grad=True)}


class Scaled(torch.autograd.Function):
    """A custom function that saves one tensor and writes its gradient in place."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return (gradient * weight).clamp_(-1, 1), None


@program()
def custom_function(device: str):
    def run(x, weight):
        Scaled.apply(Scaled.apply(x, weight), weight).sum().backward()

    return run, {"x": torch.ones(16, device=device, requires_grad=True), "weight": torch.ones(16, device=device)}


@program(min_bytes="1KiB")
def growing_cache(device: str):
    layer = nn.Linear(128, 128).to(device).requires_grad_(False)

    def run(layer, x):
        cache = x
        for _ in range(3):
            cache = torch.cat([cache, layer(cache[-1:])])
        return {"cache": cache}

    return run, {"layer": layer, "x": torch.ones(2, 128, device=device)}


@program(frees=False)
def clipped_and_accumulated(device: str):
    model = nn.Linear(4, 2).to(device)

    def run(model, x):
        for part in x.chunk(2):
            model(part).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)

    return run, {"model": model, "x": torch.ones(8, 4, device=device)}


@program(min_bytes="1KiB")
def llama_step(device: str):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attn_implementation="eager",
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def run(model, tokens):
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run, {"model": model, "tokens": torch.arange(32, device=device).view(2, 16)}


@program(device_aliases=True)
def fused_attention_step(device: str):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
            self.norm = nn.LayerNorm(32)

        def forward(self, x):
            q, k, v = (layer(x).unsqueeze(1) for layer in (self.query, self.key, self.value))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
            return self.norm(x + functional.dropout(mixed, 0.5))

    model = Block().to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def run(model, x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run, {"model": model, "x": torch.ones(2, 16, 32, device=device)}


@program(device_aliases=True, min_bytes="1KiB")
def gpt2_step_with_dropout(device: str):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=1,
        n_head=4,
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())

    def run(model, tokens):
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run, {"model": model, "tokens": torch.arange(32, device=device).view(2, 16)}


def main() -> None:
    """Record all texts."""
    torch.set_num_threads(1)
    TEXTS.mkdir(exist_ok=True)
    for name, one in PROGRAMS.items():
        text = recorded(name, "cpu").data_flow().text(**one.options)
        (TEXTS / f"{name}.txt").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
