"""Accepting texts: which literal is found, and the exact file afterwards."""

import ast
import contextlib
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.callsite import CallSite, SourceSpan
from cudamem_testing.records.expected.check import accepting, assert_text
from cudamem_testing.records.expected.errors import NotAcceptedError, NotLocatedError
from cudamem_testing.records.expected.session import Session
from cudamem_testing.records.expected.source import Literal, Source
from cudamem_testing.records.expected.text import canonical


class Result:
    """Stands for a result of the library: a text and a method that checks it."""

    def __init__(self, text):
        self.text = text

    def assert_shown(self, expected, ids="first-use"):
        assert_text(self.text, expected, depth=2)

    def assert_keyword(self, *, expected):
        assert_text(self.text, expected, depth=2)

    def assert_named(self, count, table):
        assert_text(self.text, table, argument="table", depth=2)

    def assert_on(self, expected, device):
        assert_text(self.text, expected, key=device, depth=2)

    def itself(self, *_):
        return self


def execute(path, session):
    """Run the module at `path` as its own code, with the names tests use."""
    names = {"assert_text": assert_text, "Result": Result, "__name__": "written"}
    with session.activate():
        exec(compile(path.read_bytes(), str(path), "exec"), names)


def accept(path):
    session = Session(accept=True)
    execute(path, session)
    written = session.write()
    written.raise_if_refused()
    return written


def rewritten(tmp_path, code):
    """Accept the texts of `code` and return the new code; a second run must then pass without accepting."""
    path = tmp_path / "written.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    accept(path)
    execute(path, Session())
    again = accept(path)
    assert again.files == ()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["written.py"]
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Result('new').assert_shown('old')", "Result('new').assert_shown('new')"),
        ('Result("""x""").assert_shown("""old""")', 'Result("""x""").assert_shown("x")'),
        ("Result('new').assert_shown(expected='old')", "Result('new').assert_shown(expected='new')"),
        (
            "Result('new').assert_shown(ids='old', expected='old')",
            "Result('new').assert_shown(ids='old', expected='new')",
        ),
        ("Result('new').assert_keyword(expected='old')", "Result('new').assert_keyword(expected='new')"),
        ("Result('new').assert_named(1, 'old')", "Result('new').assert_named(1, 'new')"),
        ("Result('new').assert_named(table='', count=1)", "Result('new').assert_named(table='new', count=1)"),
        ("assert_text('new', 'old')", "assert_text('new', 'new')"),
        ("assert_text('new', 'o' \"l\" r'd')", "assert_text('new', 'new')"),
        ("assert_text('new', ('old'))", "assert_text('new', ('new'))"),
        ("assert_text('new', u'old')", "assert_text('new', 'new')"),
        ("assert_text('a\\\\d', r'old')", "assert_text('a\\\\d', r'a\\d')"),
        ("assert_text('old', 'a'); assert_text('b', 'old')", "assert_text('old', 'old'); assert_text('b', 'b')"),
        ("check = lambda: assert_text('new', 'old'); check()", "check = lambda: assert_text('new', 'new'); check()"),
        ("[assert_text('new', 'old') for _ in (1, 2)]", "[assert_text('new', 'new') for _ in (1, 2)]"),
        ("assert assert_text('new', 'old') is None", "assert assert_text('new', 'new') is None"),
        (
            "Result('é').assert_shown('本'); assert_text('é', '本')",
            "Result('é').assert_shown('é'); assert_text('é', 'é')",
        ),
        ("alias = assert_text; alias('new', 'old')", "alias = assert_text; alias('new', 'new')"),
        ("x = 'é', assert_text(str(len('本')), 'old')", "x = 'é', assert_text(str(len('本')), '1')"),
    ],
)
def test_the_literal_of_the_call_is_replaced_and_nothing_else(tmp_path, before, after):
    assert rewritten(tmp_path, before) == after


def test_calls_over_many_lines_and_in_all_places(tmp_path):
    after = rewritten(
        tmp_path,
        '''
        import contextlib

        def decorate(function):
            return function

        @decorate
        @decorate
        def test():
            (
                Result("a\\nb")
                .itself("old")
                .assert_shown("old")  # of a chain
            )
            with contextlib.suppress(KeyError), contextlib.nullcontext(
                Result("c").assert_shown(
                    # before
                    "old"  # after
                    "er",
                )
            ):
                assert_text("first\\n  second", """
            old
                """)

        class Test:
            shown = Result("d").assert_shown("old")

            async def inner(self, check=Result("e").assert_shown("old")):
                pass

        test()
        ''',
    )
    assert after == textwrap.dedent(
        '''
        import contextlib

        def decorate(function):
            return function

        @decorate
        @decorate
        def test():
            (
                Result("a\\nb")
                .itself("old")
                .assert_shown("""
                    a
                    b
                    """)  # of a chain
            )
            with contextlib.suppress(KeyError), contextlib.nullcontext(
                Result("c").assert_shown(
                    # before
                    "c",
                )
            ):
                assert_text("first\\n  second", """
                    first
                      second
                    """)

        class Test:
            shown = Result("d").assert_shown("d")

            async def inner(self, check=Result("e").assert_shown("e")):
                pass

        test()
        '''
    )


def test_calls_within_the_line_of_another(tmp_path):
    code = "Result('a').itself(Result('b').assert_shown('old')).assert_shown('old')"
    if sys.version_info >= (3, 11):
        assert rewritten(tmp_path, code) == "Result('a').itself(Result('b').assert_shown('b')).assert_shown('a')"
    else:
        why = "2 calls of assert_shown stand on line 1 and this interpreter keeps no columns: put each on a separate"
        with pytest.raises(NotAcceptedError, match=why):
            rewritten(tmp_path, code)


def test_tabs_are_kept_as_indentation(tmp_path):
    code = "def test():\n\tassert_text('a\\nb', '')\ntest()\n"
    assert rewritten(tmp_path, code) == "def test():\n\tassert_text('a\\nb', '''\n\t\ta\n\t\tb\n\t\t''')\ntest()\n"


def test_a_text_that_is_the_same_keeps_its_literal(tmp_path):
    code = 'assert_text("a\\nb", """\n  a\n  b""")\nassert_text("c  ", "\\n  c")\n'
    assert rewritten(tmp_path, code) == code


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{'cpu': 'old', 'cuda': 'x'}", "{'cpu': 'new', 'cuda': 'x'}"),
        ("{'cuda': 'x', 'cpu': 'a', 'cpu': 'old'}", "{'cuda': 'x', 'cpu': 'a', 'cpu': 'new'}"),
        ("{'cuda': 'x'}", "{'cuda': 'x', \"cpu\": \"new\"}"),
        ("{'cuda': 'x', }", "{'cuda': 'x', \"cpu\": \"new\", }"),
        ("{'cuda': ('x')}", "{'cuda': ('x'), \"cpu\": \"new\"}"),
        ("{}", '{"cpu": "new"}'),
        ("{ # empty\n}", '{"cpu": "new" # empty\n}'),
        ("{**{}, 'cuda': 'x'}", "{**{}, 'cuda': 'x', \"cpu\": \"new\"}"),
        ("{'cuda': 'x'  # last\n}", "{'cuda': 'x',  # last\n    \"cpu\": \"new\",\n}"),
        ("{\n  'cuda': 'x',  # last\n  # end\n }", "{\n  'cuda': 'x',  # last\n  # end\n  \"cpu\": \"new\",\n }"),
    ],
)
def test_a_text_per_key(tmp_path, before, after):
    code = "Result('new').assert_on(expected=%s, device='cpu')\n"
    assert rewritten(tmp_path, code % before) == code % after


def test_two_keys_added_to_one_dict(tmp_path):
    code = "for device in ('cpu', 'cuda'):\n    Result(f'on\\n{device}').assert_on({%s}, device)\n"
    block = '"%s": """\n        on\n        %s\n        """'
    assert rewritten(tmp_path, code % "") == code % ", ".join(block % (key, key) for key in ("cpu", "cuda"))


def test_line_ends_byte_order_mark_and_permissions_are_kept(tmp_path):
    path = tmp_path / "written.py"
    path.write_bytes(b"\xef\xbb\xbfassert_text('a\\nb', '')\r\nx = '''\r\n'''\nassert_text('c', '')\r\n")
    path.chmod(0o751)
    accept(path)
    new = b"'''\r\n    a\r\n    b\r\n    '''"
    assert path.read_bytes() == (
        b"\xef\xbb\xbfassert_text('a\\nb', " + new + b")\r\nx = '''\r\n'''\nassert_text('c', 'c')\r\n"
    )
    assert path.stat().st_mode & 0o777 == 0o751


def test_the_encoding_of_the_file_is_kept(tmp_path):
    path = tmp_path / "written.py"
    path.write_bytes(b"# coding: latin-1\nx = '\xe9'; assert_text('\xe9\\u672c', '\xe8')\n")
    accept(path)
    assert path.read_bytes() == b"# coding: latin-1\nx = '\xe9'; assert_text('\xe9\\u672c', '\xe9\\u672c')\n"


def test_links_are_followed(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "written.py").write_text("assert_text('new', '')")
    link = tmp_path / "link.py"
    link.symlink_to(real / "written.py")
    accept(link)
    assert link.is_symlink()
    assert (real / "written.py").read_text() == "assert_text('new', 'new')"
    assert sorted(os.listdir(real)) == ["written.py"]


TEXT = st.text(st.sampled_from("ab \t\n\0\x85\ud800'\"\\é本{}#") | st.characters(), max_size=12)
FORMS = [
    "assert_text({actual}, {old})",
    "(Result({actual})\n  .assert_shown(ids={old}, expected={old}))",
    "[Result({actual}).assert_shown(\n\n  {old} ,) for _ in [1]]",
    "if True:\n    Result({actual}).itself({old}, '''x''').assert_shown({old}); y = {old}",
    "(lambda: assert_text({actual}, expected={old}))()",
    "def é(check=assert_text):\n\tcheck({actual}, # c\n\t{old}\n\t)\né()",
    "Result({actual}).assert_on({{'cpu': {old}, 'cuda': {old}}}, 'cpu')",
]


@given(
    st.lists(
        st.tuples(st.sampled_from(FORMS), TEXT, TEXT, st.sampled_from(["", "# é\n", "x = '''\n'''\n"])), max_size=5
    )
)
def test_random_texts_in_random_code(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("random") / "written.py"
    before = []
    for form, actual, old, around in parts:
        before.append(around + form.format(actual=ascii(actual), old=ascii(old)))
    code = "\n".join(before)
    path.write_text(code, encoding="utf-8")
    accept(path)
    execute(path, Session())
    after = path.read_text(encoding="utf-8")
    # The tree is the same but for one constant a call, and that one denotes the actual text.
    old_tree, new_tree = ast.parse(code), ast.parse(after)
    changed = [
        (old, new)
        for old, new in zip(ast.walk(old_tree), ast.walk(new_tree), strict=True)
        if isinstance(old, ast.Constant) and old.value != new.value
    ]
    wanted = [canonical(actual) for _, actual, old, _ in parts if canonical(actual) != canonical(old)]
    assert sorted(canonical(new.value) for _, new in changed) == sorted(wanted)
    # Taking the literals out of both files leaves the same characters.
    assert _without(code, [old for old, _ in changed]) == _without(after, [new for _, new in changed])


def _without(code, constants):
    lines = code.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:row])) for row in range(len(lines) + 1)]
    raw = code.encode()
    ranges = [
        (starts[one.lineno - 1] + one.col_offset, starts[one.end_lineno - 1] + one.end_col_offset) for one in constants
    ]
    for start, end in sorted(ranges, reverse=True):
        raw = raw[:start] + b"<>" + raw[end:]
    return raw


def test_accepting_without_a_run(tmp_path):
    before = Session.current()  # of the run that this test is in
    path = tmp_path / "written.py"
    path.write_text("assert_text('new', 'old')")
    with accepting():
        exec(compile(path.read_text(), str(path), "exec"), {"assert_text": assert_text})
    assert path.read_text() == "assert_text('new', 'new')"
    assert Session.current() is before


def test_a_caller_without_a_file_cannot_be_accepted():
    with (
        accepting(),
        pytest.raises(NotAcceptedError, match=r"\nnot accepted: .*<nowhere> cannot be read: No such file"),
    ):
        exec(compile("assert_text('new', 'old')", "<nowhere>", "exec"), {"assert_text": assert_text})


def test_a_literal_inside_an_f_string_is_replaced_or_refused(tmp_path):
    """Before Python 3.12 the compiler's positions there can be wrong."""
    path = tmp_path / "written.py"
    for code in ('f\'é{assert_text("new", "old")}\'', "x = f'''\n\n  {assert_text('new', 'old')}'''"):
        path.write_text(code)
        session = Session(accept=True)
        with contextlib.suppress(NotAcceptedError):
            execute(path, session)
        session.write().raise_if_refused()
        assert path.read_text() in (code, code.replace("old", "new"))


def test_positions_that_miss_the_literal_are_refused(tmp_path):
    path = tmp_path / "written.py"
    path.write_text("check('a')")
    source = Source(path)
    at = CallSite(str(path), "<module>", 1, 1, SourceSpan(1, 0, 1, 10), "check", "expected", 0)
    assert source.locate(at, "a", None) == Literal(path, 1, 6, 9, "    ")
    source.text = "chec('a'))"
    with pytest.raises(NotLocatedError, match="the file has changed"):
        source.locate(at, "a", None)


@pytest.mark.parametrize("columns", [True, False])
def test_asserts_that_run_at_their_start(tmp_path, columns):
    """Before pytest 8.3.4 all of a rewritten assert has the position of the statement."""
    path = tmp_path / "written.py"
    path.write_text("def test():\n    assert (\n        other(check('a')),\n        check('b'),\n    )\n")
    source = Source(path)
    span = SourceSpan(2, 4, 5, 5) if columns else None
    at = CallSite(str(path), "test", 1, 2, span, "check", "expected", 0)
    found = [source.locate(at, text, None) for text in "ab"]
    assert [source.text[one.start : one.end] for one in found] == ["'a'", "'b'"]
    with pytest.raises(NotLocatedError, match="2 calls of check stand on line 2 and this interpreter keeps no columns"):
        source.locate(at, "c", None)


@pytest.mark.subprocess
def test_without_columns_two_calls_on_a_line_differ_by_value(tmp_path):
    path = tmp_path / "written.py"
    code = "assert_text('b', 'a'); assert_text('d', {!r})\n"
    run = (
        "import sys; from cudamem_testing.records.expected.check import accepting, assert_text\n"
        "with accepting(): exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'))"
    )

    def accept_there(old):
        path.write_text(code.format(old))
        done = subprocess.run(
            [sys.executable, "-X", "no_debug_ranges", "-c", run, str(path)], capture_output=True, text=True
        )
        return done.stderr, path.read_text()

    assert accept_there("c") == ("", "assert_text('b', 'b'); assert_text('d', 'd')\n")
    errors, after = accept_there("a")
    assert "2 calls of assert_text stand on line 1 and this interpreter keeps no columns" in errors
    assert after == code.format("a")
