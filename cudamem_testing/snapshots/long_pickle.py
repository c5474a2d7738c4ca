"""Pickles a dict with one very long list of dicts, a thousand of them at a time.

Python's pickler keeps every object that it has met until the end, since each may come again. Here the caller names what
comes again. It is written first, as a value of the key that later gets the long list; after that the pickler remembers
nothing more (``fast``), and each thousand of rows is forgotten. Protocol 3 gives what is remembered a number, where
protocol 4 counts. Both are read by pytorch.org/memory_viz, whose reader knows the most common operations alone.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO

PROTOCOL = 3
#: Pickle appends at most as many items to a list in one operation.
_ROWS = 1000
_HEAD, _STOP = len(pickle.PROTO) + 1, len(pickle.STOP)


def dump(
    stream: BinaryIO, document: dict[str, Any], key: str, before: int, rows: Iterator[Any], shared: Sequence[Any]
) -> None:
    """Write ``document`` with ``key``: as many empty lists as ``before`` says, then the list of all ``rows``.

    ``shared`` are those parts of rows that come again, and all that holds itself; they must stay alive and unchanged.

    Raises:
        ValueError: a row holds itself.
    """
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    pickler.dump({key: [key, *shared], **document})
    stream.write(buffer.getvalue()[:-_STOP])  # the dict is now on the reader's stack
    pickler.fast = True

    def written(value: Any) -> bytes:
        buffer.seek(0)
        buffer.truncate()
        pickler.dump(value)
        return buffer.getvalue()[_HEAD:-_STOP]

    stream.write(written(key) + pickle.EMPTY_LIST + pickle.MARK + before * pickle.EMPTY_LIST + pickle.EMPTY_LIST)
    while some := list(islice(rows, _ROWS)):
        stream.write(written(some).removeprefix(pickle.EMPTY_LIST))  # appended to the list that is there
    stream.write(pickle.APPENDS + pickle.SETITEM + pickle.STOP)
