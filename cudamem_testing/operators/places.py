"""Places: in which module and phase an operator runs.

In forward it is read from the Python stack: the innermost call of a module, at a cost that does not depend on how many
modules there are. Nothing is hooked, so no module can refuse, and ``forward`` hooks count for their module; also where
checkpointing runs a module again inside backward.

In backward the stack ends at autograd's engine, and the node that runs tells. Nodes are numbered in the order in which
they are made, so it is enough to note, operator by operator, which module was running up to which number. Numbers are
counted by thread: those of threads of the engine (cards have one each) are noted apart. A node that adds to a gradient
has no number but a parameter, whose module is known.

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
from cudamem_testing.static import find_in_class, is_a, is_one_of, type_name
from cudamem_testing.torch_api.running import UNNUMBERED, node_number, running

ModuleCall = tuple[Phase, str | None]
FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase  # a look-up in an enumeration is no plain attribute
AMBIGUOUS = (
    "nodes of second derivatives and of the forward pass have the same numbers on a card: their module is unknown"
)


class Places:
    """Tells where operators run, from its creation on; the names are those of ``model.named_modules()``.

    A module outside the model goes by the name of its class (``MSELoss()``), its parts by that and theirs.
    """

    def __init__(self, model: torch.nn.Module | None, base: CodeType | None = None) -> None:
        """``base`` is the code of the function that records: what called it is not looked at."""
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
        """The module that made a node. ``nested``: the engine was called on this very thread."""
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
    """Which module made the nodes of one thread: those from ``starts[i]`` to the next start are of ``modules[i]``."""

    __slots__ = ("end", "first", "modules", "starts")

    def __init__(self, number: int) -> None:
        self.starts: list[int] = [0]  # nodes of before are of no module
        self.modules: list[str | None] = [None]
        self.first = self.end = number

    def add(self, number: int, module: str | None) -> None:
        """An operator of ``module`` runs, and the next node will have this number.

        The last node is the operator's own. What was made since the operator before it is that one's: a write into a
        view makes its node afterwards.
        """
        self.end = number
        if module != self.modules[-1]:
            self.starts.append(number - 1)
            self.modules.append(module)

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.end

    def find(self, number: int) -> str | None:
        """The module; ``None`` for nodes of before."""
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
