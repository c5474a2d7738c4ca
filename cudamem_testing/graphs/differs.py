"""How two values differ, in a few words. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import Any

import torch

_SHOWN = (int, float, str, bool, type(None))


def differs(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """Empty where the graph's value is close to eager's (``torch.testing.assert_close``), else what differs.

    Not-a-number equals itself. A tolerance that is not given beside one that is counts as 0.
    """
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if equal(actual, expected):
            return ""
        wanted = _word(expected)
        return f"{_word(actual)} in the graph, {_another(expected) if wanted == _word(actual) else wanted} in eager"
    if (rtol is None) != (atol is None):
        rtol, atol = rtol or 0.0, atol or 0.0
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "; ".join(lines[1:3] or lines[:1])
    return ""


def equal(actual: object, expected: object) -> bool:
    """Whether two leaves are the same or compare as equal, or both are not a number; tensors are never compared."""
    if actual is expected:
        return True
    if isinstance(actual, torch.Tensor) or isinstance(expected, torch.Tensor):
        return False
    try:
        return bool(actual == expected) or bool(actual != actual and expected != expected)  # not a number
    except Exception:  # somebody's own comparison
        return False


def copied(leaf: Any) -> Any:
    """A tensor's values in memory of their own; any other leaf as it is."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _another(value: object) -> str:
    return f"another {type(value).__name__}"


def _word(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {[*value.shape]}"
    return repr(value)[:60] if isinstance(value, _SHOWN) else f"a {type(value).__name__}"
