"""What all suites share: modules after an inner run, and collections of garbage that walk little."""

from __future__ import annotations

import builtins
import gc
import sys

import pytest

from cudamem_testing.guards import collect_garbage

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


def test_cheap_collections_walk_nothing_older(cheap_collections: None) -> None:
    """Those of the package as well, which would thaw what a user froze."""
    for collect in (gc.collect, collect_garbage):
        collect()
        assert all(one is not builtins for one in gc.get_objects())
    node: list[object] = []
    node.append(node)
    del node
    assert gc.collect() == 1
    assert gc.get_freeze_count() == 0
