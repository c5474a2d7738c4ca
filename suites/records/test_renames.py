"""Entries of tests that have another name now."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.model.baselines import Entry
from cudamem_testing.model.changes import Spread
from cudamem_testing.model.devices import Device
from cudamem_testing.records.baselines import BaselineKey
from cudamem_testing.records.renames import BODY, Kept, Renamed, body_of, renames

CPU, HERE = Device("cpu"), "x86_64, 1 thread, torch 2.13"
FILE, OTHER = Path("test_x.json"), Path("test_y.json")

MODULE = """
def test_a(net):
    # what it says
    net.step()

class TestIt:
    def test_b(self, net): net.step()
    class TestInner:
        async def test_c(net):
            net.step( )

def test_other(net): net.other()
def test_default(net=1): net.step()
"""


def kept(
    test: str, body: str = "", size: int = 5, *, path: Path = FILE, environment: str = HERE, device: Device = CPU
) -> Kept:
    return Kept(path, BaselineKey(test, device, environment), Entry({"requested": Spread(size, size)}, (), body))


def test_a_body_is_identified_by_what_it_does(tmp_path: Path) -> None:
    module = tmp_path / "test_x.py"
    module.write_text(MODULE, encoding="utf-8")
    body = body_of(module, "test_a[x-1]")
    assert len(body) == 8
    assert body_of(module, "TestIt::TestInner::test_c") == body
    assert len({body, *(body_of(module, name) for name in ("TestIt::test_b", "test_other", "test_default"))}) == 4
    assert body_of(module, "test_gone") == ""
    assert body_of(tmp_path / "gone.py", "test_a") == ""
    module.write_text("def test_a(:", encoding="utf-8")
    assert body_of(module, "test_a") == ""


@pytest.mark.parametrize(
    ("gone", "new", "wanted"),
    [
        ([kept("test_a", "1")], [kept("test_b", "1", 9)], [("test_a", "test_b", BODY)]),
        ([kept("test_a", "1")], [kept("test_b", "2")], [("test_a", "test_b", "same numbers")]),
        ([kept("test_a")], [kept("test_b", "2")], [("test_a", "test_b", "same numbers")]),
        ([kept("test_a", "1")], [kept("test_b", "2", 9)], []),
        ([kept("test_a", "1", 0)], [kept("test_b", "2", 0)], []),  # most tests take nothing
        ([kept("test_a", "1", 3), kept("test_b", "1")], [kept("test_c", "1")], [("test_b", "test_c", "same numbers")]),
        ([kept("test_a", "1"), kept("test_b", "1")], [kept("test_c", "1")], []),
        (
            [kept("test_a[1]", "1"), kept("test_a[2]", "1")],
            [kept("test_b[2]", "1")],
            [("test_a[2]", "test_b[2]", BODY)],
        ),
        ([kept("test_a", "1")], [kept("test_b", "1", environment="other")], []),
        ([kept("test_a", "1", path=OTHER)], [kept("test_b", "1", 9)], [("test_a", "test_b", BODY)]),
        ([kept("test_a", path=OTHER)], [kept("test_b")], []),  # numbers alone tell little across files
    ],
)
def test_renames(gone: list[Kept], new: list[Kept], wanted: list[tuple[str, str, str]]) -> None:
    assert [(one.before.key.test, one.after.key.test, one.why) for one in renames(gone, new)] == wanted


@pytest.mark.parametrize("body", ["1", ""])
def test_an_entry_of_another_device_is_no_new_name(body: str) -> None:
    gone = kept("test_a", body)
    assert renames([gone], [kept("test_b", body, device=Device("cuda", 0))]) == []
    assert [(one.before, one.why) for one in renames([gone], [kept("test_b", body)])] == [
        (gone, BODY if body else "same numbers")
    ]


def test_the_file_itself_comes_first() -> None:
    here, there, new = kept("test_a", "1"), kept("test_a", "1", path=OTHER), kept("test_b", "1", 9)
    assert renames([there, here], [new]) == [Renamed(here, new, "same function body")]
