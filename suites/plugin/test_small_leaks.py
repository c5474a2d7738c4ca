"""Many small leaks: each is too small to be judged for its test; one holder of many of them fails the run."""

from __future__ import annotations

import json

import pytest

from suites.plugin.inner import KIB

MANY = """
    import pytest, torch

    KEPT, OTHER = [], {}

    def remember(n):
        KEPT.append(torch.zeros(12 * 1024))

    @pytest.mark.parametrize("n", range(30))
    def test_keeps(n):
        remember(n)

    @pytest.mark.parametrize("n", range(3))
    def test_keeps_a_little(n):
        OTHER[n] = torch.zeros(4 * 1024)
"""


def test_one_finding_at_the_end_of_the_run(run_inner):
    inner = run_inner(MANY, "--cudamem", "-q")
    assert inner.status == 1
    assert all(not test.findings for test in inner.run.tests)
    (finding,) = inner.run.findings
    assert (finding.kind.value, finding.verdict.value, finding.severity.value, finding.bytes) == (
        "leak",
        "reachable",
        "fail",
        30 * 48 * KIB,
    )
    assert finding.holder == "module test_it > KEPT (list)[0]"
    assert finding.cause == "leak | reachable | test_it.py::remember | module test_it > KEPT (list)[*]"
    assert inner.section("cudamem summary")[:8] == [
        "leak: 1 finding (reachable) in the run itself",
        "cudamem: 1.4 MiB leaked by 30 tests, less than 64.0 KiB each (30 blocks, cpu)",
        "   48.0 KiB  float32[12288] on cpu  reachable",
        "      allocated  test_it.py:6 in remember <- test_it.py:10 in test_keeps",
        "      held by    module test_it > KEPT (list)[0]",
        "   ... 29 more blocks: 1.4 MiB",
        "   hint: call test_it.KEPT.clear() at the end of the test",
        "   more: python -m cudamem_testing explain reachable, docs/hints.md#module-global",
    ]


@pytest.mark.parametrize(
    "change",
    [
        ('"n", range(30)', '"n", [0]'),  # 48 KiB in all
        ("KEPT.append(torch", "(torch"),
        ("12 * 1024", "12"),
        ("KEPT.append(torch.zeros(12 * 1024))", "exec('K%d = x' % n, {'x': torch.zeros(12 * 1024)})"),
    ],
)
def test_a_small_rest_is_none(run_inner, change):
    inner = run_inner(MANY.replace(*change), "--cudamem")
    assert (inner.status, inner.run.findings) == (0, ())


def test_what_is_gone_by_the_end_is_none(run_inner):
    inner = run_inner(MANY + "\n    def test_last(): KEPT.clear()\n", "--cudamem")
    assert (inner.status, inner.run.findings) == (0, ())
    ring = MANY.replace("KEPT.append(torch.zeros(12 * 1024))", "KEPT = [torch.zeros(12 * 1024)]; KEPT.append(KEPT)")
    inner = run_inner(ring, "--cudamem", "--cudamem-cycles=off")
    assert (inner.status, inner.run.findings) == (0, ())


def test_each_holder_is_judged_for_itself(run_inner):
    """Thirty lists of 48 KiB, and a cache that reaches the limit."""
    file = MANY.replace("KEPT.append", "globals().setdefault(f'KEPT{chr(97 + n)}', []).append").replace(
        "range(3)", "range(4)"
    )
    inner = run_inner(file, "--cudamem")
    (finding,) = inner.run.findings
    assert (finding.holder, finding.bytes) == ("module test_it > OTHER (dict)[0]", 64 * KIB)


@pytest.mark.parametrize(
    ("statement", "holder"),
    [
        ("setattr(NAMES, f'kept{n}', torch.zeros(12 * 1024))", "module test_it > NAMES (Names).kept0"),
        ("setattr(Names, f'kept{n}', torch.zeros(12 * 1024))", "class test_it.Names.kept0"),
        ("globals()[f'kept{n}'] = torch.zeros(12 * 1024)", "module test_it > kept0"),
    ],
)
def test_names_of_one_object_are_one_holder(run_inner, statement, holder):
    """An object that is filled under many names is a container; the control fills two."""
    file = MANY.replace("KEPT.append(torch.zeros(12 * 1024))", statement).replace(
        "KEPT, OTHER = [], {}", "OTHER = {}\n    class Names: pass\n    NAMES = Names()"
    )
    inner = run_inner(file, "--cudamem")
    (finding,) = inner.run.findings
    assert (inner.status, finding.bytes, finding.holder) == (1, 30 * 48 * KIB, holder)
    inner = run_inner(file.replace("range(30)", "[0]"), "--cudamem")
    assert (inner.status, inner.run.findings) == (0, ())


def test_severities_rules_and_what_is_known(run_inner, pytester):
    assert run_inner(MANY, "--cudamem", "--cudamem-leaks=off").run.findings == ()
    inner = run_inner(MANY, "--cudamem", "--cudamem-leaks=warn")
    assert (inner.status, inner.run.findings[0].severity.value) == (0, "warn")
    assert run_inner(MANY, "--cudamem-audit").status == 0
    ini = "[pytest]\ncudamem_ignore =\n  holder: module test_it > KEPT*  # by design\n"
    inner = run_inner({"test_it.py": MANY, "pytest.ini": ini}, "--cudamem")
    assert (inner.status, inner.run.findings) == (0, ())
    assert "ignored 1 finding by rule 'holder: module test_it > KEPT*' (by design)" in inner.run.notes
    (pytester.path / "pytest.ini").unlink()
    assert run_inner(MANY, "--cudamem", "--cudamem-update=known").status == 0
    (line,) = (pytester.path / "__cudamem__/known.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["bytes"] == 30 * 48 * KIB
    inner = run_inner(MANY, "--cudamem")
    assert (inner.status, inner.run.findings[0].standing.value) == (0, "known")
    assert run_inner(MANY.replace("range(30)", "range(60)"), "--cudamem").status == 1


def test_a_higher_limit_of_one_test_holds_for_the_run(run_inner):
    inner = run_inner(MANY, "--cudamem", "--cudamem-ignore-below=2MiB")
    assert (inner.status, inner.run.findings) == (0, ())
    assert run_inner(MANY, "--cudamem", "--cudamem-ignore-below=1MiB").status == 1


@pytest.mark.slow
@pytest.mark.subprocess
def test_workers_judge_what_they_ran(run_outer):
    inner = run_outer(MANY, "--cudamem", "-n2", plugins=["xdist.plugin"])
    assert inner.status == 1
    assert sum(finding.bytes for finding in inner.run.findings) == 30 * 48 * KIB
