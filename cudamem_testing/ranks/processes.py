"""The processes that the tests of a session start: has them measured, and takes in what they write.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cudamem_testing.guards import at_fork, set_variable
from cudamem_testing.model.devices import Device
from cudamem_testing.model.findings import GROUPED, Finding, Kind
from cudamem_testing.model.windows import Window
from cudamem_testing.ranks.order import Order
from cudamem_testing.ranks.records import ORDER, VARIABLE, Written, read, write_order
from cudamem_testing.ranks.settings import for_rank, plain
from cudamem_testing.ranks.target import Target
from cudamem_testing.run.running import Asked
from cudamem_testing.safe_access import error_text

if TYPE_CHECKING:
    from types import FrameType

    from cudamem_testing.model.baselines import Measured
    from cudamem_testing.model.records import TestRecord
    from cudamem_testing.run.running import ActiveTest
    from cudamem_testing.run.session import Session

MEASURED = ("spawn", "forkserver")
UNMEASURED = "the workers of a DataLoader are not measured, nor are their batches, which lie in shared memory"
SIMULATED = "is not measured: the simulated card is in the test's process alone"
_WORKERS = "torch.utils.data"  # its workers load data, and are ended from outside
_NAMED = 3


class Started(NamedTuple):
    """A process of a test."""

    process: BaseProcess
    order: Order


class Processes:
    """The processes of the running test."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder: Path | None = None
        self._started: list[Started] = []
        self._forked: list[str | None] = []
        self._number = 0

    def begin(self, process: Any) -> None:
        """A process is about to start: have it measure itself, if it can."""
        running = self._session.running
        target = getattr(process, "_target", None)
        own = getattr(type(process), "run", BaseProcess.run)  # of a class that does its work there
        if running is None or (target is None and own is BaseProcess.run):
            return
        if _loads_data(target):
            if UNMEASURED not in running.notes:
                running.notes.append(UNMEASURED)
            return
        if (getattr(process, "_start_method", None) or multiprocessing.get_start_method()) not in MEASURED:
            return
        if self._session.settings.simulated is not None:
            running.notes.append(f"{process.name} {SIMULATED}")
            return
        try:
            folder = self.folder()
        except OSError as error:
            running.notes.append(f"{process.name} is not measured: {error}")
            return
        number = _rank_of(target, getattr(process, "_args", ()))
        compared = self._measures_elsewhere()
        name = process.name if number is None else f"rank {number}"
        self._number += 1
        order = Order(
            str(folder),
            self._number,
            name,
            running.nodeid,
            str(self._session.root),
            for_rank(self._session.settings, compared=compared),
            Asked(running.budgets, running.override, running.comparison if compared else None),
            self._session.policy.content,
        )
        if own is not BaseProcess.run:
            process.run = Target(partial(own, process), order)
        elif target is not None:
            process._target = Target(target, order)
        self._started.append(Started(process, order))

    def forked(self, process: BaseProcess | None) -> None:
        """This process was forked; ``process`` is the one that was being started, if one was."""
        if _replaces_itself() or (process is not None and _loads_data(getattr(process, "_target", None))):
            return
        self._forked.append(None if process is None else process.name)

    def _measures_elsewhere(self) -> bool:
        """Whether there are cards that this process does not use: then the baseline is of what ranks take there.

        Where both use one device, the test's own numbers are compared.
        """
        environment = self._session.baselines.environment
        return any(environment(one.device) is None for one in self._session.tracker.recorders)

    def folder(self) -> Path:
        """The folder of the running test."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="cudamem-ranks-"))
        return self._folder

    @contextmanager
    def asked_for(self) -> Iterator[None]:
        """Processes that start inside the block may ask to be measured (:func:`cudamem_testing.rank`)."""
        running = self._session.running
        content = self._session.policy.content
        order = {
            "nodeid": "" if running is None else running.nodeid,
            "root": str(self._session.root),
            "settings": plain(self._session.settings),
            "known": None if content is None else content.decode(),
        }
        try:
            folder = self.folder()
            withdraw = write_order(folder, order)
        except OSError as error:
            if running is not None:
                running.notes.append(f"processes that start here are not measured: {error}")
            yield
            return
        restore = set_variable(VARIABLE, str(folder))
        try:
            yield
        finally:
            restore()
            withdraw()

    def collect(self, *, last: bool) -> tuple[list[Window], list[Finding]]:
        """What processes that have ended took and left, named by rank; with the ``last`` call the others are given up.

        What they note is added to the notes of the test.
        """
        running = self._session.running
        if running is None or self._folder is None:
            return [], []

        windows: list[Window] = []
        findings: list[Finding] = []
        waiting = []
        for one in self._started:
            code = _exit_code(one.process)
            if code is None and not last:
                waiting.append(one)
                continue
            written = _read(one.order.path, one.order.name)
            one.order.path.unlink(missing_ok=True)
            if written.record is None:
                why = _why_unknown(code)
                windows += _incomplete(written, f"the process {why}: what it took is not known")
                running.notes.append(f"{written.name} {why}: what it took is not known")
            else:
                _take(written, windows, findings, running)
                if one.order.settings.baseline != "off":
                    _measure(written.record, running)
        self._started = waiting
        kept = {one.order.path for one in waiting}
        for path in sorted(self._folder.glob("*.json")):  # of processes that asked themselves
            if path.name == ORDER or path in kept:
                continue
            written = _read(path, path.stem)
            if written.record is None and not last:
                continue
            path.unlink(missing_ok=True)
            if written.record is None:
                windows += _incomplete(written, "the process ended before it was judged")
                running.notes.append(f"{written.name} ended before it was judged: what it took is not known")
            else:
                _take(written, windows, findings, running)
        return windows, findings

    def judge(self, *, last: bool) -> list[Finding]:
        """What processes that the running test started have found; its record gets that, and their windows."""
        running = self._session.running
        if running is None:
            return []
        windows, findings = self.collect(last=last)
        running.windows.extend(windows)
        running.findings += findings
        if last:
            running.notes += _unmeasured(self._forked)
            self.drop()
        return findings

    def drop(self) -> None:
        """Forget the processes of a test that has ended, and remove their folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._started.clear()
        self._forked.clear()


def _loads_data(target: Any) -> bool:
    """Whether the target of a process is that of a worker of a ``DataLoader``."""
    return str(getattr(target, "__module__", "")).startswith(_WORKERS)


def _replaces_itself() -> bool:
    """Whether ``subprocess`` forks, for its ``preexec_fn``: the process runs another program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _OURS:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "subprocess"


def _unmeasured(forked: Sequence[str | None]) -> Iterator[str]:
    """The notes about forked processes, by their names; ``None`` is one of ``os.fork()``, which has none."""
    names = [name for name in forked if name is not None]
    bare = len(forked) - len(names)
    if len(names) == 1:
        yield f"{names[0]} was forked and is not measured: start it with spawn"
    elif names:
        rest = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        *said, last = [*names[:_NAMED], *rest]
        yield f"{', '.join(said)} and {last} were forked and are not measured: start them with spawn"
    if bare == 1:
        yield "1 process of os.fork() is not measured: start it with spawn"
    elif bare:
        yield f"{bare} processes of os.fork() are not measured: start them with spawn"


def _take(written: Written, windows: list[Window], findings: list[Finding], running: ActiveTest) -> None:
    """Add what a process took, under its name."""
    record, name = written.record, written.name
    if record is None:
        return
    windows += [one._replace(name=f"{name}: {one.name}") for one in record.windows if one.name not in _OUTER]
    unused = {one.device for one in record.measured if one.idle}  # another rank's
    findings += [
        replace(one, owner=name if one.owner is None else f"{name}: {one.owner}")
        for one in record.findings
        if one.kind is not Kind.BASELINE or one.device not in unused
    ]
    running.notes += [f"{name}: {note}" for note in (*record.notes, *written.notes)]
    running.subject.unjudged |= {kind for kind in GROUPED if kind.value in record.unjudged}


def _measure(record: TestRecord, running: ActiveTest) -> None:
    """Of each device the numbers of the process that requested most belong to the test."""
    for one in record.measured:
        known = next((place for place, other in enumerate(running.measured) if other.device == one.device), None)
        if one.idle:
            continue
        if known is None:
            running.measured.append(one)
        elif _requested(one) > _requested(running.measured[known]):
            running.measured[known] = one


def _requested(measured: Measured) -> int:
    spread = measured.values.get("requested")
    return 0 if spread is None else spread.high


_OUTER = ("setup", "teardown")
_OURS = (__name__, "cudamem_testing.ranks.watch", at_fork.__module__)


def _incomplete(written: Written, why: str) -> list[Window]:
    return [
        Window(f"{written.name}: call", Device.parse(device), complete=False, notes=(why,))
        for device in written.devices or ("cpu",)
    ]


def _read(path: Path, name: str) -> Written:
    """What a process has written; what cannot be read counts as nothing, with the reason."""
    try:
        return read(path) or Written(name)
    except (ValueError, KeyError, TypeError, OSError) as error:
        return Written(f"{name} ({error_text(error)})")


def _why_unknown(code: int | None) -> str:
    """Why a process has written nothing about what it took."""
    if code is None:
        return "still runs"
    return f"died with exit code {code}" if code else "ended and wrote nothing"


def _exit_code(process: BaseProcess) -> int | None:
    """``None`` while it runs."""
    try:
        process.join(0)
        return process.exitcode
    except (ValueError, AssertionError, OSError):  # closed, or never started
        return 0


def _rank_of(target: Any, args: Any) -> int | None:
    """The number of a process that ``torch.multiprocessing.spawn`` starts."""
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn" and len(args) > 1 and type(args[1]) is int:
        return args[1]
    return None
