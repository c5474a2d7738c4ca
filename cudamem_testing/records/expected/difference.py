"""How two texts differ: a unified diff that points at the characters that changed.

The diff is the usual one with three lines of context. Where a run of lines was replaced by as many lines, each
pair is shown together, and a line of marks below says which characters went (``-``), came (``+``) or changed
(``^``). Control characters are escaped, so that a diff cannot disturb the terminal.

PYTEST_DONT_REWRITE
"""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice

from cudamem_testing.show.printable import spelled_out

MOST_STATEMENTS, MOST_LINES = 12, 30  # of a comparison that begins with statements
_CONTEXT = 3  # equal lines shown around a change
_WINDOW = 1000  # lines compared from the first difference on (the comparison can be quadratic)
_LONGEST_HINT = 400  # characters of a line that is compared character by character (the comparison is quadratic)
_SIMILAR = 0.5  # below this ratio, marks would cover most of the line


def difference(expected: str, actual: str, *, limit: int = 200) -> str:
    """Return the diff that turns `expected` into `actual`, cut after `limit` lines."""
    before, after = expected.split("\n"), actual.split("\n")
    start = max(0, _first_difference(before, after) - _CONTEXT)
    window = slice(start, start + _WINDOW)
    lines = list(islice(_diff(before[window], after[window], start), limit + 1))
    if len(lines) > limit or max(len(before), len(after)) > window.stop:
        lines[limit:] = [f"... the diff is cut here; the texts have {len(before)} and {len(after)} lines (-vv: all)"]
    return "\n".join(lines)


def in_brief(statements: Iterable[str], expected: str, actual: str) -> tuple[list[str], str]:
    """The first statements about two texts with how many more there are, and the diff, cut after `MOST_LINES` lines."""
    found = [*statements]
    more = len(found) - MOST_STATEMENTS
    if more > 0:
        found[MOST_STATEMENTS:] = [f"and {more} more changes"]
    return found, difference(expected, actual, limit=MOST_LINES)


def _first_difference(before: list[str], after: list[str]) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((at for at, (old, new) in pairs if old != new), min(len(before), len(after)))


def _diff(before: list[str], after: list[str], start: int) -> Iterator[str]:
    before, after = [*map(spelled_out, before)], [*map(spelled_out, after)]
    yield "--- expected"
    yield "+++ actual"
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield f"@@ -{start + a + 1},{a_end - a} +{start + b + 1},{b_end - b} @@"
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i:i_end])
            elif tag == "replace" and i_end - i == j_end - j:
                for old, new in zip(before[i:i_end], after[j:j_end], strict=True):
                    yield from _pair(old, new)
            else:
                yield from (f"-{line}" for line in before[i:i_end])
                yield from (f"+{line}" for line in after[j:j_end])


def _pair(old: str, new: str) -> Iterator[str]:
    below_old, below_new = _marks(old, new)
    yield f"-{old}"
    if below_old:
        yield f"?{below_old}"
    yield f"+{new}"
    if below_new:
        yield f"?{below_new}"


def _marks(old: str, new: str) -> tuple[str, str]:
    if max(len(old), len(new)) > _LONGEST_HINT:
        return "", ""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _SIMILAR:
        return "", ""
    below_old, below_new = "", ""
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        below_old += {"equal": " ", "replace": "^", "delete": "-", "insert": ""}[tag] * (i_end - i)
        below_new += {"equal": " ", "replace": "^", "insert": "+", "delete": ""}[tag] * (j_end - j)
    return below_old.rstrip(), below_new.rstrip()
