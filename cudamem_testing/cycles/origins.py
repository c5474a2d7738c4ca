"""Facts about who made a cycle, taken from its objects inside a collection.

``source`` looks up the rest later, in files. Nothing here calls code of the user. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from dis import opmap
from typing import Any

from cudamem_testing import safe_access
from cudamem_testing.cycles.results import Link, Origin
from cudamem_testing.cycles.words import INNER, Hop, rank
from cudamem_testing.model.edges import Kind
from cudamem_testing.model.remarks import Remark
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects.tensors import is_module, is_tensor

#: Libraries of mocks: they keep the arguments of calls, in cycles that no test can break.
_MOCKS = ("mock.", "unittest.mock.", "flexmock.", "mockito.", "doublex.", "pytest_mock.")
_HARNESS = ("_pytest.", "pluggy.", "unittest.", "doctest.", "hypothesis.", *_MOCKS)
# Keyed by id, because a lookup by class would ask a hostile metaclass for its hash; these classes are immortal.
_CODE_FIELDS = {
    id(types.FunctionType): "__code__",
    id(types.FrameType): "f_code",
    id(types.GeneratorType): "gi_code",
    id(types.CoroutineType): "cr_code",
    id(types.AsyncGeneratorType): "ag_code",
}
#: Generators and coroutines.
_RUNNING = frozenset(_CODE_FIELDS) - {id(types.FunctionType), id(types.FrameType)}
#: Objects that only their users connect.
_STANDARD = sys.stdlib_module_names
_PLAIN = (list, dict, set, frozenset, tuple, type)
_STORE, _EXTENDED = opmap["STORE_ATTR"], opmap["EXTENDED_ARG"]


class Origins:
    """Takes the facts; calls no code of the user."""

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._storing: dict[tuple[str, str, str], str] = {}

    def is_project(self, obj: object) -> bool:
        """Whether an object is a function, frame, class or instance of one that is defined in the project."""
        return any(map(self._is_own, _definitions(obj)))

    def of(self, steps: Sequence[Hop], near: Iterable[tuple[str, int]]) -> Origin:
        """The facts of a cycle."""
        parts = [step.holder for step in steps]
        codes = [code for part in parts for code in _codes(part)]
        libraries = [*filter(None, map(self._library_of, parts))]
        # torch wraps what others give it, as vmap(self.step) does: of two libraries the other one connected them.
        library = next((one for one in libraries if one != "torch"), "torch" if libraries else "")
        return Origin(tuple(map(self._link, steps)), tuple(near), any(map(self._is_own, codes)), library)

    def storing_class(self, holder: object, steps: Sequence[Hop], attribute: str | None) -> str:
        """The class whose code stores an attribute, or whose method holds the object, rather than a subclass."""
        cls = holder if safe_access.is_a(holder, type) else type(holder)
        own = f"{safe_access.class_module(cls)}.{safe_access.class_qualname(cls)}"
        key = own, attribute or "", "" if attribute else _method_over(steps, holder)
        found = self._storing.get(key)
        if found is None:
            bases = [base for base in reversed(safe_access.mro(cls)) if safe_access.is_heap_type(base)]
            chosen = next((base for base in bases if _stores(base, attribute, key[2])), cls)
            found = self._storing[key] = f"{safe_access.class_module(chosen)}.{safe_access.class_qualname(chosen)}"
        return found

    def _link(self, step: Hop) -> Link:
        kind, text = step.reference.kind, step.reference.text
        name: str | int | None = None
        if kind in (Kind.ATTRIBUTE, Kind.SUBMODULE, Kind.LOCAL):
            name = step.reference.name
        elif kind is Kind.ITEM:
            key = text[1:-1]
            name = int(key) if key.isdecimal() else key.strip("'") if key[:1] == "'" else None
        cls: type = step.holder if safe_access.is_a(step.holder, type) else type(step.holder)
        classes = tuple(
            (_class_file(base), safe_access.class_qualname(base))
            for base in safe_access.mro(_written(cls))
            if safe_access.is_heap_type(base) and self._is_own(base)
        )
        code = next(_codes(step.holder), None)
        function = None if code is None or not self._is_own(code) else _place_of(code)
        running = id(type(step.holder)) in _RUNNING
        itself, frame = step.holder is step.referent, type(step.holder) is types.FrameType
        return Link(name, classes, function, _stored(step.referent), running, itself, frame)

    def _library_of(self, part: object) -> str:
        """The library whose function or helper object it is; empty for what a project connects, and its own."""
        if rank(part) >= INNER or is_tensor(part) or is_module(part) or self.is_project(part):
            return ""
        code = next(_codes(part), None)
        if code is not None:
            return self._locator.frame((code.co_filename, 0, "")).file.partition("/")[0].removesuffix(".py")
        cls = type(part)
        library = safe_access.class_module(cls).partition(".")[0]
        is_plain = library in _STANDARD or any(safe_access.is_a(part, base) for base in _PLAIN)
        return "" if is_plain else library

    def _is_own(self, definition: types.CodeType | type) -> bool:
        return self._locator.frame((_file_of(definition), 0, "")).origin == "project"


def harness_of(objects: Iterable[object]) -> Remark | None:
    """The part of the test harness that some objects belong to; ``None`` for none."""
    found = {*map(_part, objects)}
    return next((part for part in (Remark.HARNESS, Remark.MOCK, Remark.OTHER_HARNESS) if part in found), None)


def _part(obj: object) -> Remark | None:
    """The part that one object belongs to; ``autospec`` of a mock makes functions, which refer to it."""
    if type(obj) is types.FrameType:
        return _part_of(obj.f_globals.get("__name__"))
    if type(obj) is types.FunctionType:
        part = _part_of(obj.__globals__.get("__name__"))
        if part is not None:
            return part
        obj = obj.__dict__.get("mock")
    cls = type(obj)
    part = _part_of(safe_access.class_module(cls)) if safe_access.is_heap_type(cls) else None
    return Remark.HARNESS if part is not None and safe_access.class_name(cls) == "ExceptionInfo" else part


def _part_of(module: object) -> Remark | None:
    if type(module) is not str or not f"{module}.".startswith(_HARNESS):
        return None
    return Remark.MOCK if f"{module}.".startswith(_MOCKS) else Remark.OTHER_HARNESS


def _stored(obj: Any) -> tuple[str, str]:
    cls = type(obj)
    if cls is types.MethodType:
        return "method", obj.__func__.__name__ if type(obj.__func__) is types.FunctionType else "?"
    if cls is functools.partial:
        return "instance", "partial"
    codes = [*_codes(obj)]
    if codes:
        return "function" if cls is types.FunctionType else "running", codes[0].co_name
    base = next((one for one in (list, dict, set, tuple) if cls is one), None)
    return (base.__name__, "") if base is not None else ("instance", safe_access.class_name(cls))


def _method_over(steps: Sequence[Hop], holder: object) -> str:
    """The name of a bound method in the cycle whose object is the holder."""
    for step in steps:
        method: Any = step.holder
        if type(method) is types.MethodType and method.__self__ is holder:
            return method.__func__.__name__ if type(method.__func__) is types.FunctionType else ""
    return ""


def _stores(cls: type, attribute: str | None, method: str) -> bool:
    namespace = safe_access.class_dict(cls)
    if attribute is None:
        return bool(method) and safe_access.get(namespace, method) is not None
    functions = (one for one in namespace.values() if type(one) is types.FunctionType)
    return any(_code_stores(function.__code__, attribute) for function in functions)


def _code_stores(code: types.CodeType, attribute: str) -> bool:
    waiting = [code]
    for one in waiting:
        waiting += [const for const in one.co_consts if type(const) is types.CodeType]
        if attribute in one.co_consts:  # as in object.__setattr__(self, "x", value)
            return True
        if attribute in one.co_names and _stores_name(one, one.co_names.index(attribute)):
            return True
    return False


def _stores_name(code: types.CodeType, index: int) -> bool:
    argument = 0
    raw = code.co_code
    for place in range(0, len(raw), 2):
        argument = argument << 8 | raw[place + 1]
        if raw[place] == _STORE and argument == index:
            return True
        if raw[place] != _EXTENDED:
            argument = 0
    return False


def _definitions(obj: Any) -> Iterator[types.CodeType | type]:
    yield from _codes(obj)
    cls: type = obj if safe_access.is_a(obj, type) else type(obj)
    if safe_access.is_heap_type(cls):
        yield _written(cls)


def _written(cls: type) -> type:
    """The class in the source: for the context of a custom autograd function, that function."""
    found: Any = safe_access.get(safe_access.class_dict(cls), "_forward_cls")
    return cls if found is None or not safe_access.is_a(found, type) else found


def _codes(obj: Any) -> Iterator[types.CodeType]:
    if type(obj) is types.MethodType:
        obj = obj.__func__
    elif type(obj) is functools.partial:
        obj = obj.func
    name = _CODE_FIELDS.get(id(type(obj)))
    if name is not None:
        yield object.__getattribute__(obj, name)


def _place_of(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def _file_of(definition: types.CodeType | type) -> str:
    return definition.co_filename if type(definition) is types.CodeType else _class_file(definition)


def _class_file(cls: type) -> str:
    """The file of a class's module; a module that is gone counts as library."""
    module = sys.modules.get(safe_access.class_module(cls))
    found = None if module is None else safe_access.get(safe_access.module_dict(module), "__file__")
    return found if type(found) is str else ""
