"""Decides from its holder why a block is still live. Pure: a holder and a stack in, a verdict out.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from cudamem_testing.guards import LAST_FAILURE
from cudamem_testing.model.blocks import Block
from cudamem_testing.model.findings import Verdict
from cudamem_testing.model.references import Path, Reach, RootKind
from cudamem_testing.model.stacks import Stack
from cudamem_testing.objects.search import HolderResult

#: Where the compiler keeps its products: its own modules, and globals of the module whose code it compiled.
_COMPILED_GLOBALS = ("__compiled_fn_", "__resume_at_")
_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental", "torch._guards")


#: ``warnings`` appends to pytest's list of recorded warnings through this.
_RECORDS_WARNINGS = "_showwarnmsg_impl"
#: Where doctest, like the interactive interpreter, keeps the value of the last expression.
_LAST_EXPRESSION = "_"
#: Classes and attributes of pytest that keep what a test made, the most certain first.
_KEEPERS: tuple[tuple[Verdict, frozenset[str]], ...] = (
    (
        Verdict.FIXTURE,
        frozenset({"CallSpec", "CallSpec2", ".cached_result", ".funcargs", "._arg2fixturedefs", ".callspec"}),
    ),
    (Verdict.TEST_INSTANCE, frozenset({"._instance", ".instance", "._obj", ".obj", ".__self__"})),
    (
        Verdict.TRACEBACK,
        frozenset({"traceback", "ExceptionInfo", ".__traceback__", ".tb_frame", "._excinfo", ".excinfo", ".failure"}),
    ),
)


def verdict_of(block: Block, holder: HolderResult) -> Verdict:
    """Why one block is live."""
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
    """The first name of a path that begins at some module; empty for any other path."""
    begins = path is not None and path.root_kind is RootKind.MODULE and path.root_name == module
    return path.steps[0].reference.text if path is not None and begins and path.steps else ""


def _is_compiler(path: Path | None) -> bool:
    if path is None:
        return False
    of_module = path.root_kind is RootKind.MODULE and bool(path.steps)
    if of_module and path.steps[0].reference.name.startswith(_COMPILED_GLOBALS):
        return True
    named = path.root_kind in (RootKind.MODULE, RootKind.CLASS, RootKind.LRU_CACHE)
    return named and any(path.root_name == name or path.root_name.startswith(f"{name}.") for name in _COMPILER)


def _kept_by_harness(path: Path | None) -> Verdict:
    """What pytest itself keeps, by its own classes and attributes on the way."""
    if path is None:
        return Verdict.UNATTRIBUTED
    if path.root_kind is RootKind.FIXTURE:
        return Verdict.FIXTURE
    met = {path.root, *(word for step in path.steps for word in (step.reference.text, step.type_name))}
    runs = path.root_kind is RootKind.FRAME  # pytest's own, on its way to a report: it names no holder
    rest = Verdict.UNATTRIBUTED if runs else Verdict.HARNESS
    return next((verdict for verdict, words in _KEEPERS if met & words), rest)
