"""Asks the dispatcher about operators. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import Any

from cudamem_testing.torch_api.lacking import needed_for
from cudamem_testing.torch_api.process import torch


@needed_for("the data flow")
def operator_schemas(name: str) -> tuple[Any, ...]:
    """The schemas of every overload registered under ``name``; empty if it is not an operator."""
    if "::" not in name:
        return ()  # the look-up raises for a name without a namespace: an annotation, a backward function
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:  # a name that cannot be an operator's, such as "a::b::c d"
        return ()


def has_kernel(name: str, device: str) -> bool | None:
    """Whether an operator can run on a kind of device (``cpu``, ``cuda``); ``None`` if it is not an operator.

    Only kernels of this build are known: a CPU build of torch has none for CUDA. Overloads with ``out=`` are not
    asked, because these are generated from the others and claim every device.
    """
    asked = [
        torch._C._dispatch_has_computed_kernel_for_dispatch_key(_full_name(schema), device.upper())
        for schema in operator_schemas(name)
        if not any(argument.is_out for argument in schema.arguments)
        and torch._C._dispatch_has_kernel(_full_name(schema))
    ]
    return any(asked) if asked else None


def _full_name(schema: Any) -> str:
    return str(schema.name) + (f".{schema.overload_name}" if schema.overload_name else "")


@needed_for("simulated cards")
def embedding_bag_of_cpu(*arguments: Any) -> Any:
    """The results of a bag of embeddings on the CPU, with what its backward pass needs."""
    return torch.ops.aten._embedding_bag(*arguments)


@needed_for("simulated cards")
def embedding_bag_backward_of_cpu(*arguments: Any) -> Any:
    """The gradient of the weights of a bag of embeddings on the CPU."""
    return torch.ops.aten._embedding_bag_dense_backward(*arguments)
