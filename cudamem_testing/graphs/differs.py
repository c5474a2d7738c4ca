"""How two values differ, in a few words. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from typing import Any

import torch

from cudamem_testing.safe_access import is_a, is_plain, type_name


def differs(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """What differs between the graph's value and eager's (``torch.testing.assert_close``); empty if nothing does.

    NaN equals NaN. If only one tolerance is given, the other is 0.
    """
    if not is_a(actual, torch.Tensor) or not is_a(expected, torch.Tensor):
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
    """Whether two leaves are identical or equal, or both NaN; tensors are never compared."""
    if actual is expected:
        return True
    if is_a(actual, torch.Tensor) or is_a(expected, torch.Tensor):
        return False
    try:
        return bool(actual == expected) or bool(actual != actual and expected != expected)  # NaN
    except Exception:  # a user-defined comparison
        return False


def copied(leaf: Any) -> Any:
    """A copy of a tensor's values; any other leaf unchanged."""
    return leaf.detach().clone() if is_a(leaf, torch.Tensor) else leaf


def _another(value: object) -> str:
    return f"another {type_name(value)}"


def _word(value: object) -> str:
    if is_a(value, torch.Tensor):
        return f"a tensor {[*value.shape]}"
    return repr(value)[:60] if is_plain(value) else f"a {type_name(value)}"
