"""Has the processes that tests start measured (processes.py, loaded with the first one). PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from multiprocessing.process import BaseProcess
from threading import get_ident
from typing import TYPE_CHECKING, Any

from cudamem_testing.guards import at_fork, place

if TYPE_CHECKING:
    from cudamem_testing.model.findings import Finding
    from cudamem_testing.ranks.processes import Processes
    from cudamem_testing.run.session import Session


class Ranks:
    """Watches over the start of processes."""

    def __init__(self, session: Session) -> None:
        self.busy = False
        """Whether the running test has started a process, or asked for others."""
        self._session = session
        self._starting: dict[int, BaseProcess] = {}
        self._restore: list[Callable[[], None]] = []

    @cached_property
    def _processes(self) -> Processes:
        from cudamem_testing.ranks.processes import Processes  # few tests start one

        return Processes(self._session)

    def watch(self) -> None:
        """From here on, measure the processes that tests start, and notice those that they fork."""
        start = BaseProcess.start
        ranks = self

        def started(process: BaseProcess) -> None:
            ranks.begin(process)
            thread = get_ident()
            ranks._starting[thread] = process
            try:
                start(process)
            finally:
                ranks._starting.pop(thread, None)
                vars(process).pop("run", None)

        self._restore += [place([(BaseProcess, "start", started)]), at_fork(self._forked)]

    def close(self) -> None:
        """Measure no more."""
        while self._restore:
            self._restore.pop()()
        if "_processes" in vars(self):
            self._processes.drop()

    def begin(self, process: Any) -> None:
        """A process is about to start: have it measure itself, if it can."""
        if self._session.running is not None:
            self.busy = True
            self._processes.begin(process)

    def _forked(self) -> None:
        """This process was forked, by the start of another one or by ``os.fork()``."""
        if self._session.running is not None:
            self.busy = True
            self._processes.forked(self._starting.get(get_ident()))

    def asked_for(self) -> AbstractContextManager[None]:
        """Processes that start inside the block may ask to be measured (:func:`cudamem_testing.rank`)."""
        self.busy = True
        return self._processes.asked_for()

    def judge(self, *, last: bool) -> list[Finding]:
        """What processes that the running test started have found; its record gets that, and their windows."""
        if not self.busy:
            return []
        self.busy = not last
        return self._processes.judge(last=last)
