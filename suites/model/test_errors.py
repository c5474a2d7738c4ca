"""Errors that came together."""

from __future__ import annotations

import sys

import pytest

from cudamem_testing.model.errors import drop_tracebacks, exception_chain, first_cause

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup  # comes with pytest


def test_causes_contexts_and_parts_are_met_once() -> None:
    cause, context, one, other = KeyError(), ValueError(), TypeError(), OSError()
    group = ExceptionGroup("two", [one, other])
    outer = RuntimeError()
    outer.__cause__, outer.__context__, one.__cause__ = cause, group, cause
    other.__context__ = context
    met = [*exception_chain(outer)]
    assert met[0] is outer
    assert len(met) == 6
    assert {*map(id, met)} == {*map(id, (outer, cause, context, group, one, other))}


def test_a_circle_ends() -> None:
    one, other = KeyError(), ValueError()
    one.__context__, other.__cause__ = other, one
    assert [*exception_chain(one)] == [one, other]


def test_a_long_chain_needs_no_stack() -> None:
    error: BaseException = ValueError()
    for _ in range(5000):
        outer = ValueError()
        outer.__context__ = error
        error = outer
    assert len([*exception_chain(error)]) == 5001


def raised(message: str) -> ValueError:
    """An error with a traceback."""
    with pytest.raises(ValueError, match=message) as failure:
        raise ValueError(message)
    return failure.value


def test_the_first_cause_is_the_original_exception() -> None:
    first, second, third = raised("first"), raised("second"), raised("third")
    second.__context__, third.__cause__ = first, second
    assert first_cause(third) is first
    assert first_cause(third, first) is second
    assert first_cause(first) is first
    second.__context__ = KeyboardInterrupt()
    assert first_cause(third) is second
    first.__context__ = first_again = ValueError("first again")
    first_again.__context__ = first
    assert first_cause(first) is first  # a circle ends where it began


def test_tracebacks_are_dropped_but_those_from_before() -> None:
    outer, inner, error = raised("outer"), raised("inner"), raised("error")
    inner.__context__, error.__context__ = outer, inner
    drop_tracebacks(error, outer)
    assert (error.__traceback__, inner.__traceback__) == (None, None)
    assert outer.__traceback__ is not None
    drop_tracebacks(error)
    assert outer.__traceback__ is None
