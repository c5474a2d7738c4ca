"""A run that accepts texts: side files, contradictions, and everything that must be refused."""

import contextlib
import gc
import subprocess
import textwrap
import weakref
from pathlib import Path

import expecttest
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.records.expected.check import accepting, assert_text
from cudamem_testing.records.expected.errors import ConflictError, NotAcceptedError, NotWrittenError, TextMismatchError
from cudamem_testing.records.expected.session import Session
from cudamem_testing.records.expected.side import dump_stem, file_stem, side_file
from cudamem_testing.show.atomic_files import replace_file
from suites import forked


def module(tmp_path, code, name="test_written.py"):
    """Write a module and return its path and functions."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(code))
    names = {"assert_text": assert_text, "expecttest": expecttest}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    return path, names


# -- comparing --------------------------------------------------------------------------------------------


def test_a_mismatch_shows_where_and_what():
    with pytest.raises(TextMismatchError) as caught:
        assert_text("rows\n  2 MiB\n", "rows\n  1 MiB")
    line = caught.tb.tb_lineno
    assert str(caught.value).split("\n") == [
        f"the text differs from the expected one, suites/records/test_expected_run.py:{line}",
        "--- expected",
        "+++ actual",
        "@@ -1,2 +1,2 @@",
        " rows",
        "-  1 MiB",
        "?  ^",
        "+  2 MiB",
        "?  ^",
        "to accept the actual text: pytest --cudamem-update=expected, or EXPECTTEST_ACCEPT=1",
    ]
    assert (caught.value.expected, caught.value.actual) == ("rows\n  1 MiB", "rows\n  2 MiB")


def test_no_text_yet():
    with pytest.raises(TextMismatchError, match=r"(?s)there is no expected text yet, .*\n\+a\n\+b\n"):
        assert_text("a\nb", None)
    with pytest.raises(TextMismatchError, match=r"there is no expected text for 'cuda' yet, .*; there is: 'cpu'\n"):
        assert_text("a", {"cpu": "a"}, key="cuda")


def test_a_plain_text_holds_for_every_key():
    assert_text("a", "a", key="cuda")
    assert_text("a", {"cpu": "b", "cuda": "a"}, key="cuda")


@pytest.mark.parametrize(
    ("arguments", "key", "error", "message"),
    [
        (("a", b"a"), None, TypeError, "the expected text must be a str, got bytes"),
        ((b"a", "a"), None, TypeError, "the actual text must be a str, got bytes"),
        (("a", {"cpu": 1}), "cpu", TypeError, "the expected text for 'cpu' must be a str, got int"),
        (("a", {"cpu": "a"}), None, ValueError, "a mapping of expected texts needs a key that selects one"),
    ],
)
def test_wrong_arguments(arguments, key, error, message):
    for session in (Session(), Session(accept=True)):
        with pytest.raises(error, match=f"^{message}$"):
            assert_text(*arguments, key=key, session=session)


# -- side files -------------------------------------------------------------------------------------------

SIDE = """
def helper(actual):
    assert_text(actual, None)

def test(first, second):
    helper(first)
    assert_text(first, None)
    assert_text(second, expected=None)
"""


def test_calls_without_an_argument_use_files_of_the_test(tmp_path):
    path, names = module(tmp_path, SIDE)
    session = Session(accept=True)
    for test, second in (("t[A/b]", "new"), ("TestIt::t[a/b]", "n\x00\n\ud800é")):
        session.begin(f"tests/test_written.py::{test}", path)
        with session.activate():
            names["test"]("new", second)
        session.end()
    files = {one.name: one.read_bytes() for one in _written_files(session, tmp_path)}
    assert files == {
        f"{file_stem('t[A/b]')}.txt": b"new\n",
        f"{file_stem('t[A/b]')}~2.txt": b"new\n",
        f"{file_stem('t[A/b]')}~3.txt": b"new\n",
        f"{file_stem('TestIt::t[a/b]')}.txt": b"new\n",
        f"{file_stem('TestIt::t[a/b]')}~2.txt": b"new\n",
        f"{file_stem('TestIt::t[a/b]')}~3.txt": b"n\0\n\xed\xa0\x80\xc3\xa9\n",
    }
    assert path.read_text() == SIDE
    session = Session()
    with session.activate():
        for _ in range(2):  # a test that runs again counts from one again
            session.begin("tests/test_written.py::TestIt::t[a/b]", path)
            names["test"]("new", "n\x00\n\ud800é")
        session.begin("tests/test_written.py::TestIt::t[a/b]", path)
        with pytest.raises(TextMismatchError, match=r"\(kept in .*~3\.txt\)\n--- expected\n\+\+\+ actual\n"):
            names["test"]("new", "old")


def _written_files(session, tmp_path):
    session.write().raise_if_refused()
    return (tmp_path / "__cudamem__" / "test_written").iterdir()


@pytest.mark.parametrize(
    "call",
    [
        "assert_text(actual, TEXT)",
        "assert_text(actual, *[TEXT])",
        "helper(actual, TEXT)",
        "assert_text(actual, TEXTS, key='cpu')",
    ],
)
def test_an_argument_that_is_no_literal_is_not_replaced(tmp_path, call):
    code = f"""
        TEXT, TEXTS = "old", {{"cpu": "old"}}
        def helper(actual, expected):
            assert_text(actual, expected)
        def test(actual):
            {call}
    """
    path, names = module(tmp_path, code)
    kept = side_file(path, "test")
    kept.parent.mkdir(parents=True)
    kept.write_text("new\n")  # of a time when the call had no argument
    before = path.read_text()
    with accepting():
        names["test"]("old")
        with pytest.raises(NotAcceptedError, match=r"\nnot accepted: the argument is not a literal: change the value "):
            names["test"]("new")
    with Session().activate():
        names["test"]("old")
        with pytest.raises(TextMismatchError, match=r"\n\+new\nthe argument is not a literal: .* in __cudamem__/$"):
            names["test"]("new")
    assert (path.read_text(), kept.read_text(), len([*kept.parent.iterdir()])) == (before, "new\n", 1)


def test_a_mapping_that_is_no_literal_lacks_a_text(tmp_path):
    _, names = module(tmp_path, "def test(device, texts):\n    assert_text(f'on {device}', texts, key=device)\n")
    with accepting(), pytest.raises(NotAcceptedError, match=r"there is no expected text for 'cuda:0' yet"):
        names["test"]("cuda:0", {"cpu": "on cpu"})
    assert not (tmp_path / "__cudamem__").exists()


def test_without_an_argument_the_text_is_in_a_side_file(tmp_path):
    path, names = module(tmp_path, "def test():\n    assert_text('a', None)\n")
    with accepting():
        names["test"]()
    assert side_file(path, "test").read_text() == "a\n"
    with Session().activate():
        names["test"]()


def test_a_side_file_that_is_not_text(tmp_path):
    path, names = module(tmp_path, "def test():\n    assert_text('a', None)\n")
    kept = side_file(path, "test")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"\xff")
    with accepting(), pytest.raises(NotAcceptedError, match=r"not accepted: .*test\.txt cannot be read: 'utf-8' codec"):
        names["test"]()
    assert kept.read_bytes() == b"\xff"


@given(st.lists(st.text(st.sampled_from("aA.:/[]-~@%é2 x"), max_size=9), min_size=2, max_size=2, unique=True))
def test_side_files_of_two_tests_never_meet(ids):
    names = [side_file(Path("t.py"), one, number=number) for one in ids for number in (1, 2)]
    assert len({str(name).lower() for name in names}) == 4
    assert all(name.parent == Path("__cudamem__/t") for name in names)


def test_names_of_side_files():
    assert file_stem("test_step[bf16-1.5]") == "test_step[bf16-1.5]"
    assert file_stem("test_step[a/b\\c é]") == "test_step[a%2fb%5cc%20%c3%a9]"
    assert file_stem("TestStep::test") == "TestStep.test~x57e042566a"
    assert len(file_stem("test_step[" + "x" * 1000 + "]")) == 162


@given(st.lists(st.text(st.sampled_from("aA.:/[]-~@%é2 x"), max_size=9), min_size=2, max_size=2, unique=True))
def test_dumps_of_two_tests_never_meet(ids):
    assert len({dump_stem(one).lower() for one in ids}) == 2
    assert not any("%2e" in dump_stem(f"a/b.py::{one}") for one in ids)


def test_names_of_dumps():
    assert dump_stem("suites/a/test_it.py::test_step[bf16-1.5]") == "suites.a.test_it.test_step[bf16-1.5]"
    assert dump_stem("test_it.py::TestStep::test") == "test_it.TestStep.test~x9e108c55da"
    assert dump_stem("a/README.md::README.md") == "a.README_md.README_md~x9dd47e58b2"


# -- contradictions ---------------------------------------------------------------------------------------

SHARED = "def test(actual):\n    assert_text(actual, 'old')\n    assert_text('b', 'a')\n"


@pytest.mark.parametrize("texts", [("new", "other"), ("old", "new"), ("new", "old")])
def test_two_texts_for_one_literal(tmp_path, texts):
    path, names = module(tmp_path, SHARED)
    session = Session(accept=True)
    with session.activate():
        session.begin("test_written.py::test[one]", path)
        names["test"](texts[0])
        session.begin("test_written.py::test[two]", path)
        with pytest.raises(ConflictError) as caught:
            names["test"](texts[1])
        session.begin("test_written.py::test[three]", path)
        with pytest.raises(ConflictError):
            names["test"]("third")
    assert str(caught.value).split("\n") == [
        f"two different texts are wanted in one place, {path}:2; neither will be written",
        "test_written.py::test[one] wants:",
        f"    | {texts[0]}",
        "test_written.py::test[two] wants:",
        f"    | {texts[1]}",
        "use separate calls, a text per key, or omit the argument: each parameter then gets a file in __cudamem__/",
    ]
    written = session.write()
    assert path.read_text() == SHARED.replace("'b', 'a'", "'b', 'b'")
    assert str(written).split("\n") == [
        "1 expected text written",
        f"    {path}  1",
        f"{path}: 3 texts were not written: contradicting texts for one place",
        "    line 2, test_written.py::test[one]:",
        f"        | {texts[0]}",
        "    line 2, test_written.py::test[two]:",
        f"        | {texts[1]}",
        "    line 2, test_written.py::test[three]:",
        "        | third",
    ]


def test_the_same_text_twice_is_fine(tmp_path):
    path, names = module(tmp_path, SHARED)
    with accepting():
        names["test"]("new")
        names["test"]("new\n")
    assert path.read_text() == SHARED.replace("'old'", "'new'").replace("'a'", "'b'")


# -- refusals ---------------------------------------------------------------------------------------------


def test_a_worker_of_xdist_refuses(tmp_path):
    path, names = module(tmp_path, "def test():\n    assert_text('a', 'a')\n    assert_text('new', 'old')\n")
    session = Session(accept=True, refusal="workers of xdist do not write files: run without -n")
    with session.activate(), pytest.raises(NotAcceptedError) as caught:
        names["test"]()
    assert str(caught.value).endswith("\n+new\nnot accepted: workers of xdist do not write files: run without -n")
    assert str(session.write()) == "no expected text has changed"
    assert path.read_text().count("old") == 1


def refused(session, path):
    before = path.read_bytes()
    written = session.write()
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    with pytest.raises(NotWrittenError) as caught:
        written.raise_if_refused()
    assert str(caught.value) == str(written)
    return str(written)


def test_a_read_only_file_is_not_written(tmp_path):
    path, names = module(tmp_path, "def test():\n    assert_text('n\\n\\nw', 'old')\n")
    path.chmod(0o444)
    session = Session(accept=True)
    with session.activate():
        names["test"]()
    assert refused(session, path) == (
        f"{path}: 1 text was not written: the file is read-only\n"
        f"    line 2, {path}::test:\n        | n\n        |\n        | w"
    )
    assert path.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("content", ["# edited\n", None])
def test_a_file_that_changed_during_the_run_is_not_written(tmp_path, content):
    path, names = module(tmp_path, "def test():\n    assert_text('new', 'old')\n")
    session = Session(accept=True)
    with session.activate():
        names["test"]()
    if content is None:
        path.unlink()
        assert "the file has changed since it was imported" in str(session.write())
        assert not path.exists()
        return
    path.write_text(content + path.read_text())
    assert "1 text was not written: the file has changed since it was imported" in refused(session, path)


@pytest.mark.parametrize("early", [True, False])
def test_a_file_changed_before_the_first_text_is_not_written(tmp_path, early):
    """Seen by its hash where the run watches the file; else by its function, position and value."""
    code = "def one():\n    assert_text('a', 'old')\ndef two():\n    assert_text('b', 'old')\n"
    path, names = module(tmp_path, code)
    session = Session(accept=True)
    if early:
        session.begin("test_written.py::one", path)
    path.write_text(code[:-1] + " # later\n" if early else "def zero():\n    pass\n" + code)
    with (
        session.activate(),
        pytest.raises(NotAcceptedError, match="not accepted: the file has changed since it was imp"),
    ):
        names["two"]()
    assert "old" in path.read_text()
    assert session.write().files == ()


def test_a_literal_with_another_value_is_not_the_one_that_ran(tmp_path):
    path, names = module(tmp_path, "def test():\n    assert_text('b', 'old')\n")
    path.write_text(path.read_text().replace("old", "odd"))
    with accepting(), pytest.raises(NotAcceptedError, match="not accepted: the file has changed since it was imported"):
        names["test"]()
    assert "odd" in path.read_text()


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path, names = module(tmp_path, "def test():\n    assert_text('new', 'old')\n")
    session = Session(accept=True)
    with session.activate():
        names["test"]()
    monkeypatch.setattr(Path, "replace", fail)
    assert "1 text was not written: No space left on device\n" in refused(session, path)


def test_replace_file_follows_links(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for content in (b"made", b"replaced"):
        replace_file(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_bytes() == content


def test_replace_file_makes_folders_and_respects_the_umask(tmp_path):
    replace_file(tmp_path / "a" / "b.txt", b"x")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"x"
    assert (tmp_path / "a" / "b.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


# -- nothing is kept --------------------------------------------------------------------------------------


def test_frames_and_locals_of_tests_are_not_kept():
    class Local:
        pass

    def test(session):
        local = Local()
        assert_text("a", "a", session=session)
        with contextlib.suppress(TextMismatchError):
            assert_text("b", "a", session=session)
        return weakref.ref(local)

    gc.disable()
    try:
        sessions = [Session(), Session(accept=True), Session(accept=True, refusal="no")]
        assert [test(session)() for session in sessions] == [None, None, None]
    finally:
        gc.enable()


# -- expecttest -------------------------------------------------------------------------------------------

MIXED = '''
class Test(expecttest.TestCase):
    def test(self):
        assert_text("ours", "old")
        self.assertExpectedInline("a\\nb", """old""")
        assert_text("late", "old")
'''


def test_expecttest_rewrites_first_and_ours_waits_for_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(expecttest, "ACCEPT", True)
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    path, names = module(tmp_path, MIXED)
    session = Session(accept=True)
    with session.activate():
        names["Test"]("test").test()
    reason = "the file has changed since it was imported (expecttest's own fun"
    assert f"2 texts were not written: {reason}" in str(session.write())
    theirs = MIXED.replace('"""old"""', '"""\\\na\nb"""')
    assert path.read_text() == theirs
    names = {"assert_text": assert_text, "expecttest": expecttest}
    exec(compile(path.read_bytes(), str(path), "exec"), names)
    with accepting():
        names["Test"]("test").test()
    assert path.read_text() == theirs.replace('"ours", "old"', '"ours", "ours"').replace(
        '"late", "old"', '"late", "late"'
    )


def test_expecttest_takes_the_same_text():
    expecttest.assert_expected_inline("a\nb", "a\nb")


# -- under pytest -----------------------------------------------------------------------------------------

CONFTEST = """
import pytest
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.records.expected.session import Session

session = Session(accept=True)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    session.begin(item.nodeid, item.path)
    with session.activate():
        return (yield)

def pytest_sessionfinish():
    print(session.write())

class Result:
    def check(self, expected):
        assert_text("new", expected, depth=2)
        return True

@pytest.fixture
def result():
    return Result()
"""

TESTS = """
import unittest
import pytest
from cudamem_testing.records.expected.check import assert_text

@pytest.mark.parametrize("n", [1, 2])
def test_rewritten_asserts(result, n):
    assert result.check("old") and (
        result.check("older")
    ), result.check("unused")
    assert [True] == [result.check(expected="old") for _ in range(1)] and result.check("oldest")

@pytest.mark.parametrize("n", ["a", "b"])
def test_parameters(result, n):
    assert result.check(None)

@pytest.mark.parametrize("n", [1, 2])
def test_contradiction(n):
    assert_text(f"n {n}", "old")

class TestCase(unittest.TestCase):
    def test(self):
        assert_text("new", "old")
"""


@pytest.mark.subprocess
def test_rewritten_asserts_parameters_and_unittest(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    path = tmp_path / "test_written.py"
    path.write_text(TESTS)
    command = ["-m", "pytest", "-q", "-p", "no:cudamem", "-p", "no:cacheprovider", "--rootdir", ".", "-W", "ignore"]
    done = subprocess.run([forked.python(), *command], cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    assert "ConflictError: two different texts are wanted in one place, test_written.py:19;" in done.stdout
    after = TESTS.replace('"old"', '"new"').replace('"older"', '"new"').replace('"oldest"', '"new"')
    assert path.read_text() == after.replace('f"n {n}", "new"', 'f"n {n}", "old"')
    kept = tmp_path / "__cudamem__" / "test_written"
    assert {one.name: one.read_text() for one in kept.iterdir()} == {
        "test_parameters[a].txt": "new\n",
        "test_parameters[b].txt": "new\n",
    }
