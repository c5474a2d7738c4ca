"""What somebody looks for stands where it is expected: each in one or two files."""

from __future__ import annotations

import re

import pytest

from suites.architecture.source import MODULES, name

#: What is looked for, a pattern of the code that does it, and where that stands.
GUESSES = [
    ("the text of an over-budget failure", r"over its budget", {"wording/limits.py"}),
    ("where --cudamem-known is read", r"known=read\.path", {"model/options.py"}),
    ("where the file of known findings is read", r"settings\.known or ", {"verdicts/policy.py"}),
    ("the list of verdicts", r"^class Verdict\b", {"model/findings.py"}),
    ("who decides a verdict", r"return Verdict\.", {"verdicts/verdict.py"}),
    ("the hint for an lru_cache", r"call \{\w+(?:\.\w+)?\}\.cache_clear\(\)", {"wording/hints.py"}),
    ("which devices there are", r"^_DEVICE = re\.compile", {"model/devices.py"}),
    ("which recorder a device has", r"= CudaDevices\(|= CpuRecorder\(", {"recorders/choose.py"}),
    ("the JSON schema", r'"kind": "report"', {"report/schema.py"}),
    ("how a worker sends its records", r"workeroutput\[KEY\]", {"plugin/worker.py"}),
    ("how a test's record travels with its report", r"report\.cudamem = _plain", {"plugin/reports.py"}),
    ("reruns", r'ended\("rerun"\)', {"run/outcomes.py"}),
    ("who decides that a fixture owns memory", r"return Verdict\.FIXTURE", {"verdicts/verdict.py"}),
    ("the rules of the lint", r"^class Rule\(", {"graphs/rules.py"}),
    ("a column of the summary", r'Column\("retained", "right"\)', {"report/terminal.py"}),
    ("what runs when nothing is measured", r"^def pytest_collection_modifyitems", {"plugin/__init__.py"}),
]


@pytest.mark.parametrize(("what", "pattern", "files"), GUESSES, ids=[what for what, _, _ in GUESSES])
def test_it_stands_where_it_is_expected(what: str, pattern: str, files: set[str]) -> None:
    found = {name(path) for path in MODULES if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)}
    assert found == files, what
