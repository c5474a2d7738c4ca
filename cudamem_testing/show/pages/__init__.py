"""The shell of every page that is written: one file that opens without a network.

The browser's side of a view is its scripts beside this module; the template is ``page.html``. Graphs of objects are
drawn by cytoscape.js (MIT, ``cytoscape.LICENSE``), everything else by our own scripts as SVG. Data goes into the page
as JSON inside a script element that is never run; nothing of it is ever read as HTML. The page's policy allows no
network, and no script but those that the page was written with (by their SHA-256).

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from cudamem_testing.show.printable import one_line, printable

if TYPE_CHECKING:
    from jinja2 import Template


class View(NamedTuple):
    """What shows a page's data: scripts in their order, each a unit of files that share their names, and styles.

    ``look`` is the view whose styles it shares; empty for its own.
    """

    scripts: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...] = ("page.css",)
    look: str = ""


#: The place of the data in the rendered template: a character that no text of a page has.
_DATA = "\0"
_COMMON = ("dom.js", "sizes.js")
VIEWS: Mapping[str, View] = {
    "diagram": View((("cytoscape.min.js",), ("dom.js", "diagram.js")), ("page.css", "diagram.css")),
    "lifetimes": View(((*_COMMON, "lifetimes.js"),), ("page.css", "lifetimes.css")),
    "report": View(
        (
            (
                *(*_COMMON, "curve.js", "icicle.js", "table.js", "facts.js"),
                *("theme.js", "overview.js", "test.js", "compare.js", "report.js"),
            ),
        ),
        ("page.css", "report.css", "charts.css"),
    ),
    "snapshot": View(
        ((*_COMMON, "curve.js", "icicle.js", "facts.js", "theme.js", "memory_map.js", "snapshot.js"),),
        ("page.css", "report.css", "charts.css", "snapshot.css"),
        "report",
    ),
}


@dataclass(frozen=True, slots=True)
class Listing:
    """A list in a page's data whose elements are made while it is written, so that they never all exist at once.

    ``elements`` gives them, each time that it is called.
    """

    elements: Callable[[], Iterable[object]]


def page(title: str, data: Mapping[str, object], view: str) -> str:
    """A page that shows ``data`` with the scripts of one of ``VIEWS``.

    Args:
        title: what the page is about, plain text.
        data: anything that JSON can say; a value may be a :class:`Listing`.
        view: the name of the view.
    """
    return "".join(page_pieces(title, data, view))


def page_pieces(title: str, data: Mapping[str, object], view: str) -> Iterator[str]:
    """The text of :func:`page`, in pieces."""
    shown = VIEWS[view]
    scripts = [_script(unit) for unit in shown.scripts]
    text = _template().render(
        title=one_line(title),
        view=f"{shown.look} {view}".strip(),
        style=_as_is("\n".join(map(_asset, shown.styles))),
        data=_as_is(_DATA),
        scripts=[_as_is(script) for script in scripts],
        hashes=_as_is(" ".join(f"'sha256-{_digest(script)}'" for script in scripts)),
    )
    before, _, after = text.partition(_DATA)
    yield before
    yield from script_pieces(data)
    yield after


def script_pieces(data: Mapping[str, object]) -> Iterator[str]:
    """The data as JSON that is valid inside a script element, in pieces; every text in it is safe to show."""
    start = "{"
    for key, value in data.items():
        yield f"{start}{in_script(printable(key))}:"
        start = ","
        if isinstance(value, Listing):
            yield "["
            for number, one in enumerate(value.elements()):
                yield f"{',' if number else ''}{in_script(_safe(one))}"
            yield "]"
        else:
            yield in_script(_safe(value))
    yield "}" if data else "{}"


def in_script(data: object) -> str:
    """JSON that is valid inside a script element: no ``<`` in it, so nothing can close the element."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _safe(value: object) -> object:
    """The value with every text in it made safe to show: a report may come from anywhere."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _safe(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(one) for one in value]
    return value


def _script(unit: Sequence[str]) -> str:
    """Files in a scope of their own, so that a page's scripts share no names with a library's."""
    if len(unit) == 1:
        return _asset(unit[0])
    return "\n".join(('"use strict";', "(() => {", *map(_asset, unit), "})();"))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _as_is(text: str) -> str:
    """Text that the template does not escape: our own scripts, and data that cannot close its element."""
    from markupsafe import Markup

    return Markup(text)


@cache
def _template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(_asset("page.html"))


@cache
def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
