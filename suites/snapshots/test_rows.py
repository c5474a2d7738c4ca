"""Events that are read by column are those that the machine for single instructions reads."""

import gzip
import pickle
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cudamem_testing.snapshots.read import read
from cudamem_testing.snapshots.record import Kind, SnapshotError
from cudamem_testing.snapshots.rows import Rows, Trace, plain
from cudamem_testing.snapshots.snapshot_files import load, read_file
from cudamem_testing.snapshots.unpickle import unpickle
from suites.snapshots.readers import READERS, read_by

FOLDER = Path(__file__).parents[2] / "fixtures" / "recordings"
FRAMES = [{"filename": f"m{n}.py", "line": n, "name": f"f{n}"} for n in range(40)]


def event(number, *, frames=12, **more):
    """One as torch writes it: with a text and a list of its own."""
    generator = random.Random(number)
    return {
        "action": generator.choice(("alloc", "free_requested", "free_completed")),
        "addr": 0x7F0000000000 + 512 * number,
        "size": generator.choice((0, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**40)),
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + number,
        "compile_context": "".join(("N/", "A")),
        "pool_id": (0, generator.randrange(300)),
        "frames": generator.choices(FRAMES, k=frames),
        **more,
    }


def by_column(value):
    """The number of events that were read by column."""
    return sum(len(item) for item in value if isinstance(item, Rows))


def alike(data):
    """What is read without columns, and with those of each reader; or the error."""
    found = []
    for read_one in (unpickle, *(partial(read_by, reader) for reader in READERS)):
        try:
            value = read_one(data)
            found.append({key: plain(one) for key, one in value.items()} if isinstance(value, dict) else plain(value))
        except SnapshotError as error:
            found.append(str(error))
    return found


def holds_itself(data):
    """Whether a list leads to itself, as one that takes its own number from the memo does."""
    try:
        pending = [(unpickle(data), frozenset())]
    except SnapshotError:
        return False
    while pending:
        one, above = pending.pop()
        if isinstance(one, list | dict):
            if id(one) in above:
                return True
            inside = one.values() if isinstance(one, dict) else one
            pending += [(each, above | {id(one)}) for each in inside]
    return False


BY_EACH = pytest.mark.parametrize("reader", READERS)


@BY_EACH
def test_nearly_all_events_are_read_by_column_and_equal(reader):
    events = [event(number) for number in range(3_000)]
    found = read_by(reader, pickle.dumps(events, 4))
    assert by_column(found) > 2_900
    assert plain(found) == events
    assert unpickle(pickle.dumps(events, 4)) == events


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("frames", [0, 1, 3, 24, 301, 1_200])
def test_stacks_of_any_depth_are_read(frames, protocol):
    events = [event(number, frames=frames) for number in range(40)]
    assert alike(pickle.dumps(events, protocol)) == [events] * 3


@given(st.data())
def test_events_of_any_values_are_read_as_they_are(data):
    texts = st.text(max_size=12)
    numbers = st.integers(-(2**70), 2**70)
    shared = [*FRAMES[:3], "shared", ["a", "list"], ("a", "pair"), None]
    values = st.one_of(
        texts, numbers, st.booleans(), st.none(), st.tuples(numbers, numbers), st.sampled_from(shared), st.lists(texts)
    )
    keys = st.lists(st.sampled_from(["addr", "size", "frames", "x", "y"]), max_size=5, unique=True)
    shapes = data.draw(st.lists(st.tuples(keys, st.integers(1, 5)), min_size=1, max_size=4))
    events = [
        {"action": data.draw(st.sampled_from(["alloc", "oom"])), **{key: data.draw(values) for key in chosen}}
        for chosen, times in shapes
        for _ in range(times)
    ]
    value = {"first": events, "later": [shared, events[0]["action"]]}
    data = pickle.dumps(value, 4)
    for found in (read_by(reader, data) for reader in READERS):
        assert {key: plain(one) for key, one in found.items()} == value
        assert [{key: type(one) for key, one in row.items()} for row in plain(found["first"])] == [
            {key: type(one) for key, one in row.items()} for row in events
        ]


@given(st.integers(0, 2**30), st.integers(0, 255))
@example(1391, 0)  # a list in itself
def test_damaged_files_give_the_same_value_or_error(place, byte):
    data = bytearray(pickle.dumps([event(number % 7, frames=3) for number in range(60)], 4))
    data[place % len(data)] = byte
    assume(not holds_itself(bytes(data)))  # its rows would be compared for ever, or not as dicts
    one, *others = alike(bytes(data))
    assert all(one == other or (isinstance(one, str) and isinstance(other, str)) for other in others)


@BY_EACH
def test_one_event_in_two_places_is_one(reader):
    first = event(1)
    events = [first, event(2), event(3), event(4)]
    events += [events[3], events[2]]
    assert plain(read_by(reader, pickle.dumps(events, 4))) == events
    back = read_by(reader, pickle.dumps({"a": events, "b": [events[3]]}, 4))
    assert back["a"][3] is back["a"][4] is back["b"][0]


@BY_EACH
def test_an_event_that_is_no_item_of_a_list_stays_a_dict(reader):
    events = {name: event(number) for number, name in enumerate("abcdef")}
    assert read_by(reader, pickle.dumps(events, 4)) == events
    nested = [event(number, inner=event(number + 100)) for number in range(6)]
    assert plain(read_by(reader, pickle.dumps(nested, 4))) == nested


@BY_EACH
def test_columns_of_a_trace_are_those_of_its_events(reader):
    events = [event(number) for number in range(700)]
    events.insert(350, {"action": "oom", "size": 7, "device_free": 99})
    trace = Trace(read_by(reader, pickle.dumps(events, 4)))
    assert len(trace) == len(events)
    assert trace.types == {dict}
    assert trace.keys == {*event(0), "device_free"}
    for key in ("action", "size", "frames", "device_free", "missing"):
        assert trace.values(key, -1) == [*trace.numbered(key, -1)] == [one.get(key, -1) for one in events]
    assert [trace.event(place) for place in (0, 349, 350, 351, 700)] == [
        events[place] for place in (0, 349, 350, 351, 700)
    ]
    assert [*trace] == events


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pickle.gz")), ids=lambda path: path.name.partition(".p")[0])
def test_recordings_are_read_alike(path):
    plainly = read(load(path))
    for reader in READERS:
        found = read(read_by(reader, gzip.decompress(path.read_bytes())))
        assert found == plainly
        assert [found.stacks[n] for n in found.events.stacks] == [plainly.stacks[n] for n in plainly.events.stacks]


def test_the_request_that_failed_is_found_among_columns(tmp_path):
    events = [event(number) for number in range(300)] + [event(300, action="oom", device_free=12_345)]
    file = tmp_path / "dump.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [events], "host_traces": [events[:4]]}, 4))
    recording = read_file(file)
    assert recording.events.kinds[-1] == Kind.OOM
    assert recording.events.addresses[-1] == 12_345
    assert recording.extra == {"host_traces": [events[:4]]}
