"""Attributes what a test left to a wider fixture that will undo its holder.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.model.references import Reach, RootKind
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.run.holders import Holders
from cudamem_testing.run.running import Entrusted

if TYPE_CHECKING:
    from cudamem_testing.model.blocks import Block
    from cudamem_testing.model.devices import Device
    from cudamem_testing.run.running import Fixture, LeakSubject


def entrusted(device: Device, blocks: Sequence[Block], held: Holders, subject: LeakSubject) -> Holders:
    """The holders, with the wider fixture in place of a holder that it will undo."""
    changed: dict[int, HolderResult] = {}
    handed: dict[int, tuple[Fixture, set[tuple[int | None, int]]]] = {}
    for block in blocks:
        holder = held.get(block.address or 0)
        if holder is None or holder.path is None or holder.reach is not Reach.REACHABLE or _is_cache(holder):
            continue
        fixture = subject.undoing(holder.path)
        if fixture is not None:
            root = f"{fixture.owner.label} > {holder.path.root}"
            path = replace(holder.path, root=root, root_kind=RootKind.FIXTURE, root_name=fixture.owner.name)
            changed[block.address or 0] = replace(holder, reach=Reach.HARNESS, path=path)
            handed.setdefault(id(fixture), (fixture, set()))[1].add((block.address, block.size))
    for fixture, some in handed.values():
        fixture.entrusted.append(Entrusted(device, subject.owner, frozenset(some)))
    return {**held, **changed} if changed else held


def _is_cache(holder: HolderResult) -> bool:
    """Whether the compiler's caches hold it, which no fixture undoes."""
    return holder.path is not None and holder.path.root.removeprefix("module ").startswith("torch.")
