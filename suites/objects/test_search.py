"""``find_holders``: shortest chains from roots, with exact texts for each kind of root and chain."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import gc
import logging
import re
import signal
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cudamem_testing.model.references import Doubt, Path, Reach, RootKind, Unsure
from cudamem_testing.objects.roots import Ignore
from cudamem_testing.objects.search import MOST_HOLDERS, HolderResult, Search, find_holders, find_object_holders
from cudamem_testing.objects.tensors import is_tensor, storage_of
from cudamem_testing.torch_api import nodes

_CACHE: dict[str, Any] = {}
_LIST: list[Any] = []
_WEAK: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
#: For cases that make the tensor which is searched for themselves, by case number.
_addresses: dict[int, int] = {}
CALLED = type("Called", (), {})
HERE = f"module {__name__}"


class Holder:
    shared: Any = None

    def __init__(self, value: object = None) -> None:
        self.value = value

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def forward(self, x: object) -> object:
        return x

    def method(self) -> None: ...


class Pair(NamedTuple):
    first: object
    second: object


@dataclass(eq=False)
class Record:
    field: object


class Slotted:
    __slots__ = ("value",)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3))


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def holder_of(where: int, **options: Any) -> HolderResult:
    return find_holders([where], **options)[where]


def _keep(obj: object) -> None:
    _LIST.append(obj)


def _closure(tensor: torch.Tensor) -> None:
    _keep(lambda: tensor)


def _slot(tensor: torch.Tensor) -> None:
    slotted = Slotted()
    slotted.value = tensor
    _keep(slotted)


def _grad(tensor: torch.Tensor) -> None:
    parameter = torch.ones(5, requires_grad=True)
    parameter.grad = tensor
    _keep(parameter)


def _only_node(tensor: torch.Tensor) -> None:
    _keep((tensor.requires_grad_() * torch.ones(5)).grad_fn)


def _deep(tensor: torch.Tensor) -> None:
    chain: Any = tensor
    for _ in range(100):
        chain = [chain]
    _keep(chain)


def _generator(tensor: torch.Tensor) -> None:
    def generate() -> Any:
        mine = tensor
        yield mine

    running = generate()
    next(running)
    _keep(running)


def _error(tensor: torch.Tensor) -> None:
    def fail(loss: torch.Tensor) -> None:
        raise ValueError

    try:
        fail(tensor)
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        _keep(error)


def _model(tensor: torch.Tensor) -> None:
    net = Net()
    net.layers[0].weight.data = tensor
    _keep(net)


def _module_hook(tensor: torch.Tensor) -> None:
    net = torch.nn.Linear(1, 1)
    net.register_forward_hook(lambda *_: tensor)
    _keep(net)


def _saved(_: torch.Tensor) -> None:
    result = torch.ones(5, requires_grad=True).exp()
    _addresses[len(_LIST)] = address(result)
    _keep(result * 2)


def _saved_by_hook(_: torch.Tensor) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: {"packed": saved}, lambda packed: packed["packed"]):
        _saved(_)


def _metadata(tensor: torch.Tensor) -> None:
    result = torch.ones(1, requires_grad=True) * 2
    result.grad_fn.metadata["note"] = tensor  # type: ignore[union-attr]
    _keep(result)


def _tensor_hook(tensor: torch.Tensor) -> None:
    other = torch.ones(1, requires_grad=True)
    other.register_hook(lambda _: tensor)
    _keep(other)


def _attribute(tensor: torch.Tensor) -> None:
    other: Any = torch.ones(1)
    other.tag = tensor
    _keep(other)


def _buffer(tensor: torch.Tensor) -> None:
    net = Net()
    net.register_buffer("mask", tensor)
    _keep(net)


def _optimizer(_: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(torch.ones(5))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(5)
    optimizer.step()
    _addresses[len(_LIST)] = address(optimizer.state[parameter]["momentum_buffer"])
    _keep(optimizer)


def _structured_array(tensor: torch.Tensor) -> None:
    array = np.empty(2, dtype=[("o", object), ("n", [("x", object), ("y", int)])])
    array[1]["n"]["x"] = tensor
    _keep(array)


def _thread_local(tensor: torch.Tensor) -> None:
    local = threading.local()
    local.mine = tensor
    _keep(local)


def _node_hook(tensor: torch.Tensor) -> None:
    node = (torch.zeros(2, requires_grad=True) * 2).grad_fn
    assert node is not None
    node.register_prehook(lambda grads: (grads[0] * tensor,))
    _keep(node)


def _scripted(tensor: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced: Any = torch.jit.trace(torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.zeros(1, 3))  # type: ignore[no-untyped-call]
    next(traced.parameters()).data = tensor
    _keep(traced)


def _coroutine(tensor: torch.Tensor) -> None:
    @types.coroutine
    def pause() -> Any:
        yield

    async def wait(mine: torch.Tensor) -> None:
        await pause()

    running = wait(tensor)
    running.send(None)
    _keep(running)


def _weak_callback(tensor: torch.Tensor) -> None:
    _keep(weakref.ref(CALLED, lambda _: tensor))


def _lru(tensor: torch.Tensor) -> None:
    @functools.lru_cache
    def cached(_: object) -> None: ...

    cached(tensor)
    _keep(cached)


def _module(tensor: torch.Tensor) -> None:
    module = types.ModuleType("made")
    module.cache = tensor  # type: ignore[attr-defined]
    _keep(module)


def _object_array(tensor: torch.Tensor) -> None:
    array = np.empty(2, dtype=object)
    array[1] = tensor
    _keep(array)


def _context(tensor: torch.Tensor) -> None:
    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.kept = tensor
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    _keep(Keep.apply(torch.ones(1, requires_grad=True)))


#: Up to torch 2.7 what autograd saved is not seen, and whoever could be held by it has a note.
UNSEEN = f" (torch {metadata.version('torch')} does not show what autograd saved: an autograd graph may hold it)"
HELD_BY_GRAPHS = {
    _saved: f"no python holder{UNSEEN}",
    _saved_by_hook: f"held by unreachable objects: dict['packed']{UNSEEN}",
}
#: What is done with a tensor, and the chain that then holds it, behind ``module ... > _LIST (list)[number]``.
CASES: list[tuple[Callable[[torch.Tensor], object], str]] = [
    (_keep, ""),
    (lambda t: _keep([t]), " > list[0]"),
    (lambda t: _keep({"a": {"b": t}}), " > dict['a'] > dict['b']"),
    (lambda t: _keep((1, t)), " > tuple[1]"),
    (lambda t: _keep({t}), " > set element"),
    (lambda t: _keep(frozenset({t})), " > frozenset element"),
    (lambda t: _keep({t: 1}), " > dict key <Tensor>"),
    (lambda t: _keep(collections.OrderedDict(a=t)), " > OrderedDict['a']"),
    (lambda t: _keep(collections.defaultdict(list, a=t)), " > defaultdict['a']"),
    (lambda t: _keep(collections.deque([t])), " > deque[0]"),
    (lambda t: _keep(collections.ChainMap({"a": t})), " > ChainMap.maps (list)[0] > dict['a']"),
    (lambda t: _keep(Pair(1, t)), " > Pair.second"),
    (lambda t: _keep(Record(t)), " > Record.field"),
    (lambda t: _keep(Holder(t)), " > Holder.value"),
    (lambda t: _keep(Holder(Holder(t))), " > Holder.value (Holder).value"),
    (lambda t: _keep(Holder([t])), " > Holder.value (list)[0]"),
    (_slot, " > Slotted.value"),
    (_closure, " > function <lambda>.__closure__[0] 'tensor'"),
    (lambda t: _keep(functools.partial(print, t)), " > partial.args[0]"),
    (lambda t: _keep(functools.partial(print, a=t)), " > partial.keywords['a']"),
    (lambda t: _keep(Holder(t).method), " > method Holder.method.__self__ (Holder).value"),
    (lambda t: _keep(types.SimpleNamespace(a=t)), " > SimpleNamespace.a"),
    (lambda t: _keep(types.MappingProxyType({"a": t})), " > mappingproxy mapping > dict['a']"),
    (lambda t: _keep(eval("lambda x=t: x", {"t": t})), " > function <lambda>.__defaults__[0]"),
    (lambda t: _keep(property(functools.partial(print, t))), " > property.fget (partial).args[0]"),
    (lambda t: _keep(type("Local", (), {"cache": t})), " > class Local.cache"),
    (lambda t: _keep(threading.Thread(args=(t,))), " > Thread.args[0]"),
    (lambda t: _keep(ValueError(t)), " > ValueError.args[0]"),
    (lambda t: _keep(iter([t])), " > list_iterator (internal) > list[0]"),
    (_generator, " > generator generate local 'mine'"),
    (_coroutine, " > coroutine wait local 'mine'"),
    (_error, " > ValueError.__traceback__ (traceback).tb_frame > frame fail local 'loss'"),
    (_weak_callback, " > weakref.__callback__ (function <lambda>).__closure__[0] 'tensor'"),
    (_lru, " > lru_cache of _lru.<locals>.cached cached argument 0"),
    (_module, " > module made > cache"),
    (lambda t: _keep(t[1:]), ""),
    (lambda t: _keep(t.detach()), ""),
    (lambda t: _keep(t.untyped_storage()), ""),
    (lambda t: _keep(t.numpy()), " > ndarray.base"),
    (lambda t: _keep(memoryview(t.numpy())), " > memoryview (internal) > managedbuffer (internal) > ndarray.base"),
    (_object_array, " > ndarray[1]"),
    (_structured_array, " > ndarray['n']['x'][1]"),
    (_thread_local, " > _local.mine"),
    (_node_hook, " > MulBackward0 hook 0 > function <lambda>.__closure__[0] 'tensor'"),
    (_scripted, " > TopLevelTracedModule._actual_script_module[0].weight"),
    (lambda t: _keep(torch.nn.Parameter(t)), ""),
    (_grad, ".grad"),
    (_attribute, " > Tensor.tag"),
    (_saved, ".grad_fn[ExpBackward0].saved result"),
    (_saved_by_hook, ".grad_fn[ExpBackward0].saved result > dict['packed']"),
    (_only_node, ".next[AccumulateGrad].variable"),
    (_context, ".grad_fn[KeepBackward].kept"),
    (_metadata, ".grad_fn[MulBackward0].metadata['note']"),
    (_tensor_hook, " > Tensor hook 0 > function <lambda>.__closure__[0] 'tensor'"),
    (_model, ".layers[0].weight"),
    (_buffer, ".mask"),
    (_module_hook, " > Linear hook 0 > function <lambda>.__closure__[0] 'tensor'"),
    (_optimizer, " > SGD.state (defaultdict)[<Parameter>] > dict['momentum_buffer']"),
    (_deep, " > list[0]" * 5 + " > ... 87 more ..." + " > list[0]" * 7),
]


@pytest.fixture(scope="module")
def results() -> Iterator[list[HolderResult]]:
    """All cases planted, one search for all of them."""

    def plant(case: Callable[[torch.Tensor], object]) -> int:
        tensor = torch.ones(5)
        found = address(tensor)
        case(tensor)
        return found

    addresses = []
    for position, (case, _) in enumerate(CASES):
        kept = plant(case)
        addresses.append(_addresses.pop(position, kept))
    gc.collect()
    found = find_holders(addresses, budget_seconds=60)
    yield [found[where] for where in addresses]
    packing = [case for case, _ in CASES].index(_saved_by_hook)
    _LIST[packing].sum().backward()  # frees what autograd saved, through which the tensor holds itself
    _LIST.clear()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_chains_from_a_module(results: list[HolderResult], number: int) -> None:
    result = results[number]
    text = re.sub(r"hook \d+", "hook 0", str(result))
    plant, chain = CASES[number]
    if plant in HELD_BY_GRAPHS and not nodes.shows_saved():
        assert text == HELD_BY_GRAPHS[plant]
    else:
        assert text == f"reachable: {HERE} > _LIST (list)[{number}]{chain}"
    assert result.complete


def test_tensors_without_storages_are_visited_once() -> None:
    one, other = (torch.ones(2, device="meta", requires_grad=True) for _ in "ab")
    one.grad, other.grad = other, one
    kept = torch.ones(5)
    assert find_holders([address(kept)], budget_seconds=5)[address(kept)].complete
    one.grad = None


# --- other roots ------------------------------------------------------------------------------------------------------


def _one(obj: object, **options: Any) -> HolderResult:
    (result,) = find_object_holders([obj], budget_seconds=60, **options)
    return result


def _through(plant: Callable[[Any], Callable[[], object]]) -> HolderResult:
    """Result for a tensor held only by what ``plant`` does, which returns how to undo it."""

    def planted() -> tuple[int, Callable[[], object]]:
        tensor = torch.ones(6)
        return address(tensor), plant(tensor)

    where, undo = planted()
    try:
        return find_holders([where], budget_seconds=60)[where]
    finally:
        undo()


def _class_attribute(tensor: Any) -> Callable[[], object]:
    Holder.shared = [tensor]
    return lambda: setattr(Holder, "shared", None)


def _method_cache(tensor: Any) -> Callable[[], object]:
    Holder(tensor).forward(1)
    return Holder.forward.cache_clear


def _finalizer(tensor: Any) -> Callable[[], object]:
    return weakref.finalize(CALLED, print, tensor).detach


def _logger(tensor: Any) -> Callable[[], object]:
    class Keeping(logging.Handler):
        records = (tensor,)

    handler = logging.NullHandler()
    handler.kept = tensor  # type: ignore[attr-defined]
    logger = logging.getLogger("suite.logger")
    logger.addHandler(handler)
    return lambda: logger.removeHandler(handler)


def _thread(tensor: Any) -> Callable[[], object]:
    started, done = threading.Event(), threading.Event()

    def work(batch: object) -> None:
        started.set()
        done.wait()

    thread = threading.Thread(target=work, args=(tensor,), name="loader")
    thread.start()
    started.wait()
    return lambda: (done.set(), thread.join())


def _executor(tensor: Any) -> Callable[[], object]:
    done = threading.Event()
    executor = ThreadPoolExecutor(1, "worker")
    executor.submit(done.wait)
    executor.submit(print, tensor).cancel()
    return lambda: (done.set(), executor.shutdown())


def _signal(tensor: Any) -> Callable[[], object]:
    before = signal.signal(signal.SIGUSR2, lambda *_: tensor)
    return lambda: signal.signal(signal.SIGUSR2, before)


def _context_variable(tensor: Any) -> Callable[[], object]:
    token = REQUEST.set({"x": tensor})
    return lambda: REQUEST.reset(token)


def _event_loop(tensor: Any) -> Callable[[], object]:
    loop = asyncio.new_event_loop()
    LOOPS.append(weakref.ref(loop))
    loop.call_soon(print, tensor)
    loop.keep = loop  # type: ignore[attr-defined]
    return loop.close


REQUEST: contextvars.ContextVar[Any] = contextvars.ContextVar("request")
LOOPS: list[Any] = []
# Up to Python 3.12 a SimpleQueue keeps a list; later ones keep what waits themselves.
QUEUED = "(internal)" if sys.version_info >= (3, 13) else "(internal) > list[0]"
SUBMITTED = ".task (tuple)[1] > tuple" if sys.version_info >= (3, 14) else ".args (tuple)"
# Before Python 3.11 the attributes of an object are a dictionary of their own, so that the worker's frame is nearer.
EXECUTOR = (
    (RootKind.EXECUTOR, "ThreadPoolExecutor._work_queue")
    if sys.version_info >= (3, 11)
    else (RootKind.FRAME, "thread 'worker_0' > frame _worker (thread.py:LINE) local 'work_queue'")
)
ROOTS: list[tuple[Callable[[Any], Callable[[], object]], RootKind, str]] = [
    (_class_attribute, RootKind.CLASS, f"class {__name__}.Holder.shared (list)[0]"),
    (_method_cache, RootKind.LRU_CACHE, f"lru_cache of {__name__}.Holder.forward cached argument 0 > Holder.value"),
    (_finalizer, RootKind.FINALIZER, "weakref.finalize with built-in print.args (tuple)[0]"),
    (_logger, RootKind.LOGGER, "logger suite.logger.handlers (list)[0] > NullHandler.kept"),
    (_thread, RootKind.FRAME, "thread 'loader' > frame work (test_search.py:LINE) local 'batch'"),
    (_executor, EXECUTOR[0], f"{EXECUTOR[1]} (SimpleQueue) {QUEUED} > _WorkItem{SUBMITTED}[0]"),
    (_signal, RootKind.SIGNAL, "handler of SIGUSR2.__closure__[0] 'tensor'"),
    (_context_variable, RootKind.CONTEXT, "context variable 'request' (dict)['x']"),
    (_event_loop, RootKind.EVENT_LOOP, "event loop _UnixSelectorEventLoop._ready (deque)[0] > Handle._args (tuple)[0]"),
]


@pytest.mark.parametrize(("plant", "kind", "text"), ROOTS, ids=[case[0].__name__.removeprefix("_") for case in ROOTS])
def test_roots(plant: Callable[[Any], Callable[[], object]], kind: RootKind, text: str) -> None:
    result = _through(plant)
    assert result.path is not None
    assert re.sub(r"\.py:\d+", ".py:LINE", result.path.text) == text
    assert (result.reach, result.path.root_kind) == (Reach.REACHABLE, kind.value)


def test_frame_of_the_caller() -> None:
    loss = [torch.ones(3)]
    where = address(loss[0])
    result = find_holders([where])[where]
    line = sys._getframe().f_lineno - 1
    assert str(result) == f"reachable: frame test_frame_of_the_caller (test_search.py:{line}) local 'loss' (list)[0]"


def test_a_module_comes_before_a_frame_of_the_same_length() -> None:
    local = [Holder()]
    assert str(find_object_holders([local[0]])[0].path).endswith("local 'local' (list)[0]")
    _CACHE["both"] = local[0]
    try:
        assert str(find_object_holders([local[0]])[0].path) == f"{HERE} > _CACHE (dict)['both']"
    finally:
        _CACHE.clear()


@pytest.mark.slow
def test_ignored_packages_and_objects() -> None:
    def planted() -> int:
        _CACHE["x"] = torch.ones(3)
        return address(_CACHE["x"])

    where = planted()
    try:
        package = __name__.partition(".")[0]
        result = find_holders([where], ignore=Ignore(packages=(package,)))[where]
        assert (result.reach, str(result.path)) == (Reach.HARNESS, f"{HERE} > _CACHE (dict)['x']")
        result = find_holders([where], ignore=Ignore(ids=frozenset({id(_CACHE)})))[where]
        assert (result.reach, result.path) == (Reach.NOT_HELD, None)
    finally:
        _CACHE.clear()


def _tensor_at(where: int) -> Any:
    for obj in gc.get_objects():
        found = storage_of(obj)
        if found is not None and found.address == where and is_tensor(obj):
            return obj
    raise LookupError


def test_held_by_c_alone() -> None:
    def step() -> int:
        x = torch.ones(7, requires_grad=True)
        kept = (x**3).sum()
        kept.backward(create_graph=True)
        return address(x)

    with pytest.warns(UserWarning, match="create_graph=True"):
        where = step()
    gc.collect()
    result = find_holders([where])[where]
    if nodes.shows_saved():
        assert str(result) == "held by unreachable objects: Tensor.grad.grad_fn[PowBackward0].saved self"
    else:
        assert str(result) == f"held by unreachable objects: Tensor.grad.grad_fn[AccumulateGrad].variable{UNSEEN}"
    tensor = _tensor_at(where)
    tensor._fix_weakref()  # up to torch 2.7 the object belonged to C++, which would free it under this name
    tensor.grad = None


@pytest.mark.slow
def test_a_hook_over_its_own_tensor() -> None:
    def step() -> int:
        y = torch.ones(7, requires_grad=True) * 2
        y.register_hook(lambda grad: grad * y)
        return address(y)

    where = step()
    gc.collect()
    result = find_holders([where])[where]
    assert re.sub(r"\d+", "N", str(result).removesuffix(UNSEEN)) == (
        "held by unreachable objects: Tensor hook N > function <lambda>.__closure__[N] 'y'"
    )
    _tensor_at(where)._backward_hooks.clear()


class Wrapping(torch.Tensor):
    """A tensor with a field beside its attributes."""

    __slots__ = ("field",)
    field: torch.Tensor


@pytest.mark.parametrize("name", ["field", "attribute"])
def test_what_a_gradient_refers_to(name: str) -> None:
    """Up to torch 2.9 the collector sees nothing of what a tensor refers to that C++ holds as well."""

    def keep() -> int:
        parameter = torch.nn.Parameter(torch.ones(5))
        gradient = torch.ones(5).as_subclass(Wrapping)
        setattr(gradient, name, torch.ones(7))
        _CACHE["kept"], parameter.grad = parameter, gradient
        return address(getattr(gradient, name))

    where = keep()
    try:
        chain = f"_CACHE (dict)['kept'].grad > Wrapping.{name}"
        assert str(find_holders([where])[where]) == f"reachable: {HERE} > {chain}"
    finally:
        _CACHE.clear()


def test_an_address_without_a_holder() -> None:
    (result,) = find_holders([12345]).values()
    assert (result.reach, result.path, result.objects, result.complete) == (Reach.NOT_HELD, None, (), True)
    assert result.doubt is None or not nodes.shows_saved()
    assert find_holders([]) == {}


def test_the_budget_is_named() -> None:
    tensor = [torch.ones(3)]
    where = address(tensor[0])
    result = find_holders([where], budget_seconds=0.0)[where]
    assert (result.reach, result.complete) == (Reach.UNKNOWN, False)
    assert str(result).endswith("(the search stopped at its limit of 0 s)")
    result = find_holders([where], budget_objects=0)[where]
    assert (result.reach, result.complete) == (Reach.REACHABLE, False)  # a chain is known, a shorter one may be there
    assert str(result).endswith("(the search stopped at its limit of 0 objects)")


@pytest.mark.slow
@pytest.mark.parametrize("root", [True, False])
def test_with_many_holders_the_first_and_all_roots_are_visited(root: bool) -> None:
    """Where none of these leads to a root, there is no answer: another one may."""
    shared: Any = [torch.ones(3)]
    where = address(shared[0])
    crowd = [[shared] for _ in range(3 * MOST_HOLDERS)]
    ignored = Ignore(frozenset({id(crowd)}))
    if root:
        globals()["_shared"] = shared
    try:
        del shared
        with Search((where,), 60.0, 10**6, ignored) as search:
            (result,) = search.run(search.carriers.targets([where])).values()
            assert search.visited_count < 2 * MOST_HOLDERS
    finally:
        globals().pop("_shared", None)
    if root:
        assert result.path is not None
        assert (result.path.text, result.complete, result.doubt) == (f"{HERE} > _shared (list)[0]", True, None)
    else:
        assert (result.reach, result.complete) == (Reach.UNKNOWN, False)
        assert result.doubt == Doubt(Unsure.CROWDED, f"{MOST_HOLDERS:,}")


@pytest.mark.slow
def test_the_first_of_many_unreachable_tensors_have_chains() -> None:
    """What each hangs on would be looked for in all of their garbage."""

    class Garbage:
        pass

    ring: Any = [Garbage() for _ in range(500)]
    for place, one in enumerate(ring):
        one.next, one.tensor = ring[place - 1], torch.ones(3)
    wanted = [address(one.tensor) for one in ring]
    gc.disable()
    try:
        del ring, one
        found = [*find_holders(wanted).values()]
    finally:
        gc.enable()
        gc.collect()
    assert {one.reach for one in found} == {Reach.UNREACHABLE}
    assert found[0].path is not None
    assert found[-1].path is None


def test_a_search_leaves_nothing_behind() -> None:
    thing = Holder()
    box = [thing]
    seen = weakref.ref(thing)
    find_object_holders([thing])
    gc.collect()
    before = len(gc.get_objects())
    gc.disable()
    try:
        result = _one(thing)
        del thing
        box.clear()
        assert seen() is None
        assert result.path is not None
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()


def test_results_hold_only_text() -> None:
    result = _one(_LIST)
    waiting: list[Any] = [result]
    while waiting:
        obj = waiting.pop()
        if isinstance(obj, (HolderResult, Path)) or hasattr(obj, "__slots__"):
            waiting += [getattr(obj, name) for name in getattr(obj, "__slots__", ())]
        elif isinstance(obj, tuple):
            waiting += obj
        else:
            assert obj is None or isinstance(obj, (str, int, bool)), obj


def test_holders_behind_the_graph_of_a_found_result() -> None:
    """A result whose node saved the result itself is final at once; what the nodes before it saved is not."""
    here = types.ModuleType("suites_objects_here")
    sys.modules[here.__name__] = here
    x = torch.ones(8, 4)
    here.result = (x @ torch.ones(4, 4, requires_grad=True)).relu()  # type: ignore[attr-defined]
    addresses = [address(x), address(here.result)]
    del x
    try:
        found = find_holders(addresses)
    finally:
        del sys.modules[here.__name__]
    name = "module suites_objects_here > result"
    saved = f"reachable: {name}.grad_fn[MmBackward0].saved self" if nodes.shows_saved() else f"no python holder{UNSEEN}"
    assert [str(found[one]) for one in addresses] == [saved, f"reachable: {name}"]
