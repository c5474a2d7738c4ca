"""What a verdict means, from the page that an installed package brings along."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cudamem_testing.__main__ import main
from cudamem_testing.model.findings import Verdict
from cudamem_testing.report import explain
from cudamem_testing.report.explain import explained

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).parents[2]
PAGE = """# Verdicts

Why.

## reachable

A chain reaches it.

| case |
| --- |

## held by C++

C++ holds it.

## Settling

### Steps
"""
UNKNOWN = (
    "'gone' is no verdict: write over-budget, under-lower-bound, improved, no-baseline, out-of-memory, reachable, "
    "held-by-c, raw-allocation, cycle, traceback, test-instance, library-workspace, compiler-cache, fixture, "
    "test-harness, unattributed, body-is-not-repeatable"
)


def test_the_section_of_a_verdict() -> None:
    assert explained("reachable", PAGE) == "reachable\n\nA chain reaches it.\n\n| case |\n| --- |"
    assert explained("held-by-c", PAGE) == explained("held by C++", PAGE) == "held by C++\n\nC++ holds it."
    for word in ("gone", "Settling", ""):
        with pytest.raises(ValueError) as caught:
            explained(word, PAGE)
        assert str(caught.value) == UNKNOWN.replace("gone", word)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for verdict in Verdict:
        assert main(["explain", verdict.anchor]) == 0
        told = capsys.readouterr()
        assert (told.out.splitlines()[:2], told.err) == ([verdict.value, ""], "")
    assert main(["explain", "raw-allocation"]) == 0
    assert capsys.readouterr().out.splitlines()[:5] == [
        "raw allocation",
        "",
        "It was taken from the allocator directly and never given back. Fails the test.",
        "",
        "What to do: call torch.cuda.caching_allocator_delete with its address.",
    ]
    assert main(["explain", "gone"]) == 2
    assert capsys.readouterr() == ("", f"error: {UNKNOWN}\n")


def test_the_page_of_an_installed_package_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "cudamem_testing"
    monkeypatch.setattr(explain, "PACKAGE", package)
    (tmp_path / "site" / "docs").mkdir(parents=True)
    (tmp_path / "site" / "docs" / "verdicts.md").write_text("the tree's", encoding="utf-8")
    assert explain.page() == "the tree's"
    (package / "docs").mkdir(parents=True)
    (package / "docs" / "verdicts.md").write_text("the wheel's", encoding="utf-8")
    assert explain.page() == "the wheel's"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML")
def test_the_wheel_has_the_page() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel["force-include"] == {"docs/verdicts.md": "cudamem_testing/docs/verdicts.md"}
    assert (ROOT / "docs" / "verdicts.md").is_file()
