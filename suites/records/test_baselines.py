"""Baseline files: read line by line, written in one step, and never overwritten when they cannot be understood."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.baselines import Entry, PeakLine
from cudamem_testing.model.changes import TRACKED, Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.model.nodeids import name_in_module
from cudamem_testing.records.baselines import (
    BASELINES,
    BaselineKey,
    Entries,
    Recorded,
    RecordError,
    module_of,
    parse,
    render,
)
from cudamem_testing.show.places import baseline_file

CPU, CARD = Device("cpu"), Device("cuda", 1)
THREADS = ("1 thread", "2 threads", "8 threads")
HERE, THERE = "x86_64, 1 thread, torch 2.13", "NVIDIA H100 (9.0), torch 2.11, native"
ENTRIES = {
    BaselineKey("test_b[x]", CPU, HERE): Entry({"requested": Spread(5, 5)}),
    BaselineKey("test_b[x]", CARD, THERE): Entry(
        {"requested": Spread(5, 9), "retained": Spread(-1, -1), "allocations": Spread(3, 3)},
        (PeakLine("a.py::f", 4, "x = f(y)", 2, 3, 1, True), PeakLine("b.py::C.g", 1, recorded=False)),
        "1a2b3c4d",
        "00ff12ab",
    ),
    BaselineKey("TestA::test_a", CPU, HERE): Entry({"requested": Spread(0, 0)}),
}
TEXT = """\
{"kind": "baselines", "schema": 2, "entries": [
{"in": "cpu-1ce278", "device": "cpu", "environment": "x86_64, 1 thread, torch 2.13"},
{"in": "cuda:1-25f2a9", "device": "cuda:1", "environment": "NVIDIA H100 (9.0), torch 2.11, native"},
{"test": "TestA::test_a", "in": "cpu-1ce278", "peak": "0 B", "bytes": {"requested": 0}, "top": []},
{"test": "test_b[x]", "in": "cpu-1ce278", "peak": "5 B", "bytes": {"requested": 5}, "top": []},
{"test": "test_b[x]", "in": "cuda:1-25f2a9", "peak": "5 B to 9 B", "retained": "-1 B", "bytes": {"requested": [5, 9], \
"retained": -1}, "counts": {"allocations": 3}, "top": [["a.py::f", "x = f(y)", 4, 2, {"saved": 3, "nth": 1, \
"recorded": true}], ["b.py::C.g", "", 1, 0, {"recorded": false}]], "body": "1a2b3c4d", \
"lines": "00ff12ab"},
null]}
"""
FIRST = """\
{"kind": "baselines", "schema": 1, "entries": [
{"test": "test_b[x]", "device": "cpu", "environment": "x86_64, 1 thread, torch 2.13", "requested": [5, 9], \
"allocations": 3, "top": [["a.py::f", 4]]},
null]}
"""
PATH = Path("tests/__cudamem__/test_x.json")
NUMBERS = st.integers(-(10**15), 10**15)
SPREADS = st.lists(NUMBERS, min_size=1, max_size=2).map(lambda ends: Spread.of(*ends))
NAMES = st.text(max_size=12)
KEYS = st.builds(BaselineKey, NAMES, st.sampled_from([CPU, CARD, Device("cuda", 0), Device("host")]), NAMES)
PLACES = st.lists(st.builds(PeakLine, NAMES, NUMBERS, NAMES, NUMBERS, NUMBERS, NUMBERS, st.booleans()), max_size=3).map(
    tuple
)
ANY_ENTRIES = st.dictionaries(
    KEYS, st.builds(Entry, st.dictionaries(st.sampled_from(TRACKED), SPREADS, max_size=3), PLACES), max_size=4
)


def test_a_file() -> None:
    assert render(ENTRIES).decode() == TEXT
    assert parse(str(PATH), TEXT.encode()) == ENTRIES
    assert json.loads(TEXT)["entries"][-1] is None  # the file is JSON too
    assert render({}) == b'{"kind": "baselines", "schema": 2, "entries": [\nnull]}\n'
    assert parse(str(PATH), render({})) == {}


def test_a_file_of_schema_1_stays_until_an_entry_changes(tmp_path: Path) -> None:
    path = tmp_path / "test_x.json"
    path.write_text(FIRST, encoding="utf-8")
    key = BaselineKey("test_b[x]", CPU, HERE)
    entry = Entry({"requested": Spread(5, 9), "allocations": Spread(3, 3)}, (PeakLine("a.py::f", 4),))
    assert BASELINES.read(path) == {key: entry}
    assert not BASELINES.change(path, lambda entries: dict(entries))
    assert path.read_text(encoding="utf-8") == FIRST
    more = {BaselineKey("test_c", CPU, HERE): Entry({"requested": Spread(1, 1)})}
    assert BASELINES.change(path, lambda entries: {**entries, **more})
    assert BASELINES.read(path) == {key: entry, **more}
    assert path.read_text(encoding="utf-8").splitlines()[0] == HEADER


@given(ANY_ENTRIES)
def test_every_entry_comes_back(entries: Entries) -> None:
    content = render(entries)
    assert parse(str(PATH), content) == entries
    assert json.loads(content)["kind"] == "baselines"
    assert len(content.splitlines()) == len(entries) + len({key[1:] for key in entries}) + 2
    assert render(parse(str(PATH), content)) == content


@given(ANY_ENTRIES, ANY_ENTRIES)
def test_a_change_of_one_entry_is_a_change_of_one_line(entries: Entries, others: Entries) -> None:
    before, after = (set(render(one).splitlines()) for one in (entries, {**entries, **others}))
    environments = len({key[1:] for key in others})
    assert len(after - before) <= len(others) + environments
    assert len(before - after) <= len(others)


def test_two_branches_merge_line_by_line(tmp_path: Path) -> None:
    """Git joins what two branches added in different places; where both changed one line, one of them is kept."""
    base, ours, theirs = (tmp_path / name for name in ("base", "ours", "theirs"))
    first, second, third = ENTRIES
    base.write_bytes(render({second: ENTRIES[second]}))
    ours.write_bytes(render({second: ENTRIES[second], first: ENTRIES[first]}))
    theirs.write_bytes(render({second: ENTRIES[second], third: ENTRIES[third]}))
    command = ["git", "merge-file", "-p", "--union", ours, base, theirs]
    merged = subprocess.run(command, check=True, capture_output=True).stdout
    assert parse(str(PATH), merged) == ENTRIES
    assert render(parse(str(PATH), merged)).decode() == TEXT


def test_order_blank_lines_and_commas_are_forgiven() -> None:
    lines = TEXT.splitlines()
    shuffled = [lines[0], "", lines[5].removesuffix(","), f"  {lines[1]}", lines[4], lines[2], "", *lines[3::3]]
    content = "\r\n".join(shuffled).encode()
    assert parse(str(PATH), content) == ENTRIES
    assert parse(str(PATH), b"\xef\xbb\xbf" + content) == ENTRIES  # an editor's mark


def changed(line: int, old: str, new: str) -> bytes:
    lines = TEXT.splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return "\n".join(lines).encode()


DEVICES = "2: device 'tpu' is not known: write cpu, cuda, cuda:N or host"
SAME = "5: the same test, device and environment as in line 4: keep one of them"
PLACE = 'top is no list of ["file::qualname", "text", bytes, blocks]'
HEADER = '{"kind": "baselines", "schema": 2, "entries": ['


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", f"1: does not begin with {HEADER}"),
        (b"[]", f"1: does not begin with {HEADER}"),
        (changed(1, "2", "3"), "1: schema 3 is not known here, only 1 and 2"),
        (changed(1, "baselines", "report"), f"1: does not begin with {HEADER}"),
        (TEXT.encode()[:-7], "6: does not end with null]}: the file was cut off"),
        (TEXT.encode()[:300], "4: does not end with null]}: the file was cut off"),
        (changed(7, "null]}", "]}"), "7: does not end with null]}: the file was cut off"),
        (changed(5, "{", "<<<<<<< ours\n{"), "5: an unresolved merge conflict: keep one line of each entry"),
        (
            changed(5, "test_b[x]", "TestA::test_a"),
            SAME,
        ),
        (changed(5, "5}", "}"), "5: is no JSON: Expecting value (column 81)"),
        (changed(5, '"test"', '"tset"'), "5: has the unknown key 'tset'"),
        (changed(5, '"test": "test_b[x]", ', ""), "5: has no 'test'"),
        (changed(5, '"test_b[x]"', "5"), "5: test is no text"),
        (changed(2, '"device": "cpu"', '"device": "tpu"'), DEVICES),
        (changed(2, '"environment"', '"environ"'), "2: has the unknown key 'device'"),
        (changed(2, '"device": "cpu", ', ""), "2: has no 'device'"),
        (changed(3, "cuda:1-25f2a9", "cpu-1ce278"), "3: another line says something else of 'cpu-1ce278'"),
        (changed(5, "cpu-1ce278", "cpu-000000"), "5: no line says what the environment 'cpu-000000' is"),
        (changed(5, '"5 B"', '"6 B"'), "5: peak is '6 B', but its bytes are 5 B: change both or neither"),
        (changed(5, '"bytes": {"requested": 5}, ', ""), "5: peak has no bytes"),
        (changed(5, '{"requested": 5}', "5"), "5: bytes is no object"),
        (changed(5, '"requested"', '"allocations"'), "5: has the unknown key 'allocations'"),
        (changed(5, " 5}", " 5.5}"), "5: requested is neither a whole number nor [lowest, highest]"),
        (changed(5, " 5}", " true}"), "5: requested is neither a whole number nor [lowest, highest]"),
        (changed(5, " 5}", " [5, 4]}"), "5: requested is neither a whole number nor [lowest, highest]"),
        (changed(5, " 5}", " [1, 2, 3]}"), "5: requested is neither a whole number nor [lowest, highest]"),
        (changed(5, " 5}", " []}"), "5: requested is neither a whole number nor [lowest, highest]"),
        (changed(5, "[]", "{}"), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1]]'), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1, true]]'), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1, 1, {"saved": true}]]'), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1, 1, {"kept": 1}]]'), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1, 1, 5]]'), f"5: {PLACE}"),
        (changed(5, "[]", '[["a", "b", 1, 1, {}, {}]]'), f"5: {PLACE}"),
        (changed(5, TEXT.splitlines()[4], "5,"), "5: is no object"),
        (FIRST.encode().replace(b'[["a.py::f", 4]]', b'[["a"]]'), '2: top is no list of ["file::qualname", bytes]'),
        (FIRST.encode().replace(b'"requested"', b'"bytes"'), "2: has the unknown key 'bytes'"),
    ],
)
def test_a_broken_file_is_named_with_line_and_reason_and_stays(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "test_x.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        BASELINES.read(path)
    assert str(caught.value) == f"{path}:{message}"
    with pytest.raises(RecordError) as caught:
        BASELINES.change(path, lambda entries: {**entries, **ENTRIES})
    assert str(caught.value) == f"{path}:{message}"
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["test_x.json"]


@given(st.binary(max_size=40), st.integers(0, len(TEXT)), st.integers(0, 40))
def test_nothing_but_its_own_error_comes_of_a_damaged_file(piece: bytes, place: int, length: int) -> None:
    content = TEXT.encode()
    content = content[:place] + piece + content[place + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test_x.json"
        path.write_bytes(content)
        try:
            entries = BASELINES.read(path)
        except RecordError:
            with pytest.raises(RecordError, match=f"^{re.escape(str(path))}:[0-9]+: "):
                BASELINES.change(path, lambda old: {})
            assert path.read_bytes() == content
        else:
            assert parse(str(path), render(entries)) == entries


def test_an_entry_holds_for_other_numbers_of_threads() -> None:
    """While those that are recorded agree."""
    one, two, eight = (BaselineKey("t", CPU, f"x86_64, {number}, torch 2.13") for number in THREADS)
    low, high = Entry({"requested": Spread(1, 1)}), Entry({"requested": Spread(2, 2)})
    agreeing, differing = Recorded({one: low, two: low}), Recorded({one: low, two: high})
    assert (agreeing.find(two), agreeing.find(eight)) == (two, one)
    assert (differing.find(two), differing.find(eight)) == (two, None)
    assert (differing.get(two), differing.get(eight)) == (high, None)
    assert agreeing.find(eight._replace(test="u")) is None
    assert (bool(agreeing), bool(Recorded({}))) == (True, False)


def test_the_entry_of_a_real_card_holds_for_a_simulated_one() -> None:
    """If asked for: that of the same torch, or else the last by name."""

    def key(environment: str, test: str = "t") -> BaselineKey:
        return BaselineKey(test, Device("cuda", 0), environment)

    real = {torch: key(f"NVIDIA H100 80GB HBM3 (9.0), {torch}, native") for torch in ("torch 2.9", "torch 2.11")}
    others = [key("NVIDIA A100-SXM4-80GB (8.0), torch 2.11, native"), key(real["torch 2.11"].environment, "u")]
    entries = {one: Entry({"requested": Spread(n, n)}) for n, one in enumerate([*others, *real.values()])}
    recorded = Recorded(entries, real_cards=True)
    assert recorded.find(key("simulated h100, torch 2.11, native")) == real["torch 2.11"]
    assert recorded.find(key("simulated h100, torch 2.9, native")) == real["torch 2.9"]
    assert recorded.find(key("simulated h100, torch 2.13, native")) == max(real.values())
    assert recorded.find(key("simulated h100, torch 2.11, expandable")) is None
    assert recorded.find(key("simulated h200, torch 2.11, native")) is None
    assert Recorded(entries).find(key("simulated h100, torch 2.11, native")) is None


def test_changing_entries(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "__cudamem__" / "test_x.json"
    assert not BASELINES.change(path, lambda entries: entries)
    assert [*tmp_path.iterdir()] == []
    assert BASELINES.change(path, lambda entries: {**entries, **ENTRIES})
    assert path.read_text(encoding="utf-8") == TEXT
    assert not BASELINES.change(path, lambda entries: dict(reversed(entries.items())))
    first, *_ = ENTRIES
    assert BASELINES.change(path, lambda entries: {key: one for key, one in entries.items() if key != first})
    assert BASELINES.read(path) == {key: one for key, one in ENTRIES.items() if key != first}
    assert BASELINES.change(path, lambda entries: {})
    assert not path.exists()
    assert BASELINES.read(path) == {}


@pytest.mark.parametrize(
    ("nodeid", "file", "test"),
    [
        ("tests/test_x.py::TestA::test_b[a::b/c]", "tests/__cudamem__/test_x.json", "TestA::test_b[a::b/c]"),
        ("test_x.py::test_a", "__cudamem__/test_x.json", "test_a"),
        ("docs/page.md::page.md", "docs/__cudamem__/page.md.json", "page.md"),
        ("../test_x.py::test_a", "../__cudamem__/test_x.json", "test_a"),
    ],
)
def test_where_a_test_is_recorded(tmp_path: Path, nodeid: str, file: str, test: str) -> None:
    assert baseline_file(tmp_path, nodeid) == tmp_path / file
    assert name_in_module(nodeid) == test
    module = tmp_path / nodeid.partition("::")[0]
    module.parent.mkdir(exist_ok=True)
    module.touch()
    assert module_of(tmp_path / file) == module
    module.unlink()
