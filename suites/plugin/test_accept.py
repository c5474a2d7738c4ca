"""Expected texts that a run measured, accepted from its report: every kind of them."""

from __future__ import annotations

import json

from cudamem_testing.__main__ import main

BODY = """
    import pytest, torch
    from cudamem_testing.records.expected.errors import TextMismatchError

    def step(x):
        return {"y": x.sin()}

    def pull(x):
        return x.item()

    def test_data_flow(memory_profile):
        memory_profile(step, x=torch.ones(256)).assert_data_flow("old")

    def test_categories(memory_profile):
        memory_profile(step, x=torch.ones(256)).assert_categories({"cuda": "other"})

    def test_timeline(memory_profile):
        memory_profile(step, x=torch.ones(256)).assert_timeline("old", unit="B")

    def test_operators(operator_memory):
        x = torch.ones(256)
        with operator_memory() as memory:
            x.sin()
        memory.assert_summary("old")

    def test_modules(operator_memory):
        model = torch.nn.Linear(8, 8)
        with operator_memory(model) as memory:
            model(torch.ones(8, 8))
        memory.assert_by_module("old")

    def test_graph(graph_capture):
        graph_capture.check(pull, torch.ones(1)).assert_findings("old")

    class Node:
        pass

    @pytest.mark.parametrize("name", ["", "Node.__dict__['me'] -> Node"])
    def test_cycles(reference_cycles, name):
        with reference_cycles() as cycles:
            one = Node()
            one.me, one.big = one, torch.zeros(16)
            del one
        cycles.assert_cycle()

    def test_the_mismatch_is_wanted(memory_profile):
        profile = memory_profile(step, x=torch.ones(256))
        with pytest.raises(TextMismatchError):
            profile.assert_data_flow("not this")
"""


def test_texts_of_every_kind(run_inner, pytester, monkeypatch, capsys):
    assert run_inner(BODY, "--cudamem-json=report.json").last == "8 failed, 1 passed"
    monkeypatch.chdir(pytester.path)
    capsys.readouterr()
    before = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    assert main(["accept", "report.json", "--expected"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "8 expected texts written",
        "    __cudamem__/test_it/test_cycles[Node.__dict__[%27me%27]%20-%3e%20Node]~x29e48ef9de.txt  1",
        "    __cudamem__/test_it/test_cycles[].txt  1",
        "    test_it.py  6",
    ]
    text = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    assert text != before
    assert text.count('"old"') == 0
    assert '{"cuda": "other", "cpu": """' in text
    assert 'assert_data_flow("not this")' in text
    assert run_inner({}).last == "9 passed"


PARAMETERS = """
    import pytest
    from cudamem_testing.records.expected.check import assert_text

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_it(n):
        assert_text(f"at most {max(n, 2)}", "at most 2")

    def test_other():
        assert_text("new", "old")
"""


def test_a_text_that_other_parameters_have_is_kept(run_inner, pytester, monkeypatch, capsys):
    run_inner(PARAMETERS, "--cudamem", "--cudamem-json=report.json")
    monkeypatch.chdir(pytester.path)
    capsys.readouterr()
    assert main(["accept", "report.json"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "no baseline",
        "1 expected text written",
        "    test_it.py  1",
        "test_it.py: 3 texts were not written: contradicting texts for one place",
        "    line 6, test_it.py::test_it[3]:",
        "        | at most 3",
        "    line 6, test_it.py::test_it[1]:",
        "        | at most 2",
        "    line 6, test_it.py::test_it[2]:",
        "        | at most 2",
    ]
    text = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    assert ('"at most 2")' in text, 'assert_text("new", "new")' in text) == (True, True)


def test_the_last_attempt_counts(run_inner, pytester):
    inner = run_inner(
        """
        from cudamem_testing.records.expected.check import assert_text
        runs = []

        def test_flaky():
            assert_text(str("same"), str("same"))
            runs.append(1)
            assert_text("new" if len(runs) == 1 else "old", "old")

        def test_steady():
            assert_text("same", str("same"))
            assert_text("new", str("old"))
        """,
        "--cudamem",
        "--cudamem-json=report.json",
        "--reruns=1",
        plugins=["rerunfailures"],
    )
    assert inner.last == "1 failed, 1 passed, 2 rerun"
    assert [(str(one), one.actual) for one in inner.run.checked] == [
        ("test_it.py::test_flaky: test_it.py:7 is right", None),
        ("test_it.py::test_steady: test_it.py:11 has another text", "new"),
    ]


def test_without_a_report_nothing_is_kept(run_inner, pytester):
    inner = run_inner(PARAMETERS, "--cudamem")
    assert inner.run.checked == ()
    run_inner({}, "--cudamem", "--cudamem-json=report.json")
    report = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))
    assert [(one["test"], one["actual"]) for one in report["run"]["expected"]] == [
        ("test_it.py::test_it[1]", None),
        ("test_it.py::test_it[2]", None),
        ("test_it.py::test_it[3]", "at most 3"),
        ("test_it.py::test_other", "new"),
    ]
