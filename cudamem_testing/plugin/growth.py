"""The marker ``memory_scaling``: a promise of growth for a parametrized test. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cudamem_testing.model.promises import PromisedSize, promised
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.marks import nearest_first, place_of, without_parameters

SCALING = "memory_scaling"


def problems_of(items: Sequence[pytest.Item]) -> list[str]:
    """Put the promises of marked tests into their stash; a line for each wrong marker."""
    problems: list[str] = []
    groups: dict[object, list[tuple[pytest.Item, PromisedSize]]] = {}
    for item in items:
        mark = next(nearest_first(item, SCALING))
        spec: Any = getattr(item, "callspec", None)
        parameters = {} if spec is None else spec.params
        try:
            found = promised(without_parameters(item), parameters, mark.args, mark.kwargs)
        except (TypeError, ValueError) as error:
            problems.append(f"{place_of(item, mark)}: {SCALING}: {error}")
        else:
            groups.setdefault((found.test, found.others), []).append((item, found))
    for some in groups.values():
        sizes = tuple(sorted({found.size for _, found in some}))
        for item, found in some:
            item.stash[keys.PROMISE] = found._replace(sizes=sizes)
    return problems
