"""Plugins that run the test in a frame of their own: what such a frame holds is no leak of the test."""

from __future__ import annotations

import re
import textwrap

import pytest

from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.objects.places import KnownPlaces

#: As pytest-flaky does: a hook that runs the protocol itself, with the instance of the test in a local variable.
HOOK = """
    import pytest
    from _pytest.runner import runtestprotocol

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        instance = getattr(item, "instance", None)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
"""
CASES = """
    import unittest, weakref, torch
    SEEN = []

    class T(unittest.TestCase):
        def setUp(self):
            self.x = torch.zeros(100_000)
            SEEN.append(weakref.ref(self.x))
        def test_a(self): pass
        def test_b(self): pass

    def test_zz():
        assert [one() for one in SEEN] == [None, None]  # nothing lives on
"""


def test_a_hook_with_the_instance_of_the_test(run_inner, monkeypatch):
    """It is found at once: the frames of such hooks are known places, so that the heap is not searched each time."""
    searches = []
    search = KnownPlaces.search
    monkeypatch.setattr(KnownPlaces, "search", lambda *given, **named: searches.append(1) or search(*given, **named))
    inner = run_inner({"conftest.py": HOOK, "test_it.py": CASES}, "--cudamem", "-q")
    assert (inner.status, inner.last) == (0, "3 passed")
    found = [finding for test in inner.run.tests for finding in test.findings]
    assert [(one.severity, one.verdict) for one in found] == [(Severity.NOTE, Verdict.UNATTRIBUTED)] * 2
    assert [test.unjudged for test in inner.run.tests] == [()] * 3
    assert searches == []


def test_what_a_module_holds_as_well_is_a_leak(run_inner):
    """The instance, the tensor or its storage: whoever else holds one of them is found."""
    kept = CASES.replace("[None, None]", "[None, None, None]").replace(
        "def test_b(self): pass",
        """def test_b(self): KEPT.append(self)
        def test_c(self): KEPT.append(self.x)
        def test_d(self): KEPT.append(self.x[:1])""",
    )
    inner = run_inner({"conftest.py": HOOK, "test_it.py": "KEPT = []\n" + textwrap.dedent(kept)}, "--cudamem", "-q")
    assert {name: outcome for name, outcome in inner.outcomes.items() if outcome != "failed"} == {
        "test_a": "passed",
        "test_b": "error",
        "test_c": "error",
        "test_d": "error",
    }
    found = [finding for test in inner.run.tests for finding in test.failing]
    assert [finding.holder for finding in found] == [
        "module test_it > KEPT (list)[0] > T.x",
        "module test_it > KEPT (list)[1]",
        "module test_it > KEPT (list)[2]",
    ]


KEPT = """
    import threading, pytest, torch

    @pytest.fixture(scope="module")
    def box():
        mine = []
        yield mine

    def test_in_a_fixture(box):
        box.append(torch.zeros(100_000))

    def work(ready, done):
        batch = torch.zeros(100_000)
        ready.set()
        done.wait(60)

    def test_in_a_thread(request):
        ready, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, args=(ready, done), name="helper")
        thread.start()
        ready.wait(60)
        request.config.add_cleanup(lambda: (done.set(), thread.join()))

    def test_in_a_list(kept=[]):
        kept.append(torch.zeros(100_000))

    def test_in_the_test(cuda_memory):
        steps = []
        cuda_memory.growth(lambda: steps.append(torch.zeros(100_000)), steps=5).assert_plateau()
"""


def test_what_the_user_holds_is_still_the_holder(run_inner):
    """The control: under the same hook a thread, a fixture that has not ended, a default and the test itself hold."""
    inner = run_inner({"conftest.py": HOOK, "test_it.py": KEPT}, "--cudamem", "-q")
    found = {
        test.nodeid.rpartition("::")[2]: [(one.verdict, one.holder) for one in test.findings]
        for test in inner.run.tests
    }
    assert found["test_in_a_fixture"] == [(Verdict.FIXTURE, "fixture 'box'.cached_result (tuple)[0] > list[0]")]
    assert found["test_in_a_thread"][0][0] is Verdict.REACHABLE
    assert found["test_in_a_thread"][0][1].startswith("thread 'helper' > frame work (test_it.py:")
    assert found["test_in_a_list"] == [
        (Verdict.REACHABLE, "module test_it > test_in_a_list (function test_in_a_list).__defaults__[0] (list)[0]")
    ]
    assert re.search(r"held by    frame test_in_the_test \(test_it.py:\d+\) local 'steps'", inner.out)


OWN_FRAMES = """
    import threading
    import pytest

    def call(item):
        function, names = item.obj, item._fixtureinfo.argnames
        instance, arguments = getattr(item, "instance", None), {name: item.funcargs[name] for name in names}
        function(**arguments)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(pyfuncitem):
        if HOW == "frame":
            return call(pyfuncitem)
        if HOW == "thread":
            thread = threading.Thread(target=call, args=[pyfuncitem])
            thread.start()
            thread.join()
            return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        kept = [item, getattr(item, "instance", None)]
        done = yield
        kept.append(getattr(item, "funcargs", None))
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(item):
        instance, arguments = getattr(item, "instance", None), dict(item.funcargs or {})
        return (yield)
"""
IN_THEM = """
    import pytest, torch

    KEPT = []

    @pytest.fixture
    def held():
        return torch.zeros(65536)

    class TestPlain:
        def test_attribute(self, held):
            self.x = [held, torch.zeros(65536)]

    def test_local(held):
        x = held * 2

    def test_leak(held):
        KEPT.append(held)
"""


@pytest.mark.parametrize("how", ["wrapper", "frame", "thread"])
def test_runners_with_frames_of_their_own(run_inner, how):
    files = {"conftest.py": f"    HOW = {how!r}\n{OWN_FRAMES}", "test_it.py": IN_THEM}
    inner = run_inner(files, "--cudamem", "--cudamem-device=cpu")
    leaks = {
        test.nodeid.rpartition("::")[2]: [
            (one.bytes, one.holder) for one in test.findings if one.severity is Severity.FAIL
        ]
        for test in inner.run.tests
    }
    assert leaks == {"test_attribute": [], "test_local": [], "test_leak": [(262144, "module test_it > KEPT (list)[0]")]}
