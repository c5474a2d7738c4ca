"""Snapshots in files."""

import gzip
import json
import pickle

import pytest

from cudamem_testing.snapshots.files import load, loads, read_file
from cudamem_testing.snapshots.record import SnapshotError
from suites.snapshots.allocator import MIB, Allocator


@pytest.fixture
def snapshot():
    allocator = Allocator()
    allocator.malloc(3 * MIB)
    return allocator.snapshot()


def test_pickle_json_and_gzip_give_one_recording(tmp_path, snapshot):
    contents = {
        "a.pickle": pickle.dumps(snapshot, 2),
        "b.pickle": pickle.dumps(snapshot, 5),
        "c.json": json.dumps(snapshot).encode(),
        "d.gz": gzip.compress(pickle.dumps(snapshot, 4)),
        "e.json.gz": gzip.compress(b"\n " + json.dumps(snapshot).encode()),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        recording = read_file(tmp_path / name)
        assert (recording.allocated, len(recording.events), recording.notes) == (3 * MIB, 2, ()), name


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "file: the file is empty"),
        (b"PK\x03\x04", "file: neither a pickle of protocol 2 to 5 nor JSON"),
        (b'{"segments": [', "file: the JSON is damaged"),
        (b"[" * 100_000, "file: the JSON is nested too deeply"),
        (b'{"segments": [' + b"9" * 5000 + b"]}", "file: the JSON is damaged: Exceeds the limit"),
        (b'{"a": 1}', "file: no snapshot: no list of 'segments'"),
        (b"\x80\x04N.", "file: no snapshot: a NoneType"),
        (b"\x80\x04", "file: the pickle ends after 2 bytes"),
        (gzip.compress(b"\x80\x04N." * 50, mtime=0)[:-9], "file: the compressed file is cut off or damaged"),
        (b"\x1f\x8b" + b"\x00" * 30, "file: the compressed file is cut off or damaged"),
    ],
)
def test_bad_files_give_one_clear_error(tmp_path, content, text):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SnapshotError, match=text):
        read_file(tmp_path / "file")


def test_a_file_that_is_not_there_or_a_folder(tmp_path):
    with pytest.raises(SnapshotError, match="nowhere cannot be read: No such file or directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(SnapshotError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_small_file_that_grows_without_end_is_stopped(tmp_path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(SnapshotError, match=r"bomb.gz: larger than 1.0 MiB"):
        load(tmp_path / "bomb.gz", largest=MIB)


def test_bytes_alone_are_enough(snapshot):
    assert loads(pickle.dumps(snapshot, 4)) == snapshot
