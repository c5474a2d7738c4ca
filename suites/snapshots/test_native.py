"""What the library makes of many events is what Python makes of them, also of damaged ones; and when it is used."""

from __future__ import annotations

import gzip
import pickle
import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.devices import Device
from cudamem_testing.recorders import build
from cudamem_testing.snapshots import native, native_replay
from cudamem_testing.snapshots.native_runs import NativeRuns, runs
from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.record import Events, Kind, LiveBlock, Recording, Segment, Settings
from cudamem_testing.snapshots.replay import replay
from cudamem_testing.snapshots.rows import plain
from cudamem_testing.snapshots.snapshot_files import load
from suites.snapshots.mutations import damaged_bytes
from suites.snapshots.readers import read_by
from suites.snapshots.test_rows import FOLDER, alike, by_column, event

SLOT = 2**20
SETTINGS = st.builds(Settings, expandable=st.booleans(), max_split_size=st.sampled_from([None, SLOT, 3 * SLOT, 2**40]))


def replayed(recording, library):
    """What a replay of each counter comes to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_replay, "library", lambda size: library)
        found = [replay(recording, counter) for counter in ("allocated", "active", "requested")]
        found.append(replay(recording, "active", found[0]))
    return [(one.lives, one.sizes, one.before, one.totals) for one in found]


def check(recording):
    assert native.loaded() is not None
    assert replayed(recording, native.loaded()) == replayed(recording, None)


@st.composite
def recordings(draw):
    """Events and blocks at few addresses, most of which contradict each other."""
    generator = random.Random(draw(st.integers(0, 2**30)))
    addresses = [SLOT * place for place in range(1, 9)] + [2**63 - 1]
    sizes = [0, 512, SLOT, SLOT + 512, 2 * SLOT, 3 * SLOT - 512]
    kinds = [*map(int, draw(st.sampled_from([(*Kind,), (Kind.ALLOC, Kind.FREE_REQUESTED, Kind.SEGMENT_ALLOC)])))]
    number = draw(st.integers(0, 60))
    events = Events(
        bytes(generator.choices(kinds, k=number)),
        *(array("q", generator.choices(values, k=number)) for values in (addresses, sizes, [-1])),
    )
    blocks = tuple(
        LiveBlock(address, size, size - size // 7, awaiting_free=generator.random() < 0.2)
        for address, size in zip(generator.choices(addresses, k=4), generator.choices(sizes, k=4), strict=True)
    )
    segments = tuple(Segment(address, 4 * SLOT) for address in addresses[::3])
    return Recording(Device("cuda", 0), blocks, events, segments, settings=draw(SETTINGS))


@given(recordings())
def test_contradictory_events_are_replayed_alike(recording):
    check(recording)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pickle.gz")), ids=lambda path: path.name.partition(".p")[0])
def test_recordings_are_replayed_alike(path):
    check(read(load(path)))


@pytest.mark.parametrize("name", ["odd_sizes", "torch-2.14-everything"])
def test_damaged_recordings_are_read_alike(name):
    data = gzip.decompress((FOLDER / f"{name}.pickle.gz").read_bytes())
    assert alike(data) == 3 * [load(FOLDER / f"{name}.pickle.gz")]
    for seed in range(12):
        one, *others = alike(damaged_bytes(data, seed))
        assert all(one == other or (isinstance(one, str) and isinstance(other, str)) for other in others), seed


def test_keys_that_most_events_lack_are_read_by_column():
    keys = [f"key{number}" for number in range(30)]
    events = [event(0), *({"action": "alloc", keys[number % 30]: None} for number in range(5_000))]
    found = read_by("library", pickle.dumps(events, 4))
    assert by_column(found) > 4_500
    assert plain(found) == events


def test_a_small_snapshot_does_not_use_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "compiled_before", lambda library: pytest.fail("looked for it"))
    assert native.library(2**20 - 1) is None


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that has not looked for the library, with an empty cache."""
    monkeypatch.setenv("CUDAMEM_CACHE", str(tmp_path / "cache"))
    native.loaded.cache_clear()
    yield
    native.loaded.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_it_is_compiled_for_a_large_snapshot_only(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    commands: list[list[str]] = []
    monkeypatch.setattr(build, "_run_compiler", commands.append)
    monkeypatch.setattr(build.cache, "keep", lambda scratch, target: None)
    assert native.library(2**27 - 1, said.append) is None
    assert (said, commands) == ([], [])
    assert native.library(2**27, said.append) is None  # the compiler wrote nothing that loads
    assert said == ["compiling the reader of large snapshots (once, a few seconds)"]
    assert commands


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_python_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/missing/c++")
    assert native.library(2**30) is None
    assert not isinstance(runs(bytes(2**27), [], {}), NativeRuns)
