"""File names of tests: for texts of calls without an argument, and for dumps.

Such a text is kept in ``__cudamem__/<module>/<test>.txt`` beside the test module. Two tests never share a name:
every character that file systems treat differently is percent-encoded, and a name with capital letters or of
great length ends in a hash of the test's id, for file systems that fold case.

PYTEST_DONT_REWRITE
"""

import hashlib
import string
from pathlib import Path

from cudamem_testing.show.places import side_folder

_PLAIN = frozenset(string.ascii_letters + string.digits + "_")
_PLAIN_IN_FILES = _PLAIN | frozenset("-")
_PLAIN_IN_PARAMETERS = _PLAIN | frozenset("-.,=+[]")
_LONGEST = 150


def side_file(module: Path, test: str, *, number: int = 1) -> Path:
    """Return the file for one text.

    Args:
        module: path of the test module.
        test: id of the test inside its module, ``TestCase::test_name[parameters]``.
        number: counts the texts of one test, from 1.
    """
    name = file_stem(test)
    if number > 1:
        name += f"~{number}"
    return side_folder(module) / f"{name}.txt"


def file_stem(test: str) -> str:
    """Return a file name for `test` that no other id has."""
    return _told_apart(_encoded_test(test), test)


def dump_stem(nodeid: str) -> str:
    """Return a file name for a whole node id that no other id has: ``suites/test_a.py::test_it`` becomes
    ``suites.test_a.test_it``. Where that reading leaves a doubt, it ends in a hash of the id.
    """
    head, bracket, parameters = nodeid.partition("[")
    file, *tests = head.split("::")
    given = [*file.removesuffix(".py").split("/"), *tests]
    names = ["".join(char if char in _PLAIN_IN_FILES else "_" for char in one) for one in given]
    name = ".".join(names) + _encoded(bracket + parameters, _PLAIN_IN_PARAMETERS)
    return _told_apart(name, nodeid, doubt=names != given or not file.endswith(".py") or not all(names))


def _encoded_test(test: str) -> str:
    head, bracket, parameters = test.partition("[")
    name = ".".join(_encoded(part, _PLAIN) for part in head.split("::"))
    return name + _encoded(bracket + parameters, _PLAIN_IN_PARAMETERS)


def _told_apart(name: str, test: str, doubt: bool = False) -> str:
    """The name, with a hash of the test's id where file systems or this encoding could confuse it with another."""
    if doubt or name != name.lower() or len(name) > _LONGEST:
        mark = hashlib.sha256(test.encode("utf-8", "surrogatepass")).hexdigest()[:10]
        return f"{name[:_LONGEST]}~x{mark}"
    return name


def read_side_file(path: Path) -> str | None:
    """Return the text in `path`, or None if there is no such file.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
        OSError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogatepass")
    except FileNotFoundError:
        return None


def side_content(text: str) -> bytes:
    """Return what a side file with this text holds: UTF-8, one line end after the text."""
    return (text + "\n" if text else "").encode("utf-8", "surrogatepass")


def _encoded(text: str, plain: frozenset[str]) -> str:
    return "".join(
        char if char in plain else "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in text
    )
