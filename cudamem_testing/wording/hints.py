"""What to do about memory, by what holds it. An unknown holder gets no hint.

The chain of references tells the kind of holder: the first link from the root that is more than a container decides,
otherwise the root. Each hint uses the names in the chain, and has a section in ``docs/hints.md``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.facts import Retained
from cudamem_testing.model.findings import LEAKED, Verdict
from cudamem_testing.model.references import Path, Reach, RootKind, Step


class Holder(str, Enum):
    """What holds memory, for holders that have a hint; the value is the heading of its section."""

    LRU_CACHE = "lru_cache"
    CACHED_PROPERTY = "cached_property"
    MODULE_GLOBAL = "module global"
    CLASS_ATTRIBUTE = "class attribute"
    TEST_CLASS = "test class attribute"
    TEST_INSTANCE = "test instance"
    DEFAULT_ARGUMENT = "default argument"
    CLOSURE = "closure"
    THREAD_LOCAL = "thread local"
    CONTEXT_VARIABLE = "context variable"
    THREAD = "running thread"
    EXECUTOR = "executor"
    FUTURE = "future"
    TASK = "task"
    GENERATOR = "generator"
    LOG_RECORD = "log record"
    LOG_HANDLER = "log handler"
    MOCK = "mock"
    HOOK = "hook"
    OPTIMIZER = "optimizer"
    GRADIENT = "gradient"
    CREATE_GRAPH = "create_graph"
    AUTOGRAD_GRAPH = "autograd graph"
    EXCEPTION = "exception"
    PYTEST_OBJECT = "pytest object"
    PARAMETER = "parametrize value"
    DATA_LOADER = "data loader"
    COMPILER_CACHE = "compiler cache"
    GRAPH_STATE = "graph state"
    GROWING_FIXTURE = "growing fixture"
    REDUCER = "reducer"
    FLAT_PARAMETER = "flat parameter"
    RAW = "raw allocation"
    CPP = "only C++"

    @property
    def anchor(self) -> str:
        """Its heading as a link."""
        return "".join(char for char in self.value.lower().replace(" ", "-") if char.isalnum() or char in "-_")


class Hint(NamedTuple):
    """What holds, and what to do."""

    holder: Holder
    text: str


GROWING_FIXTURE = Hint(
    Holder.GROWING_FIXTURE, "limit what the fixture keeps, or remove at the end of each test what the test added"
)


def hint_of(verdict: Verdict, fact: Retained) -> Hint | None:
    """What to do about retained memory; ``None`` where the holder is unknown."""
    if fact.graph_state:
        return Hint(Holder.GRAPH_STATE, "reset the graph, or delete it")
    if fact.reducer:
        drop = "drop the DistributedDataParallel, its module and all losses before destroy_process_group()"
        return Hint(Holder.REDUCER, drop)
    if fact.flat_parameter:
        return Hint(
            Holder.FLAT_PARAMETER,
            "use fully_shard, or end the test with: "
            "for part in FSDP.fsdp_modules(model): vars(part._handle.flat_param).clear()",
        )
    if verdict is Verdict.RAW:
        return Hint(Holder.RAW, "call torch.cuda.caching_allocator_delete with its address")
    if verdict is Verdict.COMPILER_CACHE:
        return Hint(Holder.COMPILER_CACHE, "call torch.compiler.reset() at the end of the test if it adds up")
    graphs = (_graph(block.path) for block in fact.shown) if fact.keeps_graph else iter(())
    known = next(filter(None, graphs), None)
    if known is not None:
        return known
    path = fact.path
    if verdict is Verdict.HELD_BY_CPP:
        return _held_by_cpp(path)
    if path is None or (verdict not in LEAKED and fact.shown[0].reach is not Reach.HARNESS):
        return None
    end = "after the fixture's yield" if fact.in_fixture else "at the end of the test"
    return next(_special(path, end), None) or _by_root(path, verdict, end)


def _graph(path: Path | None) -> Hint | None:
    place = _first(path, lambda step: step.reference.kind is Kind.GRAD_FN)
    if path is None or place is None:
        return None
    name = expression(path, place)
    return Hint(Holder.AUTOGRAD_GRAPH, f"keep {name}.detach(), or .item() for a number: it keeps its autograd graph")


def _held_by_cpp(path: Path | None) -> Hint:
    if _first(path, lambda step: step.reference.kind is Kind.GRAD) is not None:
        grad = "set .grad to None after backward(create_graph=True), or use torch.autograd.grad"
        return Hint(Holder.CREATE_GRAPH, grad)
    kept = (
        "remove what C++ keeps: hooks by handle.remove(), callbacks by atexit.unregister, scripted or traced modules,"
        " DLPack capsules, an extension's own object"
    )
    return Hint(Holder.CPP, kept)


def _special(path: Path, end: str) -> Iterator[Hint]:
    """Hints for the root if it is more than a namespace, then for each link that is more than a container."""
    if path.thread and any(step.type_name == "_WorkItem" for step in path.steps):
        yield Hint(Holder.EXECUTOR, f"shut down the executor of {path.thread!r} {end}, or use it in a with statement")
    elif path.thread:
        yield Hint(Holder.THREAD, f"stop thread {path.thread!r} {end}: signal it, then join() it")
    elif path.root_kind in _ROOTS:
        holder, text = _ROOTS[path.root_kind]
        word = _item(path, 0).type_name
        name = path.root_name
        if path.root_kind is not RootKind.LOGGER or not any(step.type_name == "LogRecord" for step in path.steps):
            yield Hint(holder, text.format(name=name, end=end, word=word))
    for place, step in enumerate(path.steps):
        for rule in _RULES:
            found = rule(path, place, step, end)
            if found is not None:
                yield found


def _by_root(path: Path, verdict: Verdict, end: str) -> Hint | None:
    """The hint for something that a namespace holds under a name."""
    first = _item(path, 0)
    if path.root_kind is RootKind.LRU_CACHE:
        return Hint(Holder.LRU_CACHE, f"call {path.root_name}.cache_clear() {end}")
    if path.root_kind is RootKind.MODULE and first.reference.kind is Kind.GLOBAL:
        return Hint(Holder.MODULE_GLOBAL, _emptied(path, end))
    if path.root_kind is RootKind.CLASS:
        cls = path.root_name.rpartition(".")[2]
        if cls.startswith("Test"):
            delete = f"delete {cls}{first.reference.text} in teardown_class, or return it from a fixture"
            return Hint(Holder.TEST_CLASS, delete)
        return Hint(Holder.CLASS_ATTRIBUTE, f"{_emptied(path, end)}: all instances of {cls} share it")
    if verdict is Verdict.TEST_INSTANCE:
        own = next((step.reference.text for step in path.steps if step.reference.text not in _INSTANCES), ".x")
        return Hint(Holder.TEST_INSTANCE, f"set self{own} to None in teardown_method, or use a fixture")
    if path.root_kind is RootKind.HARNESS and path.root_name in _PYTEST:
        name = expression(path, 1)
        return Hint(Holder.PYTEST_OBJECT, f"delete what the test stored on pytest's {path.root_name} ({name}) {end}")
    return None


def _emptied(path: Path, end: str) -> str:
    """Empty the first container of a chain, or drop the object that the last name before it refers to."""
    last = 0
    for place, step in enumerate(path.steps):
        is_fixed = step.reference.text.startswith("._") or _before(path, place) == "ndarray"
        if step.reference.kind not in _BY_NAME or is_fixed:
            break
        last = place + 1
        if step.type_name in _CONTAINERS:
            return f"call {expression(path, last)}.clear() {end}"
        if step.reference.kind is Kind.SUBMODULE:
            return f"delete {expression(path, last)} {end}"
    return f"set {expression(path, last)} to None {end}"


def expression(path: Path, steps: int) -> str:
    """The object after some steps of a chain, as source code would write it: ``project.cache._CACHE['x']``.

    A local variable of a function goes by its name alone.
    """
    named = path.root_kind in (RootKind.MODULE, RootKind.CLASS, RootKind.LRU_CACHE)
    text = path.root_name if named or path.root_kind is RootKind.HARNESS else path.root
    for place, step in enumerate(path.steps[:steps]):
        if step.reference.kind is Kind.GLOBAL:
            text += f".{step.reference.text}"
        elif step.reference.kind is Kind.LOCAL and path.root_kind is RootKind.FRAME and not place:
            text = step.reference.name
        elif step.reference.text[:1] in (".", "[") and not step.reference.text.startswith("._"):
            text += step.reference.text
        else:
            break
    return text


def _first(path: Path | None, fits: Callable[[Step], bool]) -> int | None:
    steps = () if path is None else path.steps
    return next((place for place, step in enumerate(steps) if fits(step)), None)


def _item(path: Path, place: int) -> Step:
    return path.steps[place] if place < len(path.steps) else _NOTHING


def _before(path: Path, place: int) -> str:
    """The word for the object that holds by a step: the function whose closure or defaults it is."""
    if place:
        return path.steps[place - 1].type_name
    return path.root_name if path.root_kind is RootKind.LRU_CACHE else path.root


def _lru_cache(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if step.reference.kind is not Kind.CACHED:
        return None
    function = path.root_name if place == 0 else _before(path, place).removeprefix("lru_cache of ")
    owner = function.split(".")[-2:-1]
    of_self = f": its keys hold self, {_article(step.type_name)}" if owner == [step.type_name] else ""
    return Hint(Holder.LRU_CACHE, f"call {function}.cache_clear() {end}{of_self}")


def _cached_property(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if not step.cached_property:
        return None
    name = expression(path, place + 1)
    return Hint(Holder.CACHED_PROPERTY, f"del {name} {end}: a cached_property keeps its value on the instance")


def _default(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if not step.reference.text.startswith((".__defaults__[", ".__kwdefaults__[")):
        return None
    function = _before(path, place).removeprefix("function ")
    text = f"use None as the default of {function}(), and create the {step.type_name} inside"
    return Hint(Holder.DEFAULT_ARGUMENT, f"{text}: a default is created only once")


def _closure(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if step.reference.kind is not Kind.CLOSURE:
        return None
    variable = step.reference.text.partition(" ")[2] or "the variable"
    function = _before(path, place).removeprefix("function ")
    return Hint(Holder.CLOSURE, f"unregister {function} {end}, or do not use {variable} in it: its closure keeps that")


def _hook(path: Path, place: int, step: Step, end: str) -> Hint | None:
    of_all_modules = step.reference.kind is Kind.GLOBAL and step.reference.text.endswith("_hooks")
    if step.reference.kind is not Kind.HOOK and not of_all_modules:
        return None
    of = expression(path, place)
    return Hint(Holder.HOOK, f"call remove() {end} on the handle that registering the hook on {of} returned")


def _gradient(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if step.reference.kind is not Kind.GRAD:
        return None
    grad = f"{expression(path, place)}.grad"
    return Hint(Holder.GRADIENT, f"set {grad} to None {end}, or call zero_grad(set_to_none=True)")


def _optimizer(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if {".state": "defaultdict", ".param_groups": "list"}.get(step.reference.text) != step.type_name:
        return None
    what = f"the {_before(path, place)} ({expression(path, place)})"
    return Hint(Holder.OPTIMIZER, f"delete {what} with its model: it keeps parameters, gradients and state")


def _traceback(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if step.type_name != "traceback" and step.reference.text not in _OF_AN_ERROR:
        return None
    name = expression(path, place)
    return Hint(Holder.EXCEPTION, f"keep str(error) in {name}, or call traceback.clear_frames(error.__traceback__)")


def _parameter(path: Path, place: int, step: Step, end: str) -> Hint | None:
    if step.type_name not in _CALLSPECS and not (place == 0 and path.root_name in _CALLSPECS):
        return None
    return Hint(Holder.PARAMETER, "create the value inside the test: pytest keeps parametrize values for the whole run")


def _by_type(path: Path, place: int, step: Step, end: str) -> Hint | None:
    found = _TYPES.get(step.type_name)
    if found is None:
        found = next((rule for word, rule in _WORDS.items() if step.type_name.startswith(word)), None)
    if found is None:
        return None
    holder, text = found
    name = expression(path, place + 1)
    inner = _item(path, place + 1).reference.text
    return Hint(holder, text.format(name=name, end=end, word=step.type_name, inner=inner))


def _article(word: str) -> str:
    return f"{'an' if word[:1] in 'AEIOUaeiou' else 'a'} {word}"


_NOTHING = Step(Reference(Kind.OTHER, ""), "")
_OF_AN_ERROR = (".__traceback__", ".__context__", ".__cause__", ".tb_frame")
_CALLSPECS = ("CallSpec", "CallSpec2")
_CONTAINERS = frozenset(
    {"dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter", "WeakKeyDictionary", "ChainMap"}
)
_BY_NAME = frozenset({Kind.GLOBAL, Kind.ATTRIBUTE, Kind.SUBMODULE})
_INSTANCES = ("._instance", ".instance", "._obj", ".obj", ".__self__")
_PYTEST = frozenset({"Config", "Session", "Stash", "SubRequest", "TopRequest", "FixtureRequest", "Function", "Item"})
#: Hints by kind of root, except namespaces: ``{name}`` is its name, ``{word}`` the class of the first object it holds.
_ROOTS = {
    RootKind.CONTEXT: (
        Holder.CONTEXT_VARIABLE,
        "keep the token that {name}.set() returns, and call {name}.reset(token) {end}",
    ),
    RootKind.THREAD: (Holder.THREAD, "stop thread {name!r} {end}: signal or cancel it, then join() it"),
    RootKind.EXECUTOR: (Holder.EXECUTOR, "shut the {name} down {end}, or use it in a with statement"),
    RootKind.EVENT_LOOP: (Holder.TASK, "cancel and await its tasks {end}, and close the event loop"),
    RootKind.LOGGER: (Holder.LOG_HANDLER, "remove the handler from logger {name!r} {end}, or flush what it buffers"),
}
_FUTURE = (Holder.FUTURE, "drop {name} once its result is used, or cancel it: a {word} keeps its result and callbacks")
_MOCK = (Holder.MOCK, "call {name}.reset_mock(return_value=True) {end}: a mock keeps its calls and return value")
_LOADER = (
    Holder.DATA_LOADER,
    "drop {name} {end}, or use persistent_workers=False: it keeps workers and batches",
)
#: Hints by the class of the object that a link leads to: ``{name}`` is that object, ``{inner}`` the next link.
_TYPES = {
    "Future": _FUTURE,
    "Task": (Holder.TASK, "await or cancel {name} {end}: a task keeps its coroutine and result"),
    "LogRecord": (Holder.LOG_RECORD, "log numbers and shapes instead of tensors: a LogRecord keeps its arguments"),
    "_local": (Holder.THREAD_LOCAL, "del {name}{inner} {end}: a thread local lives as long as its thread"),
    **dict.fromkeys(("Mock", "MagicMock", "AsyncMock", "NonCallableMock", "NonCallableMagicMock"), _MOCK),
    **dict.fromkeys(("_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter"), _LOADER),
}
_RUNNING = (Holder.GENERATOR, "close {name} {end}: {word} is unfinished and keeps its locals")
_WORDS = {"generator ": _RUNNING, "coroutine ": _RUNNING, "async generator ": _RUNNING}
_RULES = (
    *(_lru_cache, _cached_property, _default, _hook, _optimizer, _traceback, _parameter),
    *(_by_type, _closure, _gradient),
)
