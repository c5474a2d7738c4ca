"""Joins the records of a test that ran several times. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.model.baselines import fold
from cudamem_testing.model.records import TestRecord


def of_repeats(records: Sequence[TestRecord]) -> TestRecord:
    """Several runs of one test as the record of the last, with the numbers of all."""
    last = records[-1]
    notes = (*last.notes, f"run {len(records)} times") if len(records) > 1 else last.notes
    return last.but(attempt=1, measured=fold([record.measured for record in records]), notes=notes)
