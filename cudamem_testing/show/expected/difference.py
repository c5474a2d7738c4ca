"""How two texts differ: a unified diff that points at the characters that changed.

The diff is the usual one with three lines of context. Where a run of lines was replaced by as many lines, each
pair is shown together, and a line of marks below says which characters went (``-``), came (``+``) or changed
(``^``). Control characters are escaped, so that a diff cannot disturb the terminal.

PYTEST_DONT_REWRITE
"""

from collections.abc import Iterator
from difflib import SequenceMatcher

_LONGEST_HINT = 400  # characters of a line that is compared character by character (the comparison is quadratic)
_SIMILAR = 0.5  # below this ratio marks would cover most of the line and say nothing


def difference(expected: str, actual: str, *, limit: int = 200) -> str:
    """Return the diff that turns `expected` into `actual`, at most `limit` lines and a count of the rest."""
    lines = list(_diff(expected.split("\n"), actual.split("\n")))
    if len(lines) > limit:
        lines[limit:] = [f"... {len(lines) - limit} more lines of diff"]
    return "\n".join(lines)


def visible(line: str) -> str:
    """Return `line` as it is, or with all escapes spelled out if it holds a character that does not print."""
    return line if line.isprintable() else line.encode("unicode_escape").decode("ascii")


def _diff(expected: list[str], actual: list[str]) -> Iterator[str]:
    before, after = [visible(line) for line in expected], [visible(line) for line in actual]
    yield "--- expected"
    yield "+++ actual"
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(3):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield f"@@ -{a + 1},{a_end - a} +{b + 1},{b_end - b} @@"
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
