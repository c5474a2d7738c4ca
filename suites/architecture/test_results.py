"""Results hold numbers, texts and other results: no tensors, frames, types or anything of the user's."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import types
import typing
from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import cudamem_testing

LEAVES = (int, float, bool, str, bytes, type(None), Path)
CONTAINERS = (tuple, list, dict, set, frozenset, array, Mapping, Sequence)

# Working parts: they live while something is looked for and never in a record, a report or a finding.
WORKING = {
    "show.pages.Listing": "elements of a page, made while it is written",
    "simulated._Entered": "the cards that are in place, with the library that simulates them",
    "records.known.Evidence": "what a run says about causes, with the functions that tell",
    "unfinalized.Counting": "functions of a watch",
    "recorders.card_recorder.HostWatch": "functions of a watch",
    "cycles.draft.Question": "what is looked for, with the functions that tell",
    "cycles.draft.Found": "a cycle of garbage that still exists, with what tells whether it was freed",
    "cycles.source._Store": "a piece of a parsed file, while lines are looked for",
    "cycles.source._Stores": "pieces of a parsed file, while lines are looked for",
    "cycles.words.Hop": "a reference between two live objects, while it is put into words",
    "run.example_bodies.Body": "the body of a test, while its examples run",
    "ranks.processes.Started": "a process of the running test",
    "run.examples.Examples": "those of the running test, with its parts",
    "graphs.plan.Plan": "what one capture needs, while it is made",
    "graphs.compare.Values": "what calls and replays gave, while they are compared",
    "run.settle.SettlingStep": "one thing to try, with the function that does it",
    "objects.graph.Reached": "the front of a search",
    "objects.places._Waiting": "an object that is to be read",
    "objects.roots.Root": "holds the root object while holders are looked for",
    "objects.roots.RootValue": "holds the root object while holders are looked for",
    "run.sweep.Options": "functions of the caller",
    "recorders.lines.LineCode": "code whose allocations fail",
    "simulated.kernels.steps.Weights": "of a layer, while its kernel runs",
    "simulated.kernels.steps.Kept": "views of a reserve, while its kernel runs",
    "simulated.kernels.steps.Gradients": "of a layer, while its kernel runs",
    "simulated.kernels.steps.Pass": "layers and their input, while their kernel runs",
    "torch_api.ambient.Setting": "a setting of torch and what restores it",
    "torch_api.cuda.SimulatedTrap": "native functions",
    "windows.analysis.Analysis": "functions that read records",
    "run.running.Entrusted": "what a wider fixture is expected to free, and who left it",
    "recorders.capture.CpuCapture": "the raw record, with the function that names frames",
    "recorders.capture.CudaCapture": "the raw record as the allocator gives it",
    "recorders.capture.Refusal": "carries a raw record",
    "recorders.native_records.CodePosition": "one frame as it was noted, before it has a name",
    "snapshots.event_columns.Same": "a value of events, while a file is read",
    "snapshots.event_columns.Alike": "instructions of events, while a file is read",
    "snapshots.event_runs.Run": "events by column, while a file is read",
    "snapshots.rows.Numbered": "values of events, while a file is read",
    "report.codec.Codec": "the functions that write and read a type",
    "records.expected.edits.Edits": "collects what a run accepts",
    "records.expected.session.Session": "collects what a run accepts",
    "trace.text.Options": "the arguments of one text",
    "torch_api.running.Running": "torch's own functions and code",
    "torch_api.profiler.EventTypes": "torch's own types",
}
# Fields whose hint is wide and whose values are plain all the same.
PLAIN = {
    "ranks.order.Order.settings": "a class that is cheap to define, of plain values",
    "model.blocks.Group.key": "what the caller groups by",
    "snapshots.record.Annotation.extra": "what the restricted unpickler read, beyond what is known",
    "snapshots.record.Events.extra": "the same",
    "snapshots.record.LiveBlock.extra": "the same",
    "snapshots.record.Recording.extra": "the same",
    "snapshots.record.Recording.stacks": "names the record's own frames on demand",
    "snapshots.record.Segment.extra": "the same as extra above",
    "snapshots.record.Settings.raw": "the same as extra above",
    "trace.aliases.Family.group": "numbers and texts",
    "trace.records.Signature.types": "a few builtin types",
}


class Array:
    """``array[int]`` before Python 3.12."""

    def __class_getitem__(cls, item: object) -> type:
        return array


def modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(cudamem_testing.__path__, "cudamem_testing."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def short(kind: type) -> str:
    return f"{kind.__module__.removeprefix('cudamem_testing.')}.{kind.__qualname__}"


def results() -> list[type]:
    """Every dataclass and named tuple of the package."""
    found = {}
    for module in modules():
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                named = issubclass(value, tuple) and hasattr(value, "_fields")
                if dataclasses.is_dataclass(value) or named:
                    found[short(value)] = value
    return [found[name] for name in sorted(found)]


@cache
def namespace(module: types.ModuleType) -> dict[str, Any]:
    """The names of a module, those that it imports for type checkers alone too."""
    names = {**vars(typing), **vars(module), "array": Array}
    for branch in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test):
            for node in branch.body:
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    home = importlib.import_module(node.module)
                    names.update((alias.asname or alias.name, getattr(home, alias.name)) for alias in node.names)
    return names


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    """A hint without texts, also inside of it (recursive aliases are written as texts)."""
    while isinstance(hint, str):
        hint = eval(hint, names)
    if any(isinstance(part, str) for part in typing.get_args(hint)) and typing.get_origin(hint) is not typing.Literal:
        return types.GenericAlias(tuple, tuple(resolved(part, names) for part in typing.get_args(hint)))
    return hint


def hints(kind: type) -> dict[str, Any]:
    """The fields of a result with their types."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        module = inspect.getmodule(base)
        if module is None or not module.__name__.startswith("cudamem_testing"):
            continue
        names = namespace(module)
        for field, hint in vars(base).get("__annotations__", {}).items():
            text = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else hint
            found[field] = resolved(text, names)
    return {field: hint for field, hint in found.items() if typing.get_origin(hint) is not typing.ClassVar}


def held(hint: Any, known: set[type]) -> Iterator[Any]:
    """The types in a hint that a result must not hold."""
    todo = [hint]
    while todo:
        hint = todo.pop()
        origin = typing.get_origin(hint)
        if origin is typing.Literal or hint is Ellipsis:
            continue
        if origin in (typing.Union, types.UnionType) or origin in CONTAINERS:
            todo += typing.get_args(hint)
        elif isinstance(hint, typing.NewType):
            todo.append(hint.__supertype__)
        elif origin in known:
            continue
        elif not inspect.isclass(hint) or not (
            hint in LEAVES or hint in known or issubclass(hint, Enum) or hint is array
        ):
            yield hint


RESULTS = results()
KNOWN = {kind for kind in RESULTS if short(kind) not in WORKING}


@cache
def wide(kind: type) -> dict[str, list[Any]]:
    """The fields of a type that may hold what a result must not."""
    found = {field: [*held(hint, KNOWN)] for field, hint in hints(kind).items()}
    return {field: bad for field, bad in found.items() if bad}


def test_a_result_holds_nothing_of_the_user() -> None:
    found = {f"{short(kind)}.{field}": bad for kind in KNOWN for field, bad in wide(kind).items()}
    assert {field: bad for field, bad in found.items() if field not in PLAIN} == {}


def test_every_exception_is_needed() -> None:
    names = {short(kind): kind for kind in RESULTS}
    assert [name for name in WORKING if not wide(names[name])] == []
    fields = {f"{name}.{field}" for name, kind in names.items() for field in wide(kind)}
    assert [field for field in PLAIN if field not in fields] == []


def test_the_walk_finds_what_it_must() -> None:
    assert len(RESULTS) > 20
    assert {"model.findings.Finding", "model.windows.Window", "model.counters.Counters"} <= {*map(short, RESULTS)}

    @dataclasses.dataclass
    class Bad:
        fine: tuple[int, ...]
        frame: types.FrameType | None
        anything: list[Any]
        callback: typing.Callable[[], int]
        unknown: object

    hints = typing.get_type_hints(Bad)
    assert {name for name, hint in hints.items() if [*held(hint, KNOWN)]} == {
        "frame",
        "anything",
        "callback",
        "unknown",
    }


def test_results_of_the_model_are_frozen_and_slotted() -> None:
    loose = [
        short(kind)
        for kind in RESULTS
        if short(kind).startswith("model.") and dataclasses.is_dataclass(kind)
        if not kind.__dataclass_params__.frozen or not hasattr(kind, "__slots__")
    ]
    assert loose == []
