"""Tests on simulated cards: without values where a marker says so, and skipped with the reason where it cannot run.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack

import pytest

from cudamem_testing.model.override import NOTHING
from cudamem_testing.plugin import keys

Wrapper = Generator[None, object, object]


NEEDS_CARDS = "is for simulated cards alone: run it with --cudamem-device=simulated"


def skip_without_cards(items: Iterable[pytest.Item]) -> None:
    """Skip tests whose marker asks for simulated cards, in a run that has none."""
    for item in items:
        if item.stash.get(keys.OVERRIDE, NOTHING).simulated:
            item.add_marker(pytest.mark.skip(reason=NEEDS_CARDS))


class OnSimulatedCards:
    """Turns the error of a simulated card into a skip, in fixtures and tests; takes values away from marked tests."""

    def __init__(self) -> None:
        self._leaving = ExitStack()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Wrapper:
        """Of fixtures."""
        if not item.stash.get(keys.OVERRIDE, NOTHING).values:
            from cudamem_testing.simulated import without_values

            self._leaving.enter_context(without_values())
        return (yield from _skipping())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Wrapper:
        """Of tests."""
        return (yield from _skipping())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Wrapper:
        """The next test has values again."""
        with self._leaving:
            return (yield)


#: Errors of torch where what a test needs is not there, by a part of their text.
NEEDS = {
    "a simulated card has no ": None,  # its own words
    "doesn't have NCCL built in": "a simulated card has no NCCL: run this on a real card",
    "Could not find any NVRTC library": "a simulated card compiles no CUDA kernels: run this on a real card",
    "CUDA_HOME environment variable is not set": "a simulated card runs no CUDA extensions: run this on a real card",
    "Cannot find a working triton installation": "a simulated card runs no Triton kernels: run this on a real card",
}


def unsupported(error: BaseException) -> str | None:
    """What of an error, or of those that caused it, a simulated card cannot do; ``None`` for other errors."""
    from cudamem_testing.simulated.bindings import SimulatedCardError

    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, SimulatedCardError):
            return str(found)
        if isinstance(found, (RuntimeError, OSError)):
            text = str(found)
            for part, reason in NEEDS.items():
                if part in text:
                    return reason or text.splitlines()[0]
        found = found.__cause__ or found.__context__
    return None


def _skipping() -> Wrapper:
    try:
        return (yield)
    except Exception as error:
        reason = unsupported(error)
        if reason is None:
            raise
    pytest.skip(reason)
