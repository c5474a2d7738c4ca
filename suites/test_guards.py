"""Guards: what is changed for a while is as it was afterwards, whoever changed it meanwhile."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudamem_testing import guards
from cudamem_testing.guards import (
    FEWEST_FROZEN,
    Patches,
    collect_garbage,
    collect_young_garbage,
    replaced,
    set_variable,
    stand_in,
    thawed,
)
from cudamem_testing.guards.imports import import_whole, own_imports


def original(number: int, *, times: int = 1) -> int:
    """Multiply."""
    return number * times


@pytest.fixture
def owner() -> SimpleNamespace:
    return SimpleNamespace(call=original)


def adding(amount: int) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def make(function: Callable[..., int]) -> Callable[..., int]:
        return lambda *args, **named: function(*args, **named) + amount

    return make


def test_replace_and_restore(owner: SimpleNamespace) -> None:
    patches = Patches()
    assert patches.replace(owner, "call", adding(1)) is original
    assert owner.call(3, times=2) == 7
    assert (owner.call.__name__, owner.call.__doc__, owner.call.__wrapped__) == ("original", "Multiply.", original)
    patches.restore()
    assert owner.call is original
    patches.restore()
    assert owner.call is original


def test_what_is_not_there_is_not_put_there(owner: SimpleNamespace) -> None:
    patches = Patches()
    assert patches.replace(owner, "other", adding(1)) is None
    patches.restore()
    assert vars(owner) == {"call": original}


def test_builtins_can_be_replaced() -> None:
    owner = SimpleNamespace(call=len)
    patches = Patches()
    patches.replace(owner, "call", adding(1))
    assert (owner.call([]), owner.call.__name__) == (1, "len")
    patches.restore()
    assert owner.call is len


def test_a_foreign_wrapper_stays_and_ours_passes_on(owner: SimpleNamespace) -> None:
    patches = Patches()
    patches.replace(owner, "call", adding(1))
    ours = owner.call
    owner.call = theirs = lambda *args: ours(*args) + 100
    assert owner.call(1) == 102
    patches.restore()
    assert owner.call is theirs
    assert owner.call(1) == 101


def test_a_function_that_the_test_took_away_stays_away(owner: SimpleNamespace) -> None:
    patches = Patches()
    patches.replace(owner, "call", adding(1))
    del owner.call
    patches.restore()
    assert vars(owner) == {}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_at_once_can_leave_in_any_order(owner: SimpleNamespace, order: tuple[int, int]) -> None:
    both = [Patches(), Patches()]
    for place, patches in enumerate(both):
        patches.replace(owner, "call", adding(10**place))
    assert owner.call(0) == 11
    both[order[0]].restore()
    assert owner.call(0) == 10 ** order[1]
    both[order[1]].restore()
    assert owner.call is original


def test_the_same_function_twice(owner: SimpleNamespace) -> None:
    patches = Patches()
    patches.replace(owner, "call", adding(1))
    patches.replace(owner, "call", adding(2))
    assert owner.call(0) == 3
    patches.restore()
    assert owner.call is original


def test_the_replacement_is_active_inside_the_block(owner: SimpleNamespace) -> None:
    made: list[Callable[..., Any]] = []

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(lambda: function)
        return made[0]

    patches = Patches()
    patches.replace(owner, "call", make)
    switch = owner.call
    assert stand_in(switch) is made[0]
    assert (stand_in(original), stand_in(None)) == (None, None)
    patches.restore()
    assert stand_in(switch) is None


# -- the collector ----------------------------------------------------------------------------------------


class Knot:
    """A cycle that counts its end."""

    ended = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Knot.ended += 1


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector is left as it was found, and quiet meanwhile."""
    enabled, flags, thresholds = gc.isenabled(), gc.get_debug(), gc.get_threshold()
    gc.unfreeze()  # what another test, or the runner, froze
    gc.collect()
    gc.disable()
    Knot.ended = 0
    yield
    gc.unfreeze()
    gc.set_debug(flags)
    gc.set_threshold(*thresholds)
    gc.garbage.clear()
    if enabled:
        gc.enable()


@pytest.mark.usefixtures("collector")
def test_a_collection_finds_all_and_restores_the_collector() -> None:
    Knot()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.freeze()
    Knot()
    collect_garbage()
    assert Knot.ended == 2  # the frozen one too
    assert gc.get_debug() == gc.DEBUG_SAVEALL
    assert gc.get_freeze_count() > 0
    assert gc.garbage == []
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_a_collection_of_young_garbage_leaves_old_garbage() -> None:
    Knot()
    gc.freeze()  # as old as garbage can be
    Knot()
    assert collect_young_garbage()
    assert (Knot.ended, gc.get_freeze_count() > 0) == (1, True)
    assert collect_garbage()
    assert Knot.ended == 2
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_a_collection_freezes_nothing_new() -> None:
    before = gc.get_freeze_count()  # on Python 3.12 immortal objects that a collection met; elsewhere nothing
    assert before == 0 or sys.version_info[:2] == (3, 12)
    collect_garbage()
    assert gc.get_freeze_count() == before
    with pytest.raises(KeyError), thawed():
        raise KeyError
    assert (gc.get_freeze_count(), gc.get_debug()) == (before, 0)


@pytest.mark.subprocess
def test_a_bare_interpreter_freezes_more_than_the_fewest() -> None:
    code = "import gc; gc.freeze(); print(gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > FEWEST_FROZEN


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("count", [375, FEWEST_FROZEN])
def test_what_the_interpreter_set_aside_is_not_frozen(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As CPython 3.12 has it: the count is not 0, and all that lives is listed; few objects are not even looked for."""
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: count)
        if count < FEWEST_FROZEN:
            patch.setattr(gc, "get_objects", lambda: pytest.fail("listed"))
        patch.setattr(gc, "unfreeze", lambda: pytest.fail("thawed"))
        patch.setattr(gc, "freeze", lambda: pytest.fail("frozen"))
        Knot()
        collect_garbage()
        with thawed():
            pass
    assert Knot.ended == 1


class Owner:
    first = 1


class Heir(Owner):
    second = 2


def test_attributes_are_replaced_and_come_back() -> None:
    with replaced([(Heir, "first", 10), (Heir, "second", 20), (Heir, "x", 0)]):
        assert (Heir.first, Heir.second, Owner.first) == (10, 20, 1)
        assert not hasattr(Heir, "x")
    assert (Heir.first, Heir.second) == (1, 2)
    assert "first" not in vars(Heir)
    with pytest.raises(KeyError), replaced([(Heir, "second", 20)]):
        raise KeyError
    assert Heir.second == 2


def test_an_attribute_changed_meanwhile_stays() -> None:
    with replaced([(Heir, "second", 20)]):
        Heir.second = 30
    assert Heir.second == 30
    Heir.second = 2


@pytest.mark.parametrize("before", [None, "old"])
def test_an_environment_variable_comes_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("CUDAMEM_GUARD", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDAMEM_GUARD", before)
    restore = set_variable("CUDAMEM_GUARD", "new")
    assert os.environ["CUDAMEM_GUARD"] == "new"
    restore()
    assert os.environ.get("CUDAMEM_GUARD") == before


class Asked:
    """A finder that finds nothing."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        self.names.append(name)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package with the name ``own_modules``, beside a module ``of_others``."""
    folder = tmp_path / "own_modules"
    folder.mkdir()
    for file in (folder / "__init__.py", tmp_path / "of_others.py"):
        file.touch()
    (folder / "plain.py").write_text("import gc\n\ncollects = gc.isenabled()\n")
    (folder / "finds.py").write_text("import sys\n\nsys.meta_path.append('of a module')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_modules")
    return folder


def test_own_modules_are_imported_without_other_finders(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Asked()
    before = [other, *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", before)
    with own_imports("own_modules"):
        plain = importlib.import_module("own_modules.plain")
        importlib.import_module("of_others")
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("own_modules.missing")
    assert (plain.__file__, plain.collects, gc.isenabled()) == (str(own / "plain.py"), False, True)
    assert other.names == ["of_others", "own_modules.missing"]
    assert sys.meta_path is before
    assert before[0] is other


def test_a_finder_of_an_imported_module_stays(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*sys.meta_path]
    wanted = [*before, "of a module"]
    monkeypatch.setattr(sys, "meta_path", before)
    with own_imports("own_modules"):
        importlib.import_module("own_modules.finds")
    assert sys.meta_path is before
    assert before == wanted


def test_other_finders_that_were_set_meanwhile_stay(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    wanted = [Asked(), *sys.meta_path]
    with own_imports("own_modules"):
        sys.meta_path = [wanted[0], *sys.meta_path]
    assert sys.meta_path == wanted
    assert gc.isenabled()


def test_no_collection_starts_amid_an_import_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "whole_modules" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    for file in (inner.parent / "before.py", inner.parent / "after.py", inner / "after.py"):
        file.write_text("import gc\n\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    collects = [importlib.import_module("whole_modules.before").collects]
    finders = [*sys.meta_path]
    import_whole("whole_modules")
    for name in ("whole_modules.after", "whole_modules.inner.after"):
        module = importlib.import_module(name)
        collects.append(module.collects)
        assert inspect.getsource(module).startswith("import gc")
        assert importlib.reload(module) is module
    assert (collects, gc.isenabled(), sys.meta_path) == ([True, False, False], True, finders)


def test_attributes_are_placed_and_set_back() -> None:
    class Owner:
        there = 1

    restore = guards.place([(Owner, "there", 2), (Owner, "new", 3)])
    assert (Owner.there, vars(Owner)["new"]) == (2, 3)
    Owner.there = 4  # whoever changes it meanwhile
    restore()
    assert (Owner.there, "new" in vars(Owner)) == (1, False)


def test_placed_attributes_are_set_back_when_the_rest_fails() -> None:
    class Owner:
        there = 1

    with pytest.raises(TypeError):
        guards.place([(Owner, "there", 2), (int, "real", 3)])
    assert Owner.there == 1
