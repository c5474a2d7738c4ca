"""Parts of a test's id, ``tests/test_a.py::TestB::test_c[1]``. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Iterator


def file_of(nodeid: str) -> str:
    """``tests/test_a.py``; all of an id that is a file."""
    return nodeid.partition("::")[0]


def name_in_module(nodeid: str) -> str:
    """``TestB::test_c[1]``."""
    return nodeid.partition("::")[2]


def function_of(nodeid: str) -> str:
    """``tests/test_a.py::TestB::test_c``: the id without parameters."""
    file, colons, name = nodeid.partition("::")
    return file + colons + name.partition("[")[0]


def without_groups(nodeid: str) -> Iterator[str]:
    """Other possible ids of the test: a group of pytest-xdist may follow its id, and have an ``@`` in its name."""
    for place, character in enumerate(nodeid):
        if character == "@":
            yield nodeid[:place]
