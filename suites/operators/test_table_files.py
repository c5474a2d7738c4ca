"""Files: written tables are read back, anything else gives one error; comparison of two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudamem_testing import OperatorFileError, load_operators
from cudamem_testing.operators.rows import Levels, Marker, OperatorRow, Phase
from cudamem_testing.operators.table import OperatorTable
from suites.operators.synthetic import BACKWARD, FORWARD, KIB, Maker, step

DEVICES = ("cpu", "cuda:0")
SIZE = st.integers(0, 2**40)
ROW = st.builds(
    OperatorRow,
    st.integers(0, 1000),
    st.text(max_size=8),
    st.none() | st.text(max_size=8),
    st.sampled_from(Phase),
    st.sampled_from(DEVICES),
    SIZE,
    SIZE,
    SIZE,
    st.none() | SIZE,
    SIZE,
    st.none() | SIZE,
    st.none() | SIZE,
    st.none() | SIZE,
    st.text(max_size=4),
    st.integers(0, 9),
)
TABLE = st.builds(
    OperatorTable,
    st.lists(ROW, max_size=8).map(tuple),
    st.tuples(*(st.builds(Levels, st.just(device), SIZE, st.none() | SIZE, SIZE) for device in DEVICES)),
    st.lists(st.builds(Marker, st.text(max_size=5), st.integers(0, 99)), max_size=3).map(tuple),
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TABLE)
def test_what_is_saved_is_loaded(tmp_path: Path, table: OperatorTable) -> None:
    path = table.save(tmp_path / "table.json")
    loaded = load_operators(path)
    assert loaded == table
    assert all(type(row.phase) is Phase for row in loaded.rows)
    assert [str(loaded.by_module()), str(loaded.summary()), str(loaded)] == [
        str(table.by_module()),
        str(table.summary()),
        str(table),
    ]


def test_the_file(tmp_path: Path) -> None:
    document = saved(tmp_path)
    assert (document["kind"], document["schema"], document["levels"]) == ("operators", 1, [["cpu", 0, 1024, 1024]])
    assert document["texts"] == ["aten::mm", "a", "forward", "cpu", ""]
    assert document["rows"]["operator"] == [0]
    assert document["rows"]["active"] == [None]


def saved(path: Path) -> dict[str, Any]:
    """The document of a small table."""
    file = Maker().add("mm", "a", FORWARD, KIB).table().save(path / "saved.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def set_(*places: Any) -> Callable[[Any], None]:
    """A change of a document: the places down to a value, and the value."""
    *path, last, value = places

    def change(document: Any) -> None:
        for place in path:
            document = document[place]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_("kind", "report"), 'not a table of operators: "kind" is not "operators"'),
        (set_("schema", 2), "schema 2 is unknown; this version reads schema 1"),
        (set_("levels", []), "levels is empty"),
        (set_("levels", {}), "levels is not a list"),
        (set_("levels", 0, ["cpu", 1, 2]), "levels[0] is not [device, start, peak, end]"),
        (set_("levels", 0, ["cpu", 1, True, 2]), "levels[0] is not [device, start, peak, end]"),
        (set_("levels", 0, ["cpu", 1, 2, None]), "levels[0] is not [device, start, peak, end]"),
        (set_("markers", [["x"]]), "markers[0] is not [name, index]"),
        (set_("notes", [3]), "notes[0] is not a text"),
        (set_("texts", 1, 7), "texts[1] is not a text"),
        (set_("rows", []), "rows is not an object"),
        (set_("rows", "freed", None), "rows.freed is missing"),
        (set_("rows", "freed", []), "the columns of rows differ in length"),
        (set_("rows", "freed", [None]), "rows.freed[0] is not a whole number"),
        (set_("rows", "freed", [1.5]), "rows.freed[0] is not a whole number"),
        (set_("rows", "operator", [True]), "rows.operator[0] is not a whole number"),
        (set_("rows", "operator", [-1]), "rows.operator[0]: there is no text -1"),
        (set_("rows", "operator", [99]), "rows.operator[0]: there is no text 99"),
        (set_("rows", "phase", [0]), "rows.phase[0]: 'aten::mm' is not a phase"),
        (set_("rows", "device", [1]), "rows.device[0]: 'a' has no levels"),
    ],
)
def test_a_wrong_file_gives_one_error(change: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    document = saved(tmp_path)
    change(document)
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document))
    with pytest.raises(OperatorFileError) as caught:
        load_operators(path)
    assert str(caught.value) == f"table.json: {message}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "table.json: Expecting value: line 1 column 1 (char 0)"),
        (b"[]", 'table.json: not a table of operators: "kind" is not "operators"'),
        (b"\xff\xfe\x00", None),
        (b'{"kind": "operators"', None),
        (b"[" * 100_000, "table.json: nested too deeply"),
    ],
)
def test_a_damaged_file_gives_one_error(content: bytes, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(OperatorFileError, match=r"^table\.json: ") as caught:
        load_operators(path)
    assert message is None or str(caught.value) == message
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OperatorFileError, match=r"^table\.json cannot be read: No such file or directory$"):
        load_operators(tmp_path / "table.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_cut_and_changed_files_give_one_error_or_a_table(tmp_path: Path, data: st.DataObject) -> None:
    path = step().table().save(tmp_path / "table.json")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from(b'"[]{},:0-9.anul\\'))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(OperatorFileError):
        assert str(load_operators(path).by_module())


def test_comparison() -> None:
    later = step().add("mm", "head", FORWARD, 3 * KIB).add("exp", None, BACKWARD, 512, 512, temporary=512)
    comparison = later.table().compare(step().table())
    assert str(comparison) == (
        "phase     module  operator     before     after   growth\n"
        "forward   head    aten::mm        0 B   3.0 KiB  3.0 KiB\n"
        "backward          aten::exp       0 B     512 B    512 B\n"
        "                  (peak)     28.1 KiB  28.1 KiB      0 B"
    )
    assert [change.growth for change in comparison.grew] == [3 * KIB, 512]
    back = step().table().compare(later.table())
    assert [(change.operator, change.growth) for change in back.changes] == [("aten::exp", -512), ("aten::mm", -3072)]
    assert back.grew == ()
    assert step().table().compare(step().table()).changes == ()


def test_comparison_of_runs_on_different_devices() -> None:
    def table(device: str, size: int) -> OperatorTable:
        return Maker(device).add("mm", "a", FORWARD, size).table()

    assert table("cuda:1", KIB).compare(table("cuda:0", KIB)).changes == ()
    assert str(table("cuda:0", 2 * KIB).compare(table("cpu", KIB))) == (
        "phase    module  operator   before    after   growth\n"
        "forward  a       aten::mm  1.0 KiB  2.0 KiB  1.0 KiB\n"
        "                 (peak)    1.0 KiB  2.0 KiB  1.0 KiB\n"
        "note: before was on cpu, after on cuda:0"
    )


def test_comparison_of_several_devices() -> None:
    def table(size: int) -> OperatorTable:
        cards = [Maker(f"cuda:{card}").add("mm", "a", FORWARD, size * (card + 1)).table() for card in (0, 1)]
        return OperatorTable(cards[0].rows + cards[1].rows, cards[0].levels + cards[1].levels)

    assert str(table(2 * KIB).compare(table(KIB))) == (
        "phase    module  operator  device   before    after   growth\n"
        "forward  a       aten::mm  cuda:1  2.0 KiB  4.0 KiB  2.0 KiB\n"
        "forward  a       aten::mm  cuda:0  1.0 KiB  2.0 KiB  1.0 KiB\n"
        "                 (peak)    cuda:0  1.0 KiB  2.0 KiB  1.0 KiB\n"
        "                 (peak)    cuda:1  2.0 KiB  4.0 KiB  2.0 KiB"
    )
