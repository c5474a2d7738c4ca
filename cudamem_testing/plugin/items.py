"""What is written on a test item, and read from it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cudamem_testing.model.windows import Window


def add_properties(item: pytest.Item, calls: Sequence[Window]) -> None:
    """Put what the call took among the properties that JUnit files show."""
    earlier = [one for one in item.user_properties if not one[0].startswith("cudamem.")]  # of an attempt before this
    item.user_properties[:] = earlier
    for window in calls:
        for name, value in (("peak", window.peak_growth), ("reserved", window.reserved_growth)):
            if value is not None:
                item.user_properties.append((f"cudamem.{window.device}.{name}", value))


def id_without_group(item: pytest.Item) -> str:
    """The id without the ``@group`` that a worker of pytest-xdist puts behind it with ``--dist=loadgroup``."""
    if not item.config.getoption("loadgroup", False):
        return item.nodeid
    marks = item.iter_markers("xdist_group")
    names = {str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks}
    return item.nodeid.removesuffix(f"@{'_'.join(sorted(names))}")
