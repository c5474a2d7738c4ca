"""The codec: writes values of the model as JSON and reads them, by the types of their fields.

A dataclass or named tuple is an object with a key for each field, one of several types an object with its ``type``
beside them. A reader checks types: it raises ``ValueError`` with the place of a wrong value, such as
``tests[3].windows[0].start``. Unknown keys are ignored. A codec is made once for each type. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from cudamem_testing.model.devices import Device
from cudamem_testing.model.windows import Window
from cudamem_testing.safe_access import type_name

Json = dict[str, Any]
_MOST = 2**63
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a fraction",
    type(None): "null",
}
_PLAIN: dict[object, tuple[type, ...]] = {str: (str,), int: (int,), bool: (bool,), float: (int, float)}
_LISTS: dict[object, type] = {tuple: tuple, list: list}
#: Positions of a window in a recording; windows are compared without them.
_UNWRITTEN = {Window: ("opened", "closed")}


class Codec(NamedTuple):
    """How values of one type are written and read; plain values have ``types``, and are written as they are."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    types: tuple[type, ...] = ()


#: By type hint.
_KNOWN: dict[Any, Codec] = {}


def plain(*kinds: type) -> Codec:
    """A value of exactly one of these types."""
    wanted = " or ".join(_NAMES[kind] for kind in kinds)

    def read(value: Any, place: str) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{place} is {_NAMES.get(type(value), type_name(value))}, not {wanted}")
        if type(value) is int and not -_MOST <= value < _MOST:
            raise ValueError(f"{place} is a number of more than 64 bits")
        return value

    return Codec(_same, read, kinds)


def parsed(parse: Callable[[str], Any], write: Callable[[Any], str] = str) -> Codec:
    """Text that a function accepts."""

    def read(value: Any, place: str) -> Any:
        TEXT.read(value, place)
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None

    return Codec(write, read)


def one_of(*words: str) -> Codec:
    """One of these texts."""

    def read(value: Any, place: str) -> Any:
        if value not in words:
            raise ValueError(f"{place} is {value!r}, not one of {', '.join(words)}")
        return value

    return Codec(_same, read)


def optional(codec: Codec) -> Codec:
    """A value or ``null``."""
    if codec.types:
        return plain(*codec.types, type(None))
    write, read = codec.write, codec.read
    return Codec(
        lambda value: None if value is None else write(value),
        lambda value, place: None if value is None else read(value, place),
    )


def listed(codec: Codec, kind: Callable[[Iterable[Any]], Any] = tuple) -> Codec:
    """A list whose values are of one type."""

    def read(value: Any, place: str) -> Any:
        _LIST.read(value, place)
        return kind([codec.read(part, f"{place}[{number}]") for number, part in enumerate(value)])

    return Codec((lambda value: [*map(codec.write, value)]) if not codec.types else list, read)


def row(words: str, *codecs: Codec, kind: Callable[[Iterable[Any]], Any] = tuple) -> Codec:
    """A list of so many values, one of each type; ``words`` say which they are."""

    def read(value: Any, place: str) -> Any:
        _LIST.read(value, place)
        if len(value) != len(codecs):
            raise ValueError(f"{place} is not {words}")
        parts = enumerate(zip(codecs, value, strict=True))
        return kind([codec.read(part, f"{place}[{number}]") for number, (codec, part) in parts])

    return Codec(lambda value: [codec.write(part) for codec, part in zip(codecs, value, strict=True)], read)


def mapped(codec: Codec, key: Codec | None = None) -> Codec:
    """An object whose values are of one type."""

    def read(value: Any, place: str) -> Any:
        _OBJECT.read(value, place)
        if key is not None:
            for name in value:
                key.read(name, f"{place} key")
        return {name: codec.read(part, f"{place}.{name}") for name, part in value.items()}

    return Codec(lambda value: {name: codec.write(part) for name, part in value.items()}, read)


def record(
    cls: Any,
    *,
    skip: Iterable[str] = (),
    required: Iterable[str] = (),
    names: Mapping[str, Any] | None = None,
    keys: Mapping[str, str] | None = None,
    make: Callable[..., Any] | None = None,
    **own: Codec,
) -> Codec:
    """A dataclass or a named tuple as an object.

    Fields that do not count when values are compared are not written. A key may be missing where its field has a
    default and is not among those that are ``required``. ``skip`` names fields that are not written, ``keys`` those
    with a key of another name, and ``own`` gives fields another codec. ``names`` is what hints mean that the class
    imports for type checkers alone. ``make`` makes the value of its fields, by default the class.
    """
    hints = typing.get_type_hints(cls, localns={"Device": Device, **(names or {})})
    if dataclasses.is_dataclass(cls):
        given = [one for one in dataclasses.fields(cls) if one.compare]
        parts = [(one.name, one.default is one.default_factory is dataclasses.MISSING) for one in given]
    else:
        parts = [(name, name not in cls._field_defaults) for name in cls._fields]
    fields = [
        (name, (keys or {}).get(name, name), own.get(name) or of(hints[name], names), needed or name in required)
        for name, needed in parts
        if name not in (*skip, *_UNWRITTEN.get(cls, ()))
    ]
    writers = [(name, key, None if codec.types else codec.write) for name, key, codec, _ in fields]

    def write(value: Any) -> Json:
        return {key: getattr(value, name) if one is None else one(getattr(value, name)) for name, key, one in writers}

    def read(value: Any, place: str) -> Any:
        _OBJECT.read(value, place or "the document")
        found = {}
        for name, key, codec, needed in fields:
            where = f"{place}.{key}" if place else key
            if key in value:
                found[name] = codec.read(value[key], where)
            elif needed:
                raise ValueError(f"{where} is missing")
        return (make or cls)(**found)

    return Codec(write, read)


def union(*members: Any, names: Mapping[str, Any] | None = None) -> Codec:
    """One of several classes, by its ``type``; words of an enumeration may be among them."""
    classes = {word_of(cls): (cls, record(cls, names=names)) for cls in members if not _is_enum(cls)}
    words = {word.value: word for cls in members if _is_enum(cls) for word in cls}
    codecs = {cls: (word, codec) for word, (cls, codec) in classes.items()}

    def write(value: Any) -> Any:
        if isinstance(value, Enum):
            return value.value
        word, codec = codecs[type(value)]
        return {"type": word, **codec.write(value)}

    def read(value: Any, place: str) -> Any:
        if words and type(value) is str:
            return one_of(*words).read(value, place) and words[value]
        _OBJECT.read(value, place)
        found = classes.get(value.get("type")) if type(value.get("type")) is str else None
        if found is None:
            raise ValueError(f"{place}.type is {value.get('type')!r}, not one of {', '.join(classes)}")
        return found[1].read(value, place)

    return Codec(write, read)


def word_of(cls: type) -> str:
    """The words for a class in JSON: ``over limit`` for ``OverLimit``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()


def of(hint: Any, names: Mapping[str, Any] | None = None) -> Codec:
    """The codec of a type hint; the same for the same one."""
    if hint not in _KNOWN:
        _KNOWN[hint] = _of(hint, names)
    return _KNOWN[hint]


def _of(hint: Any, names: Mapping[str, Any] | None) -> Codec:
    if hint in _PLAIN:
        return plain(*_PLAIN[hint])
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        members = [part for part in parts if part is not type(None)]
        found = of(members[0], names) if len(members) == 1 else union(*members, names=names)
        return optional(found) if len(members) < len(parts) else found
    if origin in _LISTS:
        if origin is list or parts[-1] is Ellipsis:
            return listed(of(parts[0], names), _LISTS[origin])
        return row(f"a list of {len(parts)} values", *(of(part, names) for part in parts))
    if origin is typing.Literal:
        return one_of(*parts)
    if origin is not None and issubclass(origin, Mapping):
        return mapped(of(parts[1], names))
    if hint is Device:
        return parsed(Device.parse)
    if _is_enum(hint):
        return parsed(hint, lambda value: str(value.value))
    return record(hint, names=names)


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, Enum)


def _same(value: Any) -> Any:
    return value


TEXT, WHOLE, FLAG = plain(str), plain(int), plain(bool)
_LIST, _OBJECT = plain(list), plain(dict)
