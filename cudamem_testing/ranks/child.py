"""Measures a process that a test has started. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudamem_testing.model.entered import NotEnteredError
from cudamem_testing.ranks.order import Order
from cudamem_testing.ranks.records import VARIABLE, Written, read_order, write
from cudamem_testing.ranks.settings import settings_of
from cudamem_testing.ranks.watch import Ranks
from cudamem_testing.run.running import Asked
from cudamem_testing.run.session import Session
from cudamem_testing.show.printable import one_line, say
from cudamem_testing.windows.memory import Memory

_current: list[Session] = []


def run(function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    """Call a function; stacks of what it allocates end here."""
    return function(*args, **kwargs)


@contextmanager
def rank(name: str | None = None) -> Iterator[Memory]:
    """Measure the block in a process that a test started, as in ``with cudamem_testing.rank() as memory:``.

    The test's report then has its windows and findings. A test that starts its processes with ``subprocess``, such as
    ``torchrun``, says so: ``with cuda_memory.ranks():``. The name is by default ``rank`` with the number that
    ``torch.distributed`` or the variable ``RANK`` tells. Without such a test it only measures.
    """
    if _current:
        with _memory(_current[-1]) as memory:
            yield memory
        return
    folder = os.environ.get(VARIABLE)
    order = None if folder is None else _order(Path(folder), name)
    if order is None:
        with Memory.on("auto") as memory:
            yield memory
        return
    with measured(order) as session, _memory(session) as memory:
        yield memory


@contextmanager
def _memory(session: Session) -> Iterator[Memory]:
    """Windows and budgets in the record of the process."""
    running = session.running
    memory = Memory(session.tracker, None if running is None else running.add, session.judge)
    try:
        yield memory
    finally:
        problems = memory.close()
    if problems:
        raise NotEnteredError("\n".join(problems))


def _order(folder: Path, name: str | None) -> Order | None:
    """What the folder of a test asks for."""
    data = read_order(folder)
    if data is None:
        return None
    known = data["known"]
    return Order(
        str(folder),
        os.getpid(),
        name or f"process {os.getpid()}",
        data["nodeid"],
        data["root"],
        settings_of(data["settings"]),
        Asked(),
        None if known is None else known.encode(),
    )


@contextmanager
def measured(order: Order) -> Iterator[Session]:
    """Measure this process as the call of a test; what it leaves is judged at the end."""
    session = Session(
        order.settings, Path(order.root), harness=(run.__code__,), sent=True, known=order.known, quiet=True
    )
    session.prepare()
    devices = tuple(str(one.device) for one in session.tracker.recorders)
    _write(order, Written(_named(order.name), devices))
    session.begin(order.nodeid, order.asked, limited=True, keepers=tuple, fixtures=dict, undoing=lambda path: None)
    _current.append(session)
    ranks = Ranks(session)
    ranks.watch()
    error: BaseException | None = None
    try:
        if session.running is not None:
            session.enter(session.running, "call")
        yield session
    except BaseException as raised:
        error = raised
        raise
    finally:
        _current.pop()
        _end(session, ranks, order, devices, error)
        error = None


def _end(session: Session, ranks: Ranks, order: Order, devices: tuple[str, ...], error: BaseException | None) -> None:
    """Judge what is left here and in processes that this one has started, and write what is known."""
    running = session.running
    if running is None:
        return
    failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
    session.judge_call(running, failed=failed, skipped=False)
    ranks.judge(last=True)
    ranks.close()
    if failed and error is not None:
        running.ended(error, "call", failed=True, skipped=False)
    ended = session.end(running, None)
    session.border(order.nodeid.partition("::")[0])
    found = (*ended.record.findings, *session.findings)
    record = ended.record.but(outcome="failed" if failed else "passed", findings=found)
    unenforced = (f"{what}: {number}" for what, number in session.unenforced.items())
    notes = (*session.recorders.notes, *session.outside.notes(), *unenforced)
    _write(order, Written(_named(order.name), devices, record, notes))
    session.close()


def _write(order: Order, written: Written) -> None:
    """Write what is known. The process keeps its own outcome where the disk is full; its test notes what is missing."""
    try:
        write(order.path, written)
    except OSError as error:
        say(
            one_line(f"cudamem: what {written.name} took was not written to {order.path}: {error.strerror}"), sys.stderr
        )


def _named(name: str) -> str:
    """The rank, if torch.distributed or its launcher knows it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return f"rank {distributed.get_rank()}"
    if name.startswith("process ") and os.environ.get("RANK", "").isdecimal():
        return f"rank {os.environ['RANK']}"
    return name
