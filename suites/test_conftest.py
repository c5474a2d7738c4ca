"""What all suites share: the modules that an inner run leaves, and how tests are collected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

INNER = """
    import wsgiref.simple_server
    import beside

    def test_it():
        assert beside.__name__ == "beside"
"""


def test_modules_of_installed_packages_outlive_an_inner_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in [name for name in sys.modules if name.startswith("wsgiref")]:
        monkeypatch.delitem(sys.modules, name)
    pytester.syspathinsert()
    pytester.makepyfile(test_it=INNER, beside="")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert "wsgiref.simple_server" in sys.modules
    assert {"beside", "test_it"}.isdisjoint(sys.modules)


ROOT = Path(__file__).parents[1]


def test_workers_begin_at_other_ends_and_have_one_order(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the slow part, a file that names no mark is not imported."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "ci")
    pytester.makeconftest((ROOT / "conftest.py").read_text(encoding="utf-8").replace("pytest_plugins", "_"))
    file = "import pytest\nprint(__name__)\ndef test_it(): pass\n"
    slow = f"{file}@pytest.mark.slow\ndef test_more(): pass\n"
    for name, text in {"tests/a/test_1": file, "tests/a/test_2": slow, "tests/b/test_3": slow}.items():
        pytester.path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        pytester.path.joinpath(f"{name}.py").write_text(text)
    pytester.makeini("[pytest]\nmarkers = slow")

    def collected(worker: str, *chosen: str) -> tuple[list[str], list[str]]:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        lines = pytester.runpytest_inprocess("-q", "-s", "--collect-only", "-p", "no:cacheprovider", *chosen).outlines
        return [line for line in lines if line.startswith("test_")], [line for line in lines if "::" in line]

    two = [f"tests/{name}.py::test_{it}" for name in ("a/test_2", "b/test_3") for it in ("it", "more")]
    for worker, step in (("gw0", 1), ("gw1", -1)):
        imported, ids = collected(worker)
        assert (imported, ids) == (["test_1", "test_2", "test_3"][::step], ["tests/a/test_1.py::test_it", *two])
        imported, ids = collected(worker, "-m", "slow or hypothesis")
        assert (imported, ids) == (["test_2", "test_3"][::step], two[1::2])
