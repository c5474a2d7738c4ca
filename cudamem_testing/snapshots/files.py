"""Snapshots in files: pickles (as torch and this package write them) and JSON, compressed with gzip or not.

Files are untrusted. Nothing in them is executed (:mod:`unpickle`), and no file makes the reader use more memory than
its size and the limit allow. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from cudamem_testing.model.devices import Device
from cudamem_testing.model.sizes import format_size
from cudamem_testing.model.stacks import Locator
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.record import Recording, SnapshotError
from cudamem_testing.snapshots.unpickle import unpickle

LARGEST = 4 * 2**30
_GZIP = b"\x1f\x8b"


def read_file(
    path: str | Path, device: Device | None = None, locator: Locator | None = None, max_entries: int | None = None
) -> Recording:
    """One device's recording from a file; see :func:`cudamem_testing.snapshots.read.read`.

    Raises:
        SnapshotError: when the file cannot be read or holds no snapshot.
    """
    document = load(path)
    try:
        return read(document, device, locator, max_entries)
    except SnapshotError as error:
        raise SnapshotError(f"{Path(path).name}: {error}") from error


def load(path: str | Path, largest: int = LARGEST) -> Any:
    """The plain value in a snapshot's file, of at most ``largest`` bytes after decompression.

    Raises:
        SnapshotError: when the file cannot be read, is damaged, or asks for more than plain containers.
    """
    file = Path(path)
    try:
        data = _bytes(file, largest)
        return loads(data)
    except OSError as error:
        raise SnapshotError(f"{file.name} cannot be read: {error.strerror or error}") from error
    except SnapshotError as error:
        raise SnapshotError(f"{file.name}: {error}") from error


def loads(data: bytes) -> Any:
    """The plain value in the bytes of a pickle or of JSON.

    Raises:
        SnapshotError: as :func:`load`.
    """
    if data[:1] == b"\x80":
        return unpickle(data)
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
        packed = stream.read(2) == _GZIP
        stream.seek(0)
        try:
            data = gzip.GzipFile(fileobj=stream).read(largest + 1) if packed else stream.read(largest + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SnapshotError(f"the compressed file is cut off or damaged: {error}") from error
    if len(data) > largest:
        raise SnapshotError(f"larger than {format_size(largest)}")
    return data
