"""Finds which arguments an operator writes, from the schemas of all overloads that fit.

The profiler records an operator's name and arguments, but not the overload that ran. So every overload registered
under the name is compared with the recorded types, and all that fit count: an argument may be written if any of them
writes it. Nearly always exactly one fits. A call that fits none is not an operator of the dispatcher, but an
annotation, a backward function or an operator called in a way that the profiler could not record; nothing is known of
its arguments.

The profiler records tensors, lists of tensors and scalars. Anything else (sizes, devices, strings, lists of optional
tensors) is recorded as nothing, and an argument of such a type fits only that. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudamem_testing.torch_api.operators import operator_schemas
from cudamem_testing.trace.records import Signature, Storage

_NOTHING = type(None)


READ, WRITTEN, UNKNOWN = 1, 2, 4
"""How a call takes an argument: it does not write it, may write it, or nothing is known. Flags, to be combined."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What the calls of a signature do to their arguments."""

    known: bool
    """Whether at least one schema fits."""
    access: tuple[int, ...]
    """``READ``, ``WRITTEN`` or ``UNKNOWN`` for each argument at ``signature.places``."""
    overloads: tuple[str, ...] = ()
    """Names of the fitting overloads; the default one is called ``""``."""


class Effects(dict[Signature, Effect]):
    """Effects by signature, found on first use: a look-up in torch's registry takes 100 microseconds."""

    def __missing__(self, signature: Signature) -> Effect:
        effect = self[signature] = effect_of(signature)
        return effect


def effect_of(signature: Signature) -> Effect:
    """Compare a signature with every overload of its name."""
    fitting = [schema for schema in operator_schemas(signature.name) if _fits(schema, signature)]
    if not fitting:
        return Effect(False, (UNKNOWN,) * len(signature.places))
    access = tuple(
        WRITTEN if any(_writes(schema.arguments[place]) for schema in fitting) else READ for place in signature.places
    )
    return Effect(True, access, tuple(schema.overload_name for schema in fitting))


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _fits(schema: Any, signature: Signature) -> bool:
    arguments = schema.arguments
    return len(arguments) == len(signature.types) and all(
        _takes(argument.type, seen) for argument, seen in zip(arguments, signature.types, strict=True)
    )


def _takes(declared: Any, seen: type) -> bool:
    """Whether an argument declared so may have been recorded as ``seen``."""
    kind = declared.kind()
    while kind == "OptionalType":
        if seen is _NOTHING:
            return True
        declared = declared.getElementType()
        kind = declared.kind()
    if kind == "ListType" and declared.getElementType().kind() == "TensorType":
        return seen is list
    accepted = _ACCEPTED.get(kind)
    return seen is _NOTHING if accepted is None else accepted is _ANYTHING or seen in accepted


_ANYTHING: tuple[type, ...] = (object,)
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "AnyType": _ANYTHING,
    "TensorType": (Storage,),
    "NoneType": (_NOTHING,),
    "BoolType": (bool,),
    "IntType": (int, bool),
    "FloatType": (float,),
    "ComplexType": (complex,),
    "NumberType": (bool, int, float, complex),
}
"""Python types by the schema's type; a flag counts as an integer, as it does in Python."""
