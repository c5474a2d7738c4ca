"""A chain of objects in words: ``Encoder.__dict__['hook'] -> function <lambda> -> __closure__[0] -> cell -> Encoder``.

The interpreter's inner objects (the dictionary of an instance, the tuple of a closure) are part of the label and not
steps of their own, so the text is the same on every version of Python.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cudamem_testing import safe_access
from cudamem_testing.cycles.native import Towards
from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.remarks import Knot, Tied
from cudamem_testing.model.sizes import count
from cudamem_testing.objects.names import RUNNING, clean, key_text, tensor_name, type_word
from cudamem_testing.objects.references import edges_towards, label
from cudamem_testing.objects.tensors import is_tensor
from cudamem_testing.objects.torch_references import pairs_towards

#: References that one label may span: a module, its dictionary, ``_modules``, the submodule.
_LONGEST_SPAN = 3
#: The rank of functions, generators and their like, and of the interpreter's inner objects.
_CALLED, INNER = 2, 4
# Keyed by id, because a lookup by class would ask a hostile metaclass for its hash; these classes are immortal.
_RANKS = {
    **{id(cls): _CALLED for cls in (types.FunctionType, types.MethodType, types.BuiltinFunctionType, *RUNNING)},
    **{id(cls): 3 for cls in (list, set, frozenset, types.FrameType)},
    **{id(cls): INNER for cls in (types.CellType, tuple, dict)},
}
_NO_LABEL = (Kind.OTHER, Kind.CLASS, Kind.INTERNAL)
_NUMBER = re.compile(r"\[\d+\]|(?<=hook )\d+|(?<=argument )\d+")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Hop(NamedTuple):
    """One labelled reference between two live objects: a working part, no result."""

    holder: object
    reference: Reference
    referent: object


def hops(chain: Sequence[object]) -> list[Hop]:
    """The references along a chain of objects, without the interpreter's inner objects."""
    found: list[Hop] = []
    position, last = 0, len(chain) - 1
    while position < last:
        holder = chain[position]
        farthest = position + 1
        while farthest < min(position + _LONGEST_SPAN, last) and rank(chain[farthest]) != _CALLED:
            farthest += 1
        ahead = {id(chain[place]): place for place in range(farthest, position, -1)}
        best: tuple[int, Reference] | None = None
        for kind, detail, referent in edges_towards(holder, Towards(chain[position + 1 : farthest + 1])):
            place = ahead.get(id(referent))
            if place is None or (place > position + 1 and kind in _NO_LABEL):
                continue
            if best is None or place > best[0]:
                best = place, label(kind, detail)
        place, reference = best or (position + 1, Reference(Kind.OTHER, "(internal)"))
        referent = chain[place]
        if _is_own_mro(holder, referent) and place + 1 <= last:
            place, reference = place + 1, Reference(Kind.CLASS, ".__mro__")
        found.append(Hop(holder, reference, chain[place]))
        position = place
    return found


def _is_own_mro(holder: object, referent: object) -> bool:
    return safe_access.is_a(holder, type) and safe_access.mro(holder) is referent


def pieces(steps: Sequence[Hop]) -> tuple[str, ...]:
    """The pieces of a chain, to be joined by arrows."""
    if not steps:
        return ()
    found: list[str] = []
    for step in steps:
        holder, text = type_word(step.holder), _text(step)
        if step.reference.kind is Kind.CLOSURE and type(step.referent) is not types.CellType:
            found += [holder, text, "cell"]
        elif " " in holder or text[0] not in ".[":
            found += [holder, text.lstrip(".")]
        else:
            found.append(holder + text)
    return (*found, type_word(steps[-1].referent))


def pieces_of_ends(steps: Sequence[Hop], ends: int, left_out: int) -> tuple[str, ...]:
    """The pieces of both ends of a long chain, with ``ends`` objects each: between them there is no reference."""
    return (*pieces(steps[: ends - 1]), f"... {count(left_out, 'more object')} ...", *pieces(steps[ends:]))


def _text(step: Hop) -> str:
    text = step.reference.text
    if step.reference.kind is Kind.CLOSURE:
        return text.partition(" ")[0].lstrip(".")
    if step.reference.kind is Kind.ATTRIBUTE and text[:1] == "." and not safe_access.is_a(step.holder, type):
        name = text[1:]
        pairs = pairs_towards(safe_access.instance_dict(step.holder) or {}, Towards([step.referent]))
        if any(type(key) is str and key == name for key, _ in pairs):
            return f".__dict__[{key_text(name)}]"
    return text or "(internal)"


def tied(steps: Sequence[Hop]) -> Tied | None:
    """What no weak reference breaks in a cycle."""
    first = steps[0]
    if safe_access.is_a(first.holder, type):
        return Tied(Knot.CLASS, clean(safe_access.class_name(first.holder)))
    if type(first.holder) is types.FunctionType and first.referent is first.holder:
        return Tied(Knot.FUNCTION, clean(safe_access.plain_text(first.holder.__name__)))
    if any(type(step.holder) is types.TracebackType for step in steps):
        for step in steps:
            if type(step.holder) is types.FrameType and step.reference.kind is Kind.LOCAL:
                return Tied(Knot.ERROR, step.reference.name, clean(step.holder.f_code.co_name))
    return None


def raw_key(obj: object) -> object:
    """The class of an object, or the code of a function: equal for cycles with the same text."""
    if type(obj) is types.FunctionType:
        return obj.__code__.co_filename, obj.__code__.co_firstlineno
    cls = type(obj)
    return safe_access.class_module(cls), safe_access.class_qualname(cls)


def name_along(steps: Sequence[Hop]) -> str:
    """The path from the start of a chain: ``layer.0.weight``."""
    found = ""
    for step in steps:
        text = step.reference.text
        if step.reference.kind in (Kind.SUBMODULE, Kind.CLOSURE, Kind.LOCAL):
            text = f".{step.reference.name}"
        found += text if text[:1] in ".[" else f".{text}"
    return found.lstrip(".")


def signature(steps: Sequence[Hop], class_of: Callable[[object, Sequence[Hop], str | None], str] | None = None) -> str:
    """Types and labels along a cycle, without positions, and independent of the object it starts at.

    ``class_of`` names the class of an instance by the attribute that it holds the next object in.
    """
    parts = []
    for step in steps:
        holder = _qualified(step.holder)
        if class_of is not None and rank(step.holder) == 0:
            stored = step.reference.kind in (Kind.ATTRIBUTE, Kind.SUBMODULE) and step.reference.text[:1] == "."
            attribute = step.reference.text[1:] if stored else None
            holder = class_of(step.holder, steps, attribute)
        parts.append(f"{holder} {_NUMBER.sub('*', _ADDRESS.sub('*', step.reference.text))}")
    return " | ".join(min((parts[place:] + parts[:place] for place in range(len(parts))), default=[]))


def is_plain(steps: Sequence[Hop]) -> bool:
    """Whether a cycle consists of builtin containers alone: then nothing in its signature names a fault."""
    return all(
        safe_access.class_module(type(step.holder)) == "builtins" and rank(step.holder) != _CALLED for step in steps
    )


def _qualified(obj: Any) -> str:
    if type(obj) is types.FunctionType:
        return f"{obj.__module__ if type(obj.__module__) is str else '?'}.{obj.__qualname__}"
    if type(obj) is types.MethodType and type(obj.__func__) is types.FunctionType:
        return f"method {_qualified(obj.__func__)}"
    if any(type(obj) is kind for kind in RUNNING):
        return type_word(obj)
    cls = obj if safe_access.is_a(obj, type) else type(obj)
    return f"{safe_access.class_module(cls)}.{safe_access.class_qualname(cls)}"


def rank(obj: object) -> int:
    """How good an object is as the start of a cycle's text: instances first, inner objects last."""
    cls = type(obj)
    found = _RANKS.get(id(cls))
    if found is not None:
        return found
    return 0 if safe_access.is_a(obj, type) or (safe_access.is_heap_type(cls) and not is_tensor(obj)) else 1


def shape_of(tensor: object) -> str:
    """``float32[1024, 1024]``: the name of a tensor without its device and without ``Parameter``."""
    name = tensor_name(tensor)
    return clean(str(name._replace(cls="" if name.cls == "Parameter" else name.cls, device="")))
