"""Snapshots in files."""

import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
import time

import pytest

from cudamem_testing.snapshots import snapshot_files
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.snapshot_files import load, loads, read_file
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
        (b'{"a": 1}', "file: not a snapshot: no list of 'segments'"),
        (b"\x80\x04N.", "file: not a snapshot: a NoneType"),
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


@pytest.mark.parametrize("content", [b"\x80\x04" + b"]" * 15_000_000 + b".", b"[" + b"[]," * 5_000_000 + b"[]]"])
def test_a_file_that_expands_too_far_is_refused(tmp_path, content):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(content, 9))
    begin = time.process_time()
    with pytest.raises(
        SnapshotError, match=r"^bomb.gz: its 1\d\.\d KiB expand to more than 4\.0 MiB: refused, no snapshot"
    ):
        load(tmp_path / "bomb.gz")
    assert time.process_time() - begin < 1.0


def test_a_file_may_expand_as_far_as_snapshots_do(tmp_path):
    content = json.dumps({"segments": [], "note": os.urandom(2**13).hex() * 300}).encode()
    packed = gzip.compress(content)
    (tmp_path / "a.gz").write_bytes(packed)
    assert len(content) > 2**22
    assert 60 < len(content) / len(packed) < 200
    assert load(tmp_path / "a.gz") == json.loads(content)


def test_no_garbage_is_collected_while_a_file_is_read(tmp_path, snapshot):
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot))

    before = gc.get_stats()
    read_file(tmp_path / "a.pickle")
    assert gc.get_stats() == before
    assert gc.isenabled()
    with pytest.raises(SnapshotError):
        load(tmp_path / "nowhere")
    assert gc.isenabled()


SMALL_SPACE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
from cudamem_testing.__main__ import main
sys.exit(main(["snapshot", sys.argv[1]]))
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("packed", [False, True])
def test_a_small_file_needs_little_address_space(tmp_path, packed):
    content = pickle.dumps({"segments": [], "device_traces": []}, 4)
    (tmp_path / "ok").write_bytes(gzip.compress(content) if packed else content)
    done = subprocess.run([sys.executable, "-c", SMALL_SPACE, str(tmp_path / "ok")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 B in 0 blocks on cuda:0, 0 events")


def test_too_little_memory_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "a.pickle").write_bytes(b"\x80\x04N.")

    def read_nothing(data):
        raise MemoryError

    monkeypatch.setattr(snapshot_files, "loads", read_nothing)
    with pytest.raises(
        SnapshotError, match=r"^a.pickle cannot be read: it needs more memory than this process may use$"
    ):
        load(tmp_path / "a.pickle")
