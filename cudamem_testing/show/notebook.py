"""Results in a notebook: they show themselves as their text, in type of one width. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import html

from cudamem_testing.show.printable import printable

_LOOK = "font-family: ui-monospace, monospace; line-height: 1.35; overflow-x: auto"


class InNotebook:
    """A base of results: Jupyter and its kin ask for ``_repr_html_``. What is shown is ``str(result)``, escaped."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return shown(self)


def shown(result: object) -> str:
    """The text of a result, escaped, in type of one width: what its ``_repr_html_`` gives to a notebook."""
    return f'<pre style="{_LOOK}">{html.escape(printable(str(result)))}</pre>'


def framed(page: str, height: int = 620) -> str:
    """A whole page inside of a notebook, in a frame of its own that may run its scripts and nothing else."""
    source = html.escape(page)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" width="100%" height="{height}" style="border: 0"></iframe>'
    )
