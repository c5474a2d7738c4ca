"""What has changed between two lists of lines: nodes of a captured graph, findings, cycles. PYTEST_DONT_REWRITE"""

from collections import Counter

from cudamem_testing.model.sizes import count
from cudamem_testing.show.printable import spelled_out

from .difference import in_brief


def compare_lines(before: str, after: str) -> tuple[list[str], str]:
    """A statement for each line that only one of two texts has, and the diff."""
    old, new = (Counter(line.rstrip() for line in text.split("\n") if line.strip()) for text in (before, after))
    pairs = ((new - old, "more"), (old - new, "fewer"))
    found = [
        f"{count(number, 'line')} {word}: {spelled_out(line.strip())}"
        for lines, word in pairs
        for line, number in lines.items()
    ]
    return in_brief(found or ["the same lines in another order, or with other blanks"], before, after)
