"""Verdicts: why a block is still there, from who holds it. Pure: a holder and a stack in, a verdict out.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.guards import LAST_FAILURE
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.model.stacks import Stack
from cudamem_testing.objects import HolderResult, Path, Reach, RootKind


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a verdict means for the test, in one line, and what to do. ``leak`` verdicts fail by default."""

    leak: bool
    text: str
    hint: str

    @property
    def severity(self) -> Severity:
        """Its severity when nothing else was asked for."""
        return Severity.FAIL if self.leak else Severity.NOTE


def more(verdict: Verdict) -> str:
    """The line below a finding that says where its verdict is explained."""
    return f"   more: python -m cudamem_testing explain {verdict.anchor}"


GRAPH_HINT = (
    "a tensor is kept together with its autograd graph, and so all that the graph holds: keep value.detach(), or"
    " value.item() for a number"
)
MEANINGS: dict[Verdict, Meaning] = {
    Verdict.REACHABLE: Meaning(
        True,
        "a chain of references reaches it",
        "drop the reference at the end of the test, or move what must live into a wider fixture",
    ),
    Verdict.HELD_BY_CPP: Meaning(
        True,
        "it lives after a collection, and no chain of Python references from a root reaches it",
        "find what holds it in C++: a .grad with a graph of its own (set it to None after backward(create_graph=True)),"
        " a hook (remove its handle), a loss (keep .item() or .detach()), a scripted or traced module or a DLPack"
        " capsule (drop it), a callback of atexit (unregister it)",
    ),
    Verdict.RAW: Meaning(
        True,
        "it was taken from the allocator directly and never given back",
        "call torch.cuda.caching_allocator_delete with its address",
    ),
    Verdict.CYCLE: Meaning(
        True,
        "only the garbage collector freed it: its objects refer to each other in a cycle",
        "break the cycle, or use a weak reference for the way back",
    ),
    Verdict.TRACEBACK: Meaning(
        False,
        "the traceback of the failed test held it; it was released before the next test",
        "nothing: it goes with the failure",
    ),
    Verdict.TEST_INSTANCE: Meaning(
        False,
        "an attribute of the test's own instance holds it; pytest keeps that until the session ends",
        "set the attribute to None in teardown_method, or use a fixture",
    ),
    Verdict.WORKSPACE: Meaning(
        False,
        "a library took it for its own work (cuBLAS, cuDNN, cuFFT) and gave it back when asked",
        "nothing",
    ),
    Verdict.COMPILER_CACHE: Meaning(
        False,
        "a cache of torch.compile holds it until torch.compiler.reset()",
        "nothing, or torch.compiler.reset() at the end of the test",
    ),
    Verdict.FIXTURE: Meaning(
        False,
        "a fixture or a parameter that outlives the test holds it",
        "nothing, unless every use makes it grow",
    ),
    Verdict.HARNESS: Meaning(
        False,
        "pytest, doctest or a plugin keeps it, for its report or until the session ends",
        "nothing, or hand text and numbers to pytest instead of tensors",
    ),
    Verdict.UNATTRIBUTED: Meaning(
        False,
        "who holds it was not found out",
        "run the test alone, or with a longer search",
    ),
}

#: Where the compiler keeps its products: its own modules, and globals of the module whose code it compiled.
_COMPILED_GLOBALS = ("__compiled_fn_", "__resume_at_")
_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental", "torch._guards")


#: Through this ``warnings`` appends to the list in which pytest records them for its summary.
_RECORDS_WARNINGS = "_showwarnmsg_impl"
#: Where doctest, like the interactive interpreter, keeps the value of the last expression.
_LAST_EXPRESSION = "_"
#: Classes and attributes of pytest that keep what a test made, the surest first.
_KEEPERS: tuple[tuple[Verdict, frozenset[str]], ...] = (
    (
        Verdict.FIXTURE,
        frozenset({"CallSpec", "CallSpec2", ".cached_result", ".funcargs", "._arg2fixturedefs", ".callspec"}),
    ),
    (Verdict.TEST_INSTANCE, frozenset({"._instance", ".instance", "._obj", ".obj", ".__self__"})),
    (
        Verdict.TRACEBACK,
        frozenset({"traceback", "ExceptionInfo", ".__traceback__", ".tb_frame", "._excinfo", ".excinfo"}),
    ),
)


def verdict_of(block: Block, holder: HolderResult) -> Verdict:
    """Why one block lives."""
    if holder.reach is Reach.REACHABLE:
        if _first_of("sys", holder.path) in LAST_FAILURE:  # by what the error refers to: its frames are cleared
            return Verdict.TRACEBACK
        if _first_of("warnings", holder.path).startswith(_RECORDS_WARNINGS):
            return Verdict.HARNESS
        if _first_of("builtins", holder.path) == _LAST_EXPRESSION:
            return Verdict.HARNESS
        return Verdict.COMPILER_CACHE if _is_compiler(holder.path) else Verdict.REACHABLE
    if holder.reach is Reach.HARNESS:
        return _kept_by_harness(holder.path)
    if holder.reach is Reach.UNKNOWN:
        return Verdict.UNATTRIBUTED
    return Verdict.RAW if _is_raw(block.stack) else Verdict.HELD_BY_CPP


def is_unclaimed(stack: Stack, holder: HolderResult) -> bool:
    """Whether a library may keep a block: no Python object holds it, and no Python line asked the allocator for it."""
    return holder.reach is Reach.NOT_HELD and not _is_raw(stack)


def _is_raw(stack: Stack) -> bool:
    return any(frame.function == "caching_allocator_alloc" for frame in stack.frames[:3])


def _first_of(module: str, path: Path | None) -> str:
    """What a path that begins at a module takes there first; empty for all others."""
    return path.steps[0].reference.text if path is not None and path.root == f"module {module}" and path.steps else ""


def _is_compiler(path: Path | None) -> bool:
    if path is None:
        return False
    if (
        path.steps
        and path.root_kind == RootKind.MODULE.value
        and path.steps[0].reference.text.startswith(_COMPILED_GLOBALS)
    ):
        return True
    root = path.root.removeprefix("module ").removeprefix("class ").removeprefix("lru_cache of ")
    return any(root == name or root.startswith(f"{name}.") for name in _COMPILER)


def _kept_by_harness(path: Path | None) -> Verdict:
    """What pytest itself keeps, by its own classes and attributes on the way."""
    if path is None:
        return Verdict.UNATTRIBUTED
    if path.root.startswith("fixture "):
        return Verdict.FIXTURE
    met = {path.root, *(word for step in path.steps for word in (step.reference.text, step.type_name))}
    runs = path.root_kind == RootKind.FRAME.value  # pytest's own, on its way to a report: that names nobody
    return next(
        (verdict for verdict, words in _KEEPERS if met & words), Verdict.UNATTRIBUTED if runs else Verdict.HARNESS
    )
