"""Blocks made without ``with``, and results that are not read: they check nothing, so the test fails at teardown."""

from __future__ import annotations

import pytest

from cudamem_testing import Memory
from cudamem_testing.model.entered import NotEnteredError

FIXTURES = """
    import pytest, torch

    def test_budget(cuda_memory):
        cuda_memory.budget(peak="1KiB")
        torch.empty(9999)

    def test_limit(cuda_memory):
        cuda_memory.limit("1KiB")

    def test_window(cuda_memory):
        with cuda_memory.window("one"):
            cuda_memory.window("two"), cuda_memory.window("three")

    def test_memory_profile(memory_profile):
        memory_profile()

    def test_operator_memory(operator_memory):
        operator_memory(device="cpu")

    def test_reference_cycles(reference_cycles):
        reference_cycles()

    def test_helper(cuda_memory):
        def hold(memory):
            return memory.window("inside")
        hold(cuda_memory)

    def test_entered(cuda_memory, memory_profile, operator_memory, reference_cycles):
        with cuda_memory.window("a"), cuda_memory.budget(peak="1MiB"), cuda_memory.limit("1MiB"):
            pass
        with reference_cycles() as cycles:
            pass
        assert not cycles
        with operator_memory(device="cpu") as operators:
            pass
        operators.summary()
        with memory_profile() as profile:
            torch.ones(4)
        profile.peak()
        memory_profile(torch.ones, 4).categories()

    def test_fails_before(cuda_memory):
        cuda_memory.window("inside")
        assert 1 == 2

    def test_skips(cuda_memory):
        cuda_memory.window("inside")
        pytest.skip()
"""


@pytest.mark.parametrize("args", [(), ("--cudamem",)])
def test_each_is_named_with_its_line(run_inner, args):
    inner = run_inner(FIXTURES, *args)
    assert inner.last == "1 failed, 8 passed, 1 skipped, 7 errors"
    for test, lines in {
        "budget": ["cuda_memory.budget(...) at test_it.py:4"],
        "limit": ["cuda_memory.limit(...) at test_it.py:8"],
        "window": ["cuda_memory.window(...) at test_it.py:12"] * 2,
        "memory_profile": ["memory_profile(...) at test_it.py:15"],
        "operator_memory": ["operator_memory(...) at test_it.py:18"],
        "reference_cycles": ["reference_cycles() at test_it.py:21"],
        "helper": ["cuda_memory.window(...) at test_it.py:25"],
    }.items():
        found = [f"cudamem: {line} checks nothing: write `with {line.partition(' at ')[0]}:`" for line in lines]
        assert [line for line in inner.section(f"ERROR at teardown of test_{test}") if line][: len(found)] == found


NEVER_LEFT = """
    import contextlib, torch

    def test_budget(cuda_memory):
        contextlib.ExitStack().enter_context(cuda_memory.budget(peak="1KiB"))
        torch.empty(9999)

    def test_limit(cuda_memory):
        cuda_memory.limit("1KiB").__enter__()

    def test_window(cuda_memory):
        cuda_memory.window("one").__enter__()

    def test_memory_profile(memory_profile):
        memory_profile().__enter__()

    def test_operator_memory(operator_memory):
        operator_memory(device="cpu").__enter__()

    def test_reference_cycles(reference_cycles):
        reference_cycles().__enter__()

    def test_left_later(cuda_memory):
        with contextlib.ExitStack() as stack:
            stack.enter_context(cuda_memory.budget(peak="1MiB"))
            torch.empty(9999)
        with cuda_memory.limit("1MiB"), cuda_memory.window("all"):
            torch.empty(9999)

    def test_fails_inside(cuda_memory):
        cuda_memory.window("inside").__enter__()
        assert 1 == 2

    def test_next(memory_profile):
        with memory_profile() as profile:
            torch.empty(9999)
        profile.peak()
"""


@pytest.mark.parametrize("args", [(), ("--cudamem",)])
def test_a_block_that_is_never_left_checks_nothing(run_inner, args):
    inner = run_inner(NEVER_LEFT, *args)
    assert inner.last == "1 failed, 8 passed, 6 errors"
    for test, call in {
        "budget": "cuda_memory.budget(...) at test_it.py:4",
        "limit": "cuda_memory.limit(...) at test_it.py:8",
        "window": "cuda_memory.window(...) at test_it.py:11",
        "memory_profile": "memory_profile(...) at test_it.py:14",
        "operator_memory": "operator_memory(...) at test_it.py:17",
        "reference_cycles": "reference_cycles() at test_it.py:20",
    }.items():
        line = f"cudamem: {call} was never left and checks nothing: write `with {call.partition(' at ')[0]}:`"
        assert line in inner.section(f"ERROR at teardown of test_{test}")


def test_cycles_are_not_asserted_before_the_block_has_ended(run_inner):
    file = """
        def test_inside(reference_cycles):
            with reference_cycles() as cycles:
                cycles.assert_none()

        def test_after(reference_cycles):
            with reference_cycles() as cycles:
                pass
            cycles.assert_none()
            assert len(cycles) == 0
    """
    inner = run_inner(file)
    assert inner.last == "1 failed, 1 passed"
    shown = [line.removeprefix("E").strip() for line in inner.section("test_inside")]
    assert "RuntimeError: nothing is found yet: leave the with block of reference_cycles first" in shown
    assert not [line for line in shown if "cudamem_testing/" in line]


def test_outside_pytest_it_is_an_error_at_the_end():
    def made_and_not_entered():
        with Memory.on("cpu") as memory:
            memory.budget(peak="1KiB")

    with pytest.raises(NotEnteredError, match=r"^memory\.budget\(\.\.\.\) at .*py:\d+ checks nothing: write `with "):
        made_and_not_entered()

    def entered_and_not_left():
        with Memory.on("cpu") as memory:
            memory.budget(peak="1KiB").__enter__()

    with pytest.raises(
        NotEnteredError, match=r"^memory\.budget\(\.\.\.\) at .*py:\d+ was never left and checks nothing"
    ):
        entered_and_not_left()

    def failed_for_another_reason():
        with Memory.on("cpu") as memory:
            memory.budget(peak="1KiB")
            raise KeyError

    with pytest.raises(KeyError):
        failed_for_another_reason()

    def measured_and_not_read():
        with Memory.on("cpu") as memory:
            memory.growth(list, steps=4)

    with pytest.raises(NotEnteredError, match=r"^memory\.growth\(\.\.\.\) at .*py:\d+ checks nothing, because"):
        measured_and_not_read()


def test_a_memory_that_is_not_entered_says_so():
    memory = Memory.on("cpu")
    said = r"^Memory\.on\('cpu'\) was not entered: write `with Memory\.on\('cpu'\) as memory:`, then memory\.budget$"
    with pytest.raises(NotEnteredError, match=said):
        memory.budget(peak="1KiB")
    with pytest.raises(
        TypeError, match=r"^this is not a decorator: write `with Memory\.on\('cpu'\) as memory:` inside"
    ):
        memory(test_thousands_of_windows_are_not_kept)
    assert repr(memory) == "<Memory.on('cpu'), a context>"
    assert not hasattr(memory, "_repr_html_")
    with memory as entered:
        assert repr(entered) == "<memory: measures cpu>"


def test_thousands_of_windows_are_not_kept():
    with Memory.on("cpu") as memory:
        for number in range(1000):
            with memory.window(f"w{number}"):
                pass
        assert len(memory.blocks._made) < 110


UNREAD = """
    import pytest, torch

    def step():
        return torch.ones(4)

    def test_growth(cuda_memory):
        cuda_memory.growth(step, steps=4)

    def test_growth_is_true(cuda_memory):
        assert cuda_memory.growth(step, steps=4)

    def test_scaling(cuda_memory):
        cuda_memory.scaling(torch.ones, [1, 2, 4]).assert_peak  # not called

    def test_lint(graph_capture):
        graph_capture.check(step)

    def test_reference_cycles(reference_cycles):
        with reference_cycles() as cycles:
            step()

    def test_memory_profile(memory_profile):
        memory_profile(step)

    def test_operator_memory(operator_memory):
        with operator_memory(device="cpu"):
            step()

    def test_read(cuda_memory, graph_capture, reference_cycles, memory_profile, operator_memory):
        print(cuda_memory.growth(step, steps=4))
        cuda_memory.scaling(torch.ones, [1, 2, 4]).assert_peak("O(n)")
        graph_capture.check(step).assert_clean()
        assert len(graph_capture.check(step)) == 0
        with reference_cycles() as cycles:
            step()
        cycles.assert_none()
        memory_profile(step).peak()
        with operator_memory(device="cpu") as operators:
            step()
        operators.assert_budget(peak="1MiB")

    def test_fails(graph_capture, memory_profile):
        graph_capture.check(step)
        memory_profile(step)
        assert 1 == 2

    def test_skips(graph_capture):
        graph_capture.check(step)
        pytest.skip()

    def test_an_error_is_expected(memory_profile, operator_memory, reference_cycles):
        with pytest.raises(KeyError):
            memory_profile({}.__getitem__, 1)
        with pytest.raises(KeyError), operator_memory(device="cpu"), reference_cycles():
            raise KeyError

    @pytest.mark.memory_budget(peak="1MiB")
    def test_explains_a_budget(memory_profile):
        memory_profile(step)
"""


def test_a_result_that_is_not_read_checks_nothing(run_inner):
    inner = run_inner(UNREAD)
    assert inner.last == "1 failed, 10 passed, 1 skipped, 7 errors"
    for test, made, check in (
        ("growth", "cuda_memory.growth(...) at test_it.py:7", ".assert_plateau()"),
        ("growth_is_true", "cuda_memory.growth(...) at test_it.py:10", ".assert_plateau()"),
        ("scaling", "cuda_memory.scaling(...) at test_it.py:13", '.assert_peak("O(n)")'),
        ("lint", "graph_capture.check(...) at test_it.py:16", ".assert_clean()"),
        ("reference_cycles", "reference_cycles() at test_it.py:19", ".assert_none()"),
        ("memory_profile", "memory_profile(...) at test_it.py:23", ".assert_categories(), or another assert_ method,"),
        ("operator_memory", "operator_memory(...) at test_it.py:26", ".assert_by_module(), or another assert_ method,"),
    ):
        line = f"cudamem: {made} checks nothing, because nothing is read from it: call {check} on the result"
        assert inner.section(f"ERROR at teardown of test_{test}")[0] == line
