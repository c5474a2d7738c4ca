"""Strategies of hypothesis for tests of torch code: shapes, dtypes, tensors, modules and whole programs.

.. code-block:: python

    from hypothesis import given
    from cudamem_testing import strategies

    @given(x=strategies.tensors(strategies.shapes(min_dims=2, max_dims=2, max_side=512)))
    def test_attention_is_linear(cuda_memory, x):
        with cuda_memory.budget(peak=8 * x.nbytes):
            attend(x)

Everything shrinks towards what is small: no dimensions, sides of the smallest length, ``float32``, zeros, one layer,
one statement. The values of a tensor follow from what is drawn, so an example is the same each time. Needs hypothesis
(extra ``hypothesis``). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    message = "cudamem_testing.strategies needs hypothesis: pip install 'cudamem_testing[hypothesis]'"
    raise ModuleNotFoundError(message, name="hypothesis") from None

import torch

from cudamem_testing.safe_access import is_a
from cudamem_testing.strategies.random_programs import Program, make

__all__ = ["Program", "dtypes", "modules", "programs", "shapes", "tensors"]

Shape = tuple[int, ...]
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
CONTENTS = ("zeros", "ones", "range", "random")
ACTIVATIONS = (torch.nn.ReLU, torch.nn.GELU, torch.nn.Tanh, torch.nn.SiLU)
KINDS = ("linear", "norm", "dropout", "activation", "residual")


def shapes(
    *, min_dims: int = 0, max_dims: int = 4, min_side: int = 1, max_side: int = 16, max_elements: int = 2**16
) -> st.SearchStrategy[Shape]:
    """Shapes of tensors; each has at most ``max_elements`` elements. A ``min_side`` of 0 also makes empty tensors.

    Raises:
        ValueError: if bounds contradict each other, or the smallest shape has too many elements.
    """
    if not 0 <= min_dims <= max_dims or not 0 <= min_side <= max_side:
        raise ValueError(f"dims {min_dims} to {max_dims}, sides {min_side} to {max_side}: write 0 <= min <= max")
    if min_side**min_dims > max_elements:
        raise ValueError(f"{min_dims} sides of {min_side} are more than {max_elements} elements")
    return _shapes(min_dims, max_dims, min_side, max_side, max_elements)


@st.composite
def _shapes(draw: st.DrawFn, min_dims: int, max_dims: int, min_side: int, max_side: int, max_elements: int) -> Shape:
    most = max(dims for dims in range(min_dims, max_dims + 1) if min_side**dims <= max_elements)
    dims = draw(st.integers(min_dims, most))
    shape: list[int] = []
    for place in range(dims):
        rest = max(1, prod(shape)) * min_side ** (dims - place - 1)  # of sides before, and of the least behind
        shape.append(draw(st.integers(min_side, max_side if rest == 0 else min(max_side, max_elements // rest))))
    return tuple(shape)


def dtypes(
    *, floating: bool = True, integers: bool = False, boolean: bool = False, complex_numbers: bool = False
) -> st.SearchStrategy[torch.dtype]:
    """Dtypes of the chosen kinds; shrinks towards ``float32``.

    Raises:
        ValueError: if no kind is chosen.
    """
    chosen = (floating, FLOATING), (integers, INTEGERS), (boolean, (torch.bool,)), (complex_numbers, COMPLEX)
    found = [dtype for asked, kind in chosen if asked for dtype in kind]
    if not found:
        raise ValueError("no kind of dtype is chosen: write floating, integers, boolean or complex_numbers=True")
    return st.sampled_from(found)


def tensors(
    shape: st.SearchStrategy[Shape] | Shape | None = None,
    dtype: st.SearchStrategy[torch.dtype] | torch.dtype = torch.float32,
    *,
    device: str | torch.device = "cpu",
    requires_grad: bool = False,
    contiguous: bool = True,
) -> st.SearchStrategy[torch.Tensor]:
    """Tensors with zeros, ones, a range, or random values in [0, 1).

    ``contiguous=False`` also makes transposed tensors, and views of every second element. Each example makes a tensor
    of its own, which lives as long as the example.

    Raises:
        ValueError: for ``requires_grad`` with a dtype that has no gradients.
    """
    if requires_grad and is_a(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"requires_grad=True: {dtype} has no gradients")
    shape = shapes() if shape is None else shape
    drawn_shape = st.just(tuple(shape)) if isinstance(shape, Sequence) else shape
    drawn_dtype = dtype if is_a(dtype, st.SearchStrategy) else st.just(dtype)
    layouts = ("contiguous",) if contiguous else ("contiguous", "transposed", "strided")
    return st.builds(
        _tensor,
        drawn_shape,
        drawn_dtype,
        st.sampled_from(CONTENTS),
        st.sampled_from(layouts),
        st.just(torch.device(device)),
        st.just(requires_grad),
    )


def _tensor(
    shape: Shape, dtype: torch.dtype, content: str, layout: str, device: torch.device, requires_grad: bool
) -> torch.Tensor:
    """A tensor whose values depend only on the arguments."""
    made = shape
    if layout == "transposed" and len(shape) > 1:
        made = (*shape[:-2], shape[-1], shape[-2])
    elif layout == "strided" and shape:
        made = (*shape[:-1], 2 * shape[-1])
    values = torch.zeros(made, dtype=dtype, device=device)
    number = values.numel()
    if content == "ones":
        values.fill_(1)
    elif content == "range":
        values.copy_((torch.arange(number, device=device) % 127).view(made))
    elif content == "random":
        generator = torch.Generator(device=device).manual_seed(number)
        values.copy_(torch.rand(made, generator=generator, device=device))
    if made != shape:
        values = values.transpose(-1, -2) if layout == "transposed" else values[..., ::2]
    return values.requires_grad_(requires_grad)


def modules(
    *,
    min_features: int = 1,
    max_features: int = 32,
    max_layers: int = 4,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> st.SearchStrategy[torch.nn.Sequential]:
    """Modules that map a batch ``[n, features]`` to another: a linear layer, then linear layers, norms, dropout,
    activations and residual blocks. ``module[0].in_features`` is what the first layer takes.

    Raises:
        ValueError: for fewer than one feature or layer, or bounds that contradict each other.
    """
    if not 1 <= min_features <= max_features or max_layers < 1:
        raise ValueError(f"features {min_features} to {max_features}, {max_layers} layers: write 1 <= min <= max")
    return _modules(min_features, max_features, max_layers, torch.device(device), dtype)


@st.composite
def _modules(
    draw: st.DrawFn, min_features: int, max_features: int, max_layers: int, device: torch.device, dtype: torch.dtype
) -> torch.nn.Sequential:
    features = st.integers(min_features, max_features)
    width = draw(features)
    layers: list[torch.nn.Module] = [torch.nn.Linear(draw(features), width, device=device, dtype=dtype)]
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=max_layers - 1)):
        if kind == "linear":
            before, width = width, draw(features)
            layers.append(torch.nn.Linear(before, width, bias=draw(st.booleans()), device=device, dtype=dtype))
        elif kind == "norm":
            layers.append(torch.nn.LayerNorm(width, device=device, dtype=dtype))
        elif kind == "dropout":
            layers.append(torch.nn.Dropout(0.5))
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATIONS))())
        else:
            layers.append(Residual(torch.nn.Linear(width, width, device=device, dtype=dtype)))
    return torch.nn.Sequential(*layers)


class Residual(torch.nn.Module):
    """Adds what a module makes of its input to the input."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        result: torch.Tensor = x + self.inner(x)
        return result


def programs(kind: str = "any", *, max_statements: int = 14) -> st.SearchStrategy[Program]:
    """Random torch programs for the CPU: ``program.source`` is Python, ``program.compile()()`` runs it.

    ``kind="training"`` makes a model, an optimizer and a few steps. Programs shrink towards fewer statements.

    Raises:
        ValueError: for an unknown kind, or less than one statement.
    """
    if max_statements < 1:
        raise ValueError(f"max_statements={max_statements}: write at least 1")
    make(0, kind)  # refuses an unknown kind now
    return st.builds(make, st.integers(0, 2**32 - 1), st.just(kind), st.integers(1, max_statements))
