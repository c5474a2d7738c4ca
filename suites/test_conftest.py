"""What all suites share: the modules that an inner run leaves."""

from __future__ import annotations

import sys

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
