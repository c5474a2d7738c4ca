"""Known findings: the file to the letter, what a line allows, what an update keeps, and when a cause is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.causes import causes
from cudamem_testing.model.devices import Device
from cudamem_testing.model.facts import Reported
from cudamem_testing.model.findings import Finding, Kind, Severity, Standing, Verdict
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.records.known import (
    CauseKey,
    Evidence,
    KnownFinding,
    is_recordable,
    judged,
    last_matches,
    line_of,
    noted,
    parse,
    places,
    recorded,
    render,
    unseen,
    without,
)
from cudamem_testing.records.store import RecordError
from cudamem_testing.wording.findings import details

KIB, MIB = 2**10, 2**20
CAUSE = "leak | reachable | a.py::f | module a > KEPT (list)[*]"
LINE = KnownFinding(CAUSE, "cpu", 128 * KIB, ("test_a.py::test_b",), "goes in May")
TEXT = (
    '{"cause": "leak | reachable | a.py::f | module a > KEPT (list)[*]", "device": "cpu", "bytes": 131072, '
    '"tests": ["test_a.py::test_b"], "reason": "goes in May"}'
)


def known(*lines: KnownFinding) -> dict[CauseKey, KnownFinding]:
    return {line.key: line for line in lines}


def leak(
    size: int | None = 128 * KIB,
    device: str | None = "cpu",
    severity: Severity = Severity.FAIL,
    cause: str = CAUSE,
    standing: Standing | None = None,
) -> Finding:
    where = None if device is None else Device.parse(device)
    return Finding(Kind.LEAK, Verdict.REACHABLE, severity, Reported("m"), size, where, cause=cause, standing=standing)


def found(findings: Mapping[str, Finding]) -> tuple:  # type: ignore[type-arg]
    return causes(RunRecord(tests=tuple(TestRecord(name, findings=(one,)) for name, one in findings.items())))


class TestFile:
    """Text in, text out."""

    def test_a_line(self) -> None:
        assert str(LINE) == TEXT
        assert parse("known.jsonl", TEXT.encode()) == known(LINE)

    def test_lines_are_sorted_by_cause_and_device(self) -> None:
        lines = [KnownFinding(cause, device, 1) for cause, device in (("b", "cpu"), ("a", "cuda"), ("a", "cpu"))]
        content = render(known(*lines)).decode()
        assert [(line["cause"], line["device"]) for line in map(json.loads, content.splitlines())] == [
            ("a", "cpu"),
            ("a", "cuda"),
            ("b", "cpu"),
        ]
        assert content.endswith("}\n")

    def test_printable_text_stays_and_line_breaks_are_escaped(self) -> None:
        readable = KnownFinding("c", "cpu", 1, (), "geht im März, 五月")
        assert '"geht im März, 五月"' in str(readable)
        hostile = KnownFinding("c\u2028\ud800\n", "cpu", 1, (), "a\tb")
        assert str(hostile).isascii()
        assert str(hostile).isprintable()
        assert parse("k", render(known(hostile))) == known(hostile)

    def test_what_an_editor_does_to_it_is_read(self) -> None:
        content = b"\xef\xbb\xbf" + f"\r\n  {TEXT}  \r\n\r\n".encode()
        assert parse("known.jsonl", content) == known(LINE)
        (line,) = parse("known.jsonl", content).values()
        assert line.number == 2

    def test_a_reason_may_be_missing(self) -> None:
        (line,) = parse("k", b'{"cause": "c", "device": "cpu", "bytes": 0, "tests": []}').values()
        assert line == KnownFinding("c", "cpu", 0)

    @pytest.mark.parametrize(
        ("broken", "reason"),
        [
            ("{", "is no JSON: Expecting property name enclosed in double quotes (column 2)"),
            ("null", "is no object"),
            ('{"cause": "c", "device": "cpu", "bytes": 1}', "has no 'tests'"),
            ('{"cause": "c", "device": "cpu", "bytes": 1, "tests": [], "why": ""}', "has the unknown key 'why'"),
            ('{"cause": 1, "device": "cpu", "bytes": 1, "tests": []}', "cause is no text"),
            ('{"cause": "c", "device": null, "bytes": 1, "tests": []}', "device is no text"),
            ('{"cause": "c", "device": "cpu", "bytes": 1.0, "tests": []}', "bytes is no whole number of 0 or more"),
            ('{"cause": "c", "device": "cpu", "bytes": true, "tests": []}', "bytes is no whole number of 0 or more"),
            ('{"cause": "c", "device": "cpu", "bytes": -1, "tests": []}', "bytes is no whole number of 0 or more"),
            ('{"cause": "c", "device": "cpu", "bytes": 1, "tests": "t"}', "tests is no list"),
            ('{"cause": "c", "device": "cpu", "bytes": 1, "tests": [1]}', "tests is no text"),
            ('{"cause": "c", "device": "cpu", "bytes": 1, "tests": [], "reason": 1}', "reason is no text"),
            (TEXT, "the same cause and device as in line 1: keep one of them"),
        ],
    )
    def test_a_broken_line_is_named(self, broken: str, reason: str) -> None:
        with pytest.raises(RecordError) as caught:
            parse("__cudamem__/known.jsonl", f"{TEXT}\n\n{broken}\n".encode())
        assert str(caught.value) == f"__cudamem__/known.jsonl:3: {reason}"

    def test_bytes_that_are_no_text(self) -> None:
        with pytest.raises(RecordError) as caught:
            parse("k", TEXT.encode() + b"\n\xff\n")
        assert str(caught.value) == "k:2: is not UTF-8 text"

    @given(
        st.lists(
            st.builds(
                KnownFinding,
                st.text(st.characters(), max_size=20),
                st.sampled_from(["cpu", "cuda", "any"]),
                st.integers(0, 2**70),
                st.lists(st.text(max_size=9), max_size=3).map(tuple),
                st.text(max_size=20),
            ),
            unique_by=lambda line: line.key,
        )
    )
    def test_what_is_written_is_read(self, lines: list[KnownFinding]) -> None:
        content = render(known(*lines))
        assert parse("k", content) == known(*lines)
        assert render(parse("k", content)) == content
        assert content.count(b"\n") == len(lines)

    @given(st.data())
    def test_damage_is_an_error_with_its_line_or_other_lines(self, data: st.DataObject) -> None:
        """Never anything else: no other exception, and no line that a person would not see there."""
        lines = [KnownFinding(f"leak | reachable | {name}", "cpu", 9, ("t::x",), "r") for name in "abc"]
        content = bytearray(render(known(*lines)))
        for _ in range(data.draw(st.integers(1, 4))):
            place = data.draw(st.integers(0, len(content) - 1))
            change = data.draw(st.sampled_from(["flip", "cut", "double", "insert"]))
            if change == "flip":
                content[place] = data.draw(st.integers(0, 255))
            elif change == "cut":
                del content[place:]
                content += b" "
            elif change == "double":
                content += content[place:]
            else:
                content[place:place] = data.draw(st.binary(max_size=5))
        try:
            read = parse("k", bytes(content))
        except RecordError as error:
            name, number, reason = str(error).split(":", 2)
            assert name == "k"
            assert 1 <= int(number) <= content.count(b"\n") + 1
            assert reason.strip()
        else:
            assert parse("k", render(read)) == read

    def test_older_lines_with_one_cause_become_one_line(self) -> None:
        old = [
            KnownFinding(f"leak | reachable | a.py::f | module a > KEPT (dict)[{key}]", "cpu", size, tests, reason)
            for key, size, tests, reason in (
                ("'a'", 1, ("t.py::x",), "first"),
                ("(1, 2.5)", 2, ("t.py::y", "t.py::x"), ""),
                ("'b*'", 4, (), "second"),
            )
        ]
        found = parse("k", "".join(f"{line}\n" for line in old).encode())
        cause = "leak | reachable | a.py::f | module a > KEPT (dict)[*]"
        assert found == known(KnownFinding(cause, "cpu", 7, ("t.py::x", "t.py::y"), "first; second"))
        assert [line.number for line in found.values()] == [1]
        assert parse("k", render(found)) == found


class TestPatterns:
    """Lines with ``*``."""

    WIDE = KnownFinding("leak | * | module a > *", "cpu", 128 * KIB, ("test_a.py::test_b",), "all of it")
    NARROW = KnownFinding("leak | reachable | a.py::* | module a > *", "cpu", 128 * KIB)

    def test_a_cause_is_known_by_a_pattern(self) -> None:
        assert details(judged(leak(), known(self.WIDE), "k"))[-1] == "   known: all of it (k:0)"
        assert judged(leak(MIB), known(self.WIDE), "k").standing is Standing.LARGER

    @pytest.mark.parametrize("finding", [leak(cause=CAUSE.replace("module a", "module b")), leak(device="cuda:0")])
    def test_what_it_does_not_match_is_unchanged(self, finding: Finding) -> None:
        assert judged(finding, known(self.WIDE), "k") is finding

    def test_a_recorded_line_is_no_pattern(self) -> None:
        inner = leak(cause=f"{CAUSE} > Box.x (list)[*]")
        assert judged(inner, known(LINE), "k") is inner
        assert (LINE.is_pattern, self.WIDE.is_pattern) == (False, True)

    def test_the_cause_itself_then_the_longest_pattern(self) -> None:
        assert line_of(known(self.WIDE, self.NARROW, LINE), LINE.key) == LINE
        assert line_of(known(self.WIDE, self.NARROW), LINE.key) == self.NARROW
        assert line_of(known(self.WIDE), LINE.key) == self.WIDE
        assert line_of(known(self.WIDE), (CAUSE, "cuda")) is None

    def test_an_update_writes_no_line_for_what_a_pattern_matches(self) -> None:
        other = CAUSE.replace("KEPT", "OTHER")
        findings = {"test_a.py::test_b": leak(300 * KIB), "test_a.py::test_c": leak(200 * KIB, cause=other)}
        update = recorded(known(self.WIDE), found(findings), ran(*findings))
        tests = ("test_a.py::test_b", "test_a.py::test_c")
        assert update.lines == known(KnownFinding(self.WIDE.cause, "cpu", 300 * KIB, tests, "all of it"))
        assert str(update) == "1 changed"

    def test_it_is_unseen_when_nothing_matches_it(self) -> None:
        evidence = ran("test_a.py::test_b")
        assert unseen(known(self.WIDE), found({"test_a.py::test_b": leak()}), evidence) == []
        assert unseen(known(self.WIDE), found({"test_a.py::test_b": leak(cause="leak | x")}), evidence) == [self.WIDE]

    def test_what_each_line_matched_last(self) -> None:
        other = CAUSE.replace("KEPT", "OTHER")
        tests = (("t::1", leak()), ("t::2", leak(cause=other)), ("t::3", leak()), ("t::4", leak(cause="leak | x")))
        run = RunRecord(tests=tuple(TestRecord(name, findings=(one,)) for name, one in tests))
        lines = known(self.WIDE, LINE, KnownFinding(other, "cpu", 1), KnownFinding("no", "cpu", 1))
        assert last_matches(lines, run) == {
            self.WIDE.key: (CAUSE, "t::3"),
            LINE.key: (CAUSE, "t::3"),
            (other, "cpu"): (other, "t::2"),
        }


class TestJudged:
    """A finding against the lines."""

    def test_known_is_a_note_with_its_reason_and_line(self) -> None:
        lines = parse("known.jsonl", f"\n{TEXT}".encode())
        one = judged(leak(), lines, "known.jsonl")
        assert (one.severity, one.standing) == (Severity.NOTE, Standing.KNOWN)
        assert details(one) == ("   known: goes in May (known.jsonl:2)",)
        bare = judged(leak(), known(KnownFinding(CAUSE, "cpu", 128 * KIB)), "k")
        assert details(bare) == ("   known: no reason given (k:0)",)

    @pytest.mark.parametrize(
        ("recorded_", "size", "standing"),
        [
            (128 * KIB, 192 * KIB, Standing.KNOWN),  # 64 KiB are allowed
            (128 * KIB, 192 * KIB + 1, Standing.LARGER),
            (100 * MIB, 101 * MIB, Standing.KNOWN),  # 1 % is more
            (100 * MIB, 101 * MIB + 1, Standing.LARGER),
            (128 * KIB, 0, Standing.KNOWN),
            (128 * KIB, None, Standing.KNOWN),
        ],
    )
    def test_the_tolerance(self, recorded_: int, size: int | None, standing: Standing) -> None:
        one = judged(leak(size), known(KnownFinding(CAUSE, "cpu", recorded_)), "k")
        assert one.standing is standing

    def test_larger_keeps_its_severity_and_says_so(self) -> None:
        one = judged(leak(MIB), parse("k", TEXT.encode()), "k")
        assert (one.severity, one.standing) == (Severity.FAIL, Standing.LARGER)
        assert details(one) == ("   larger than the recorded 128.0 KiB, 1%|64KiB more allowed (k:1)",)

    @pytest.mark.parametrize(
        "finding",
        [
            leak(cause="another"),
            leak(device="cuda:0"),
            leak(device=None),
            leak(severity=Severity.NOTE),
            Finding(Kind.BUDGET, Verdict.OVER, Severity.FAIL, Reported("m"), 1, Device("cpu"), cause=CAUSE),
        ],
    )
    def test_what_has_no_line_is_unchanged(self, finding: Finding) -> None:
        assert judged(finding, known(LINE), "k") is finding

    def test_a_warning_becomes_a_note_too(self) -> None:
        assert judged(leak(severity=Severity.WARN), known(LINE), "k").severity is Severity.NOTE

    def test_cards_share_a_line(self) -> None:
        lines = known(KnownFinding(CAUSE, "cuda", 128 * KIB))
        assert {judged(leak(device=device), lines, "k").standing for device in ("cuda:0", "cuda:7")} == {Standing.KNOWN}

    def test_what_belongs_on_record(self) -> None:
        assert is_recordable(leak())
        assert is_recordable(leak(severity=Severity.WARN))
        assert is_recordable(noted(leak(), "known"))
        assert not is_recordable(leak(severity=Severity.NOTE))
        assert not is_recordable(leak(severity=Severity.WARN, standing=Standing.FIRST_USE))


WHOLE = Evidence({}, lambda file: True, lambda file: True)


def ran(*nodeids: str, whole: bool = True, complete: bool = True, files: tuple[str, ...] = ("test_a.py",)) -> Evidence:
    return Evidence(dict.fromkeys(nodeids, complete), lambda file: whole, files.__contains__)


class TestRecorded:
    """What an update makes of the lines."""

    def test_a_new_cause(self) -> None:
        update = recorded({}, found({"test_a.py::test_b[1]": leak(8), "test_a.py::test_a": leak(9)}), Evidence())
        assert update.lines == known(KnownFinding(CAUSE, "cpu", 9, ("test_a.py::test_a", "test_a.py::test_b")))
        assert (update.new, update.changed, update.same) == (1, 0, 0)
        assert str(update) == "1 new"

    def test_reasons_stay_and_small_changes_are_none(self) -> None:
        update = recorded(known(LINE), found({"test_a.py::test_b": leak(190 * KIB)}), ran("test_a.py::test_b"))
        assert update.lines == known(LINE)
        assert str(update) == "1 the same"

    @pytest.mark.parametrize("size", [MIB, 8])
    def test_other_bytes_after_a_whole_run(self, size: int) -> None:
        update = recorded(known(LINE), found({"test_a.py::test_b": leak(size)}), ran("test_a.py::test_b"))
        assert update.lines == known(KnownFinding(CAUSE, "cpu", size, LINE.tests, LINE.reason))
        assert str(update) == "1 changed"

    def test_a_part_of_the_tests_never_takes_away(self) -> None:
        findings = {"test_a.py::test_c": leak(8)}
        update = recorded(known(LINE), found(findings), ran("test_a.py::test_c", whole=False))
        both = ("test_a.py::test_b", "test_a.py::test_c")
        assert update.lines == known(KnownFinding(CAUSE, "cpu", LINE.bytes, both, LINE.reason))

    def test_a_whole_run_takes_tests_away(self) -> None:
        evidence = ran("test_a.py::test_b", "test_a.py::test_c")
        update = recorded(known(LINE), found({"test_a.py::test_c": leak()}), evidence)
        assert update.lines == known(KnownFinding(CAUSE, "cpu", LINE.bytes, ("test_a.py::test_c",), LINE.reason))

    def test_what_was_not_met_stays(self) -> None:
        assert recorded(known(LINE), (), WHOLE).lines == known(LINE)

    def test_first_uses_are_not_recorded(self) -> None:
        first = leak(severity=Severity.WARN, standing=Standing.FIRST_USE)
        assert recorded({}, found({"a.py::t": first}), WHOLE).lines == {}
        update = recorded({}, found({"a.py::t": first, "a.py::u": leak()}), WHOLE)
        assert update.lines == known(KnownFinding(CAUSE, "cpu", 128 * KIB, ("a.py::t", "a.py::u")))

    def test_many_functions_are_recorded_by_file(self) -> None:
        names = [f"test_{number % 3}.py::test_{number}[x]" for number in range(51)]
        assert places(names[:50]) == tuple(sorted(name.removesuffix("[x]") for name in names[:50]))
        assert places(names) == ("test_0.py", "test_1.py", "test_2.py")
        assert places(["test_0.py::test_a", "test_1.py::test_b"], ["test_0.py"]) == ("test_0.py", "test_1.py::test_b")
        assert places(["a[b].py::C::t[x::y]"]) == ("a[b].py::C::t",)


class TestUnseen:
    """When a cause is not there any more."""

    @pytest.mark.parametrize(
        ("evidence", "gone"),
        [
            (ran("test_a.py::test_b"), True),
            (ran("test_a.py::test_b[1]", "test_a.py::test_b[2]"), True),
            (ran("test_a.py::test_b", whole=False), False),  # one parameter of many, say
            (ran("test_a.py::test_b", complete=False), False),  # it was skipped, or failed on the way
            (ran("test_a.py::test_other"), True),  # it was renamed
            (ran("test_a.py::test_bb"), True),
            (ran("test_c.py::test_other"), False),  # its file was skipped as a whole
            (ran("test_c.py::test_other", files=()), True),  # its file is gone
            (ran(), False),
        ],
    )
    def test_of_one_test(self, evidence: Evidence, gone: bool) -> None:
        assert unseen(known(LINE), (), evidence) == ([LINE] if gone else [])

    def test_one_of_its_parameters_is_enough(self) -> None:
        tests = {"test_a.py::test_b[cuda]": False, "test_a.py::test_b[cpu]": True}
        assert unseen(known(LINE), (), Evidence(tests, lambda file: True, lambda file: True)) == [LINE]

    def test_every_test_must_have_had_its_chance(self) -> None:
        line = KnownFinding(CAUSE, "cpu", 1, ("test_a.py::test_b", "test_c.py"))
        both = {"test_a.py::test_b": True, "test_c.py::test_d": True}
        for tests, gone in ((both, [line]), ({"test_a.py::test_b": True}, [])):
            assert unseen(known(line), (), Evidence(tests, lambda file: True, lambda file: True)) == gone

    def test_what_was_met_or_names_no_test_or_was_not_looked_for(self) -> None:
        evidence = ran("test_a.py::test_b")
        first = leak(severity=Severity.WARN, standing=Standing.FIRST_USE)
        assert unseen(known(LINE), found({"test_c.py::test_x": first}), evidence) == []
        assert unseen(known(KnownFinding(CAUSE, "cpu", 1)), (), evidence) == []
        looked = Evidence(evidence.tests, evidence.whole, evidence.exists, lambda line: line.kind != "leak")
        assert unseen(known(LINE), (), looked) == []

    def test_lines_that_were_changed_meanwhile_are_not_dropped(self) -> None:
        changed = KnownFinding(CAUSE, "cpu", 128 * KIB, LINE.tests, "another reason")
        other = KnownFinding("other", "cpu", 1)
        assert without(known(LINE, other), [LINE]).lines == known(other)
        assert str(without(known(LINE, other), [LINE])) == "1 dropped"
        assert without(known(changed), [LINE]).lines == known(changed)
        assert str(without({}, [LINE])) == "none"
