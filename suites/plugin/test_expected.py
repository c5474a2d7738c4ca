"""Expected text in a run: accepted on request, written once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cudamem_testing.__main__ import main

BODY = """
    import pytest, torch

    class Node:
        pass

    def ring(name):
        one = Node()
        setattr(one, name, one)
        one.big = torch.zeros(16)

    def test_one(reference_cycles):
        with reference_cycles() as cycles:
            ring("me")
        cycles.assert_cycle("")

    @pytest.mark.parametrize("n", [1, 2])
    def test_no_argument(reference_cycles, n):
        with reference_cycles() as cycles:
            ring("you")
        cycles.assert_cycle()
"""
NO_LITERAL = """
    import torch

    EXPECTED = "nonsense"

    class Node:
        pass

    def test_constant(reference_cycles):
        with reference_cycles() as cycles:
            one = Node()
            one.me = one
            del one
        cycles.assert_cycle(EXPECTED)

    def test_right(reference_cycles):
        with reference_cycles() as cycles:
            pass
        cycles.assert_cycle(str("no cycles"))
"""
ACCEPTED = '''\
    cycles.assert_cycle("""
        Node.__dict__['me'] -> Node
        keeps 64 B in 1 tensor: big float32[16]
        """)'''


NET = """
    import torch

    def forward(x, w, v):
        h = torch.relu(x @ w)
        return (h @ v).sum()
"""
FLOW = {
    "net.py": NET,
    "test_it.py": '''
    import torch
    from net import forward

    def test_flow(memory_profile):
        w, v = (torch.ones(64, 64, requires_grad=True) for _ in range(2))
        profile = memory_profile(lambda x, w, v: forward(x, w, v).backward(), x=torch.ones(256, 64), w=w, v=v)
        profile.assert_data_flow("""
            x:       T0
            w:       T1, grad T11
            v:       T2, grad T8

            aten::matmul              T0, T1           ->  T3
            aten::relu                T3               ->  T4
            aten::matmul              T4, T2           ->  T5
            aten::sum                 T5               ->  T6
            aten::ones_like           T6               ->  T7
            MmBackward0               T7, T4, T2       ->  T8, T9
            ReluBackward0             T9, T4           ->  T10
            MmBackward0               T10, T0          ->  T11
            """)
    ''',
}


@pytest.mark.parametrize("how", ["--cudamem-update=expected", "--cudamem-update"])
def test_accepted_and_then_compared(run_inner, pytester, how):
    inner = run_inner(BODY, how)
    assert inner.last == "3 passed"
    assert inner.section("expected text")[0] == "3 expected texts written"
    assert ACCEPTED in (pytester.path / "test_it.py").read_text(encoding="utf-8")
    kept = sorted(path.name for path in (pytester.path / "__cudamem__").rglob("*.txt"))
    assert len(kept) == 2
    assert run_inner({}).last == "3 passed"


def test_a_constant_counts_in_any_case(run_inner, pytester):
    for args in ([], ["--cudamem-update=expected"], []):
        inner = run_inner(NO_LITERAL, *args)
        assert inner.last == "1 failed, 1 passed"
        wrong = "not accepted: the argument is not a literal: " if args else "the argument is not a literal: "
        assert any(line.startswith(wrong) for line in inner.section("test_constant"))
    assert not (pytester.path / "__cudamem__").exists()


def test_a_mismatch_says_what_has_changed_and_shows_no_source(run_inner: Any, pytester: pytest.Pytester) -> None:
    """First the operator, its size and its line; nothing of the text that stands in the test is printed before it."""
    inner = run_inner(FLOW)
    assert inner.last == "1 passed"
    inner = run_inner(FLOW | {"net.py": NET.replace("h = torch.relu(x @ w)", "h = torch.relu(x @ w).clone()")})
    assert inner.last == "1 failed"
    place = next(place for place, line in enumerate(inner.lines) if line.strip("_") == " test_flow ")
    assert inner.lines[place + 1 : place + 6] == [
        "1 operator more: aten::clone, 64.0 KiB, net.py:4 in forward",
        "T12 in place of T4: aten::matmul, MmBackward0",
        "the text differs from the expected one, test_it.py:7",
        "--- expected",
        "+++ actual",
    ]
    assert "FAILED test_it.py::test_flow - 1 operator more: aten::clone, 64.0 KiB, net.py" in inner.out
    assert not [line for line in inner.lines if line.startswith(("E  ", ">  "))]


def test_the_whole_text_is_shown_on_request(run_inner):
    run_inner(FLOW)
    files = {"net.py": NET.replace("h = torch.relu(x @ w)", "h = torch.relu(x @ w).clone()")}
    title = "the whole text as it is now"
    inner = run_inner(files, "-vv")
    start = inner.lines.index(next(line for line in inner.lines if line.strip("-") == f" {title} "))
    text = inner.lines[start + 1 : start + 14]
    assert text[:3] == ["x:       T0", "w:       T1, grad T12", "v:       T2, grad T9"]
    assert text[4:7] == [
        "aten::matmul              T0, T1           ->  T3",
        "aten::relu                T3               ->  T4",
        "aten::clone               T4               ->  T5",
    ]
    assert title not in run_inner({}, "-v").out


def test_the_variable_of_expecttest(run_inner, monkeypatch):
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    inner = run_inner(BODY)
    assert inner.last == "3 passed"


def test_not_accepted_without_being_asked(run_inner, pytester):
    inner = run_inner(BODY)
    assert inner.last == "3 failed"
    assert "to accept the actual text: pytest --cudamem-update=expected, or EXPECTTEST_ACCEPT=1" in inner.lines
    assert not (pytester.path / "__cudamem__").exists()


def test_lists(run_inner):
    inner = run_inner("def test_a(): pass", "--cudamem", "--cudamem-update=known,baselines")
    assert inner.settings.update == {"known", "baselines"}
    inner = run_inner("def test_a(): pass", "--cudamem-update=expected,new")
    assert inner.status == 4
    assert (
        "cudamem: --cudamem-update: new is not known: write baselines, known, expected, or nothing for all" in inner.err
    )


LEAVING = {
    "conftest.py": """
        def pytest_sessionfinish(session):
            print("\\nTEXTS", session.config.pluginmanager.hasplugin("cudamem-expected"))
    """,
    "test_it.py": "def test_it(): pass",
}


@pytest.mark.parametrize(
    ("folder", "flags", "needed"),
    [(None, [], False), ("__cudamem__/test_it", [], True), (None, ["--cudamem-update=expected"], True)],
    ids=["no texts", "a folder of texts", "accepted"],
)
def test_a_run_without_texts_calls_no_hook_for_them(run_inner, pytester, folder, flags, needed):
    if folder is not None:
        (pytester.path / folder).mkdir(parents=True)
    inner = run_inner(LEAVING, "--cudamem", "-s", *flags)
    assert inner.last == "1 passed"
    assert f"TEXTS {needed}" in inner.lines


PARAMETRIZED = """
    import pytest, torch

    def double(x): return x * 2

    def keep(x): return x

    def check(profile, *text):
        profile.assert_data_flow(*text)

    FUNCTIONS = [double, keep]

    @pytest.mark.parametrize("n", [1, 2, 3])
    def test_same_literal(memory_profile, n):
        memory_profile(double, torch.ones(3)).assert_data_flow("")

    @pytest.mark.parametrize("f", FUNCTIONS)
    def test_contradicting_literal(memory_profile, f):
        memory_profile(f, torch.ones(3)).assert_data_flow("")

    @pytest.mark.parametrize("f", FUNCTIONS)
    def test_side_files(memory_profile, f):
        check(memory_profile(f, torch.ones(3)))
        check(memory_profile(f, torch.ones(4)))

    @pytest.mark.parametrize("text", ["a", "b"])
    def test_values(memory_profile, text):
        check(memory_profile(double, torch.ones(3)), text)

    @pytest.mark.parametrize("n", [1, 2])
    def test_by_device(memory_profile, n):
        memory_profile(double, torch.ones(3)).assert_data_flow({"cuda": "x"})

    @pytest.mark.parametrize("n", [1, 2])
    def test_fails_later(memory_profile, n):
        check(memory_profile(double, torch.ones(3)))
        assert n == 1

    @pytest.mark.parametrize("n", [1, 2])
    def test_right(memory_profile, n):
        memory_profile(keep, torch.ones(3)).assert_data_flow("x:       unused\\nout:     unused")
"""
#: With texts in the file and beside it; what else there is differs in one folder only.
FEWER = PARAMETRIZED.partition('    @pytest.mark.parametrize("text"')[0]
LISTED = re.compile(r" {4}(\S+)  (\d+)")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "accept"])
def test_the_list_of_written_files_is_what_was_written(run_inner, pytester, monkeypatch, capsys, how):
    """For parametrized texts of every kind: each file that is named has changed, and no other has."""
    files = {"test_it.py": PARAMETRIZED, "sub/test_other.py": FEWER.replace("torch.ones(3)", "torch.ones(5)")}

    def contents() -> dict[str, bytes]:
        texts = (path for path in pytester.path.rglob("*") if path.suffix in (".py", ".txt"))
        return {str(path.relative_to(pytester.path)): path.read_bytes() for path in texts}

    run_inner(files, "--collect-only")
    for attempt in range(3):  # a run that fails at its first text shows the second one in the next attempt
        before = contents()
        if how == "run":
            lines = run_inner({}, "--cudamem-update=expected").section("expected text")
        else:
            run_inner({}, "--cudamem-json=report.json")
            before = contents()
            monkeypatch.chdir(pytester.path)
            capsys.readouterr()
            main(["accept", "report.json", "--expected"])
            lines = capsys.readouterr().out.splitlines()
        after = contents()
        listed = {match[1]: int(match[2]) for match in map(LISTED.fullmatch, lines) if match}
        assert {*listed} == {name for name, content in after.items() if before.get(name) != content}
        total = sum(listed.values())
        assert (total > 0) is (attempt == 0 or (attempt == 1 and how == "accept"))
        assert [line for line in lines if "written" in line and "not" not in line] == (
            [f"{total} expected texts written"] if total else []
        )
