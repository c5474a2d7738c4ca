"""When two texts are the same: the canonical form.

Expected text is indented with the code around it and passes through editors that strip trailing spaces. So
these do not matter, on either side: the margin common to all lines, spaces, tabs and carriage returns at the
end of a line, and blank lines before the first and after the last line. All else does, character by character.

PYTEST_DONT_REWRITE
"""


def canonical(text: str) -> str:
    r"""Return the form of `text` that is compared and written: ``canonical("\n    a\n      b\n    ") == "a\n  b"``.

    Lines end at ``\n`` only; form feeds and the other Unicode separators are content. The margin is the
    longest run of spaces and tabs that starts every line which is not blank. Applying it twice changes nothing.
    """
    lines = [line.rstrip(" \t\r") for line in text.split("\n")]
    filled = [at for at, line in enumerate(lines) if line]
    if not filled:
        return ""
    margin = _common([_indentation(lines[at]) for at in filled])
    return "\n".join(line[margin:] for line in lines[filled[0] : filled[-1] + 1])


def _common(indentations: list[str]) -> int:
    """Return the length of the longest common start: that of the first and the last in order."""
    first, last = min(indentations), max(indentations)
    return next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
