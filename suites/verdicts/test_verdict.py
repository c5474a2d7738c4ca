"""Verdicts from holders and stacks."""

from __future__ import annotations

import pytest

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind
from cudamem_testing.model.findings import LEAKED, Verdict
from cudamem_testing.model.references import Path, Reach, RootKind
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.verdicts.verdict import is_unclaimed, verdict_of
from suites.made import path

CPU = Device("cpu")
BLOCK = Block(64, 64, CPU, address=1)


def held(reach: Reach, where: Path | None = None) -> HolderResult:
    return HolderResult(reach, where)


@pytest.mark.parametrize(
    ("holder", "verdict"),
    [
        (held(Reach.REACHABLE, path("module project.cache", (Kind.GLOBAL, "_CACHE", "dict"))), Verdict.REACHABLE),
        (held(Reach.UNREACHABLE, path("Tensor", kind=RootKind.UNHELD)), Verdict.HELD_BY_CPP),
        (held(Reach.NOT_HELD), Verdict.HELD_BY_CPP),
        (held(Reach.UNKNOWN), Verdict.UNATTRIBUTED),
        (held(Reach.HARNESS), Verdict.UNATTRIBUTED),
        (held(Reach.HARNESS, path("Session", (Kind.ATTRIBUTE, ".x", "Tensor"))), Verdict.HARNESS),
        (held(Reach.HARNESS, path("frame run (runner.py:1)", kind=RootKind.FRAME)), Verdict.UNATTRIBUTED),
        (held(Reach.REACHABLE, path("module builtins", (Kind.GLOBAL, "_", "Tensor"))), Verdict.HARNESS),
        (held(Reach.REACHABLE, path("module builtins", (Kind.GLOBAL, "_x", "Tensor"))), Verdict.REACHABLE),
        (held(Reach.REACHABLE, path("module a", (Kind.GLOBAL, "_", "Tensor"))), Verdict.REACHABLE),
        (held(Reach.REACHABLE, path("module zeta", (Kind.GLOBAL, "_", "Tensor"))), Verdict.REACHABLE),
        (held(Reach.REACHABLE, path("module sys", (Kind.GLOBAL, "last_value", "Error"))), Verdict.TRACEBACK),
        (held(Reach.REACHABLE, path("module system", (Kind.GLOBAL, "last_value", "Error"))), Verdict.REACHABLE),
        (held(Reach.REACHABLE, path("module warnings", (Kind.GLOBAL, "_showwarnmsg_impl", "x"))), Verdict.HARNESS),
        (held(Reach.REACHABLE), Verdict.REACHABLE),
    ],
)
def test_reach(holder: HolderResult, verdict: Verdict) -> None:
    assert verdict_of(BLOCK, holder) is verdict


@pytest.mark.parametrize(
    "where",
    [
        path("module torch._dynamo.utils", (Kind.GLOBAL, "cache", "dict")),
        path("module torch._dynamo", (Kind.GLOBAL, "cache", "dict")),
        path("class torch._inductor.codecache.FxGraphCache", (Kind.ATTRIBUTE, ".x", "dict")),
        path("lru_cache of torch._inductor.utils.f", (Kind.CACHED, "cached result", "Tensor")),
        path("module project.model", (Kind.GLOBAL, "__compiled_fn_7_08e39e21_dd1e", "function run")),
        path("module project.model", (Kind.GLOBAL, "__resume_at_12_3", "function f")),
    ],
)
def test_compiler_caches(where: Path) -> None:
    assert verdict_of(BLOCK, held(Reach.REACHABLE, where)) is Verdict.COMPILER_CACHE


@pytest.mark.parametrize(
    "where",
    [
        path("module torch._dynamo_of_mine", (Kind.GLOBAL, "cache", "dict")),
        path("module project", (Kind.GLOBAL, "_compiled_fn_7", "function run")),
        path("module project", (Kind.GLOBAL, "TABLE", "dict"), (Kind.ITEM, "['__compiled_fn_7']", "Tensor")),
        path("frame f (x.py:1)", (Kind.LOCAL, "__compiled_fn_7", "function run")),
    ],
)
def test_not_compiler_caches(where: Path) -> None:
    assert verdict_of(BLOCK, held(Reach.REACHABLE, where)) is Verdict.REACHABLE


@pytest.mark.parametrize(
    ("where", "verdict"),
    [
        (path("fixture 'model'", (Kind.ATTRIBUTE, ".cached_result", "tuple")), Verdict.FIXTURE),
        (path("Function", (Kind.ATTRIBUTE, ".funcargs", "dict")), Verdict.FIXTURE),
        (path("CallSpec2", (Kind.ATTRIBUTE, ".params", "dict"), (Kind.ITEM, "['x']", "Tensor")), Verdict.FIXTURE),
        (path("CallSpec", (Kind.ATTRIBUTE, ".params", "dict"), (Kind.ITEM, "['x']", "Tensor")), Verdict.FIXTURE),
        (path("Function", (Kind.ATTRIBUTE, "._instance", "TestX")), Verdict.TEST_INSTANCE),
        (path("CallInfo", (Kind.ATTRIBUTE, ".excinfo", "ExceptionInfo")), Verdict.TRACEBACK),
        (path("frame f", (Kind.ATTRIBUTE, ".__traceback__", "traceback")), Verdict.TRACEBACK),
    ],
)
def test_kept_by_pytest(where: Path, verdict: Verdict) -> None:
    assert verdict_of(BLOCK, held(Reach.HARNESS, where)) is verdict


def raw(place: int) -> Block:
    frames = [Frame("x.py", 1, "f")] * 4
    frames[place] = Frame("torch/cuda/memory.py", 98, "caching_allocator_alloc", "library")
    return Block(512, 512, CPU, address=1, stack=Stack(tuple(frames)))


def test_raw_allocations_are_known_by_their_innermost_calls() -> None:
    assert verdict_of(raw(0), held(Reach.NOT_HELD)) is Verdict.RAW
    assert verdict_of(raw(2), held(Reach.NOT_HELD)) is Verdict.RAW
    assert verdict_of(raw(3), held(Reach.NOT_HELD)) is Verdict.HELD_BY_CPP
    assert verdict_of(raw(0), held(Reach.UNKNOWN)) is Verdict.UNATTRIBUTED


def test_a_library_may_keep_memory_that_no_line_requested() -> None:
    unclaimed = [reach for reach in Reach if is_unclaimed(BLOCK.stack, held(reach))]
    assert unclaimed == [Reach.NOT_HELD]
    assert not is_unclaimed(raw(0).stack, held(Reach.NOT_HELD))


def test_what_fails() -> None:
    assert {Verdict.REACHABLE, Verdict.HELD_BY_CPP, Verdict.RAW} == LEAKED


def test_anchors_differ() -> None:
    anchors = [verdict.anchor for verdict in Verdict]
    assert len({*anchors}) == len(anchors)
    assert Verdict.HELD_BY_CPP.anchor == "held-by-c"
    assert Verdict.TEST_INSTANCE.anchor == "test-instance"
