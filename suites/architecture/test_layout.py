"""What every module of the package keeps to, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from suites.architecture.source import MODULES, PACKAGE, dotted, imports, name, tree, walk

pytestmark = pytest.mark.slow  # it reads the source, and shows nothing that a user sees

SOURCES = sorted([*MODULES, *PACKAGE.rglob("*.cpp"), *PACKAGE.rglob("*.h")])
A_LONG_NAME = "test_middle_of_a_long_name_that_goes_on_and_on_until_it_does_not_fit_into_the_line"
PROCESS_WIDE = {
    "gc.set_debug",
    "gc.disable",
    "gc.enable",
    "gc.freeze",
    "gc.unfreeze",
    "gc.set_threshold",
    "os.putenv",
    "os.umask",
    "os.chdir",
    "sys.setprofile",
    "sys.settrace",
    "sys.setrecursionlimit",
    "threading.setprofile",
    "warnings.simplefilter",
    "warnings.filterwarnings",
    "setattr",
}


def private(path: str) -> bool:
    """Whether a dotted path goes through a private name of torch."""
    first, *rest = path.split(".")
    return first == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def test_the_package_is_found() -> None:
    assert len(MODULES) > 40
    assert "torch_api/__init__.py" in map(name, MODULES)


def broken(rule: Callable[[Path, ast.Module], object], paths: Iterable[Path] = MODULES) -> dict[str, object]:
    """What the rule finds, by file."""
    found = {name(path): rule(path, tree(path)) for path in paths}
    return {place: fault for place, fault in found.items() if fault}


def test_a_module_says_what_it_is_for_and_is_not_rewritten() -> None:
    def unsaid(path: Path, module: ast.Module) -> bool:
        text = ast.get_docstring(module) or ""
        first = text.splitlines()[0].removesuffix("PYTEST_DONT_REWRITE").strip() if text else ""
        return not text.endswith("PYTEST_DONT_REWRITE") or not first

    assert broken(unsaid) == {}


def test_no_path_of_a_machine() -> None:
    pattern = re.compile(r"/(?:work|home|root|Users|tmp|opt|mnt)/\S*|[A-Z]:\\\\\S*")
    assert broken(lambda path, module: pattern.findall(path.read_text(encoding="utf-8")), SOURCES) == {}


def private_names(path: Path, module: ast.Module) -> set[str]:
    return {found for found in (*map(dotted, walk(module)), *imports(module)) if private(found)}


def test_private_torch_stays_in_one_place() -> None:
    found = broken(private_names)
    assert {place: names for place, names in found.items() if not place.startswith("torch_api/")} == {}
    assert {f"torch_api/{topic}.py" for topic in ("cuda", "history", "operators", "profiler", "tensors")} <= {*found}


def test_pytest_is_imported_by_the_plugin_alone() -> None:
    def testing(path: Path, module: ast.Module) -> list[str]:
        return [one for one in imports(module) if one.split(".")[0] in ("pytest", "_pytest", "pluggy", "xdist")]

    assert [place for place in broken(testing) if not place.startswith("plugin/")] == []


def test_errors_are_raised_and_not_asserted() -> None:
    def asserts(path: Path, module: ast.Module) -> list[int]:
        return [node.lineno for node in walk(module) if isinstance(node, ast.Assert)]

    assert broken(asserts) == {}


def test_process_wide_state_is_changed_by_the_guards_alone() -> None:
    def changes(path: Path, module: ast.Module) -> list[str]:
        found = []
        for node in walk(module):
            if isinstance(node, ast.Call) and dotted(node.func) in PROCESS_WIDE:
                found.append(f"{node.lineno}: {dotted(node.func)}")
            elif isinstance(node, (ast.Assign, ast.Delete)):
                targets = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
                found += [f"{node.lineno}: os.environ" for target in targets if dotted(target) == "os.environ"]
        return found

    assert {place: found for place, found in broken(changes).items() if not place.startswith("guards/")} == {}


def test_a_module_can_be_read_in_one_sitting() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {place: length for place, length in lengths.items() if length > 420} == {}


def test_names_of_tests_are_short() -> None:
    suites = [path.read_text(encoding="utf-8") for path in sorted((PACKAGE.parent / "suites").rglob("test_*.py"))]
    names = [name for text in suites for name in re.findall(r"^(?:    )?(?:async )?def (test_\w+)", text, re.M)]
    long = [name for name in names if len(name) >= 60]
    assert (len(names) > 1000, long) == (True, [A_LONG_NAME])  # of a program in a string


def test_the_plugin_holds_hooks_and_little_else() -> None:
    lines = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert sum(length for place, length in lines.items() if place.startswith("plugin/")) <= 2500


def test_what_is_printed_is_made_safe_in_one_place() -> None:
    """A terminal is written to by ``say``, or by pytest's writer with a text that is printable."""

    def unsafe(path: Path, module: ast.Module) -> list[str]:
        found = []
        for node in walk(module):
            function = dotted(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and function.endswith("write_line"):
                made = dotted(node.args[0].func) if isinstance(node.args[0], ast.Call) else ""
                found += [] if made in ("printable", "one_line") else [f"{node.lineno}: write_line"]
            elif function == "print" and name(path) != "show/printable.py":
                found.append(f"{node.lineno}: print")
        return found

    found = broken(unsafe)
    assert [place for place in found if place != "plugin/__init__.py"] == []  # which writes a number of its own


def test_what_the_package_requires_is_imported_by_it() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    required = re.findall(r'"([\w-]+)', re.search(r"^dependencies = \[(.*?)\]", text, re.M | re.S)[1])
    imported = {one.split(".")[0] for path in MODULES for one in imports(tree(path))}
    assert required
    assert [name for name in required if name not in imported] == []


def kinds_compared(path: Path, module: ast.Module) -> list[int]:
    """Lines that compare something's ``kind`` or ``type`` with the kind of a device, spelt out."""
    return [
        node.lineno
        for node in walk(module)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr in ("kind", "type")
        and any(isinstance(one, ast.Constant) and one.value in DEVICES for one in node.comparators)
    ]


#: Kinds of devices, and where code may ask for one: what measures them, and what decides on which side of a capture a
#: tensor is. Everything else asks for what it needs to know, such as ``device.has_segments``.
DEVICES = ("cpu", "cuda", "host")
BY_DEVICE = ("recorders/", "windows/", "torch_api/", "simulated/", "model/devices.py", "graphs/")


def test_code_depends_on_abilities_of_a_device_not_its_kind() -> None:
    found = broken(kinds_compared)
    assert {place: lines for place, lines in found.items() if not place.startswith(BY_DEVICE)} == {}
    assert found  # those that may
