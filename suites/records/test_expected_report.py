"""Texts accepted from what a run kept of its checks: the same files as the run itself would write, and nothing else."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from cudamem_testing.model.callsite import CallSite
from cudamem_testing.model.checked import Checked
from cudamem_testing.records.expected.accept import OTHER, accept_texts
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.records.expected.session import Session
from cudamem_testing.records.expected.side import side_file

TESTS = """
def test(actual, first="a"):
    assert_text(first, "a")
    assert_text(actual, "old")

def test_devices(actual, device):
    assert_text(actual, {"cpu": "old"}, key=device)

def test_side(actual):
    assert_text("same", None)
    assert_text(actual, None)

def test_value(actual, expected):
    assert_text(actual, expected)

def test_asis(actual):
    same = assert_text
    same(actual, "old")
"""


class Project:
    """A test file in a folder, and the checks of its functions as a run would keep them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "tests" / "test_it.py"
        self.path.parent.mkdir()
        self.write(TESTS)
        self.checks: list[Checked] = []
        self.session = Session(keep=True)

    def write(self, text: str) -> None:
        self.path.write_text(textwrap.dedent(text), encoding="utf-8")
        self.names: dict[str, object] = {"assert_text": assert_text}
        exec(compile(self.path.read_bytes(), str(self.path), "exec"), self.names)

    def run(self, name: str, *args: str, test: str | None = None) -> Checked:
        """Run one function; the last check that was kept."""
        self.session.begin(f"tests/test_it.py::{test or name}", self.path)
        with self.session.activate():
            try:
                self.names[name](*args)  # type: ignore[operator]
            except TextMismatchError as error:
                self.checks += [one.below(self.root) for one in (error.checked,) if one is not None]
        self.checks += [one.below(self.root) for one in self.session.right]
        return self.checks[-1]

    def accept(self, *checks: Checked) -> list[str]:
        """What is said of it, a line each, with paths below the root."""
        return str(accept_texts(self.root, checks or self.checks)).replace(f"{self.root}/", "").split("\n")

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_literal_is_written(project: Project) -> None:
    project.run("test", "new\ntext")
    assert [str(one) for one in project.checks] == [
        "tests/test_it.py::test: tests/test_it.py:4 has another text",
        "tests/test_it.py::test: tests/test_it.py:3 is right",
    ]
    assert project.accept() == ["1 expected text written", "    tests/test_it.py  1"]
    assert project.text == TESTS.replace(
        'assert_text(actual, "old")\n\ndef test_dev',
        'assert_text(actual, """\n        new\n        text\n        """)\n\ndef test_dev',
    )
    assert accept_texts(project.root, []).files == ()
    assert project.accept()[0] == f"tests/test_it.py: 1 text was not written: {OTHER}"  # a second time says so


def test_a_check_in_a_loop_is_kept_once(project: Project) -> None:
    project.write("def test(actual):\n    for _ in range(9):\n        assert_text(actual, 'old')\n")
    project.run("test", "old")
    assert [str(one) for one in project.checks] == ["tests/test_it.py::test: tests/test_it.py:3 is right"]


def test_texts_by_device(project: Project) -> None:
    project.run("test_devices", "new", "cpu")
    project.run("test_devices", "card", "cuda", test="test_devices[cuda]")
    assert project.accept() == ["2 expected texts written", "    tests/test_it.py  2"]
    assert '{"cpu": "new", "cuda": "card"}' in project.text


def test_side_files(project: Project) -> None:
    """Numbered among all checks without an argument of the test, also of those that were right."""
    first = side_file(project.path, "test_side[A]")
    first.parent.mkdir(parents=True)
    first.write_text("same\n", encoding="utf-8")
    project.run("test_side", "new", test="test_side[A]")
    (check,) = project.checks
    kept = side_file(project.path, "test_side[A]", number=2)
    assert (check.file, check.digest, check.call) == (kept.relative_to(project.root).as_posix(), None, None)
    assert project.accept() == ["1 expected text written", f"    {check.file}  1"]
    assert kept.read_text(encoding="utf-8") == "new\n"
    assert project.accept() == [
        f"{check.file}: 1 text was not written: {OTHER}",
        "    line 1, tests/test_it.py::test_side[A]:",
        "        | new",
    ]
    project.checks.clear()
    project.session = Session(keep=True)
    project.run("test_side", "newer", test="test_side[A]")
    assert project.accept()[0] == "1 expected text written"
    assert kept.read_text(encoding="utf-8") == "newer\n"


def test_a_value_that_is_no_literal_is_not_written(project: Project) -> None:
    project.run("test_value", "new", "old")
    assert [str(one) for one in project.checks] == [
        "tests/test_it.py::test_value: tests/test_it.py:14 has another text"
    ]
    assert project.accept()[0] == "tests/test_it.py: 1 text was not written: the argument there is no literal"
    assert not (project.path.parent / "__cudamem__").exists()
    project.checks.clear()
    project.session = Session(keep=True)
    project.session.begin("tests/test_it.py::test_value", project.path)
    with project.session.activate():
        project.names["test_value"]("old", "old")  # type: ignore[operator]
    assert not project.session.right


def test_two_tests_that_want_two_texts_are_both_named(project: Project) -> None:
    for name, text in (("test[a]", "new"), ("test[b]", "other")):
        project.run("test", text, test=name)
    assert project.accept() == [
        "tests/test_it.py: 2 texts were not written: contradicting texts for one place",
        "    line 4, tests/test_it.py::test[a]:",
        "        | new",
        "    line 4, tests/test_it.py::test[b]:",
        "        | other",
    ]
    assert project.text == TESTS


def test_a_test_that_is_content_with_the_text_is_named_too(project: Project) -> None:
    for name, text in (("test[a]", "old"), ("test[b]", "other"), ("test[c]", "old")):
        project.run("test", text, test=name)
    assert project.accept() == [
        "tests/test_it.py: 3 texts were not written: contradicting texts for one place",
        "    line 4, tests/test_it.py::test[b]:",
        "        | other",
        "    line 4, tests/test_it.py::test[a]:",
        "        | old",
        "    line 4, tests/test_it.py::test[c]:",
        "        | old",
    ]
    assert project.text == TESTS


def test_an_entry_that_is_right_stands_beside_one_that_is_not(project: Project) -> None:
    project.write(TESTS.replace('{"cpu": "old"}', '{"cpu": "old", "cuda": "old"}'))
    project.run("test_devices", "old", "cpu", test="test_devices[cpu]")
    project.run("test_devices", "new", "cuda", test="test_devices[cuda]")
    assert project.accept()[0] == "1 expected text written"
    assert '{"cpu": "old", "cuda": "new"}' in project.text


def test_a_plain_text_holds_for_every_device(project: Project) -> None:
    project.write(TESTS.replace('{"cpu": "old"}', '"old"'))
    project.run("test_devices", "old", "cpu", test="test_devices[cpu]")
    project.run("test_devices", "new", "cuda", test="test_devices[cuda]")
    assert project.accept()[0] == "tests/test_it.py: 2 texts were not written: contradicting texts for one place"


def test_a_file_that_changed_is_not_written(project: Project) -> None:
    project.run("test", "new")
    project.path.write_text("# a line\n" + TESTS, encoding="utf-8")
    assert project.accept() == [
        f"tests/test_it.py: 1 text was not written: {OTHER}",
        "    line 4, tests/test_it.py::test:",
        "        | new",
    ]
    project.path.unlink()
    assert project.accept()[0] == f"tests/test_it.py: 1 text was not written: {OTHER}"
    assert not project.path.exists()


def test_a_read_only_file_is_not_written(project: Project) -> None:
    project.run("test", "new")
    project.path.chmod(0o444)
    assert project.accept()[0] == "tests/test_it.py: 1 text was not written: the file is read-only"
    assert project.text == TESTS


# -- what a report can ask for ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["/tmp/x.py", "../test_it.py", "tests/../../x.py", "", ".", "tests/out/x.py"])
def test_paths_lie_below_the_root(project: Project, file: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (project.path.parent / "out").symlink_to(outside)
    (outside / "x.py").write_text(TESTS, encoding="utf-8")
    check = project.run("test_devices", "new", "cpu")
    lines = project.accept(replace(check, file=file))
    assert lines[0].endswith(f"1 text was not written: it does not lie below {project.root}")
    assert (outside / "x.py").read_text(encoding="utf-8") == TESTS


def test_a_name_that_is_none(project: Project) -> None:
    check = project.run("test_devices", "new", "cpu")
    assert "1 text was not written: its name cannot be read: " in project.accept(replace(check, file="a\0b"))[0]
    assert project.accept(replace(check, file="tests"))[0] == (
        "tests: 1 text was not written: tests cannot be read: Is a directory"
    )


@pytest.mark.parametrize("file", ["tests/notes.txt", "tests/__cudamem__/test_it.json", "__cudamem__/x.txt", "setup.py"])
def test_of_other_files_nothing_is_written(project: Project, file: str) -> None:
    check = replace(project.run("test_side", "new"), file=file)
    assert project.accept(check)[0] == (
        f"{file}: 1 text was not written: it is not a file of expected texts, which are in __cudamem__"
    )
    assert not (project.root / file).exists()


def test_only_literals_of_assertions_are_written(project: Project) -> None:
    project.run("test_asis", "new")
    reason = "the call there is not an assertion but same"
    assert project.accept()[0] == f"tests/test_it.py: 1 text was not written: {reason}"
    assert project.text == TESTS


def test_only_literals_are_written(project: Project) -> None:
    project.write("def test(actual):\n    assert_text(actual, str('old'))\n")
    call = CallSite("tests/test_it.py", "test", 1, 2, None, "assert_text", "expected", 1)
    digest = Session().edits.digest(project.path)
    check = Checked("tests/test_it.py::test", "tests/test_it.py", digest, call, None, "old", "new")
    assert project.accept(check)[0] == "tests/test_it.py: 1 text was not written: the argument there is no literal"


def test_a_literal_of_another_value_is_not_the_one(project: Project) -> None:
    check = project.run("test_devices", "new", "cpu")
    lines = project.accept(replace(check, expected={"cpu": "odd"}))
    assert lines[0].startswith("tests/test_it.py: 1 text was not written: the file has changed since it was imported")
    assert project.text == TESTS
