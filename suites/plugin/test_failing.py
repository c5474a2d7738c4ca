"""Allocations that fail on purpose in tests, and the examples of docs/failing-allocations.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cudamem_testing.wording.findings import text as text_of
from suites.plugin.inner import Inner

Run = Callable[..., Inner]

PAGE = Path(__file__).parents[2] / "docs" / "failing-allocations.md"
HEAD = "import pytest\nimport torch\n"
STEPS = """
    import torch

    errors = []

    def step(keeps):
        scores = torch.ones(2**16)
        try:
            torch.exp(scores)
        except torch.OutOfMemoryError as error:
            if keeps:
                errors.append(error)
            raise

    def test_keeps(cuda_memory):
        try:
            cuda_memory.fail_each_allocation(lambda: step(True))
        finally:
            errors.clear()

    def test_recovers(cuda_memory):
        assert cuda_memory.fail_each_allocation(lambda: step(False)).tried == 2

    def test_is_stopped(cuda_memory):
        cuda_memory.fail_each_allocation(lambda: step(False), seconds=0)

    def test_nothing_fails(cuda_memory):
        with cuda_memory.fail_allocation(above="1GiB"):
            step(False)

    def test_not_entered(cuda_memory):
        cuda_memory.fail_allocation(nth=1)
"""


@pytest.mark.parametrize("options", [(), ("--cudamem",)])
def test_findings_are_those_of_the_test(run_inner: Run, options: tuple[str, ...]) -> None:
    inner = run_inner(STEPS, *options)
    assert "2 failed, 3 passed, 1 error" in inner.out
    run = inner.run
    (finding,) = [one for one in run.test("test_keeps").findings if one.verdict.value == "not recovered"]
    assert (finding.kind.value, finding.severity.value, finding.bytes) == ("oom", "fail", 2**18)
    assert "errors (list)[0]" in (finding.holder or "")
    assert run.test("test_recovers").findings == ()
    (finding,) = run.test("test_is_stopped").findings
    assert finding.severity.value == "warn"
    text = inner.out
    assert "cudamem: 1 place does not recover from a failed allocation (cpu; all 2 allocations tried in " in text
    assert text_of(finding) == "cudamem: 0 of 2 allocations tried (cpu): the limit of 0 s was reached"
    assert "other: 1 finding (not recovered, warning) in 1 test" in text
    assert "cudamem: no allocation failed on cpu: 2 allocations were made" in text
    assert re.search(r"cuda_memory\.fail_allocation\(\.\.\.\) at test_it\.py:\d+ checks nothing", text)


def examples() -> dict[str, str]:
    """The tests of the page's last section, by name."""
    section = PAGE.read_text(encoding="utf-8").partition("## Found in libraries")[2]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return {re.search(r"def (\w+)", block)[1]: block for block in blocks}  # type: ignore[index]


def test_faults_of_torch(run_inner: Run) -> None:
    found = examples()
    names = ("test_adamw_is_applied_to_a_part_of_the_model", "test_a_failed_backward_pass_keeps_activations")
    inner = run_inner(HEAD + "".join(found[name] for name in names))
    assert "1 failed, 1 passed" in inner.out
    assert re.search(r"half changed: \d+ of 16 \(.*optimizer\.state\[model\.0\.weight\]\.step", inner.out)


@pytest.mark.slow
def test_a_fault_of_transformers(run_inner: Run) -> None:
    pytest.importorskip("transformers")
    inner = run_inner(f"import transformers\n{HEAD}{examples()['test_a_cache_has_more_keys_than_values']}")
    assert "half changed: 1 of 2 (cache.layers[0].keys), not cache.layers[0].values" in inner.out
    assert "(aten::cat, 384 B, allocation 2 of 2, cpu)" in inner.out
