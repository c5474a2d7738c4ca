"""Accept the texts that another run found, from what it kept of its checks.

What was kept comes from a file and is not trusted. It can only change a string literal which is the argument of
an assertion, in a source file that is to the byte the one that was measured, and the side files of expected texts; all
of them below one root.

PYTEST_DONT_REWRITE
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cudamem_testing.model.checked import Checked
from cudamem_testing.show.atomic_files import below
from cudamem_testing.show.places import FOLDER

from .edits import Edits, Place, Refused, Wish, Written
from .errors import NotLocatedError
from .text import canonical

OTHER = "it has changed since it was measured: check out the measured commit, or run the tests again"


def accept_texts(root: Path, checks: Sequence[Checked]) -> Written:
    """Write the texts of a run into the files below `root`, as the run itself would have.

    Checks whose text was right show where two tests share a literal and only one of them has another text.
    Failures are in the result, nothing is raised for them.
    """
    edits = Edits()
    right: dict[object, list[str]] = {}
    for one in checks:
        if one.actual is None:
            right.setdefault(one.place, []).append(one.test)
    refused: dict[tuple[Path, str], list[tuple[int, str, str]]] = {}
    for one in checks:
        if one.actual is None:
            continue
        text = canonical(one.actual)
        try:
            place, current = _place(edits, root, one)
        except NotLocatedError as error:
            line = 1 if one.call is None else one.call.line
            refused.setdefault((root / one.file, str(error)), []).append((line, one.test, text))
            continue
        edits.want(place, Wish(text, one.test, current))
        for test in right.pop(one.place, ()) if current is not None else ():
            edits.want(place, Wish(canonical(current or ""), test, current))
    written = edits.write()
    return Written(written.files, (*(Refused(*why, tuple(texts)) for why, texts in refused.items()), *written.refused))


def _place(edits: Edits, root: Path, one: Checked) -> tuple[Place, str | None]:
    """Return the place of a text and what it says now.

    Raises:
        NotLocatedError: it cannot be written there; the message says why.
    """
    try:
        path = below(root, one.file)
    except ValueError as error:
        raise NotLocatedError(str(error)) from error
    is_side = path.suffix == ".txt" and path.parent.parent.name == FOLDER
    if one.call is None and not is_side:
        raise NotLocatedError(f"it is not a file of expected texts, which are in {FOLDER}")
    if one.digest != edits.digest(path) or (one.call is not None and one.digest is None):
        raise NotLocatedError(OTHER)
    if one.call is None:
        return edits.side(path)
    source = edits.source(path)
    called = source.called(one.call, one.expected)
    if called is None or not called.startswith("assert"):
        raise NotLocatedError(f"the call there is not an assertion but {called or 'an expression'}")
    place = source.locate(one.call, one.expected, one.device)
    if place is None:
        raise NotLocatedError("the argument there is no literal")
    given = one.expected.get(one.device or "") if isinstance(one.expected, Mapping) else one.expected
    return place, given
