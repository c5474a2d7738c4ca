"""Traces one run and judges each function and operator before or after it is called.

The function mode sees what the code says (``x.cpu()``, ``device="cuda"``), the dispatch mode what that does
(``aten::nonzero`` inside ``torch.where``). If both see the same thing, the line is reported once, in the words of the
code. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from cudamem_testing.graphs.operators import BACKWARD_NODES, FROM_DATA, HOST_READS, MIXING, rule_of_call, shown
from cudamem_testing.graphs.places import CapturePlaces
from cudamem_testing.graphs.report import LintFinding, SourceLine
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.sides import HOST, STAND_IN, Side, Sides
from cudamem_testing.objects.arrays import is_array
from cudamem_testing.safe_access import contents, is_a, is_one_of
from cudamem_testing.torch_api.modes import current_node, tensors
from cudamem_testing.torch_api.trees import leaves

Function = Callable[..., Any]
_DEVICE = "torch.Tensor.device.__get__"
_NEW_TENSOR = "torch.Tensor.new_tensor"
_INDEXING = {
    "torch.Tensor.__getitem__": "x[indices of the host]",
    "torch.Tensor.__setitem__": "x[indices of the host] = ...",
}
_MOVES = ("torch.Tensor.to", "torch.Tensor.cuda", "torch.Tensor.cpu")


class Watch:
    """Collects findings of one run.

    Args:
        places: finds the lines.
        sides: knows which side tensors are on.
        known: whether the function reaches an outside tensor by name.
        registered: ``id`` of the generators that the graph will know.
        end: the code of the function that started the run: frames outside it belong to the caller.
    """

    def __init__(
        self,
        places: CapturePlaces,
        sides: Sides,
        known: Callable[[torch.Tensor], bool],
        registered: Iterable[object],
        end: types.CodeType,
    ) -> None:
        self.places, self._sides, self._known, self._end = places, sides, known, end
        self._registered = {id(generator) for generator in registered} | {id(torch.default_generator)}
        self._found: dict[tuple[Rule, SourceLine], LintFinding] = {}
        self._call = ""  # the Python function that is running
        self._told = False  # whether that call was reported, or is known to be fine on a card
        self._inherits = False  # whether tensors that it creates without a device are on the device
        self._follows = False  # whether the device named by its inner code is that of its tensors

    def report(self, rule: Rule, operation: str, place: SourceLine | None = None) -> None:
        """Record a finding at a place, by default at the running line."""
        if place is None:
            place = self.places.of_frame(sys._getframe(1), self._end)
        earlier = self._found.get((rule, place))
        times = 1 if earlier is None else earlier.times + 1
        self._found[rule, place] = LintFinding(rule, earlier.operation if earlier else operation, place, times)

    def findings(self) -> tuple[LintFinding, ...]:
        """The findings so far."""
        return tuple(self._found.values())

    def function(self, name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a Python function."""
        self.places.note(sys._getframe(1), self._end)
        if self._sides.real:
            return self._on_card(name, func, args, kwargs)
        if name == _DEVICE:
            device = func(*args)
            return STAND_IN if device == HOST and self._sides.on_device(args[0]) else device
        if name in _MOVES:
            return self._move(name, func, args, kwargs)
        if name in ("torch.Tensor.pin_memory", "torch.Tensor.is_pinned"):
            return self._pinned(name, args)
        return self._placed(name, func, args, kwargs)

    def operator(self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator."""
        inputs = [*tensors((*args, *kwargs.values()))]
        sides = [self._input(tensor, name) for tensor in inputs]
        if Side.DEVICE in sides:
            self._judge(name, str(func.name()) if "::" in name else name, args, kwargs, inputs, sides)
        result = func(*args, **kwargs)
        side = self._output_side(name, kwargs, sides)
        for tensor in tensors((result,)):
            if not self._sides.met(tensor):
                self._sides.put(tensor, side)
        return result

    def _on_card(self, name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function with CUDA tensors, whose device is the real one."""
        result = self._called(name, func, args, kwargs)
        if name in _MOVES:
            self._moved(name, args, kwargs, self._sides.of(args[0]), self._sides.of(result))
        elif self._from_data(name, args, result) and self._sides.of(result) is Side.DEVICE:
            self.report(Rule.HOST_COPY, f"{shown(name)} of host data, to the device")
        return result

    def _of_values(self, name: str, args: Sequence[Any]) -> bool:
        """Whether a function creates a tensor from a list with device tensors, each of which it reads."""
        data = args[1:2] if name == _NEW_TENSOR else args[:1] if name in FROM_DATA else ()
        return any(is_one_of(one, list, tuple) and any(map(self._sides.on_device, tensors([one]))) for one in data)

    def _from_data(self, name: str, args: Sequence[Any], result: Any) -> bool:
        """Whether a function copies host data of any size."""
        given = args[1:2] if name == _NEW_TENSOR else args[:1]
        wanted = name == _NEW_TENSOR or (name in FROM_DATA and name != "torch.scalar_tensor")
        return wanted and result.numel() > 0 and not any(self._sides.on_device(one) for one in tensors(given))

    def _placed(self, name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function that may create tensors, always on the CPU."""
        wanted = self._sides.wanted(kwargs.get("device"))
        pinned = kwargs.get("pin_memory") is True
        if wanted is not None or pinned:
            kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
            if wanted is not None:
                kwargs["device"] = HOST
        elif name in FROM_DATA:
            wanted = self._sides.wanted(torch.get_default_device()) if not [*tensors(args)] else None
        elif name == _NEW_TENSOR:
            wanted = self._sides.of(args[0])
        result = self._called(name, func, args, kwargs)
        if pinned:
            wanted = Side.PINNED
        if wanted is not None:
            if wanted is Side.DEVICE and self._from_data(name, args, result):
                self.report(Rule.HOST_COPY, f"{shown(name)} of host data, to the device")
            for tensor in tensors((result,)):
                self._sides.put(tensor, wanted)
        return result

    def _called(self, name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function and judge it; what it does inside is reported in its name."""
        before = self._call, self._told, self._inherits, self._follows
        self._call, self._told = name, False
        given = any(map(self._sides.on_device, tensors((*args, *kwargs.values()))))
        self._inherits = type(func) is FunctionType and given
        self._follows = given and name not in FROM_DATA and name not in _INDEXING
        try:
            reads = name in HOST_READS and any(map(self._sides.on_device, tensors(args[:2])))
            if reads or self._of_values(name, args):
                self._tell(Rule.HOST_READ, shown(name))
            elif self._sides.real and name in _INDEXING and self._sides.on_device(args[0]) and _of_host(args[1]):
                self._tell(Rule.HOST_COPY, _INDEXING[name])
            elif name.endswith(".one_hot") and _number_of_classes(args, kwargs) >= 0:
                self._told = True  # a card does not read the values then
            elif name.endswith("quantile"):
                self._told = True  # the same for its numbers
            generator = kwargs.get("generator")
            if generator is not None and id(generator) not in self._registered:
                self.report(Rule.GENERATOR, f"generator= in {shown(name)}")
            return func(*args, **kwargs)
        finally:
            self._call, self._told, self._inherits, self._follows = before

    def _move(self, name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``to``, ``cuda`` and ``cpu``: a copy takes the place of the tensor on the other side."""
        tensor, rest = args[0], [*args[1:]]
        target = Side.DEVICE if name.endswith("cuda") else Side.HOST if name.endswith("cpu") else None
        if name.endswith(".to"):
            wishes = [*rest[:1], kwargs.get("device"), kwargs.get("other")]
            target = next(filter(None, map(self._wish, wishes)), None)
            rest = [HOST if place == 0 and self._sides.wanted(value) else value for place, value in enumerate(rest)]
            kwargs = {key: HOST if key == "device" else value for key, value in kwargs.items()}
        else:
            func, rest, kwargs = torch.Tensor.to, [HOST], {**kwargs}
            kwargs.pop("device", None)
        source = self._sides.of(tensor) or Side.DEVICE
        result = self._called(name, func, [tensor, *rest], kwargs)
        if target is None or not self._moved(name, args, kwargs, source, target):
            return result
        if result is tensor or result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            result = result.clone()
        self._sides.put(result, target)
        return result

    def _moved(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], source: Side | None, target: Side | None
    ) -> bool:
        """Judge a move; whether it went to the other side."""
        if target is None or (source is Side.DEVICE) is (target is Side.DEVICE):
            return False
        told = f"{shown(name)} to the {'device' if target is Side.DEVICE else 'host'}"
        if target is not Side.DEVICE:
            self.report(Rule.HOST_READ, told)
        elif not (source is Side.PINNED and _non_blocking(name, args, kwargs)):
            self.report(Rule.HOST_COPY, told)
        return True

    def _wish(self, value: object) -> Side | None:
        return self._sides.of(value) or Side.DEVICE if is_a(value, torch.Tensor) else self._sides.wanted(value)

    def _pinned(self, name: str, args: Sequence[Any]) -> Any:
        side = self._sides.of(args[0])
        if name.endswith("is_pinned"):
            return side is Side.PINNED
        if side is Side.PINNED:
            return args[0]
        copy = args[0].clone()
        self._sides.put(copy, Side.PINNED)
        return copy

    def _input(self, tensor: torch.Tensor, operator: str) -> Side:
        side = self._sides.of(tensor)
        if side is not None and self._sides.met(tensor):
            return side
        if operator == "aten::lift_fresh":  # torch.tensor and similar functions: the function says where the result is
            side = side or (Side.DEVICE if self._inherits else Side.HOST)
            if self._inherits and side is Side.DEVICE and tensor.dim():
                name = shown(self._call.replace("torch.functional.", "torch."))
                self._tell(Rule.HOST_COPY, f"{name} makes a tensor of host data, on the device")
        else:
            side = side or Side.DEVICE
            if side is Side.DEVICE and not self._known(tensor):
                self.report(Rule.OUTSIDE, "a tensor that no variable of the function refers to")
        self._sides.put(tensor, side)
        return side

    def _output_side(self, name: str, kwargs: Mapping[str, Any], sides: Sequence[Side]) -> Side:
        if sides:
            return Side.DEVICE if Side.DEVICE in sides else Side.HOST
        wanted = self._sides.wanted(kwargs.get("device"))
        # C++ code names it with the options of a tensor; its numbers stay on the host.
        follows = self._follows and wanted is not None and name != "aten::scalar_tensor"
        return Side.DEVICE if self._inherits or follows or wanted is Side.DEVICE else Side.HOST

    def _judge(
        self,
        name: str,
        overload: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
        sides: Sequence[Side],
    ) -> None:
        node = current_node()
        told = f"backward of {node}" if node else shown(self._call or name)
        if node in BACKWARD_NODES:
            self._tell(BACKWARD_NODES[node], told)
        on_device = [side is Side.DEVICE for side in sides]
        rule = rule_of_call(overload, on_device, [tensor.shape for tensor in inputs], args, kwargs)
        if rule is not None:
            self._tell(rule, told)
        elif name == "aten::repeat_interleave" and kwargs.get("output_size") is None and len(inputs) == 1:
            self._tell(Rule.DATA_SHAPE, told)
        elif name == "aten::copy_" and (sides[0] is Side.DEVICE) is not (sides[-1] is Side.DEVICE):
            number = self._call == "torch.Tensor.__setitem__" and inputs[-1].dim() == 0
            pinned = Side.PINNED in sides and (kwargs.get("non_blocking") or args[2:3] == (True,))
            if not number and not pinned:
                self._tell(Rule.HOST_COPY, told)
        elif name in ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"):
            self._judge_index(name, args, told)
        elif name not in MIXING and "_foreach_" not in name:
            strange = [one for one, side in zip(inputs, sides, strict=True) if side is not Side.DEVICE and one.dim()]
            if strange:
                self._tell(Rule.DEVICE, told)

    def _judge_index(self, name: str, args: Sequence[Any], told: str) -> None:
        indices = [*tensors((args[1],))]
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if masks and name != "aten::index" and args[2].numel() == 1 and self._sides.of(args[2]) is not Side.DEVICE:
            return  # a single number is a masked_fill
        if masks:
            words = {"torch.Tensor.__getitem__": "x[mask]", "torch.Tensor.__setitem__": "x[mask] = tensor"}
            self._tell(Rule.DATA_SHAPE, words.get(self._call, told))
        elif any(self._sides.of(index) is Side.HOST for index in indices):
            self._tell(Rule.HOST_COPY, _INDEXING.get(self._call, _INDEXING["torch.Tensor.__setitem__"]))

    def _tell(self, rule: Rule, operation: str) -> None:
        """Report at most once for each Python call."""
        if not self._told:
            self.report(rule, operation)
        self._told = bool(self._call)


def _of_host(index: object) -> bool:
    """Whether an index has integers in a list or an array. torch moves them to a card without any mode seeing it."""
    part: Any
    for part in contents(index) if is_a(index, tuple) else (index,):
        numbers = contents(part) if is_a(part, list) else [*part] if type(part) is range else []
        if type(next(iter(leaves(numbers)), None)) is int:
            return True
        if is_array(part) and part.dtype.kind in ("i", "u") and part.ndim:
            return True
    return False


def _non_blocking(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    place = 2 if name.endswith("cuda") or type(args[1] if len(args) > 1 else None) is not torch.dtype else 3
    return kwargs.get("non_blocking") is True or (len(args) > place and args[place] is True)


def _number_of_classes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    given = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    return given if is_a(given, int) else -1
