"""Reads snapshot files: pickles (as torch and this package write them) and JSON, compressed with gzip or not.

Files are untrusted. Nothing in them is executed (:mod:`unpickle`), and no file makes the reader use more memory than
its size and the limits allow: a compressed file may expand to ``EXPANSION`` times its size (snapshots take a tenth of
that). No garbage is collected meanwhile: these millions of small objects contain none. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.snapshots.read import devices, read
from cudamem_testing.snapshots.record import Recording, SnapshotError
from cudamem_testing.snapshots.unpickle import unpickle

__tracebackhide__ = hide_wrong_arguments

LARGEST = 4 * 2**30
#: How many times its size a compressed file may expand to, and the bytes that any file may expand to.
EXPANSION, EXPANDED = 200, 4 * 2**20
_CHUNK = 2**24
_GZIP = b"\x1f\x8b"


def read_file(
    path: str | Path,
    device: Device | None = None,
    locator: Locator | None = None,
    max_entries: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Recording:
    """One device's recording from a file; see :func:`cudamem_testing.snapshots.read.read`.

    ``progress`` is called now and then with the share of a pickle that was read.

    Raises:
        SnapshotError: if the file cannot be read or holds no snapshot.
    """
    with _Reading(path):
        snapshot = _loads(_bytes(Path(path), LARGEST), progress, columns=True)
        if device is not None and device.is_card:
            _check(snapshot, device.index or 0)
        return read(snapshot, device, locator, max_entries)


def load(path: str | Path, largest: int = LARGEST) -> Any:
    """The plain value in a snapshot file, of at most ``largest`` bytes after decompression.

    Raises:
        SnapshotError: if the file cannot be read, is damaged, or contains more than plain containers.
    """
    with _Reading(path):
        return loads(_bytes(Path(path), largest))


def _check(snapshot: object, index: int) -> None:
    """Refuse a card of which the file has neither a segment nor a trace, not even an empty one."""
    known = devices(snapshot)
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    device = Device("cuda", index)
    if known and device not in known and not (isinstance(traces, list) and index < len(traces)):
        raise SnapshotError(f"the snapshot is not of {device}: it is of {', '.join(map(str, known))}")


class _Reading:
    """Adds the file's name to errors inside. A class, so that tracebacks have no frame of ``contextlib``."""

    def __init__(self, path: str | Path) -> None:
        self._name = Path(path).name
        self._paused = CollectorPaused()

    def __enter__(self) -> None:
        self._paused.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._paused.__exit__(None, None, None)
        if isinstance(error, OSError):
            raise SnapshotError(f"{self._name} cannot be read: {error.strerror or error}") from None
        if isinstance(error, MemoryError):
            raise SnapshotError(
                f"{self._name} cannot be read: it needs more memory than this process may use"
            ) from None
        if isinstance(error, SnapshotError):
            raise SnapshotError(f"{self._name}: {error}") from error


def loads(data: bytes, progress: Callable[[float], None] | None = None) -> Any:
    """The plain value in the bytes of a pickle or of JSON; ``progress`` is that of :func:`unpickle`.

    Raises:
        SnapshotError: as :func:`load`.
    """
    return _loads(data, progress, columns=False)


def _loads(data: bytes, progress: Callable[[float], None] | None, *, columns: bool) -> Any:
    if data[:1] == b"\x80":
        return unpickle(data, progress, columns=columns)
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(data)
        except RecursionError:
            raise SnapshotError("the JSON is nested too deeply") from None
        except ValueError as error:
            raise SnapshotError(f"the JSON is damaged: {error}") from None
    raise SnapshotError("neither a pickle of protocol 2 to 5 nor JSON" if data else "the file is empty")


def _bytes(file: Path, largest: int) -> bytes:
    with file.open("rb") as stream:
        data = _at_most(largest, stream, f"larger than {format_size(largest)}", os.fstat(stream.fileno()).st_size)
    if not data.startswith(_GZIP):
        return data
    allowed = min(largest, max(EXPANDED, EXPANSION * len(data)))
    more = (
        f"larger than {format_size(allowed)}"
        if allowed == largest
        else (
            f"its {format_size(len(data))} expand to more than {format_size(allowed)}: refused, no snapshot does that"
        )
    )
    try:
        return _at_most(allowed, gzip.GzipFile(fileobj=io.BytesIO(data)), more)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotError(f"the compressed file is cut off or damaged: {error}") from error


def _at_most(largest: int, stream: IO[bytes] | gzip.GzipFile, more: str, likely: int = 0) -> bytes:
    """The rest of a stream; ``more`` is the error if that is more than ``largest`` bytes.

    Read in pieces: a stream asked for 4 GiB allocates them before it has read a byte. The first is ``likely`` all.
    """
    pieces: list[bytes] = []
    size = 0
    while size <= largest:
        piece = stream.read(min(max(likely + 1 - size, _CHUNK), largest + 1 - size))
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    raise SnapshotError(more)
