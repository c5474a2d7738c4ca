"""How close the simulated card comes to a recorded one, and that the page says so."""

from __future__ import annotations

from fixtures.simulated.compare import compared
from fixtures.simulated.models import CONVOLUTIONS, MODELS
from fixtures.simulated.page import PAGE, generated

ROWS = compared()


def model(key: str) -> str:
    """The model of a way to train."""
    return key.split("/")[0]


def test_the_page_shows_what_was_recorded() -> None:
    assert generated(ROWS) in PAGE.read_text()


def test_at_least_twenty_models_were_recorded() -> None:
    assert len({model(one.key) for one in ROWS} & MODELS.keys()) >= 20


def test_nine_of_ten_peaks_are_within_one_percent() -> None:
    assert sum(abs(one.off) <= 0.01 for one in ROWS) >= 0.9 * len(ROWS)


def test_no_peak_is_far_off() -> None:
    far = [one.key for one in ROWS if abs(one.off) > (0.08 if model(one.key) in CONVOLUTIONS else 0.03)]
    assert far == []
