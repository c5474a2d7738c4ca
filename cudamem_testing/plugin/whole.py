"""Whether a run was whole: only then does it mean something that a thing did not appear. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from pathlib import Path

import pytest

_SELECTING = ("keyword", "markexpr", "lf", "stepwise", "deselect", "ignore", "ignore_glob")


def is_whole(session: pytest.Session) -> bool:
    """Whether every test of the project, or of whole folders, was run to its end.

    It is not when tests were chosen (``-k``, ``-m``, ``--lf``, ``--sw``, ``--deselect``, ``--ignore``, files or ids on
    the command line), when the run stopped early (``-x``, ``--maxfail``, an interruption), or when a file could not be
    collected.
    """
    config = session.config
    if any(config.getoption(name, None) for name in _SELECTING):
        return False
    base = config.invocation_params.dir
    if not all("::" not in argument and Path(base, argument).is_dir() for argument in config.args):
        return False
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return ended and not session.shouldstop and not session.shouldfail
