"""What the command says of each verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.findings import Verdict
from cudamem_testing.wording.meanings import BASELINE, MEANINGS, explained

DOCS = Path(__file__).parents[2] / "docs"
UNKNOWN = (
    "'gone' is not a verdict: write over-budget, under-lower-bound, improved, no-baseline, out-of-memory, "
    "not-recovered, reachable, held-by-c, raw-allocation, cycle, traceback, test-instance, library-workspace, "
    "compiler-cache, fixture, test-harness, unattributed, body-is-not-repeatable, baseline"
)


def test_every_verdict_has_a_meaning() -> None:
    assert {*MEANINGS} == {*Verdict}
    assert all(one.hint and not one.hint.endswith(".") and not one.text.endswith(".") for one in MEANINGS.values())


@pytest.mark.parametrize("word", [*(verdict.anchor for verdict in Verdict), BASELINE])
def test_an_explanation_can_be_read_at_once(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 20
    assert "Usual causes" in lines
    assert "What to do" in lines
    assert (DOCS.parent / lines[-1].removeprefix("More: ")).exists()


def test_the_words_of_one() -> None:
    assert (
        explained("raw allocation")
        == explained("raw-allocation")
        == (
            "raw allocation\n"
            "\n"
            "It was allocated directly with caching_allocator_alloc and never freed. Fails the test.\n"
            "\n"
            "Usual causes\n"
            "  - torch.cuda.caching_allocator_alloc without a matching delete\n"
            "  - an extension that allocates this way\n"
            "\n"
            "What to do\n"
            "  - call torch.cuda.caching_allocator_delete(address), in a finally block\n"
            "  - or allocate a torch.empty(..., dtype=torch.uint8) and keep that instead\n"
            "\n"
            "More: docs/verdicts.md"
        )
    )


def test_a_word_that_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gone"]) == 2
    assert capsys.readouterr() == ("", f"error: {UNKNOWN}\n")
