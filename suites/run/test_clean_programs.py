"""Random programs that retain nothing: not one finding, down to the last byte.

The programs mix what people write: modules, views, in-place writes, hooks, autograd functions, errors, threads. They
run as the tests of inner runs. ``HYPOTHESIS_PROFILE=full`` runs 1,000 of them, else 40.
"""

from __future__ import annotations

import os

import pytest

from cudamem_testing.model.findings import Severity
from cudamem_testing.wording.findings import text
from suites.plugin.inner import run_outer

RUNS, SEEDS = (10, 50) if os.environ.get("HYPOTHESIS_PROFILE") == "full" else (1, 20)
TESTS = """
import pytest
from cudamem_testing.strategies import random_programs as programs

@pytest.mark.parametrize("kind", ["any", "training"])
@pytest.mark.parametrize("seed", range({first}, {last}))
def test_program(seed, kind):
    programs.make(seed, kind).compile()()
"""


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("number", range(RUNS))
def test_clean_programs(pytester: pytest.Pytester, number: int) -> None:
    """In a process of its own: the compiler, which some programs import, cannot be imported twice in one."""
    source = TESTS.format(first=SEEDS * number, last=SEEDS * (number + 1))
    inner = run_outer(pytester, source, "--cudamem", "-q", "--cudamem-ignore-below=0", compiler=True)
    assert len(inner.run.tests) == 2 * SEEDS
    wrong = [
        f"{test.nodeid}: {text(finding)}"
        for test in inner.run.tests
        for finding in test.findings
        if finding.severity is not Severity.NOTE
    ]
    assert wrong == []
    assert {test.outcome for test in inner.run.tests} == {"passed"}
    assert inner.run.findings == ()
    assert inner.run.ledger == ()
