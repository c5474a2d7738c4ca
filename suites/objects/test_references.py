"""``references``: each kind of edge has the label an engineer would write."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import sys
import threading
import types
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cudamem_testing.model.edges import Kind
from cudamem_testing.objects.references import references

needs_saved = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"),
    reason=f"torch {torch.__version__} reads no saved tensor without running its unpack hooks",
)


class Held:
    """What the references lead to."""


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value

    def method(self) -> object:
        return self.value


class Slotted:
    __slots__ = ("unset", "value")

    def __init__(self, value: object) -> None:
        self.value = value


class SlottedChild(Slotted):
    __slots__ = ("own",)


class Pair(NamedTuple):
    first: object
    second: object


class PairChild(Pair):
    def swapped(self) -> Pair:
        return Pair(self.second, self.first)


@dataclass
class Record:
    field: object


class Colour(str):
    pass


class Cases:
    """One function a case: makes an object that refers to ``held``."""

    @staticmethod
    def closure(held: object) -> object:
        return lambda: held

    @staticmethod
    def generator(held: object) -> object:
        def generate() -> Any:
            mine = held
            yield
            del mine

        running = generate()
        next(running)
        return running

    @staticmethod
    def coroutine(held: object) -> object:
        @types.coroutine
        def pause() -> Any:
            yield

        async def wait() -> None:
            mine = held
            await pause()
            del mine

        running = wait()
        running.send(None)
        return running

    @staticmethod
    def async_generator(held: object) -> object:
        async def generate() -> Any:
            mine = held
            yield 1
            del mine

        running = generate()
        with pytest.raises(StopIteration):
            running.__anext__().send(None)
        return running

    @staticmethod
    def frame(held: object) -> object:
        mine = held
        assert mine is held
        return sys._getframe()

    @staticmethod
    def lru_argument(held: object) -> object:
        @functools.lru_cache
        def cached(_: object) -> None: ...

        cached(held)
        return cached

    @staticmethod
    def lru_result(held: object) -> object:
        @functools.lru_cache
        def cached() -> object:
            return held

        cached()
        del cached.__wrapped__
        return cached

    @staticmethod
    def context(held: object) -> object:
        variable: contextvars.ContextVar[object] = contextvars.ContextVar("request")
        context = contextvars.copy_context()
        context.run(variable.set, held)
        return context

    @staticmethod
    def exception(held: object) -> object:
        return ValueError(held)

    @staticmethod
    def cause(held: object) -> object:
        error = ValueError()
        error.__cause__ = held  # type: ignore[assignment]
        return error

    @staticmethod
    def array(held: object) -> object:
        array = np.empty(2, dtype=object)
        array[1] = held
        return array

    @staticmethod
    def thread_local(held: object) -> object:
        local = threading.local()
        local.mine = held
        return local

    @staticmethod
    def module(held: object) -> object:
        module = types.ModuleType("made")
        module.cache = held  # type: ignore[attr-defined]
        return module

    @staticmethod
    def defaultdict(held: object) -> object:
        return collections.defaultdict(list, {"a": held})

    @staticmethod
    def keyword_default(held: object) -> object:
        def function(*, option: object = held) -> None: ...

        return function

    @staticmethod
    def function_attribute(held: object) -> object:
        def function() -> None: ...

        function.cache = held  # type: ignore[attr-defined]
        return function

    @staticmethod
    def weak_callback(held: Any) -> object:
        target = Held()
        return weakref.ref(target, held), target


def _class_with(held: object) -> type:
    return type("Made", (), {"cache": held})


PYTHON = [
    ("attribute", Plain, ".value", Kind.ATTRIBUTE),
    ("slot", Slotted, ".value", Kind.ATTRIBUTE),
    ("inherited slot", SlottedChild, ".value", Kind.ATTRIBUTE),
    ("dataclass", Record, ".field", Kind.ATTRIBUTE),
    ("named tuple", lambda held: Pair(1, held), ".second", Kind.ATTRIBUTE),
    ("dict item", lambda held: {"key": held}, "['key']", Kind.ITEM),
    ("dict item, number", lambda held: {7: held}, "[7]", Kind.ITEM),
    ("dict item, tuple", lambda held: {("a", 1): held}, "[('a', 1)]", Kind.ITEM),
    ("dict item, None", lambda held: {None: held}, "[None]", Kind.ITEM),
    ("dict item, class", lambda held: {Plain: held}, "[Plain]", Kind.ITEM),
    ("dict item, enum", lambda held: {Kind.ITEM: held}, "['item']", Kind.ITEM),
    ("dict item, dtype", lambda held: {torch.float32: held}, "[torch.float32]", Kind.ITEM),
    ("dict item, str subclass", lambda held: {Colour("red"): held}, "['red']", Kind.ITEM),
    ("dict item, object", lambda held: {Plain(1): held}, "[<Plain>]", Kind.ITEM),
    ("dict item, long", lambda held: {"k" * 500: held}, f"['{'k' * 44}...]", Kind.ITEM),
    ("dict item, control characters", lambda held: {"a\nb\x1b": held}, r"['a\nb\x1b']", Kind.ITEM),
    ("dict key", lambda held: {held: 1}, "key <Held>", Kind.KEY),
    ("ordered dict", lambda held: collections.OrderedDict(a=held), "['a']", Kind.ITEM),
    ("default dict", Cases.defaultdict, "['a']", Kind.ITEM),
    ("list item", lambda held: [0, 1, 2, held], "[3]", Kind.ITEM),
    ("tuple item", lambda held: (held,), "[0]", Kind.ITEM),
    ("deque item", lambda held: collections.deque([1, held]), "[1]", Kind.ITEM),
    ("set", lambda held: {held}, "element", Kind.ELEMENT),
    ("frozen set", lambda held: frozenset({held}), "element", Kind.ELEMENT),
    ("closure", Cases.closure, ".__closure__[0] 'held'", Kind.CLOSURE),
    ("cell", lambda held: types.CellType(held), ".cell_contents", Kind.INTERNAL),
    ("default", lambda held: eval("lambda x=h: x", {"h": held}), ".__defaults__[0]", Kind.ATTRIBUTE),
    ("keyword default", Cases.keyword_default, ".__kwdefaults__['option']", Kind.ATTRIBUTE),
    ("function attribute", Cases.function_attribute, ".cache", Kind.ATTRIBUTE),
    ("bound method", lambda held: types.MethodType(print, held), ".__self__", Kind.ATTRIBUTE),
    ("partial argument", lambda held: functools.partial(print, held), ".args[0]", Kind.ATTRIBUTE),
    ("partial keyword", lambda held: functools.partial(print, end=held), ".keywords['end']", Kind.ATTRIBUTE),
    ("partial function", lambda held: functools.partial(_callable(held)), ".func", Kind.ATTRIBUTE),
    ("lru_cache argument", Cases.lru_argument, "cached argument 0", Kind.CACHED),
    ("lru_cache result", Cases.lru_result, "cached result", Kind.CACHED),
    ("property", lambda held: property(held), ".fget", Kind.ATTRIBUTE),
    ("property setter", lambda held: property(None, held), ".fset", Kind.ATTRIBUTE),
    ("class method", lambda held: classmethod(held), ".__func__", Kind.ATTRIBUTE),
    ("static method", lambda held: staticmethod(held), ".__func__", Kind.ATTRIBUTE),
    ("class attribute", _class_with, ".cache", Kind.ATTRIBUTE),
    ("base class", lambda held: type("Child", (type(held),), {}), "base class Held", Kind.CLASS),
    ("module global", Cases.module, "cache", Kind.GLOBAL),
    ("mapping proxy", lambda held: types.MappingProxyType({"a": held}), "mapping", Kind.INTERNAL),
    ("generator local", Cases.generator, "local 'mine'", Kind.LOCAL),
    ("coroutine local", Cases.coroutine, "local 'mine'", Kind.LOCAL),
    ("async generator local", Cases.async_generator, "local 'mine'", Kind.LOCAL),
    ("frame local", Cases.frame, "local 'held'", Kind.LOCAL),
    ("exception argument", Cases.exception, ".args[0]", Kind.ATTRIBUTE),
    ("context variable", Cases.context, "context variable 'request'", Kind.LOCAL),
    ("thread target", lambda held: threading.Thread(target=held), ".target", Kind.ATTRIBUTE),
    ("thread argument", lambda held: threading.Thread(args=(1, held)), ".args[1]", Kind.ATTRIBUTE),
    ("thread keyword", lambda held: threading.Thread(kwargs={"a": held}), ".kwargs['a']", Kind.ATTRIBUTE),
    ("object array", Cases.array, "[1]", Kind.ITEM),
    ("thread local", Cases.thread_local, ".mine", Kind.ATTRIBUTE),
    ("child of a named tuple", lambda held: PairChild(1, held), ".second", Kind.ATTRIBUTE),
    ("iterator", lambda held: iter([held]), "(internal)", Kind.OTHER),
]


def _callable(held: object) -> Any:
    return held


def _first_label(holder: object, referent: object) -> tuple[str, Kind]:
    for reference, found in references(holder):
        if found is referent:
            return str(reference), reference.kind
    raise LookupError


@pytest.mark.parametrize(("make", "text", "kind"), [case[1:] for case in PYTHON], ids=[case[0] for case in PYTHON])
def test_python_references(make: Any, text: str, kind: Kind) -> None:
    held: Any = Held()
    if make in (functools.partial,) or text == ".func":
        held = lambda: None  # noqa: E731
    holder = make(held)
    referent = held
    if text.startswith("base class"):
        referent = Held
    elif text == "mapping" or text == "(internal)":
        referent = gc.get_referents(holder)[0]
    try:
        assert _first_label(holder, referent) == (text, kind)
    finally:
        if isinstance(holder, types.CoroutineType):
            holder.close()


def test_weakref_callback_is_a_reference_and_the_target_is_not() -> None:
    def callback(_: object) -> None: ...

    target = Held()
    reference = weakref.ref(target, callback)
    found = [(str(label), referent) for label, referent in references(reference)]
    assert found == [(".__callback__", callback)]


def test_traceback_and_exception_chain() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as caught:
        error = caught
    labels = {str(label): referent for label, referent in references(error)}
    assert labels[".__cause__"] is error.__cause__
    assert labels[".__context__"] is error.__cause__
    assert labels[".__traceback__"] is error.__traceback__
    assert _first_label(error.__traceback__, error.__traceback__.tb_frame) == (".tb_frame", Kind.STACK)  # type: ignore[union-attr]
    del error, labels


def test_task_of_an_event_loop() -> None:
    async def work(held: object) -> None:
        await asyncio.sleep(0)

    async def main() -> list[str]:
        task = asyncio.create_task(work(Held()))
        first, second = Held(), Held()
        for held in (first, second):
            task.add_done_callback(functools.partial(print, held))
        callbacks = [callback for callback, _ in task._callbacks]
        found = [_first_label(task, obj)[0] for obj in (task.get_coro(), *callbacks)]
        for callback in callbacks:
            task.remove_done_callback(callback)
        await task
        return found

    assert asyncio.run(main()) == ["._coro", "._callbacks[0]", "._callbacks[1]"]


@pytest.mark.parametrize(
    "holder",
    [
        Plain([1]),
        Slotted([1]),
        {"a": [1]},
        [[1]],
        ([1],),
        Cases.closure([1]),
        functools.partial(print, [1]),
        Cases.lru_argument(Held()),
        torch.nn.Linear(2, 2),
        Plain,
        types,
        sys._getframe(),
        map(len, [[1]]),
        super(SlottedChild, SlottedChild([1])),
        collections.ChainMap({"a": [1]}),
        weakref.WeakValueDictionary(),
        asyncio.Queue(),
        ValueError([1]),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_no_edge_that_the_collector_knows_is_lost(holder: object) -> None:
    labelled = {id(referent) for _, referent in references(holder)}
    known = {id(referent) for referent in gc.get_referents(holder) if referent is not None}
    assert known
    assert known <= labelled


def test_frame_locals_leave_no_copy_behind() -> None:
    def step() -> types.FrameType:
        loss = Held()
        seen.append(weakref.ref(loss))
        return sys._getframe()

    seen: list[weakref.ref[Held]] = []
    frame = step()
    assert _first_label(frame, seen[0]()) == ("local 'loss'", Kind.LOCAL)
    frame.clear()
    assert seen[0]() is None


def test_a_dictionary_of_locals_that_the_program_uses_stays() -> None:
    value = Held()
    mine = locals()
    assert _first_label(sys._getframe(), value) == ("local 'value'", Kind.LOCAL)
    assert mine["value"] is value


# --- torch ----------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(2, 2))
        self.register_buffer("mask", torch.ones(2))
        self.history = [torch.ones(1)]


def test_modules_speak_of_attributes() -> None:
    net = Net()
    assert _first_label(net, net.encoder) == (".encoder", Kind.SUBMODULE)
    assert _first_label(net, net.mask) == (".mask", Kind.SUBMODULE)
    assert _first_label(net, net.history) == (".history", Kind.ATTRIBUTE)
    assert _first_label(net.encoder, net.encoder[0]) == ("[0]", Kind.SUBMODULE)
    assert _first_label(net.encoder[0], net.encoder[0].weight) == (".weight", Kind.SUBMODULE)


def test_module_hooks() -> None:
    net = torch.nn.Linear(1, 1)

    def hook(*_: object) -> None: ...

    handle = net.register_forward_hook(hook)
    assert _first_label(net, hook) == (f"hook {handle.id}", Kind.HOOK)


def test_tensor_references() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.tag = [1]  # type: ignore[attr-defined]
    x.grad = torch.zeros(3)
    handle = y.register_hook(print)
    view = y.detach()[1:]
    assert _first_label(x, x.grad) == (".grad", Kind.GRAD)
    assert _first_label(y, y.grad_fn) == (".grad_fn[MulBackward0]", Kind.GRAD_FN)
    assert _first_label(y, y.tag) == (".tag", Kind.ATTRIBUTE)  # type: ignore[attr-defined]
    assert _first_label(y, print) == (f"hook {handle.id}", Kind.HOOK)
    assert _first_label(view, view._base) == ("._base", Kind.STORAGE)


def test_post_accumulate_hook() -> None:
    x = torch.ones(3, requires_grad=True)

    def hook(_: torch.Tensor) -> None: ...

    handle = x.register_post_accumulate_grad_hook(hook)
    assert _first_label(x, hook) == (f"hook {handle.id}", Kind.HOOK)


def test_reading_a_gradient_never_warns() -> None:
    y = torch.ones(3, requires_grad=True) * 2  # its .grad warns, and warnings are errors in this suite
    assert [str(label) for label, _ in references(y) if label.kind is Kind.GRAD] == []


@needs_saved
def test_node_references() -> None:
    x = torch.ones(3, requires_grad=True)
    node = (x * x).sum().grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.metadata["note"] = (note := Held())
    assert _first_label(node, x) == (".saved other", Kind.SAVED)
    accumulate = node.next_functions[0][0]
    assert _first_label(node, accumulate) == (".next[AccumulateGrad]", Kind.NEXT)
    assert _first_label(accumulate, x) == (".variable", Kind.SAVED)
    assert _first_label(node, note) == (".metadata['note']", Kind.ATTRIBUTE)


@needs_saved
def test_unpack_hooks_never_run() -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> list[torch.Tensor]:
        packed.append([tensor])
        return packed[-1]

    def unpack(_: object) -> torch.Tensor:
        raise RuntimeError("unpack hook ran")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = torch.ones(3, requires_grad=True).exp()
    assert _first_label(y.grad_fn, packed[0]) == (".saved result", Kind.SAVED)
    packed[0].clear()  # else it holds itself


def test_freed_saved_tensors_are_no_error() -> None:
    y = torch.ones(3, requires_grad=True).exp()
    y.sum().backward()
    assert [str(label) for label, _ in references(y.grad_fn) if label.kind is Kind.SAVED] == []


@needs_saved
def test_context_of_a_custom_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            ctx.extra = [1]
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    x = torch.ones(3, requires_grad=True)
    y = Double.apply(x)  # without its output a node of torch 2.11 has nothing saved
    node: Any = y.grad_fn
    assert _first_label(node, x) == (".saved tensors[0]", Kind.SAVED)
    assert _first_label(node, node.extra) == (".extra", Kind.ATTRIBUTE)


def test_array_of_a_tensor() -> None:
    tensor = torch.ones(3)
    array = tensor.numpy()
    assert _first_label(array, array.base) == (".base", Kind.ATTRIBUTE)
