"""Groups of tensors, as used by optimizers and ``clip_grad_norm_``. Importing this module imports torch.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAME = "_group_tensors_by_device_and_dtype"


def grouped_on(device_of: Callable[[torch.Tensor], torch.device]) -> list[tuple[object, str, object]]:
    """The change that makes torch group tensors by given devices; empty if torch groups in another way.

    ``device_of`` is called for the first tensor of each group.
    """
    original = getattr(torch._C, _NAME, None)
    if original is None:
        return []

    def group(*args: Any, **kwargs: Any) -> dict[tuple[torch.device, Any], Any]:
        groups = original(*args, **kwargs)
        return {(device_of(value[0][0][0]), dtype): value for (_, dtype), value in groups.items()}

    return [(torch._C, _NAME, group)]
