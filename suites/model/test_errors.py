"""Errors that came together."""

from __future__ import annotations

import sys

from cudamem_testing.model.errors import together

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup  # comes with pytest


def test_causes_contexts_and_parts_are_met_once() -> None:
    cause, context, one, other = KeyError(), ValueError(), TypeError(), OSError()
    group = ExceptionGroup("two", [one, other])
    outer = RuntimeError()
    outer.__cause__, outer.__context__, one.__cause__ = cause, group, cause
    other.__context__ = context
    met = [*together(outer)]
    assert met[0] is outer
    assert len(met) == 6
    assert {*map(id, met)} == {*map(id, (outer, cause, context, group, one, other))}


def test_a_circle_ends() -> None:
    one, other = KeyError(), ValueError()
    one.__context__, other.__cause__ = other, one
    assert [*together(one)] == [one, other]


def test_a_long_chain_needs_no_stack() -> None:
    error: BaseException = ValueError()
    for _ in range(5000):
        outer = ValueError()
        outer.__context__ = error
        error = outer
    assert len([*together(error)]) == 5001
