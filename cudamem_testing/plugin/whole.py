"""Whether a run was whole: only then does it mean something that a thing did not appear. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from cudamem_testing.plugin.items import id_without_group

#: Options that leave tests out which were collected, so that it shows which ones; and those that leave out files.
_CHOOSING = ("keyword", "markexpr", "deselect")
_SKIPPING = ("lf", "stepwise", "ignore", "ignore_glob")


class Collected:
    """The tests that were collected; an option or a hook may leave some of them out.

    ``files`` are the ids of the files that were looked into, also of those in which no test is left.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._ids: set[str] = set()
        self._deselected: set[str] = set()

    @classmethod
    def of(cls, config: pytest.Config) -> Collected:
        """Those of a run, as it hears of them from here on."""
        collected = cls()
        config.pluginmanager.register(collected, "cudamem-collected")
        return collected

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A file was looked into; one that skips itself was not."""
        report = yield
        if report.passed and isinstance(collector, pytest.File):
            self.files.add(collector.nodeid)
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """One was found."""
        self._ids.add(id_without_group(item))

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        """Some were left out, and whoever did so says it."""
        self._deselected.update(map(id_without_group, items))

    def left_out(self, session: pytest.Session) -> set[str] | None:
        """The ids of those that were left out; ``None`` where this came too late to see them all."""
        there = {id_without_group(item) for item in getattr(session, "items", ())}
        if there and not self._ids:
            return None
        return self._deselected | (self._ids - there)


def together(one: set[str] | None, other: Iterable[str] | None) -> set[str] | None:
    """What was left out in two processes; ``None`` where one of them does not know."""
    return None if one is None or other is None else one.union(other)


def is_whole(session: pytest.Session) -> bool:
    """Whether every test of the project, or of whole folders, was run to its end.

    It is not when tests were chosen (``-k``, ``-m``, ``--lf``, ``--sw``, ``--deselect``, ``--ignore``, files or ids on
    the command line), when the run stopped early (``-x``, ``--maxfail``, an interruption), or when a file could not be
    collected.
    """
    chosen = _chosen(session.config)
    return (
        _ended(session, (*_CHOOSING, *_SKIPPING))
        and None not in chosen
        and all(path.is_dir() for path in chosen if path)
    )


def whole_paths(session: pytest.Session, *, selected: bool) -> tuple[str, ...]:
    """The folders and files on the command line, relative to rootdir, whose tests were all collected.

    None when the run stopped early, when files were left out, or, where it is not known which tests were left out
    (``selected``), when some may have been.
    """
    if not _ended(session, (*_CHOOSING, *_SKIPPING) if selected else _SKIPPING):
        return ()
    root = session.config.rootpath.resolve()
    paths = (path.resolve() for path in _chosen(session.config) if path is not None)
    return tuple("." if root.is_relative_to(path) else os.path.relpath(path, root).replace("\\", "/") for path in paths)


def _ended(session: pytest.Session, without: Iterable[str]) -> bool:
    """Whether the run came to its end, and some options were not given."""
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    stopped = session.shouldstop or session.shouldfail
    return ended and not stopped and not any(session.config.getoption(name, None) for name in without)


def _chosen(config: pytest.Config) -> list[Path | None]:
    """What the command line asks for; ``None`` for single tests, and for what is no path."""
    paths = [config.invocation_params.dir / argument for argument in config.args]
    known = ("::" not in argument and path.exists() for argument, path in zip(config.args, paths, strict=True))
    return [path if there else None for path, there in zip(paths, known, strict=True)]
