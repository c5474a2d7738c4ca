"""The shell of every page that is written: one file that opens without a network.

The browser's side is ``<view>.js`` beside this module; graphs are drawn by cytoscape.js (MIT, ``cytoscape.LICENSE``).
Data goes into the page as JSON inside a script element that is never run; nothing of it is ever read as HTML.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from cudamem_testing.show.printable import one_line

LIBRARY = "cytoscape.min.js"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, data: Mapping[str, object], view: str) -> str:
    """A page that shows ``data`` with the script ``<view>.js``.

    Args:
        title: what the page is about, plain text.
        data: anything that JSON can say.
        view: which script shows it.
    """
    title = html.escape(one_line(title))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            f"<title>{title}</title>",
            f"<style>{_asset('page.css')}</style></head><body>",
            f"<header><h1>{title}</h1></header>",
            '<main id="view"></main><aside id="detail"></aside>',
            f'<script type="application/json" id="data">{in_script(data)}</script>',
            f"<script>{_asset(LIBRARY)}</script>",
            f"<script>{_asset(f'{view}.js')}</script>",
            "</body></html>",
            "",
        )
    )


def in_script(data: object) -> str:
    """JSON that can stand inside a script element: no ``<`` in it, so nothing can close the element."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
