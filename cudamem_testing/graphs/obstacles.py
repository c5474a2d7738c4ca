"""Obstacles for ``torch.cuda.make_graphed_callables``, found before it is called. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudamem_testing.objects.names import key_text, type_word
from cudamem_testing.safe_access import is_a, is_plain, type_name
from cudamem_testing.torch_api.graphs import graphs_without_gradients
from cudamem_testing.torch_api.modes import tensors
from cudamem_testing.torch_api.trees import flatten, leaves

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
AUTOCAST = "autocast caches weights, and the graph would keep reading the copies: use autocast(cache_enabled=False)"
NO_GRADIENT = "no output requires grad, so there is no backward to graph: capture it with graph_capture instead"
DOUBLE = "a graphed callable cannot be differentiated twice; do not graph what needs a second backward"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One obstacle for one callable (``""``: for all). One that does not ``block`` is a remark."""

    callable: str
    text: str
    blocks: bool = True

    def __str__(self) -> str:
        name = f"{self.callable}: " if self.callable else ""
        return f"{name}{self.text}{'' if self.blocks else ' (a remark)'}"


class ObstacleError(ValueError):
    """Callables that cannot be graphed; ``obstacles`` lists all reasons."""

    def __init__(self, obstacles: Sequence[Obstacle]) -> None:
        super().__init__("\n".join(("not fit for graphed callables:", *(f"   {one}" for one in obstacles))))
        self.obstacles = tuple(obstacles)


def obstacles(
    callables: Sequence[Callable[..., Any]],
    sample_args: Sequence[Sequence[Any]],
    sample_kwargs: Sequence[Mapping[str, Any]] = (),
    *,
    allow_unused_input: bool = False,
    double_backward: bool = False,
) -> tuple[Obstacle, ...]:
    """All obstacles; each callable without its own obstacle is called once, forward and backward.

    Gradients of parameters do not change; random numbers and buffers such as running averages do.

    Args:
        callables: modules and functions.
        sample_args: positional arguments for each.
        sample_kwargs: keyword arguments for each; any at all is an obstacle.
        allow_unused_input: as for ``make_graphed_callables``.
        double_backward: whether the callables will be differentiated twice.
    """
    found: list[Obstacle] = []
    kinds = {tensor.device.type for tensor in tensors(sample_args)}
    if any(map(torch.is_autocast_enabled, kinds)) and torch.is_autocast_cache_enabled():
        found.append(Obstacle("", AUTOCAST))
    if double_backward:
        found.append(Obstacle("", DOUBLE))
    if len(callables) != len(sample_args):
        found.append(Obstacle("", f"{len(callables)} callables have {len(sample_args)} sets of sample arguments"))
    for at, (function, args) in enumerate(zip(callables, sample_args, strict=False)):
        name = name_of_callable(function, at, len(callables))
        kwargs = sample_kwargs[at] if at < len(sample_kwargs) else {}
        own = [*_of_arguments(name, args, kwargs)]
        if is_a(function, torch.nn.Module):
            own += [*_of_hooks(name, function), *_of_buffers(name, function)]
        if not any(one.blocks for one in own):
            own += _of_gradients(name, function, args, allow_unused_input)
        found += own
    return tuple(found)


def name_of_callable(function: Callable[..., Any], at: int, total: int) -> str:
    """``Linear`` if it is the only one, else ``callables[0] (Linear)``."""
    return type_word(function) if total == 1 else f"callables[{at}] ({type_word(function)})"


def _of_arguments(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Obstacle]:
    if kwargs:
        yield Obstacle(name, f"keyword arguments are not passed on: {', '.join(kwargs)}; make them positional")
    for path, leaf in flatten(tuple(args))[0]:
        if not is_a(leaf, torch.Tensor):
            yield Obstacle(name, f"argument {path} is {_word(leaf)}, and only tensors can be arguments: bind it before")


def _of_hooks(name: str, module: torch.nn.Module) -> Iterator[Obstacle]:
    for path, part in module.named_modules():
        for kind in _HOOKS:
            for hook in (vars(part).get(kind) or {}).values():
                told = f"{kind.strip('_').removesuffix('s').replace('_', ' ')} {type_word(hook)}"
                if not path and kind != "_backward_pre_hooks":
                    yield Obstacle(name, f"{told} on it: register it after graphing")
                else:
                    yield Obstacle(name, f"{told} on {path or 'it'} runs during the capture only", blocks=False)


def _of_buffers(name: str, module: torch.nn.Module) -> Iterator[Obstacle]:
    for path, buffer in module.named_buffers():
        if buffer.requires_grad:
            yield Obstacle(name, f"buffer {path} requires grad: make it a parameter, or call requires_grad_(False)")


def _of_gradients(
    name: str, function: Callable[..., Any], args: Sequence[Any], allow_unused_input: bool
) -> Iterator[Obstacle]:
    surface = [(f"argument {path}", leaf) for path, leaf in flatten(tuple(args))[0]]
    if is_a(function, torch.nn.Module):
        surface += [(f"parameter {path}", parameter) for path, parameter in function.named_parameters()]
    wanting = [(path, tensor) for path, tensor in surface if tensor.requires_grad]
    # Times 1: backward starts in a separate thread, where cuBLAS as the first call would warn of a missing context.
    outputs = [one * 1 for one in tensors(leaves(function(*args))) if one.requires_grad]
    if not outputs:
        yield Obstacle(name, NO_GRADIENT, blocks=not graphs_without_gradients())
        return
    gradients = torch.autograd.grad(
        outputs,
        [tensor for _, tensor in wanting],
        [torch.zeros_like(one) for one in outputs],
        allow_unused=True,
    )
    unused = [path for (path, _), gradient in zip(wanting, gradients, strict=True) if gradient is None]
    if unused:
        told = f"not used by any output: {', '.join(unused[:5])}{', ...' if len(unused) > 5 else ''}"
        hint = "" if allow_unused_input else "; pass allow_unused_input=True, or leave them out"
        yield Obstacle(name, told + hint, blocks=not allow_unused_input)


def _word(value: object) -> str:
    return key_text(value) if is_plain(value) else f"a {type_name(value)}"
