"""What a run as a whole came to, in one line. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence

from cudamem_testing.model.findings import Severity
from cudamem_testing.model.records import RunRecord
from cudamem_testing.model.sizes import count
from cudamem_testing.safe_access import type_name
from cudamem_testing.show.printable import one_line

_FAILED, _UNSTATED = ("failed", "error"), ("unknown", "passed")


def verdict(run: RunRecord) -> tuple[str, str]:
    """A word for its state (``failed``, ``partly``, ``passed``, ``nothing``), and the line.

    Of a test that ran several times the last attempt counts.
    """
    last = {test.nodeid: test for test in run.tests}
    tests = [*last.values()]
    failed = [test for test in tests if test.outcome in _FAILED or (test.failing and test.outcome in _UNSTATED)]
    by_memory = [test for test in failed if test.failing]
    whole = [finding for finding in run.findings if finding.severity is Severity.FAIL]
    if not (failed or whole or run.failures):
        if not any(test.windows for test in tests):
            return "nothing", "Nothing was measured"
        number = sum(finding.severity is Severity.WARN for _, finding in run.all_findings)
        none = f"{count(number, 'warning')}, no failure" if number else "No fault"
        if run.is_partly_unchecked:
            return "partly", f"{none} in {count(len(tests), 'test')}, but not everything was checked"
        return "partly" if number else "passed", f"{none}: {count(len(tests), 'test')}"
    parts = []
    if failed:
        how = "" if not by_memory else " because of memory" if len(by_memory) == len(failed) else ""
        parts.append(f"{len(failed)} of {count(len(tests), 'test')} failed{how}")
        if by_memory and not how:
            parts.append(f"{len(by_memory)} of them because of memory")
    parts += [f"{count(len(whole), 'fault')} of the run itself"] if whole else []
    return "failed", ", ".join(parts) or "The run failed"


def unmeasurable(error: Exception) -> str:
    """Why no test can be measured in this run, and what to do."""
    return (
        f"memory cannot be measured here: {one_line(f'{type_name(error)}: {error}')}; --no-cudamem runs the tests "
        "without it, python -m cudamem_testing doctor shows what can be measured"
    )


def nothing_allocated(devices: Sequence[str]) -> str:
    """That no test allocated on the measured devices, and how to measure the CPU."""
    return f"no test allocated memory on {' or '.join(devices)}; --cudamem-device=cpu measures tensors on the CPU"


def switched_off(unenforced: int, flags: Sequence[str]) -> str:
    """That ``--no-cudamem`` wins over other ``flags``, and how many tests have markers that it does not enforce."""
    off = f"off (--no-cudamem wins over {' and '.join(flags)})" if flags else "off (--no-cudamem)"
    noun = "test has" if unenforced == 1 else "tests have"
    return off + (f": {unenforced} {noun} a memory marker that was not enforced" if unenforced else "")
