"""Many events read at once are those that the machine for single instructions reads, whatever their instructions."""

import io
import pickle
import random

import pytest

from cudamem_testing.snapshots import event_runs, long_pickle
from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.rows import Rows, Trace, plain
from cudamem_testing.snapshots.unpickle import unpickle
from suites.snapshots.readers import READERS, read_by
from suites.snapshots.test_rows import FRAMES, alike, by_column, event

#: More than a batch of a list, and more than a frame of a pickle.
MANY = 3_000


def mixed(number, stacks):
    """One event of many kinds, as they follow each other in a history."""
    generator = random.Random(number)
    made = event(number, frames=generator.randrange(2, 30))
    kind = generator.randrange(6)
    if kind < 2:
        made["frames"] = generator.choice(stacks)
    elif kind == 2:
        del made["frames"]
    elif kind == 3:
        made = {"user_metadata": made["compile_context"], **made}
    elif kind == 4 and number % 50 == 4:
        made = {"action": "oom", "device_free": made.pop("addr"), **made}
    made["stream"] = generator.choice((0, 0, 7, 140_000_000_000_000))
    return made


BY_EACH = pytest.mark.parametrize("reader", READERS)


@BY_EACH
@pytest.mark.parametrize("protocol", [4, 5])
def test_events_of_many_kinds_are_read_at_once(reader, protocol):
    stacks = [[*FRAMES[first : first + 9]] for first in range(20)]
    events = [{"action": "alloc", "frames": FRAMES}, *(mixed(number, stacks) for number in range(MANY))]
    data = pickle.dumps({"first": events, "later": stacks}, protocol)
    found = read_by(reader, data)
    assert by_column(found["first"]) > 0.9 * MANY
    assert plain(found["first"]) == events
    assert found["later"] == stacks
    assert len(data) > 2 * 2**16


@BY_EACH
def test_events_that_are_kept_under_no_number_are_read_at_once(reader):
    """As the rows of a long list are; some have a text of their own, which is no part of a run."""
    stacks = [[*FRAMES[first : first + 9]] for first in range(20)]
    keys, kinds = ("action", "addr", "size", "stream", "frames"), ("alloc", "free_requested", "free_completed")
    rows = []
    for number in range(MANY):
        values = (kinds[number % 3], 2**40 + 512 * number, 2 ** (number % 50), number % 2, stacks[number % 20])
        rows.append({**dict(zip(keys, values, strict=True)), **({} if number % 100 else {"text": str(number)})})
    stream = io.BytesIO()
    long_pickle.dump(stream, {"later": stacks}, "first", 1, iter(rows), [*stacks, *kinds, *keys])
    data = stream.getvalue()
    assert pickle.loads(data) == {"first": [[], rows], "later": stacks}
    found = read_by(reader, data)
    assert plain(found["first"][1]) == rows
    assert by_column(found["first"][1]) > 0.9 * MANY
    one, *others = alike(data)
    assert others == [one, one]


@BY_EACH
def test_an_event_that_lacks_a_key_has_the_default(reader):
    events = [event(number) for number in range(400)]
    for one in events[::3]:
        del one["pool_id"]
    found = read_by(reader, pickle.dumps(events, 4))
    values = Trace(found).numbered("pool_id", "none")
    assert [*values] == [one.get("pool_id", "none") for one in events]
    assert {*map(id, values)} == {*map(id, values.different)}
    assert plain(found) == events


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(b"q\x00", id="another value is kept under a number in use"),
        pytest.param(b"20", id="a copy of the last value is made and dropped"),
        pytest.param(b"N0", id="a value is made and dropped"),
    ],
)
@pytest.mark.parametrize("place", ["among the events", "before them"])
def test_instructions_that_no_writer_uses_are_read_alike(code, place):
    events = [event(number % 5, frames=2) for number in range(40)]
    data = pickle.dumps([*events, "end", *events], 4)
    data = data[:2] + data[11:]  # without the frame, whose length would be wrong
    end = data.index(b"\x8c\x03end\x94") + 6 if place == "among the events" else data.index(b"}\x94(")
    one, *others = alike(data[:end] + code + data[end:])
    assert others == [one, one]


@pytest.mark.parametrize("code", [b"\x85", b"}s", b"}\x94(ssu", b"K\x01\x86"], ids=["tuple", "key", "items", "pair"])
def test_an_event_used_as_no_writer_does_gives_one_error(code):
    data = pickle.dumps([event(number % 5, frames=2) for number in range(40)], 4)
    data = data[:2] + data[11:]
    end = data.index(b"u}\x94(", len(data) // 2) + 1
    one, *others = alike(data[:end] + code + data[end:])
    assert isinstance(one, str)
    assert others == [one, one]


def test_an_event_may_get_more_items():
    data = pickle.dumps([event(number % 5, frames=2) for number in range(40)], 4)
    data = data[:2] + data[11:]
    end = data.index(b"u}\x94(", len(data) // 2) + 1
    one, *others = alike(data[:end] + b"(NK\x07u" + data[end:])
    assert sum(None in found for found in one) == 1
    assert others == [one, one]


@BY_EACH
def test_a_value_may_refer_to_what_its_own_event_kept_before(reader):
    events = [{"action": "alloc", "text": "".join(("a", str(number)))} for number in range(300)]
    for one in events:
        one["same"] = one["text"]
    found = read_by(reader, pickle.dumps(events, 4))
    assert by_column(found) > 250
    assert plain(found) == events


def test_the_byte_of_a_refused_instruction_is_that_in_the_file():
    data = pickle.dumps(["x" * 1000, *range(60_000)], 4)
    assert data.count(b"\x95") > 1
    place = len(data) - 2
    with pytest.raises(SnapshotError, match=f"instruction 0x8f at byte {place}$"):
        unpickle(data[:place] + b"\x8f.")


def test_layouts_are_made_for_few_kinds(monkeypatch):
    """Each takes some tens of microseconds: a file with more kinds is read one instruction at a time."""
    made = []
    layout_of = event_runs.layout_of

    def counted(*args, **more):
        made.append(layout_of(*args, **more))
        return made[-1]

    monkeypatch.setattr(event_runs, "layout_of", counted)
    monkeypatch.setattr(event_runs, "_MOST_LAYOUTS", 5)
    events = [event(number, **{"k" * (number // 8): number}) for number in range(800)]
    assert plain(read_by("python", pickle.dumps(events, 4))) == events
    assert sum(layout is not None for layout in made) == 5


@BY_EACH
def test_an_event_that_cannot_be_read_at_once_ends_its_run_only(reader):
    events = [event(number) for number in range(4_000)]
    for one in events[500::500]:
        one["new"] = [{"filename": "new.py"}, {"filename": "other.py"}]
    found = read_by(reader, pickle.dumps(events, 4))
    assert plain(found) == events
    assert by_column(found) > 3_000
    assert sum(isinstance(one, Rows) for one in found) < 200
