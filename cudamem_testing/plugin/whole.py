"""Whether a run was whole: only then does it mean something that a thing did not appear. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_SELECTING = ("keyword", "markexpr", "lf", "stepwise", "deselect", "ignore", "ignore_glob")


def is_whole(session: pytest.Session) -> bool:
    """Whether every test of the project, or of whole folders, was run to its end.

    It is not when tests were chosen (``-k``, ``-m``, ``--lf``, ``--sw``, ``--deselect``, ``--ignore``, files or ids on
    the command line), when the run stopped early (``-x``, ``--maxfail``, an interruption), or when a file could not be
    collected.
    """
    return _unselected(session) and all(path.is_dir() for path in _paths(session.config))


def whole_files(session: pytest.Session) -> Callable[[str], bool]:
    """Tells of a test file, by its path relative to rootdir, whether it was collected whole and run to its end.

    That is so below each folder and for each file on the command line, under the conditions of :func:`is_whole`; also
    for a file that does not exist any more.
    """
    if not _unselected(session):
        return lambda file: False
    root = session.config.rootpath.resolve()
    chosen = tuple(path.resolve() for path in _paths(session.config))
    return lambda file: any((root / file).is_relative_to(path) for path in chosen)


def _unselected(session: pytest.Session) -> bool:
    config = session.config
    if any(config.getoption(name, None) for name in _SELECTING):
        return False
    if any("::" in argument or not path.exists() for argument, path in zip(config.args, _paths(config), strict=True)):
        return False
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return ended and not session.shouldstop and not session.shouldfail


def _paths(config: pytest.Config) -> list[Path]:
    return [config.invocation_params.dir / argument for argument in config.args]
