"""Records on their way to another process, as plain types. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cudamem_testing.model.records import TestRecord


def plain(records: Iterable[TestRecord | dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of a report; those of a test that was forked are plain already."""
    from cudamem_testing.report.schema import TEST

    return [TEST.write(record) if isinstance(record, TestRecord) else record for record in records]


def may_fork(config: pytest.Config) -> bool:
    """Whether pytest-forked is there."""
    return config.getoption("forked", None) is not None


def is_forked(item: pytest.Item) -> bool:
    """Whether pytest-forked runs the test in a process of its own, and marshals what its reports have."""
    return bool(item.config.getoption("forked", False)) or item.get_closest_marker("forked") is not None
