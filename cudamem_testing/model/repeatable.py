"""Which bodies of tests can run more than once, to warm up. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

REPEATING = {  # fixtures and markers of plugins for which each run of a body is a measurement
    "subtests": "subtests",
    "benchmark": "pytest-benchmark",
    "codspeed_benchmark": "pytest-codspeed",
}


def warmup_refusal(body: Any, cls: type | None, uses: Callable[[str], bool]) -> str | None:
    """Why the body of a test, in a class, cannot run more than once; ``None`` when it can.

    ``uses`` is whether the test uses a fixture or a marker of a name.
    """
    unittest = sys.modules.get("unittest")
    if unittest is not None and cls is not None and issubclass(cls, unittest.TestCase):
        return "a unittest.TestCase cannot run its method twice"
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        return "an async test is run by its own plugin"
    if hasattr(body, "hypothesis"):
        return "hypothesis already repeats the body"
    owners = (owner for name, owner in REPEATING.items() if uses(name))
    return next((f"{owner} would count the repetitions" for owner in owners), None)
