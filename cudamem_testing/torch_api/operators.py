"""What the dispatcher knows of operators. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import Any


def operator_schemas(name: str) -> tuple[Any, ...]:
    """The schemas of every overload registered under ``name``; none for what is no operator."""
    import torch

    if "::" not in name:
        return ()  # the look-up raises for a name without a namespace: an annotation, a backward function
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:  # a name that cannot be an operator's, such as "a::b::c d"
        return ()
