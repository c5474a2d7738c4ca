"""Findings of private pools that a test left. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from cudamem_testing.graphs.pools import pools_of
from cudamem_testing.model.facts import CompilerPool, EmptyPool, Retained
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.pools import Pool, PoolUse
    from cudamem_testing.snapshots.record import Recording


def judged(
    found: Sequence[Finding],
    recording: Recording,
    nodeid: str,
    known: set[tuple[Device, Pool]],
    compiled: AbstractSet[Pool],
) -> list[Finding]:
    """The findings of a test with those of its pools on a device; ``compiled`` are pools of the compiler.

    Pools that are ``known`` were judged before; those of the device are added.
    """
    device, pools = recording.device, pools_of(recording)
    new = [use for use in pools.orphans(()) if (device, use.pool) not in known]
    known.update((device, use.pool) for use in pools.private)
    judged = [*found, *(compiler_pool(use, device) for use in new if use.pool in compiled)]
    orphans = [use for use in new if use.pool not in compiled]
    if not orphans:
        return judged
    beside = [one for one in judged if is_graph_state(one) and one.device == device]
    kept = [one for one in judged if one not in beside]
    return [*kept, *(empty_pool(use, device, nodeid, beside) for use in orphans)]


def compiler_pool(use: PoolUse, device: Device) -> Finding:
    """A note on a pool that the compiler keeps for its graphs."""
    return Finding(
        Kind.POOL,
        Verdict.COMPILER_CACHE,
        Severity.NOTE,
        CompilerPool(),
        bytes=use.reserved,
        device=device,
        cause=f"{Kind.POOL.value} | {Verdict.COMPILER_CACHE.value}",
    )


def empty_pool(use: PoolUse, device: Device, nodeid: str, beside: Sequence[Finding]) -> Finding:
    """A warning about a reserved pool without blocks, with findings of what its graph keeps ``beside`` it."""
    return Finding(
        Kind.POOL,
        Verdict.UNATTRIBUTED,
        Severity.WARN,
        EmptyPool(use.pool, nodeid, tuple(one.bytes or 0 for one in beside)),
        bytes=use.reserved,
        device=device,
        cause=f"{Kind.POOL.value} | {Verdict.UNATTRIBUTED.value} | {nodeid.partition('[')[0]}",
    )


def is_graph_state(finding: Finding) -> bool:
    """Whether what is retained is the state of a captured graph."""
    return isinstance(finding.fact, Retained) and finding.fact.graph_state
