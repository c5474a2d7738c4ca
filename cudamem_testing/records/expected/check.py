"""Compare a text with the expected one: what result objects and tests call.

PYTEST_DONT_REWRITE
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from cudamem_testing.model.callsite import CallSite
from cudamem_testing.safe_access import type_name
from cudamem_testing.show.atomic_files import shown
from cudamem_testing.show.printable import spelled_out
from cudamem_testing.show.usage import hide_wrong_arguments

from .difference import difference
from .edits import Place, SideFile, Wish
from .errors import ConflictError, NotAcceptedError, NotLocatedError, TextMismatchError
from .session import NO_LITERAL, Session
from .source import Source
from .text import canonical

__tracebackhide__ = hide_wrong_arguments

HOW = "to accept the actual text: pytest --cudamem-update=expected, or EXPECTTEST_ACCEPT=1"


Actual: TypeAlias = str | Callable[[str | None], str]
"""A text, or a function of the expected text (``None`` for none yet) that makes it, for texts of several styles."""
Compare: TypeAlias = Callable[[str, str], "tuple[Sequence[str], str] | None"]
"""Statements about what changed from the expected to the actual text, and what is shown below them; ``None`` to show
only the diff.
"""


def assert_text(
    actual: Actual,
    expected: str | Mapping[str, str] | None,
    *,
    key: str | None = None,
    argument: str = "expected",
    depth: int = 1,
    session: Session | None = None,
    remark: Callable[[str], str] | None = None,
    compare: Compare | None = None,
) -> None:
    """Check `actual` against the text written at a call.

    In a test, call it with the literal. A method ``assert_x(self, expected)`` passes ``depth=2``, so that the
    literal is looked for in the call of the method.

    Args:
        actual: the text at hand, or what makes it.
        expected: the text wanted; or one text per key; or None, if it is kept in a side file.
        key: selects a text of a mapping, such as the kind of device. A plain text is for every key.
        argument: the name of the parameter that takes the literal.
        depth: which call holds the literal; 1 is the call of this function, 2 the call of its caller.
        session: the run; by default the current session, and without one texts are only compared.
        remark: asked when the texts differ, with the expected one: what else the message is to say, or ``""``.
        compare: asked when the texts differ: what has changed, and what the message shows in place of a diff.

    Raises:
        TextMismatchError: the texts differ.
        NotAcceptedError: they differ, the session accepts texts, but not this one.
        ConflictError: the session accepts texts, and another test wants another text here.
        TypeError: a text is not a ``str``.
    """
    __tracebackhide__ = True
    at = CallSite.of_caller(depth, argument=argument)
    check(actual, expected, at=at, key=key, session=session, remark=remark, compare=compare)


def check(
    actual: Actual,
    expected: str | Mapping[str, str] | None,
    *,
    at: CallSite,
    key: str | None = None,
    session: Session | None = None,
    remark: Callable[[str], str] | None = None,
    compare: Compare | None = None,
) -> None:
    """Check `actual` against the text written at `at`; see `assert_text`."""
    __tracebackhide__ = True
    given = _given(expected, key)
    session = session or Session.current()
    accept = session is not None and session.accept
    place, wanted, obstacle = None, given, None
    if session is not None and session.looks_at(at):
        try:
            place, wanted = session.find(at, expected, key)
        except NotLocatedError as error:
            obstacle = str(error)
        obstacle = session.refusal or obstacle
    text = canonical(_text("actual text", actual(wanted) if callable(actual) else actual))
    if session is not None and accept and place is not None and obstacle is None:
        _record(session, place, Wish(text, session.test_name(at), wanted), at)
        return
    if wanted is not None and canonical(wanted) == text:
        if session is not None:
            session.was_right(at, place, key if isinstance(expected, Mapping) else None)
        return
    kind: type[TextMismatchError] = NotAcceptedError if accept else TextMismatchError
    kept = place.file if isinstance(place, SideFile) and wanted is not None else None
    lines = [*_problem(text, wanted, expected, key, at, kept, compare)]
    more = remark(canonical(wanted)) if remark is not None and wanted is not None else ""
    raise kind(
        "\n".join([*lines, *filter(None, [more]), f"not accepted: {obstacle}" if accept else _how(at, expected, key)]),
        actual=text,
        expected=None if wanted is None else canonical(wanted),
        checked=session.checked(at, place, key, expected, text) if session is not None and session.keep else None,
    )


@contextmanager
def accepting() -> Iterator[Session]:
    """Accept the texts of the checks in the block, and write them when it ends: for use without pytest.

    Raises:
        NotWrittenError: at the end, if a text could not be written.
    """
    session = Session(accept=True)
    try:
        with session.activate():
            yield session
    finally:
        written = session.write()
    written.raise_if_refused()


def _record(session: Session, place: Place, wish: Wish, at: CallSite) -> None:
    __tracebackhide__ = True
    earlier = session.edits.want(place, wish)
    if earlier is None:
        return
    lines = [f"two different texts are wanted in one place, {_where(at)}; neither will be written"]
    for one in (earlier, wish):
        lines += [f"{one.test} wants:", *(f"    | {line}".rstrip() for line in one.text.split("\n"))]
    lines.append(
        "use separate calls, a text per key, or omit the argument: each parameter then gets a file in __cudamem__/"
    )
    raise ConflictError("\n".join(lines), actual=wish.text, expected=earlier.text)


def _problem(
    text: str,
    wanted: str | None,
    expected: str | Mapping[str, str] | None,
    key: str | None,
    at: CallSite,
    kept: Path | None,
    compare: Compare | None,
) -> Iterator[str]:
    if wanted is not None:
        compared = None if compare is None else compare(canonical(wanted), text)
        statements, below = ((), difference(canonical(wanted), text)) if compared is None else compared
        yield from statements
        yield f"the text differs from the expected one, {_where(at)}" + (f" (kept in {shown(kept)})" if kept else "")
        yield below
        return
    if isinstance(expected, Mapping):
        there = ", ".join(map(repr, expected)) or "none"
        yield f"there is no expected text for {key!r} yet, {_where(at)}; there is: {there}"
    else:
        yield f"there is no expected text yet, {_where(at)}"
    yield from (f"+{spelled_out(line)}" for line in text.split("\n"))


def _how(at: CallSite, expected: str | Mapping[str, str] | None, key: str | None) -> str:
    """What to do to accept the text; the file is read for it, since the check has failed."""
    try:
        literal = expected is None or Source(Path(at.file)).locate(at, expected, key) is not None
    except NotLocatedError:
        literal = True
    return HOW if literal else NO_LITERAL


def _where(at: CallSite) -> str:
    return f"{shown(Path(at.file))}:{at.line}"


def _given(expected: str | Mapping[str, str] | None, key: str | None) -> str | None:
    if isinstance(expected, Mapping):
        if key is None:
            raise ValueError("a mapping of expected texts needs a key that selects one")
        return _text(f"expected text for {key!r}", expected[key]) if key in expected else None
    return None if expected is None else _text("expected text", expected)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a str, got {type_name(value)}")
    return value
