"""A recorded session appears line by line and scrolls; it loads nothing."""

from __future__ import annotations

import pytest

from suites import pictures

LINES = ["$ first", "one", "two", "", "$ second", "three"]


def test_a_command_and_its_output_take_their_time() -> None:
    assert [round(when, 2) for when in pictures.times(LINES)] == [0.05, 1.05, 1.1, 1.15, 4.15, 5.15]


def test_a_session_is_one_picture_that_scrolls(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="pictures are drawn with rich")
    monkeypatch.setattr(pictures, "ROWS", 4)
    drawn = pictures.recorded(LINES, "a title")
    assert 'class="session-r1 line"' in drawn
    assert 'style="animation-delay: 4.15s">$&#160;second' in drawn
    assert "animation: scroll 5.2s step-end forwards" in drawn
    assert "100.00% { transform: translateY(-48.8px) }" in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
