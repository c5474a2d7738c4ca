"""``memory_profile`` in a run: texts, windows around it, profilers of the test's own, and what is left behind."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch

from cudamem_testing.recorders import native
from cudamem_testing.recorders.profiler import TAKEN
from cudamem_testing.wording.findings import title
from suites.plugin.inner import MIB

# What the transforms import must be there before an inner run, which drops new modules.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))

BODY = """
    import pytest, torch

    def step(x, w):
        (x * w).sin().backward()

    def inputs():
        return {"x": torch.ones(1), "w": torch.ones(1, requires_grad=True)}

    def test_call(memory_profile):
        memory_profile(step, **inputs()).assert_data_flow("", exclude="[memory]")

    def test_block(memory_profile):
        x = torch.ones(1)
        with memory_profile() as p:
            with p.region("twice"):
                y = x * 2
            p.name(x=x, y=y)
        p.assert_data_flow("", regions=True)

    @pytest.mark.parametrize("n", [3, 4])
    def test_parameters(memory_profile, n):
        memory_profile(torch.sin, torch.ones(n)).assert_data_flow()

    def test_no_argument(memory_profile):
        memory_profile(torch.cos, torch.ones(3)).assert_data_flow(frees=False)

    def test_by_device(memory_profile):
        memory_profile(torch.sin, torch.ones(3)).assert_data_flow({"cpu": "", "cuda": "other"})
"""
ACCEPTED = '''\
def test_call(memory_profile):
    memory_profile(step, **inputs()).assert_data_flow("""
        x:       T0
        w:       T1, grad T6

        aten::mul                 T0, T1           ->  T2
        aten::sin                 T2               ->  T3
        aten::ones_like           T3               ->  T4
        SinBackward0              T4, T2           ->  T5
        MulBackward0              T5, T0           ->  T6
        """, exclude="[memory]")

def test_block(memory_profile):
    x = torch.ones(1)
    with memory_profile() as p:
        with p.region("twice"):
            y = x * 2
        p.name(x=x, y=y)
    p.assert_data_flow("""
        x:       T0
        y:       T2

        -- twice -----------------------------------------------------------------------
        aten::mul                 T0, T1           ->  T2
        """, regions=True)
'''
BY_DEVICE = '''\
    memory_profile(torch.sin, torch.ones(3)).assert_data_flow({"cpu": """
        arg0:    T0
        out:     T1

        aten::sin                 T0               ->  T1
        """, "cuda": "other"})
'''


def test_texts_are_accepted_and_then_compared(run_inner, pytester):
    inner = run_inner(BODY, "--cudamem-update=expected")
    assert inner.last == "6 passed"
    assert inner.section("expected text")[0] == "6 expected texts written"
    text = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    assert ACCEPTED in text
    assert BY_DEVICE in text
    kept = sorted(path.name for path in (pytester.path / "__cudamem__").rglob("*.txt"))
    assert len(kept) == 3
    for args in ([], ["--cudamem"]):  # with and without measuring: the recorder changes no text
        inner = run_inner({}, *args)
        assert inner.last == "6 passed", inner.out


def test_options_of_a_recording(run_inner):
    inner = run_inner(
        """
        import torch

        def test_calls(memory_profile):
            with memory_profile(dispatched=True) as p:
                torch.ones(4).mul(2)
            p.assert_categories('''
                aten::ones                                                                             -> 1 (???)
                aten::mul.Tensor                         1 (???)                                       -> ???
                ''', ids="profiler")

        def test_a_function_with_such_an_argument(memory_profile):
            memory_profile(lambda dispatched: dispatched.sin(), dispatched=torch.ones(4)).assert_data_flow('''
                dispatched: T0
                out:        T1

                aten::sin                 T0(v0)           ->  T1(v0)
                ''')
        """
    )
    assert inner.last == "2 passed", inner.out


def test_operators_of_pythons_syntax_have_a_line_if_recorded(run_inner):
    inner = run_inner(
        """
        import torch

        def double(x):
            y = x * 2
            z = x * 3
            return y + z

        def test_double(memory_profile):
            p = memory_profile(double, torch.ones(2**14))
            lines = [part.name for part in p.peak().by_line if "double" in part.name]
            assert sorted(lines) == ["test_it.py:4 in double", "test_it.py:5 in double", "test_it.py:6 in double"]
            p.assert_data_flow('''
                x: T0

                aten::mul                 T0               ->  T1
                aten::add                 T1, T1           ->  T2
            ''')
        """,
        "--cudamem",
        "--cudamem-device=cpu",
    )
    assert inner.section("test_double")[:1] == ["1 operator more: aten::mul, 64.0 KiB, test_it.py:5 in double"], (
        inner.out
    )


def test_a_mismatch(run_inner):
    inner = run_inner(
        """
        import torch

        def test_sin(memory_profile):
            memory_profile(lambda x: {"y": x.sin()}, x=torch.ones(3)).assert_data_flow('''
                x:       T0
                y:       T1

                aten::sin                 T0(v0)           ->
                aten::mul                 T0(v0)           ->  T1(v0)
            ''')

        def test_dropout(memory_profile):
            p = memory_profile(lambda x: {"y": x.relu()}, x=torch.ones(3))
            p.assert_data_flow('''
                x:       T0
                y:       T1

                aten::native_dropout      T0(v0)           ->  T1(v0)
                aten::cudnn_convolution   T1(v0)           ->
            ''')
        """
    )
    assert (inner.last, inner.record) == ("2 failed", None)
    assert [line for line in inner.section("test_sin")[:12] if line] == [
        "1 operator fewer: aten::mul",
        "T1 is made by aten::sin, before: aten::mul",
        "the text differs from the expected one, test_it.py:4",
        "--- expected",
        "+++ actual",
        "@@ -1,4 +1,3 @@",
        " x:        T0",
        " y:        T1",
        "-aten::sin T0(v0)  ->",
        "-aten::mul T0(v0)  ->  T1(v0)",
        "+aten::sin T0(v0)  ->  T1(v0)",
        "to accept the actual text: pytest --cudamem-update=expected, or EXPECTTEST_ACCEPT=1",
    ]
    told = inner.section("test_dropout")
    place = next(place for place, line in enumerate(told) if line.startswith("operators that differ"))
    assert told[place : place + 6] == [
        "operators that differ from device to device are among the changes; this run was on cpu:",
        "  only expected: aten::native_dropout, aten::cudnn_convolution",
        "  only here:     aten::relu",
        'give a text for each device, expected={"cpu": ..., "cuda": ...}, or let device_aliases=True fold dropout,',
        "attention, foreach and optimizers into names that hold on all",
        "to accept the actual text: pytest --cudamem-update=expected, or EXPECTTEST_ACCEPT=1",
    ]


WINDOWS = """
    import gc, pytest, torch
    from torch.profiler import profile

    MIB = 2**20

    def three(x):
        kept = [x.sin() for _ in range(3)]
        return kept[0]

    @pytest.fixture
    def x():
        return torch.ones(MIB // 4)

    @pytest.mark.memory_budget(peak="3MiB", at_least={"peak": "3MiB"}, retained=0)
    def test_budget(memory_profile, x):
        memory_profile(three, x)

    @pytest.mark.memory_budget(peak="2MiB")
    def test_over(memory_profile, x):
        memory_profile(three, x)

    def test_window(memory_profile, cuda_memory, x):
        with cuda_memory.window("outer") as outer:
            p = memory_profile(three, x)
        assert (outer.peak_growth, outer.retained) == (3 * MIB, 0)
        with memory_profile() as p:
            with cuda_memory.window("inner") as inner:
                y = three(x)
            p.name(y=y)
        assert (inner.peak_growth, inner.retained) == (3 * MIB, MIB)
        assert p.data_flow().storage("y").nbytes == MIB

    def test_transforms(memory_profile, x):
        memory_profile(torch.func.vmap(torch.sin), x.reshape(2, -1)).peak()
        memory_profile(lambda x: torch.func.jvp(torch.sin, (x,), (x,)), x).peak()

    def test_own_profiler(memory_profile, x):
        with profile(profile_memory=True) as prof:
            with pytest.raises(RuntimeError, match="^a torch profiler is recording already"):
                memory_profile(three, x)
            x.sin()
        assert "aten::sin" in [one.key for one in prof.key_averages()]

    def test_fails(memory_profile, x):
        memory_profile(lambda x: x.sin() + torch.ones(7), x)

    def test_leaks(memory_profile, x, cache=[]):
        memory_profile(lambda x: cache.append(x.sin()), x).peak()
"""


def test_windows_around_it_stay_right(run_inner):
    inner = run_inner(WINDOWS, "--cudamem")
    assert inner.last == "2 failed, 5 passed, 1 error"
    assert {name for name, outcome in inner.outcomes.items() if outcome != "passed"} == {
        "test_over",
        "test_fails",
        "test_leaks",
    }
    assert inner.section("test_over")[0] == (
        "cudamem: peak 3.0 MiB above start is over its budget of 2.0 MiB by 1.0 MiB (cpu)"
    )
    for test in ("test_budget", "test_over"):
        window = inner.window(test)
        assert (window.peak_growth, window.complete, window.notes) == (3 * MIB, True, ())
    assert [
        (test.nodeid.partition("::")[2], str(finding.verdict.value))
        for test in inner.run.tests
        for finding in test.findings
    ] == [("test_over", "over budget"), ("test_fails", "traceback"), ("test_leaks", "reachable")]
    assert title(inner.test("test_leaks").findings[0]) == "cudamem: 1.0 MiB leaked (1 block, cpu)"


def test_with_torchs_profiler_in_the_place_of_the_recorder(run_inner, monkeypatch, tmp_path):
    monkeypatch.setattr("suites.plugin.inner.CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(
        native, "_of_this_process", cache(native._of_this_process.__wrapped__)
    )  # as if none were loaded
    inner = run_inner(WINDOWS, "--cudamem", "-k", "test_budget or test_transforms")
    assert inner.last == "2 passed, 5 deselected"
    assert [finding for test in inner.run.tests for finding in test.findings] == []
    window = inner.window("test_budget")
    assert (window.complete, window.notes) == (False, (TAKEN,))
    assert (window.start, window.peak, window.retained) == (MIB, None, None)
    told = " ".join(line.strip() for line in inner.summary[3:5])
    assert told == f"NOT CHECKED: 1 budget: peak is unknown on cpu: {TAKEN}"


ORDER = """
    import torch

    KEPT = []

    def step(x):
        return (x @ x).sum()

    def test_keeps():
        KEPT.append(torch.ones(1 << 20))

    def test_fails(memory_profile):
        x = torch.ones(300, 300)
        memory_profile(step, x).peak()
        assert x is None

    def test_timeline(memory_profile):
        x, unused = torch.ones(64, 64), torch.ones(64, 64)
        memory_profile(step, x).assert_timeline(TEXT)

    TEXT = '''
        KiB on cpu  peak  unknown
        everything    32       32
    '''
"""


@pytest.mark.parametrize("args", [(), ("--cudamem", "--cudamem-leaks=off"), ("-k", "timeline")])
def test_memory_of_earlier_tests_does_not_change_the_timeline(run_inner, args):
    inner = run_inner(ORDER, *args)
    assert inner.last.endswith("1 passed, 2 deselected" if "-k" in args else "1 failed, 2 passed")
