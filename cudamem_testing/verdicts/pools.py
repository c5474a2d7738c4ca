"""Findings of private pools that a test left. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cudamem_testing.model.facts import CompilerPool, EmptyPool, Retained
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict

if TYPE_CHECKING:
    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.pools import PoolUse


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
