"""How much of a project a run covered: only there does the absence of a finding mean something. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

#: Options that deselect collected tests, and those that skip files.
_CHOOSING = ("keyword", "markexpr", "deselect")
_SKIPPING = ("lf", "stepwise", "ignore", "ignore_glob")


class Collected:
    """What a run has collected, by id. Every run notes it, because measuring may start only after collection.

    ``tests`` are all that were found, including those deselected later; ``files`` those that were collected, also
    without a test; ``unknown`` the files and classes that failed or skipped themselves, whose tests are unknown;
    ``outside_root`` the files outside rootdir, where an id does not identify a file.
    """

    def __init__(self) -> None:
        self.tests: set[str] = set()
        self.files: set[str] = set()
        self.unknown: set[str] = set()
        self.outside_root: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A folder, a file or a class was collected, or could not be."""
        report = yield
        if not report.passed:
            self.unknown.add(collector.nodeid)
        elif isinstance(collector, pytest.File):
            self.files.add(collector.nodeid)
            if not collector.path.is_relative_to(collector.config.rootpath):
                self.outside_root.add(collector.nodeid)
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """A test was found; pytest-xdist has not yet appended a group to its id."""
        self.tests.add(item.nodeid)

    def left_out(self, ended: AbstractSet[str]) -> set[str]:
        """Tests that did not end, and what could not be collected."""
        return (self.tests - ended) | self.unknown

    def serialize(self) -> dict[str, list[str]]:
        """All of it as plain types, for another process."""
        return {name: [*ids] for name, ids in vars(self).items()}

    def add(self, sent: Mapping[str, Iterable[str]]) -> None:
        """What a worker of pytest-xdist has collected: each collects everything."""
        for name, ids in sent.items():
            getattr(self, name).update(ids)


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


def whole_paths(session: pytest.Session) -> tuple[str, ...]:
    """The folders and files on the command line, relative to rootdir, whose tests were all collected.

    None when the run stopped early, or when files were left out.
    """
    if not _ended(session, _SKIPPING):
        return ()
    root = session.config.rootpath.resolve()
    paths = (path.resolve() for path in _chosen(session.config) if path is not None)
    return tuple("." if root.is_relative_to(path) else os.path.relpath(path, root).replace("\\", "/") for path in paths)


def _ended(session: pytest.Session, without: Iterable[str]) -> bool:
    """Whether the run was completed without some options."""
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    stopped = session.shouldstop or session.shouldfail
    return ended and not stopped and not any(session.config.getoption(name, None) for name in without)


def _chosen(config: pytest.Config) -> list[Path | None]:
    """The paths on the command line; ``None`` for single tests, and for what is no path."""
    paths = [config.invocation_params.dir / argument for argument in config.args]
    known = ("::" not in argument and path.exists() for argument, path in zip(config.args, paths, strict=True))
    return [path if there else None for path, there in zip(paths, known, strict=True)]
