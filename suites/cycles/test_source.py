"""The line that closes a cycle: the store that made the reference, or none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cudamem_testing.cycles import source
from cudamem_testing.cycles.results import Link, Origin
from cudamem_testing.cycles.source import Sources
from cudamem_testing.model.stacks import Locator

METHOD = ("method", "step")
TRAINER = """\
class Trainer:
    def __init__(self, size):
        self.fn = None
        self.total = size

    def on(self):
        self.fn = self.step

    def step(self):
        pass
"""
HOOKED = """\
class Base:
    def __init__(self):
        self._register(self.step)
        self.step()

    def step(self):
        pass

class Sub(Base):
    pass
"""


def closed_by(folder: Path, source: str, *links: Link, near: int = 0) -> str | None:
    """What is said for a file ``it.py`` with this source; ``near`` is a line of it that allocated."""
    file = folder / "it.py"
    file.write_text(source)
    places = [Link(one.name, tuple((str(file), cls) for _, cls in one.classes), one.function, one.stored, one.running,
                   one.itself) for one in links]  # fmt: skip
    origin = Origin(tuple(places), ((str(file), near),) if near else ())
    return Sources(Locator(str(folder))).closed_by(origin)


def link(
    name: str | int | None, *classes: str, stored: tuple[str, str] = ("instance", "?"), itself: bool = False
) -> Link:
    return Link(name, tuple(("", cls) for cls in classes), None, stored, itself=itself)


def test_an_initialiser_is_no_store_of_a_method(tmp_path: Path) -> None:
    links = link("fn", "Trainer", stored=METHOD), link("__self__")
    assert closed_by(tmp_path, TRAINER, *links) == "it.py:7: self.fn = self.step"


def test_an_annotated_initialiser_is_none_either(tmp_path: Path) -> None:
    source = "class A:\n    e: B | None = None\n    def attach(self, engine):\n        self.e: B | None = engine\n"
    assert closed_by(tmp_path, source, link("e", "A", stored=("instance", "B"))) == "it.py:4: self.e: B | None = engine"


def test_a_method_that_is_passed_on_in_a_base_class(tmp_path: Path) -> None:
    links = link(None, "Sub", "Base"), link("hook", stored=METHOD), link("__self__")
    assert closed_by(tmp_path, HOOKED, *links) == "it.py:3: self._register(self.step)"


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self, x):\n        self.b = x\n    def g(self, y):\n        self.b = y\n",
        "class A:\n    def f(self):\n        self.b = None\n",
        "class A:\n    def f(self):\n        self.c = self\n",
        "class A:\n    def f(self: )\n",
    ],
    ids=["two may have made it", "only None", "another attribute", "no source"],
)
def test_where_the_store_is_not_known_there_is_none(tmp_path: Path, source: str) -> None:
    assert closed_by(tmp_path, source, link("b", "A")) is None


def test_of_two_stores_the_one_that_surely_made_it(tmp_path: Path) -> None:
    source = "class A:\n    def f(self, x):\n        self.b = x\n    def g(self):\n        self.b = B(self)\n"
    assert closed_by(tmp_path, source, link("b", "A", stored=("instance", "B"))) == "it.py:5: self.b = B(self)"


def test_of_stores_in_one_function_the_last(tmp_path: Path) -> None:
    source = "def test_it():\n    a, b = A(), B()\n    b.up = a\n    a.down = b\n"
    links = link("down", stored=("instance", "B")), link("up", stored=("instance", "A"))
    assert closed_by(tmp_path, source, *links, near=2) == "it.py:4: a.down = b"


@pytest.mark.parametrize(
    ("line", "one"),
    [
        ('child.__dict__["up"] = parent', link("up")),
        ('setattr(child, "up", parent)', link("up")),
        ('object.__setattr__(child, "up", parent)', link("up")),
        ('d["d"] = d', link("d", stored=("dict", ""), itself=True)),
        ("items.append(items)", link(1, stored=("list", ""), itself=True)),
        ("child.up, other = parent, 3", link("up")),
        ("child.up = lambda: child", link("up", stored=("function", "<lambda>"))),
        ("child.up = [parent]", link("up", stored=("list", ""))),
        ("child.up = (step for step in child)", link("up", stored=("running", "<genexpr>"))),
    ],
)
def test_spellings_of_a_store(tmp_path: Path, line: str, one: Link) -> None:
    source = f"def other():\n    child.up = None\n\ndef test_it():\n    big = zeros()\n    {line}\n"
    assert closed_by(tmp_path, source, one, near=5) == f"it.py:6: {line}"


@pytest.mark.parametrize(
    ("sure", "perhaps", "stored"),
    [
        ('setattr(child, "up", B(child))', "child.up = made", ("instance", "B")),
        ("child.up = B(child)", "child.up = wrapped(B)", ("instance", "B")),
        ("child.up = step", "child.up = lambda: other()", ("function", "step")),
        ("child.up = lambda: child", "child.up = named", ("function", "<lambda>")),
        ("child.up = module.step", "child.up = partial(other)", ("function", "step")),
        ("child.up = self.step", "child.up = other", METHOD),
        ("child.up = dict(a=child)", "child.up = listed", ("dict", "")),
        ("child.up, other = B(child), 3", "child.up, other = pair", ("instance", "B")),
        ("child.up: B = B(child)", "child.up, *other = pair", ("instance", "B")),
    ],
)
def test_a_store_that_is_sure_is_told_from_others(
    tmp_path: Path, sure: str, perhaps: str, stored: tuple[str, str]
) -> None:
    """In either order."""
    for lines in ((sure, perhaps), (perhaps, sure)):
        source = "def test_it():\n    big = zeros()\n" + "".join(f"    {line}\n" for line in lines)
        place = 3 + lines.index(sure)
        assert closed_by(tmp_path, source, link("up", stored=stored), near=2) == f"it.py:{place}: {sure}"


def test_an_item_is_looked_for_in_the_functions_around(tmp_path: Path) -> None:
    """To their last line, and not elsewhere in the file: it has no name."""
    source = "def test_it():\n    big = zeros()\n    items.append(items)\n\ndef other():\n    big = zeros()\n"
    own = link(1, stored=("list", ""), itself=True)
    assert closed_by(tmp_path, source, own, near=2) == "it.py:3: items.append(items)"
    assert closed_by(tmp_path, source, own, near=6) is None
    named = "def test_it():\n    big = zeros()\n\ndef other():\n    child.up = parent\n"
    assert closed_by(tmp_path, named, link("up"), near=2) == "it.py:5: child.up = parent"


def test_the_name_of_a_class_that_is_mentioned_is_no_store(tmp_path: Path) -> None:
    source = "class A:\n    def f(self):\n        use(self.B)\n"
    assert closed_by(tmp_path, source, link("b", "A", stored=("instance", "B"))) is None


@pytest.mark.parametrize("decorators", ["", "@first\n", "@first\n@second(1)\n"])
def test_a_closure_is_named_by_its_definition(tmp_path: Path, decorators: str) -> None:
    """Python numbers a decorated function by its first decorator."""
    (tmp_path / "it.py").write_text(f"\n{decorators}def held(x):\n    pass\n")
    function = (str(tmp_path / "it.py"), 2, "held")
    found = Sources(Locator(str(tmp_path))).closed_by(Origin((Link("cell", (), function, ("cell", "")),)))
    assert found == f"it.py:{2 + decorators.count('@')}: def held(x):"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("kept = error", 3),
        ("kept = None\n    kept = error", 4),
        ("with raises(ValueError) as kept:\n        pass", 3),
        ("for kept in errors:\n        pass", 3),
        ("if (kept := error):\n        pass", 3),
        ("other, kept = 1, error", 3),
        ("kept = first\n    kept = second", None),
        ("pass", None),
        ("def inner():\n        kept = error", None),
    ],
    ids=[
        "set",
        "not None",
        "with",
        "for",
        "walrus",
        "unpacked",
        "two may have made it",
        "argument",
        "another function",
    ],
)
@pytest.mark.parametrize("decorator", ["", "@decorated\n"])
def test_the_store_to_a_local_variable(tmp_path: Path, body: str, place: int | None, decorator: str) -> None:
    file = tmp_path / "it.py"
    file.write_text(f"kept = other\n{decorator}def work(error):\n    {body}\n\ndef last():\n    kept = other\n")
    frame = Link("kept", (), (str(file), 2, "work"), ("instance", "ValueError"), frame=True)
    found = Sources(Locator(str(tmp_path))).closed_by(Origin((frame, link("__traceback__"), link("tb_frame"))))
    number = None if place is None else place + len(decorator.splitlines())
    line = None if number is None else file.read_text().splitlines()[number - 1].strip()
    assert found == (None if number is None else f"it.py:{number}: {line}")


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    for count, shown in ((68, f"{'x' * 68})"), (69, f"{'x' * 66}...")):
        source = f"class A:\n    def f(self):\n        self.b = B({'x' * count})\n"
        found = closed_by(tmp_path, source, link("b", "A", stored=("instance", "B")))
        assert found == f"it.py:3: self.b = B({shown}"
        assert len(shown) == 69


def test_a_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it.py").write_text(TRAINER)
    sources, parsed, parse = Sources(Locator(str(tmp_path))), [], ast.parse
    monkeypatch.setattr(source, "_parse", lambda text: parsed.append(1) or parse(text))
    for attribute in ("fn", "other", "third"):
        sources.closed_by(Origin((Link(attribute, ((str(tmp_path / "it.py"), "Trainer"),), None, METHOD),)))
    assert len(parsed) == 1
