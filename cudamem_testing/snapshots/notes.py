"""Diagnostics of reading a snapshot. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter

_MOST_NOTES = 20


class Notes:
    """Diagnostics by kind, each reported once with its count."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, text: str, times: int = 1) -> None:
        """Count one more of ``text``."""
        if times and (text in self._counts or len(self._counts) < _MOST_NOTES):
            self._counts[text] += times

    def texts(self) -> tuple[str, ...]:
        """All of them, in order of first appearance."""
        return tuple(text if times == 1 else f"{text} ({times} times)" for text, times in self._counts.items())
