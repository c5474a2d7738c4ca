"""Unpickling plain containers, and refusing everything else by name."""

import collections
import contextlib
import os
import pickle
import re
import struct
import time
import tracemalloc
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.snapshots.record import SnapshotError
from cudamem_testing.snapshots.unpickle import unpickle

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text(), st.binary()
)
FLAT_TUPLES = st.lists(SCALARS, max_size=5).map(tuple)
KEYS = st.one_of(st.text(), st.integers(-(2**40), 2**40), st.booleans())
VALUES = st.recursive(
    SCALARS | FLAT_TUPLES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


class Boom:
    """Would create a file if a pickle could call anything."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_containers_come_back_as_they_were(value, protocol):
    if protocol == 2:
        value = _without_bytes(value)
    assert unpickle(pickle.dumps(value, protocol)) == value


def _without_bytes(value):
    """Protocol 2 has no bytes: it calls a codec."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return {key: _without_bytes(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_bytes, value))
    return value


def test_shared_and_recursive_containers_stay_shared():
    frames = [{"name": "f"}]
    back = unpickle(pickle.dumps({"a": frames, "b": frames}, 4))
    assert back["a"] is back["b"]
    loop = []
    loop.append(loop)
    back = unpickle(pickle.dumps(loop, 2))
    assert back[0] is back


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (date(2026, 1, 1), "datetime.date"),
        (os.system, f"{os.system.__module__}.system"),
    ],
)
def test_classes_and_functions_are_refused_by_name(value, name, protocol):
    with pytest.raises(SnapshotError, match=f"the pickle asks for {name}: refused, a snapshot holds plain containers"):
        unpickle(pickle.dumps(value, protocol))


def test_nothing_is_executed(tmp_path):
    target = tmp_path / "executed"
    for protocol in (2, 3, 4, 5):
        with pytest.raises(SnapshotError, match="system"):
            unpickle(pickle.dumps({"segments": [Boom(target)]}, protocol))
    assert not target.exists()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends after 0 bytes without its end mark: it is cut off or empty"),
        (b"\x80\x04}", "ends after 3 bytes without its end mark"),
        (b"\x80\x04\x8c\x7fabc", "the pickle is cut off: it has 7 bytes and needs 131 or more"),
        (b"\x80\x04.", "it ends with more or less than one value"),
        (b"\x80\x04NN.", "it ends with more or less than one value"),
        (b"\x80\x04h\x05.", "an instruction uses a missing value"),
        (b"\x80\x04e.", "a"),
        (b"\x80\x04(e.", "an instruction uses a missing value"),
        (b"\x80\x04N(Ne.", "items for something that is not a list"),
        (b"\x80\x04](Nu.", "items for something that is not a dict"),
        (b"\x80\x04}(Nu.", "items for something that is not a dict"),
        (b"\x80\x04\x8c\x01\xff.", "text that is not UTF-8"),
        (b"\x80\x04\x8f.", "not a readable pickle of protocol 2 to 5: instruction 0x8f at byte 2"),
        (b"I5\n.", "not a readable pickle of protocol 2 to 5: instruction 0x49 at byte 0"),
        (b"\x80\x02N}R.", r"wants to build an object \(REDUCE at byte 4\): refused"),
        (b"\x80\x02N}b.", r"wants to build an object \(BUILD at byte 4\): refused"),
        (b"\x80\x02\x82\x01.", r"wants to build an object \(EXT1 at byte 2\): refused"),
        (b"\x80\x02cno newline", r"asks for \?\.\?: refused"),
    ],
)
def test_damage_gives_one_clear_error(data, text):
    with pytest.raises(SnapshotError, match=text):
        unpickle(data)


def test_a_memo_index_of_four_billion_costs_nothing():
    data = b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"."
    tracemalloc.start()
    assert unpickle(data) == []
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_lengths_larger_than_the_file_cost_nothing():
    tracemalloc.start()
    for code in (b"\x8d", b"\x8e"):
        with pytest.raises(SnapshotError, match="cut off"):
            unpickle(b"\x80\x04" + code + struct.pack("<Q", 2**62))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_nested_tuples_with_an_endless_hash_are_refused():
    doubled = b"\x80\x02})" + b"2\x86" * 60 + b"Ns."
    with pytest.raises(SnapshotError, match="nests a tuple in a tuple: refused"):
        unpickle(doubled)
    with pytest.raises(SnapshotError, match="nests a list in a tuple: refused"):
        unpickle(pickle.dumps(([],), 4))


def test_flat_tuples_may_be_keys_and_lists_may_not():
    assert unpickle(pickle.dumps({(0, 1): "pool"}, 4)) == {(0, 1): "pool"}
    with pytest.raises(SnapshotError, match="the pickle is damaged: unhashable type: 'list'"):
        unpickle(b"\x80\x02}]Ns.")


def test_deep_nesting_needs_no_recursion():
    value = unpickle(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    depth = 0
    while value:
        value = value[0]
        depth += 1
    assert depth == 99_999


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_the_error(data):
    with contextlib.suppress(SnapshotError):
        unpickle(b"\x80\x04" + data)


COLLIDING = 2**61 - 1
MANY = 800_000
BOMBS = {
    "lists": b"]" * MANY,
    "lists in batches": b"](" + (b"]" * 999 + b"e(") * (MANY // 1000) + b"e",
    "places in the memo": b"N" + b"\x94" * MANY,
    "lists with places in the memo": b"]\x94" * (MANY // 2),
    "marks": b"(" * MANY,
    "copies": b"N" + b"2" * MANY,
}


@pytest.mark.parametrize("name", BOMBS)
def test_values_are_counted_against_the_bytes_they_were_made_of(name):
    begin = time.process_time()
    with pytest.raises(
        SnapshotError, match=r"^the pickle makes \d+ values of \d+ bytes: refused, no snapshot does that$"
    ):
        unpickle(b"\x80\x04" + BOMBS[name] + b".")
    assert time.process_time() - begin < 2.0


def test_many_values_of_many_bytes_are_read():
    events = [{"action": "alloc", "addr": number, "size": 512, "frames": []} for number in range(40_000)]
    assert unpickle(pickle.dumps(events, 4)) == events


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([number * COLLIDING for number in range(20_000)], "numbers of 2**61 or more"),
        ([-number * COLLIDING for number in range(20_000)], "numbers of 2**61 or more"),
        ([(number, 0) for number in range(100)], "tuples"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_keys_whose_hashes_were_chosen_are_refused(keys, kind, at_once):
    data = _of_keys(keys, at_once=at_once)  # a dict of them would take its time here, too
    begin = time.process_time()
    with pytest.raises(SnapshotError, match=re.escape(f"the pickle has a dict of many keys with {kind} among them")):
        unpickle(data)
    assert time.process_time() - begin < 1.0


def _of_keys(keys, *, at_once):
    parts = [pickle.dumps(key, 2)[2:-1] + (b"N" if at_once else b"Ns") for key in keys]
    return b"\x80\x02}" + (b"(" if at_once else b"") + b"".join(parts) + (b"u." if at_once else b".")


@pytest.mark.parametrize("keys", [range(1000), [str(number) for number in range(1000)], [COLLIDING * 2, (0, 1), 1.5]])
def test_other_keys_are_read(keys):
    assert unpickle(pickle.dumps(dict.fromkeys(keys), 4)) == dict.fromkeys(keys)
    for at_once in (True, False):
        assert unpickle(_of_keys(keys, at_once=at_once)) == dict.fromkeys(keys)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tuple(range(65)), "the pickle has a tuple of 65 values: refused"),
        (2 ** (8 * 1024), "the pickle has a number of 1025 bytes: refused"),
        ("x" * (2**20 + 1), "the pickle has a text of 1048577 bytes: refused"),
    ],
)
def test_what_hashes_slowly_is_refused(value, text):
    with pytest.raises(SnapshotError, match=text):
        unpickle(pickle.dumps(value, 4))


@pytest.mark.parametrize("value", [tuple(range(64)), 2**8000, "x" * 2**20])
def test_what_is_just_short_enough_is_read(value):
    assert unpickle(pickle.dumps(value, 4)) == value


def test_the_name_of_a_refused_class_is_safe_to_show():
    with pytest.raises(SnapshotError, match=re.escape(r"asks for \x1b[2J\n.y\r: refused")):
        unpickle(b"\x80\x04\x8c\x05\x1b[2J\n\x8c\x02y\r\x93.")
    with pytest.raises(SnapshotError, match=re.escape("asks for ?.?: refused")):
        unpickle(b"\x80\x04](]\x93.")
