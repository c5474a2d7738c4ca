"""Finds the module and the phase in which an operator runs.

In forward they are read from the Python stack: the innermost call of a module, at a cost that does not depend on the
number of modules. Nothing is hooked, so it works for every module, and ``forward`` hooks count for their module; also
if checkpointing runs a module again inside backward.

In backward the stack ends at autograd's engine, and the running node decides. Nodes are numbered in the order in which
they are created, so it is enough to record, operator by operator, which module was running up to which number. Numbers
are counted by thread: threads of the engine (one for each card) are recorded separately. A node that adds to a gradient
has no number, but has a parameter, whose module is known.

Nothing is kept alive: modules are known by weak references, parameters by identity. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch

from cudamem_testing.operators.rows import OUTSIDE_MODEL, Phase
from cudamem_testing.safe_access import find_in_class, is_a, is_one_of, type_name
from cudamem_testing.torch_api.running import UNNUMBERED, node_number, running

ModuleCall = tuple[Phase, str | None]
FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase  # looking up an enum member is slower than a plain attribute
AMBIGUOUS = (
    "nodes of second derivatives and of the forward pass have the same numbers on a card: their module is unknown"
)


class OperatorPlaces:
    """Finds where operators run, from its creation on; names are those of ``model.named_modules()``.

    A module outside the model has the name of its class (``MSELoss()``), which also starts the names of its parts.
    """

    def __init__(self, model: torch.nn.Module | None, base: CodeType | None = None) -> None:
        """``base`` is the code of the recording function: frames outside it are not examined."""
        found = running()
        self._node, self._next = found.current_node, found.next_number
        self._call, self._engine, self._step = found.module_call, found.backward_call, found.step_call
        self._base = base
        self._names: dict[int, str | tuple[str, ...]] = {}
        self._weak: list[weakref.ref[torch.nn.Module]] = []
        self._owners: dict[int, str] = {}
        self._thread = get_ident()
        self._made = {self._thread: _Made(self._next())}
        self.remarks: list[str] = []
        if model is not None:
            self._adopt(model, "")
            self.remarks += _unseen(model)
        if self._call is None:
            self.remarks.append("this torch calls modules in another way: the modules of operators are unknown")

    def of(self, frame: FrameType | None) -> ModuleCall:
        """Phase and module of an operator that was called below ``frame``, on this thread, just now."""
        node = self._node()
        call, engine, step, base = self._call, self._engine, self._step, self._base
        while frame is not None:
            code = frame.f_code
            if code is call:
                name = self._names.get(id(frame.f_locals["self"]))
                module = name if type(name) is str else self._resolved(frame)
                place = (FORWARD if node is None else BACKWARD), module
                break
            if code is engine:
                place = BACKWARD, self._made_by(node, nested=True)
                break
            if code is step:
                place = OPTIMIZER, None
                break
            if code is base:
                frame = None
                break
            frame = frame.f_back
        if frame is None:
            place = (OTHER, None) if node is None else (BACKWARD, self._made_by(node, nested=False))
        number, made = self._next(), self._made.get(get_ident())
        if made is None:
            made = self._made[get_ident()] = _Made(number)
        if number != made.end:
            made.add(number, place[1])
        return place

    def _made_by(self, node: Any, *, nested: bool) -> str | None:
        """The module that created a node. ``nested``: the engine was called on this thread."""
        if node is None:
            return None
        number = node_number(node)
        if number == UNNUMBERED:
            return self._owners.get(id(getattr(node, "variable", None)))
        thread, forward = get_ident(), self._made[self._thread]
        if thread == self._thread:
            return forward.find(number)
        own = self._made.get(thread)
        if own is None or number not in own:
            return forward.find(number)
        if not nested and number in forward:
            if AMBIGUOUS not in self.remarks:
                self.remarks.append(AMBIGUOUS)
            return None
        return own.find(number)

    def _resolved(self, frame: FrameType | None) -> str | None:
        """The name of a module that has several, or none: the modules around it decide."""
        chain = [*self._around(frame)]
        path: str | None = None
        for module in reversed(chain):
            known = self._names.get(id(module))
            if known is None and path is None:
                self._adopt(module, type_name(module) + OUTSIDE_MODEL)
                known = self._names[id(module)]
            if isinstance(known, tuple):
                path = next((name for name in known if path is not None and _is_below(name, path)), known[0])
            elif known is not None:
                path = known
        return path

    def _around(self, frame: FrameType | None) -> Iterator[torch.nn.Module]:
        while frame is not None and frame.f_code is not self._engine and frame.f_code is not self._base:
            if frame.f_code is self._call:
                yield frame.f_locals["self"]
            frame = frame.f_back

    def _adopt(self, model: torch.nn.Module, root: str) -> None:
        for name, module in model.named_modules(remove_duplicate=False):
            path = f"{root}.{name}" if root and name else root or name
            known = self._names.get(id(module))
            if known is None:
                self._names[id(module)] = path
                self._weak.append(weakref.ref(module, self._forgetting(id(module))))
            else:
                self._names[id(module)] = (*((known,) if isinstance(known, str) else known), path)
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), path)

    def _forgetting(self, identity: int) -> Any:
        names = self._names

        def forget(reference: object) -> None:
            names.pop(identity, None)

        return forget


class _Made:
    """Modules that created the nodes of one thread: from ``starts[i]`` to the next start it was ``modules[i]``."""

    __slots__ = ("end", "first", "modules", "starts")

    def __init__(self, number: int) -> None:
        self.starts: list[int] = [0]  # older nodes have no module
        self.modules: list[str | None] = [None]
        self.first = self.end = number

    def add(self, number: int, module: str | None) -> None:
        """An operator of ``module`` runs, and the next node will have this number.

        The last node belongs to this operator. Nodes created before it belong to the previous operator: a write into a
        view creates its node afterwards.
        """
        self.end = number
        if module != self.modules[-1]:
            self.starts.append(number - 1)
            self.modules.append(module)

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.end

    def find(self, number: int) -> str | None:
        """The module; ``None`` for older nodes."""
        return self.modules[bisect_right(self.starts, number) - 1]


def _is_below(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _unseen(model: torch.nn.Module) -> Iterator[str]:
    """Modules whose calls do not show on the Python stack."""
    scripted = torch.jit.ScriptModule
    own, parts = [], []
    for name, module in model.named_modules():
        replaced = find_in_class(type(module), "__call__") is not torch.nn.Module.__call__
        if replaced and not is_one_of(module, scripted, torch.fx.GraphModule):
            own.append(name or type_name(module))
        if is_a(module, scripted) and any(True for _ in module.children()):
            parts.append(name or type_name(module))
    if own:
        yield f"calls that a class replaced are not seen; their operators count for the module around: {', '.join(own)}"
    if parts:
        yield f"scripts run without Python; the operators of their parts count for them: {', '.join(parts)}"
