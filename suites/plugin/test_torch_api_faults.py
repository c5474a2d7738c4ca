"""Each private function of torch that we use fails, is missing, or answers nonsense in turn.

Tests keep their own outcomes: the clean one passes, the one that fails does so with its own error. Where nothing can be
measured, the run ends before its first test with one line that says why. Nothing is an internal error of pytest.

A first run tells which functions are called at all: without the others it would be the same.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType

import pytest

from suites.plugin.inner import Inner

TESTS = """
    import pytest, torch
    KEPT = []

    def test_clean():
        torch.ones(64, 64).sum()

    def test_fails():
        assert torch.zeros(8).sum() == 1

    def test_leaks():
        KEPT.append(torch.ones(256, 256, requires_grad=True) * 2)

    @pytest.mark.memory_budget(peak="64KiB")
    def test_over():
        torch.ones(256, 256)

    def test_cycle():
        tensor = torch.ones(256, 256)
        tensor.me = tensor
"""


def modules() -> list[ModuleType]:
    return [module for name, module in [*sys.modules.items()] if name.startswith("cudamem_testing")]


FUNCTIONS = sorted(
    f"{module.__name__}.{name}"
    for module in modules()
    if module.__name__.startswith("cudamem_testing.torch_api.")
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    if name != "imported"  # which asks Python, not torch
)


def function(name: str) -> Callable[..., object]:
    module, _, attribute = name.rpartition(".")
    found: Callable[..., object] = getattr(sys.modules[module], attribute)
    return found


@contextmanager
def replaced(name: str, by: Callable[..., object]) -> Iterator[None]:
    """Replace a function in all modules of the package that import it."""
    original = function(name)
    places = [(one, key) for one in modules() for key, value in vars(one).items() if value is original]
    for one, key in places:
        setattr(one, key, by)
    try:
        yield
    finally:
        for one, key in places:
            setattr(one, key, original)


def fails(*arguments: object, **named: object) -> object:
    raise RuntimeError("injected")


def missing(*arguments: object, **named: object) -> object:
    raise AttributeError("injected")


def nothing(*arguments: object, **named: object) -> object:
    return None


def negative(*arguments: object, **named: object) -> object:
    return -1


def of_a_wrong_type(*arguments: object, **named: object) -> object:
    return "nonsense"


def called(run: Callable[[], Inner]) -> frozenset[str]:
    """The functions that a run calls."""
    found: set[str] = set()

    def noting(name: str, original: Callable[..., object], *arguments: object, **named: object) -> object:
        found.add(name)
        return original(*arguments, **named)

    with ExitStack() as stack:
        for name in FUNCTIONS:
            stack.enter_context(replaced(name, partial(noting, name, function(name))))
        inner = run()
    assert inner.last == "2 failed, 3 passed, 2 errors", inner.out
    return frozenset(found)


#: What ``make test-all`` injects; the other answers are for ``make test-full``.
ANSWERS = (
    [fails, missing, nothing, negative, of_a_wrong_type] if os.environ.get("HYPOTHESIS_PROFILE") == "full" else [fails]
)


@pytest.mark.slow
@pytest.mark.parametrize("by", ANSWERS)
def test_tests_keep_their_outcomes(run_inner, by: Callable[..., object]) -> None:
    run = partial(run_inner, TESTS, "--cudamem", "--cudamem-cycles=fail")
    names = called(run)
    assert 20 < len(names) < len(FUNCTIONS)
    for name in sorted(names):
        with replaced(name, by):
            outcomes_are_kept(name, run())


def outcomes_are_kept(name: str, inner: Inner) -> None:
    text = f"{name}:\n{inner.out}{inner.err}"
    assert "INTERNALERROR" not in text, text
    if inner.status == pytest.ExitCode.USAGE_ERROR:
        assert "ERROR: cudamem: memory cannot be measured here: " in text, text
        return
    assert inner.status == pytest.ExitCode.TESTS_FAILED, text
    outcomes = inner.outcomes
    assert (outcomes["test_fails"], outcomes["test_clean"]) == ("failed", "passed"), text
    assert "assert tensor(False)" in text or "== 1" in text, text


def test_what_breaks_is_said_where_a_failure_is_shown(run_inner) -> None:
    with replaced("cudamem_testing.torch_api.cuda.is_out_of_memory", fails):
        inner = run_inner("import torch\ndef test_fails(): assert torch.zeros(1) == 1", "--cudamem")
    assert "what is known of this failure cannot be shown: RuntimeError: injected" in inner.out
    assert inner.last == "1 failed"


def test_a_run_that_cannot_be_measured_ends_with_one_line(run_inner) -> None:
    with replaced("cudamem_testing.torch_api.cuda.allocator_backend", fails):
        inner = run_inner("import torch\ndef test_it(): pass", "--cudamem")
    assert inner.status == pytest.ExitCode.USAGE_ERROR
    assert inner.err.strip() == (
        "ERROR: cudamem: memory cannot be measured here: RuntimeError: injected; --no-cudamem runs the tests without "
        "it, python -m cudamem_testing doctor shows what can be measured"
    )
