"""What the end of a wider fixture undoes belongs to the fixture until then, for all ways of undoing."""

from __future__ import annotations

import pytest

LIB = """
    import torch

    CACHE, TABLE, VALUE = [], {}, None

    class Registry:
        def __init__(self):
            self.store = {}

        def reset(self):
            self.store.clear()

    REGISTRY = Registry()

    def make():
        return torch.empty(2**18)

    def _empty():
        CACHE.clear()

    def reset():
        _empty()

    def looks():
        len(CACHE)
"""
TEST = """
    import contextlib, sys, types
    import lib, pytest
    from unittest import mock

    def put_back():
        lib.VALUE = None

    @pytest.fixture(scope="module")
    def wide(request):
        {fixture}

    def test_adds(wide):
        {adds}

    def test_next(wide): pass
"""
#: What a fixture does, what a test adds, and what then holds it.
WAYS = {
    "function of a module": ("yield; lib.reset()", "lib.CACHE.append(lib.make())", "lib > CACHE (list)[0]"),
    "function of the test file": ("yield; put_back()", "lib.VALUE = lib.make()", "lib > VALUE"),
    "function inside": (
        "def inner(): lib.VALUE = None\n        yield\n        inner()",
        "lib.VALUE = lib.make()",
        "lib > VALUE",
    ),
    "method": (
        "yield; lib.REGISTRY.reset()",
        "lib.REGISTRY.store['a'] = lib.make()",
        "lib > REGISTRY (Registry).store (dict)['a']",
    ),
    "finalizer": ("request.addfinalizer(lib.reset)", "lib.CACHE.append(lib.make())", "lib > CACHE (list)[0]"),
    "exit stack": (
        (
            "with contextlib.ExitStack() as stack:\n            "
            "stack.enter_context(mock.patch.object(lib, 'CACHE', [])); yield"
        ),
        "lib.CACHE.append(lib.make())",
        "lib > CACHE (list)[0]",
    ),
    "callback of a stack": (
        "with contextlib.ExitStack() as stack:\n            stack.callback(lib.reset); yield",
        "lib.CACHE.append(lib.make())",
        "lib > CACHE (list)[0]",
    ),
    "patched dictionary": (
        "with mock.patch.dict(lib.TABLE): yield",
        "lib.TABLE['a'] = lib.make()",
        "lib > TABLE (dict)['a']",
    ),
    "patched item": (
        "with pytest.MonkeyPatch.context() as patch:\n            patch.setitem(lib.TABLE, 'k', []); yield",
        "lib.TABLE['k'].append(lib.make())",
        "lib > TABLE (dict)['k'] > list[0]",
    ),
    "patched attribute of an object": (
        "with pytest.MonkeyPatch.context() as patch:\n            patch.setattr(lib.REGISTRY, 'store', {}); yield",
        "lib.REGISTRY.store['a'] = lib.make()",
        "lib > REGISTRY (Registry).store (dict)['a']",
    ),
    "patched module": (
        (
            "fake = types.ModuleType('fake'); fake.CACHE = []\n        "
            "with pytest.MonkeyPatch.context() as patch:\n            "
            "patch.setitem(sys.modules, 'fake', fake); yield"
        ),
        "import fake; fake.CACHE.append(lib.make())",
        "fake > CACHE (list)[0]",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_fixture_undoes_is_its_own(run_inner, way):
    fixture, adds, holder = WAYS[way]
    inner = run_inner({"lib.py": LIB, "test_it.py": TEST.format(fixture=fixture, adds=adds)}, "--cudamem")
    assert inner.last == "2 passed"
    (finding,) = inner.test("test_adds").findings
    assert (finding.verdict.value, finding.severity.value) == ("fixture", "note")
    assert finding.holder == f"fixture 'wide' > module {holder}"
    adds_nothing = TEST.format(fixture="yield", adds=adds if "fake" not in adds else "lib.CACHE.append(lib.make())")
    if "['k']" not in adds:
        assert run_inner({"lib.py": LIB, "test_it.py": adds_nothing}, "--cudamem").last == "2 passed, 1 error"


@pytest.mark.parametrize("end", ["lib.looks()", "put_back()", "print(len(lib.CACHE))"])
def test_a_fixture_that_undoes_nothing_hides_nothing(run_inner, end):
    file = TEST.format(fixture=f"yield; {end}", adds="lib.CACHE.append(lib.make())")
    inner = run_inner({"lib.py": LIB, "test_it.py": file}, "--cudamem")
    assert inner.last == "2 passed, 1 error"


def test_small_parts_of_a_test_are_judged_as_fixtures_end(run_inner):
    """Together they reach the least size, so the test was judged; neither fixture frees its part."""
    file = """
        import lib, pytest, torch

        @pytest.fixture(scope="module")
        def first():
            yield
            if lib.VALUE: lib.CACHE.clear()

        @pytest.fixture(scope="module")
        def second():
            yield
            if lib.VALUE: lib.TABLE.clear()

        def test_adds(first, second):
            lib.CACHE.append(torch.zeros(10 * 1024))
            lib.TABLE["a"] = torch.zeros(10 * 1024)

        def test_next(first, second): pass
    """
    inner = run_inner({"lib.py": LIB, "test_it.py": file}, "--cudamem")
    assert inner.last == "2 passed, 1 error"
    assert [finding.bytes for finding in inner.test("test_next").findings] == [40 * 1024] * 2
