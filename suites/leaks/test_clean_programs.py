"""Random programs that retain nothing: not one finding, down to the last byte.

The programs mix what people write: modules, views, in-place writes, hooks, autograd functions, errors, threads. They run
as the tests of one inner run. ``HYPOTHESIS_PROFILE=full`` runs 1,000 of them, else 100.
"""

from __future__ import annotations

import os

import pytest

from cudamem_testing.model.findings import Severity
from suites.plugin.inner import run_inner

NUMBER = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 100
TESTS = """
import pytest
from fixtures import programs

@pytest.mark.parametrize("kind", ["any", "training"])
@pytest.mark.parametrize("seed", range({number}))
def test_program(seed, kind):
    programs.make(seed, kind).compile()()
"""


def test_clean_programs(pytester: pytest.Pytester) -> None:
    inner = run_inner(pytester, TESTS.format(number=NUMBER // 2), "--cudamem", "-q", "--cudamem-ignore-below=0")
    assert len(inner.run.tests) == NUMBER
    wrong = [
        f"{test.nodeid}: {finding}"
        for test in inner.run.tests
        for finding in test.findings
        if finding.severity is not Severity.NOTE
    ]
    assert wrong == []
    assert {test.outcome for test in inner.run.tests} == {"passed"}
    assert inner.run.findings == ()
    assert inner.run.ledger == ()
    assert all(window.retained == 0 for test in inner.run.tests for window in test.whole)
