"""Which objects are modules: looked up once, and again where ``sys.modules`` has changed."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from cudamem_testing.objects.modules import ModuleTable

NAME = "passing_module"


@pytest.fixture
def passing() -> Iterator[types.ModuleType]:
    module = sys.modules[NAME] = types.ModuleType(NAME)
    yield module
    sys.modules.pop(NAME, None)
    sys.modules.pop("second", None)


@pytest.fixture
def table(passing: types.ModuleType) -> ModuleTable:
    found = ModuleTable()
    found.update()
    return found


def test_modules_and_their_namespaces(table: ModuleTable, passing: types.ModuleType) -> None:
    assert [one in table for one in (passing, vars(passing), types.ModuleType(NAME), {}, None)] == [True, True] + 3 * [
        False
    ]
    assert table.name(passing) == table.name(vars(passing)) == NAME


def test_the_first_of_several_names_counts(table: ModuleTable, passing: types.ModuleType) -> None:
    sys.modules["second"] = passing
    table.update()
    assert table.name(vars(passing)) == NAME


def test_what_has_changed_is_read_again(table: ModuleTable, passing: types.ModuleType) -> None:
    other = sys.modules[NAME] = types.ModuleType(NAME)
    assert passing in table
    table.update()
    assert [one in table for one in (passing, vars(passing), other, vars(other))] == [False, False, True, True]
    del sys.modules[NAME]
    table.update()
    assert other not in table


def test_unchanged_counters_are_not_read_again(table: ModuleTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_read", lambda: pytest.fail("read again"))
    table.update()


def test_a_module_at_the_address_of_another_is_a_new_one(table: ModuleTable) -> None:
    """The place in ``sys.modules`` and the address may be those of a module that is gone."""
    for _ in range(20):
        sys.modules[NAME] = types.ModuleType(NAME)
        table.update()
        assert sys.modules[NAME].__dict__ in table


def test_namespaces_of_other_objects_are_not_cached(table: ModuleTable) -> None:
    stand_in: Any = type("StandIn", (), {})()
    stand_in.kept = []
    sys.modules[NAME] = stand_in
    table.update()
    before = vars(stand_in)
    assert before in table
    stand_in.__dict__ = {"kept": []}
    table.update()
    assert [one in table for one in (before, vars(stand_in))] == [False, True]


@pytest.mark.parametrize("stand_in", [None, 5, ("a", "tuple")])
def test_objects_without_weak_references(table: ModuleTable, stand_in: object) -> None:
    sys.modules[NAME] = stand_in  # type: ignore[assignment]
    table.update()
    table.update()
    assert stand_in in table
    assert sys in table


def test_no_module_is_kept(table: ModuleTable, passing: types.ModuleType) -> None:
    gone = weakref.ref(sys.modules.setdefault("second", types.ModuleType("second")))
    table.update()
    del sys.modules["second"]
    gc.collect()
    assert gone() is None
