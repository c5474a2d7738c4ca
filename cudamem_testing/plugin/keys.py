"""Where the plugin's state lives in ``config.stash``. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cudamem_testing.model.changes import Comparison
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.override import Override
    from cudamem_testing.model.promises import PromisedSize
    from cudamem_testing.model.records import TestRecord
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.plugin.run_coverage import Collected
    from cudamem_testing.recorders.early import EarlyRecorder
    from cudamem_testing.run.session import Session

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
COLLECTED: pytest.StashKey[Collected] = pytest.StashKey()
SESSION: pytest.StashKey[Session] = pytest.StashKey()
UNDELIVERED: pytest.StashKey[dict[str, list[TestRecord]]] = pytest.StashKey()
"""Records that no report has delivered yet, by id: a plugin that repeats tests may log no teardown for an early
attempt, so the next report delivers its record."""
SIMULATION: pytest.StashKey[list[str]] = pytest.StashKey()
EARLY: pytest.StashKey[EarlyRecorder] = pytest.StashKey()
BUDGETS: pytest.StashKey[tuple[Budget, ...]] = pytest.StashKey()  # of an item: ids can change after collection
COMPARISON: pytest.StashKey[Comparison] = pytest.StashKey()
PROMISE: pytest.StashKey[PromisedSize] = pytest.StashKey()
OVERRIDE: pytest.StashKey[Override] = pytest.StashKey()
MARKS: pytest.StashKey[int] = pytest.StashKey()
"""Of an item that has some of our markers: how many, on itself, when it was collected."""
EACH_EXAMPLE: pytest.StashKey[list[Callable[[], object]]] = pytest.StashKey()
"""Of an item: what its fixtures do before each example of hypothesis, so that they keep nothing of the one before."""
PROBLEMS: pytest.StashKey[list[str]] = pytest.StashKey()
"""Lines about markers that check nothing, printed at the end of the run."""
MISSPELT: pytest.StashKey[AbstractSet[str]] = pytest.StashKey()
UNENFORCED: pytest.StashKey[int] = pytest.StashKey()
KNOWN_INPUT = "cudamem_known"
"""The content of the file of known findings, in the input of a pytest-xdist worker."""
# In the output of one:
UNENFORCED_OUTPUT = "cudamem_unenforced"
PROBLEMS_OUTPUT = "cudamem_problems"
USAGE_OUTPUT = "cudamem_usage"
