"""Calls operators that have kernels with typed arguments on a simulated card, and on the CPU.

``python -m suites.simulated.typed`` prints facts as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from cudamem_testing import simulated_cuda

Tensor = torch.Tensor
Given = dict[str, Tensor]
Case = Callable[[Given], Any]

UNARY = [
    "neg",
    "exp",
    "log",
    "log2",
    "log1p",
    "expm1",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "silu",
    "relu",
    "gelu",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "sum",
    "mean",
    "tril",
    "triu",
]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "eq", "ne", "lt", "le", "gt", "ge"]
CASES: dict[str, Case] = {
    **{name: lambda t, name=name: _function(name)(t["a"]) for name in UNARY},  # type: ignore[misc]
    **{name: lambda t, name=name: _function(name)(t["a"], t["b"]) for name in BINARY},  # type: ignore[misc]
    **{
        f"{name} of a number": lambda t, name=name: _function(name)(t["a"], 0.5) for name in BINARY if "mum" not in name
    },  # type: ignore[misc]
    "add of other types": lambda t: t["a"] + t["i"],
    "mul of a tensor of the host": lambda t: t["a"] * torch.tensor(3, dtype=torch.float64),
    "add along rows": lambda t: t["a"] + t["row"],
    "sub with a factor": lambda t: torch.sub(t["a"], t["b"], alpha=2),
    "mul of columns": lambda t: t["a"].t() * t["b"].t(),
    "bitwise": lambda t: (~t["i"] & t["j"]) | (t["i"] == t["j"]),
    "lerp": lambda t: torch.lerp(t["a"], t["b"], 0.25),
    "addcmul": lambda t: torch.addcmul(t["a"], t["b"], t["b"], value=0.5),
    "addcdiv": lambda t: torch.addcdiv(t["a"], t["b"], t["a"]),
    "clamp": lambda t: (t["a"].clamp_min(0.5), t["a"].clamp_max(0.5)),
    "leaky_relu": lambda t: functional.leaky_relu(t["a"] - 0.5),
    "gelu by tanh": lambda t: functional.gelu(t["a"], approximate="tanh"),
    "gather": lambda t: t["a"].gather(1, t["i"]),
    "mm": lambda t: t["a"] @ t["b"],
    "mm of columns": lambda t: t["a"].t() @ t["b"].t(),
    "bmm": lambda t: t["a"].expand(3, 4, 4) @ t["b"],
    "addmm": lambda t: functional.linear(t["a"], t["b"], t["row"]),
    "baddbmm": lambda t: torch.baddbmm(t["a"], t["b"].expand(3, 4, 4), t["b"].expand(3, 4, 4), beta=2),
    "sum of columns": lambda t: t["a"].sum((0,), keepdim=True),
    "sum of numbers": lambda t: t["i"].sum(),
    "mean of rows": lambda t: t["a"].mean(-1, dtype=torch.float64),
    "flags": lambda t: ((t["a"] > 0).all(), (t["a"] > 2).any()),
    "cumsum": lambda t: t["a"].cumsum(0),
    "sort": lambda t: t["a"].sort(descending=True, stable=True),
    "topk": lambda t: t["a"].topk(2),
    "pool": lambda t: functional.max_pool2d(t["a"][None, None], 2, return_indices=True),
    "losses": lambda t: [functional.mse_loss(t["a"], t["b"], reduction=one) for one in ("none", "sum", "mean")],
    "layer norm": lambda t: functional.layer_norm(t["a"].t(), (4,), t["row"], t["row"]),
    "where": lambda t: torch.where(t["i"] > 1, t["a"], 0.0) + torch.where(t["j"] > 1, t["b"].double(), t["row"]),
    "embedding": lambda t: functional.embedding(t["i"], t["a"]),
    "index_select": lambda t: t["a"].index_select(1, t["j"].diagonal()),
    "max and min": lambda t: (t["a"].max(), t["i"].min()),
    "abs": lambda t: (t["a"] - 0.5).abs() + torch.view_as_complex(t["b"].view(4, 2, 2)).abs().repeat(1, 2),
    "attention": lambda t: functional.scaled_dot_product_attention(*_heads(t), is_causal=True).contiguous(),
    "attention with a mask": lambda t: functional.scaled_dot_product_attention(
        *_heads(t), attn_mask=t["b"].detach().expand(2, 3, 4, 4)
    ).contiguous(),
    "softmax": lambda t: (t["a"].softmax(0), t["a"].log_softmax(-1)),
    "softmax of half precision": lambda t: t["a"].half().log_softmax(-1, dtype=torch.float32).exp(),
    "cross entropy": lambda t: functional.cross_entropy(t["a"], t["i"][0]),
    "cross entropy with weights": lambda t: functional.cross_entropy(
        t["a"], t["i"][0], weight=t["row"].detach(), ignore_index=1, reduction="sum"
    ),
}
INPLACE: dict[str, Case] = {
    "add_": lambda t: t["a"].add_(t["b"], alpha=2),
    "sub_": lambda t: t["a"].sub_(t["row"]),
    "mul_": lambda t: t["a"].mul_(0.5),
    "div_": lambda t: t["a"].div_(t["b"]),
    "fill_": lambda t: t["a"].fill_(3),
    "bitwise_": lambda t: t["i"].bitwise_and_(t["j"]).bitwise_or_(t["j"].t()),
    "out of abs that grows": lambda t: torch.abs(t["a"], out=t["none"]),
    "relu_": lambda t: t["a"].sub_(0.5).relu_(),
    "clamp_": lambda t: t["a"].clamp_(0.25, 0.5),
    "addcmul_": lambda t: t["a"].addcmul_(t["b"], t["b"]),
    "a part": lambda t: t["a"][1:, ::2].mul_(2),
    "lists": lambda t: _changed_lists(t),
    "out": lambda t: torch.mul(t["a"], t["b"], out=t["made"]),
    "out that grows": lambda t: torch.add(t["a"], t["b"], out=t["none"]),
}
ERRORS: dict[str, Case] = {
    "shapes": lambda t: t["a"] + t["a"][:, :3],
    "matrices": lambda t: t["a"] @ t["a"][:3],
    "a dimension": lambda t: t["a"].sum(5),
    "a type": lambda t: t["i"].mul_(0.5),
    "a class": lambda t: functional.cross_entropy(t["a"], t["i"][0] + 1),
    "a layer": lambda t: functional.layer_norm(t["a"], (3,)),
    "grows in place": lambda t: t["row"].mul_(t["a"]),
    "not differentiable": lambda t: t["a"].requires_grad_().add_(1),
}


def _heads(t: Given) -> list[Tensor]:
    """Query, key and value of three heads."""
    return [one.mul(torch.arange(6.0, device=one.device).view(2, 3, 1, 1)) for one in (t["a"], t["b"], t["a"])]


def _changed_lists(t: Given) -> list[Tensor]:
    """What the steps of Adam do with lists of tensors."""
    one, other = [t["a"], t["row"]], [t["b"], t["row"] + 1]
    torch._foreach_mul_(one, 0.5)
    torch._foreach_add_(one, 2)
    torch._foreach_add_(one, other, alpha=3)
    torch._foreach_lerp_(one, other, 0.25)
    torch._foreach_addcmul_(one, other, other, 0.5)
    torch._foreach_addcdiv_(one, other, one, [0.5, 0.25])
    torch._foreach_div_(one, [2.0, 4.0])
    return [*one, *torch._foreach_sqrt(other)]


def _function(name: str) -> Callable[..., Any]:
    return getattr(torch, name, None) or getattr(functional, name)  # type: ignore[no-any-return]


def given(device: str) -> Given:
    """The same tensors on any device."""
    torch.manual_seed(5)
    made = {"a": torch.rand(4, 4), "b": torch.rand(4, 4) + 0.5, "row": torch.rand(4)}
    made |= {"i": torch.tensor([[0, 1, 2, 3]] * 4), "j": torch.tensor([[3], [2], [1], [0]]).repeat(1, 4)}
    made |= {"made": torch.zeros(4, 4), "none": torch.zeros(0)}
    return {name: one.to(device) for name, one in made.items()}


def tensors(found: Any) -> Iterator[Tensor]:
    """Those in a result."""
    if isinstance(found, Tensor):
        yield found
    else:
        for one in found:
            yield from tensors(one)


def outcome(case: Case, device: str, *, gradients: bool = False) -> Any:
    """Versions of what was given; values, type and strides of all results, and gradients; or the error."""
    start = given(device)
    if gradients:
        for one in start.values():
            one.requires_grad_(one.is_floating_point())
    try:
        found = list(tensors(case(start)))
    except (RuntimeError, IndexError) as error:
        return str(error).splitlines()[0]
    assert all(one.device.type == device for one in found)
    if gradients:
        total = sum(one.sum() for one in found if one.requires_grad)
        if isinstance(total, Tensor):
            total.backward()  # type: ignore[no-untyped-call]
        found += [one.grad for one in start.values() if one.grad is not None]
    versions = [one._version for one in start.values()]
    return [versions, *([str(one.dtype), list(one.stride()), one.tolist()] for one in found)]


def different(cases: dict[str, Case], *, gradients: bool = False) -> list[str]:
    """Cases that have another outcome on the card."""
    options = {"gradients": gradients}
    return [name for name, case in cases.items() if outcome(case, "cpu", **options) != outcome(case, "cuda", **options)]


def shapes() -> list[str]:
    """Cases that have other shapes without values."""

    def of(found: Any) -> list[Any]:
        return [[str(one.dtype), list(one.shape), list(one.stride())] for one in tensors(found)]

    cases = CASES | INPLACE
    expected = {name: of(case(given("cpu"))) for name, case in cases.items()}
    with simulated_cuda("24GiB", values=False):
        return [name for name, case in cases.items() if of(case(given("cuda"))) != expected[name]]


def counted() -> dict[str, list[int]]:
    """Bytes of the result, at the peak, and how many blocks were allocated, by case."""
    found = {}
    t = {name: one.expand(64, *one.shape).contiguous() for name, one in given("cuda").items()}
    t["x"], t["w"] = torch.ones(2, 8, 32, 32, device="cuda"), torch.ones(16, 8, 3, 3, device="cuda")
    t["flat"] = torch.ones(512, 512, device="cuda")
    _ = t["flat"] @ t["flat"]  # the workspace stays
    cases: dict[str, Case] = {
        "add": lambda t: t["a"] + t["b"],
        "add in place": lambda t: t["a"].add_(t["b"]),
        "mm": lambda t: t["flat"] @ t["flat"],
        "mm of a part": lambda t: (
            t["flat"] @ t["flat"][::2, ::2].expand(2, 256, 256).transpose(0, 1).flatten(1, 2).t()[:, :3]
        ),
        "sum": lambda t: t["flat"].sum(),
        "mse_loss": lambda t: functional.mse_loss(t["a"], t["b"]),
        "convolution": lambda t: functional.conv2d(t["x"], t["w"], padding=1),
        "convolution again": lambda t: functional.conv2d(t["x"], t["w"], padding=1),
        "convolution of columns": lambda t: functional.conv2d(t["x"].transpose(2, 3), t["w"]),
    }
    for name, case in cases.items():
        torch.cuda.reset_peak_memory_stats()
        start, before = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]
        kept = case(t)
        now, peak = torch.cuda.memory_allocated() - start, torch.cuda.max_memory_allocated() - start
        found[name] = [now, peak, torch.cuda.memory_stats()["allocation.all.allocated"] - before]
        del kept
    return found


class Seen(TorchDispatchMode):
    """Operators below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Named(Tensor):
    """A subclass, whose results are of the subclass as well."""


def around() -> dict[str, Any]:
    """What subclasses, modes, transforms, hooks and the profiler see of a call."""
    t = given("cuda")
    facts: dict[str, Any] = {"subclass": type(t["a"].as_subclass(Named) * 2).__name__}
    with Seen() as seen:
        functional.linear(t["a"], t["b"], t["row"]).relu().sum()
    facts["mode"] = seen.names
    facts["vmap"] = torch.equal(torch.vmap(torch.mul)(t["a"], t["b"]), t["a"] * t["b"])
    facts["jvp"] = torch.func.jvp(torch.sin, (t["a"],), (t["b"],))[1].allclose(t["a"].cos() * t["b"])
    facts["conjugated"] = (torch.tensor([[1 + 2j]]).cuda().conj() @ torch.tensor([[1j]]).cuda()).item() == 2 + 1j
    rows: list[Tensor] = []
    x = t["a"].requires_grad_()
    x.register_hook(rows.append)
    (x * t["b"]).sum().backward()  # type: ignore[no-untyped-call]
    facts["hook"] = torch.equal(rows[0], t["b"])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        t["b"].exp()
    facts["profiler"] = [one.name for one in profile.events() if one.name.startswith("aten::")]  # type: ignore[union-attr]
    facts["boxed"] = torch.ops.aten.mul.Tensor(t["b"], t["b"]).equal(t["b"].square())
    try:
        torch.ones(2, 2, dtype=torch.complex32, device="cuda").exp()
    except NotImplementedError as error:
        facts["no kernel"] = str(error).splitlines()[0]
    try:
        t["b"] + torch.ones(4)
    except (RuntimeError, IndexError) as error:
        facts["host"] = str(error)
    return facts


def main() -> None:
    """Print all facts."""
    with simulated_cuda("24GiB"):
        facts = {
            "different": different(CASES),
            "other gradients": different(CASES, gradients=True),
            "different in place": different(INPLACE),
            "other errors": different(ERRORS),
            "counted": counted(),
            "around": around(),
        }
    facts["other shapes"] = shapes()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
