"""Wider fixtures are judged when they are over: what they left is theirs, and no test's."""

from __future__ import annotations

import pytest

from cudamem_testing.wording.findings import title
from suites.plugin.inner import KIB, Inner
from suites.versions import qualified

LEAKING = """
    import pytest, torch

    KEPT = []

    def remember(kib):
        KEPT.append(torch.zeros(kib * 256))

    @pytest.fixture(scope="module")
    def shared():
        return []

    @pytest.fixture(scope="module")
    def leaky(shared):
        remember(100)
        shared.append(torch.zeros(256 * 256))  # goes with the fixture that holds it
        yield
        remember(200)

    @pytest.fixture(scope="module")
    def model():
        yield {"weight": torch.zeros(128 * 256)}

    @pytest.fixture(scope="class", params=[300, 400])
    def parameter(request):
        remember(request.param)

    class TestParameters:
        def test_with(self, parameter, model): pass

    def test_uses(leaky, model): pass

    def test_between():
        remember(70)

    @pytest.fixture(scope="module")
    def lazily():
        remember(90)

    class TestOld:
        @classmethod
        def setup_class(cls):
            cls.table = torch.zeros(500 * 256)

        def test_of_class(self, request):
            request.getfixturevalue("lazily")

    def test_last(model): pass
"""


def told(inner: Inner, name: str) -> list[tuple[str, str, str]]:
    return [(title(one), one.severity.value, one.allocated or "") for one in inner.test(name).findings]


def test_what_a_fixture_leaves_is_its_own(run_inner) -> None:
    inner = run_inner(LEAKING, "--cudamem")
    assert inner.last == "6 passed, 4 errors"

    def leaked(who: str, kib: int, line: int, where: str, blocks: str = "1 block") -> tuple[str, str, str]:
        message = f"cudamem: {who}{kib}.0 KiB leaked ({blocks}, cpu)"
        return message, "fail", f"test_it.py:{line} in {qualified(where)}"

    assert told(inner, "test_with[300]") == []
    # Another parameter ends the fixture during the setup of the next test; the last one at the end of the class.
    assert told(inner, "test_with[400]") == [
        leaked("fixture 'parameter': ", 300, 6, "remember"),
        leaked("fixture 'parameter': ", 400, 6, "remember"),
    ]
    assert told(inner, "test_uses") == []
    assert told(inner, "test_between") == [leaked("", 70, 6, "remember")]
    assert told(inner, "test_of_class") == [leaked("setup_class of TestOld: ", 500, 42, "TestOld.setup_class")]
    assert told(inner, "test_last") == [
        leaked("fixture 'lazily': ", 90, 6, "remember"),
        leaked("fixture 'leaky': ", 300, 6, "remember", "2 blocks"),
    ]
    assert {test.nodeid: test.whole[0].retained for test in inner.run.tests if test.whole[0].retained} == {
        "test_it.py::test_between": 70 * KIB
    }
    assert {(entry.owner, entry.bytes // KIB) for entry in inner.run.ledger if entry.bytes > 64 * KIB} == {
        ("fixture 'parameter'", 700),
        ("test_it.py::test_between", 70),
        ("setup_class of TestOld", 500),
        ("fixture 'lazily'", 90),
        ("fixture 'leaky'", 300),
    }
    assert inner.section("ERROR at teardown of TestParameters.test_with[400]")[:6] == [
        "cudamem: fixture 'parameter': 300.0 KiB leaked (1 block, cpu)",
        "   300.0 KiB  float32[76800] on cpu  reachable",
        "      allocated  test_it.py:6 in remember <- test_it.py:25 in parameter",
        "      held by    module test_it > KEPT (list)[0]",
        "   hint: call test_it.KEPT.clear() after the fixture's yield",
        "   more: python -m cudamem_testing explain reachable, docs/hints.md#module-global",
    ]


@pytest.mark.parametrize(
    ("flag", "last", "severities"),
    [
        ("--cudamem-leaks=warn", "1 passed", ["warn"]),
        ("--cudamem-leaks=off", "1 passed", []),
        ("--cudamem-ignore-below=101KiB", "1 passed", []),
        ("--cudamem-ignore-below=100KiB", "1 passed, 1 error", ["fail"]),
    ],
)
def test_flags(run_inner, flag: str, last: str, severities: list[str]) -> None:
    test = """
        import pytest, torch
        KEPT = []

        @pytest.fixture(scope="session")
        def leaky():
            KEPT.append(torch.zeros(100 * 256))

        @pytest.mark.cudamem(leaks="off", reason="of the test alone")
        def test_uses(leaky): pass
    """
    inner = run_inner(test, "--cudamem", flag)
    assert inner.last == last
    assert [severity for _, severity, _ in told(inner, "test_uses")] == severities


OVERRIDDEN = {
    "conftest.py": """
        import pytest, torch

        @pytest.fixture(scope="session")
        def model():
            yield torch.zeros(100 * 256)
    """,
    "test_one.py": """
        import pytest, torch

        @pytest.fixture(scope="module")
        def model(model):
            yield model, torch.zeros(200 * 256)

        def test_one(model): pass
    """,
    "test_two.py": "def test_two(model): pass",
}


def test_fixtures_of_one_name_are_distinguished(run_inner) -> None:
    inner = run_inner(OVERRIDDEN, "--cudamem", "--cudamem-ignore-below=0")
    assert inner.last == "2 passed"
    assert (told(inner, "test_one"), told(inner, "test_two")) == ([], [])


CYCLE = """
    import gc
    import pytest, torch

    class Node:
        pass

    @pytest.fixture(scope="module")
    def cyclic():
        gc.disable()
        node = Node()
        node.me, node.x = node, torch.zeros(100 * 256)
        yield node
        del node

    def test_uses(cyclic): pass
"""


@pytest.mark.usefixtures("collector_off")
def test_a_cycle_of_a_fixture_is_explained(run_inner) -> None:
    inner = run_inner(CYCLE, "--cudamem", "--cudamem-cycles=fail")
    assert inner.last == "1 passed, 1 error"
    (finding,) = inner.test("test_uses").findings
    assert title(finding) == "cudamem: fixture 'cyclic': 100.0 KiB kept by a reference cycle (1 tensor, cpu)"
    assert (finding.holder, finding.allocated) == ("Node.__dict__['me'] -> Node", "test_it.py:11 in cyclic")
    assert inner.test("test_uses").whole[0].retained == 0


TOGETHER = """
    import gc, sys, types
    import pytest, torch

    ELSEWHERE = sys.modules["elsewhere"] = types.ModuleType("elsewhere")

    class Node:
        def __init__(self, kib):
            self.me, self.x = self, torch.zeros(kib * 256)

    @pytest.fixture(scope="class")
    def first():
        gc.disable()
        return Node(100)

    @pytest.fixture(scope="class")
    def second(first):
        return Node(200)

    class TestBoth:
        def test_both(self, second): pass

    class TestLeaks:
        def test_leaks(self, first):
            ELSEWHERE.x = torch.zeros(300 * 256)  # found only when garbage is collected
"""


@pytest.mark.usefixtures("collector_off")
def test_what_is_freed_while_others_are_settled_is_reported(run_inner) -> None:
    inner = run_inner(TOGETHER, "--cudamem")
    assert inner.last == "2 passed, 1 error"
    assert [(message, severity) for message, severity, _ in told(inner, "test_both")] == [
        ("cudamem: fixture 'second': 200.0 KiB kept by a reference cycle (1 tensor, cpu)", "warn"),
        ("cudamem: fixture 'first': 100.0 KiB kept by a reference cycle (1 block, cpu)", "warn"),
    ]
    assert told(inner, "test_leaks") == [
        ("cudamem: 300.0 KiB leaked (1 block, cpu)", "fail", f"test_it.py:24 in {qualified('TestLeaks.test_leaks')}"),
        (
            "cudamem: fixture 'first': 100.0 KiB kept by a reference cycle (1 block, cpu)",
            "warn",
            f"test_it.py:8 in {qualified('Node.__init__')}",
        ),
    ]
    wholes = [test.whole[0] for test in inner.run.tests]
    assert [(whole.retained, whole.peak_growth) for whole in wholes] == [(0, 0), (300 * KIB, 300 * KIB)]


LAST_USER_FAILS = """
    import pytest, torch

    @pytest.fixture(scope="class")
    def model():
        return torch.zeros(100 * 256)

    @pytest.fixture(scope="class")
    def closed():
        x = torch.zeros(300 * 256)
        yield [x]

    class TestOwn:
        def test_own(self, model, closed):
            own = torch.zeros(200 * 256)
            raise ValueError

    class TestNothing:
        def test_nothing(self, model):
            raise ValueError

    def test_next(): pass
"""


@pytest.mark.usefixtures("collector_off")
def test_a_failed_test_does_not_give_back_what_fixtures_took(run_inner) -> None:
    """The traceback of the last user holds the fixture until it is let go."""
    inner = run_inner(LAST_USER_FAILS, "--cudamem", "--cudamem-ignore-below=0", "--tb=short")
    assert inner.last == "2 failed, 1 passed"
    wholes = {test.nodeid.rpartition("::")[2]: test.whole[0] for test in inner.run.tests}
    assert {name: (whole.peak_growth, whole.retained) for name, whole in wholes.items()} == {
        "test_own": (200 * KIB, 0),
        "test_nothing": (0, 0),
        "test_next": (0, 0),
    }
    assert {whole.start for whole in wholes.values()} == {wholes["test_own"].start}
    assert [message for message, _, _ in told(inner, "test_own")] == [
        "cudamem: 200.0 KiB retained, then freed by: clearing the test's traceback (1 block, cpu)",
        "cudamem: fixture 'closed': 300.0 KiB retained, then freed by: clearing the test's traceback (1 block, cpu)",
        "cudamem: fixture 'model': 100.0 KiB retained, then freed by: clearing the test's traceback (1 block, cpu)",
    ]
    assert [message for message, _, _ in told(inner, "test_nothing")] == [
        "cudamem: fixture 'model': 100.0 KiB retained, then freed by: clearing the test's traceback (1 block, cpu)"
    ]


GROWING = """
    import pytest, torch

    @pytest.fixture(scope="module")
    def cache():
        kept = []
        yield lambda: kept.append(torch.zeros(100 * 256))

    @pytest.fixture(scope="session")
    def state():
        return {}

    @pytest.fixture(scope="module")
    def warm():
        return {}

    @pytest.mark.parametrize("step", range(5))
    def test_grows(cache, step): cache()

    @pytest.mark.parametrize("step", range(5))
    def test_replaces(state, step):
        state["step"] = torch.zeros(100 * 256)

    @pytest.mark.parametrize("step", range(5))
    def test_plateau(request, step):
        request.getfixturevalue("warm").setdefault(step % 2, torch.zeros(100 * 256))
"""


def test_a_fixture_that_grows(run_inner) -> None:
    inner = run_inner(GROWING, "--cudamem")
    assert inner.last == "15 passed, 1 error"
    assert inner.section("ERROR at teardown of test_grows[2]") == [
        "cudamem: fixture 'cache' grows by 100.0 KiB per test: 300.0 KiB in 3 uses in a row (cpu)",
        "   100.0 KiB  float32[25600] on cpu  fixture",
        f"      allocated  test_it.py:6 in {qualified('cache.<lambda>')} <- test_it.py:17 in test_grows",
        "      kept by    fixture 'cache'.cached_result (tuple)[0] > function <lambda>.__closure__[0] 'kept' (list)[2]",
        "   hint: limit what the fixture keeps, or remove at the end of each test what the test added",
        "   more: python -m cudamem_testing explain fixture, docs/hints.md#growing-fixture",
    ]
    assert [
        [severity for _, severity, _ in told(inner, f"{name}[{step}]")]
        for name in ("test_grows", "test_replaces", "test_plateau")
        for step in range(5)
    ] == [["note"], ["note"], ["fail"], ["note"], ["note"], *[["note"]] * 5, ["note"], ["note"], [], [], []]


FIXTURES = """
    import pytest, torch

    def kept():
        return []

    by_module = pytest.fixture(scope="module", name="by_module")(kept)
    by_class = pytest.fixture(scope="class", name="by_class")(kept)
    growing = pytest.fixture(scope="session", name="growing")(kept)

    @pytest.fixture(scope="module", params=[1, 2, 3])
    def by_parameter(request):
        return []

    @pytest.fixture
    def keep():
        return lambda kept: kept.append(torch.zeros(100 * 256))
"""
OF_A_FOLDER = """
    import pytest

    @pytest.fixture(scope="session")
    def of_folder():
        return []
"""
USES = """
    def test_module(by_module, keep): keep(by_module)

    def test_folder(of_folder, keep): keep(of_folder)

    def test_growing(growing, keep): keep(growing)

    def test_nothing(): pass
"""
MORE_USES = """
    def test_parameter(by_parameter, keep): keep(by_parameter)

    class TestFirst:
        def test_class(self, by_class, keep): keep(by_class)
        def test_other(self): pass

    class TestSecond(TestFirst): pass

    class TestThird:
        def test_class(self, request, keep): keep(request.getfixturevalue("by_class"))
        def test_other(self): pass
"""


def test_a_new_value_of_a_fixture_starts_a_new_row(run_inner) -> None:
    files = {"conftest.py": FIXTURES, "test_more.py": MORE_USES}
    for folder in "abc":  # their fixtures of one name live side by side
        files |= {f"{folder}/conftest.py": OF_A_FOLDER, f"{folder}/test_{folder}.py": USES}
    inner = run_inner(files, "--cudamem")
    assert inner.last == "21 passed, 1 error"
    found = [(test.nodeid, one) for test in inner.run.tests for one in test.findings]
    assert [(nodeid, title(one)) for nodeid, one in found if one.severity.value != "note"] == [
        (
            "c/test_c.py::test_growing",
            "cudamem: fixture 'growing' grows by 100.0 KiB per test: 300.0 KiB in 3 uses in a row (cpu)",
        )
    ]
    assert len(found) == 15  # each use is looked into


KEPT_FINALIZERS = """
    import pytest

    KEPT = []

    def pytest_runtest_makereport(item, call):
        if call.when == "setup" and call.excinfo is not None:
            KEPT.append(item._request._arg2fixturedefs["model"][0]._finalizers[-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(fixturedef):
        if KEPT and KEPT[0] not in fixturedef._finalizers:
            fixturedef._finalizers.append(KEPT[0])
        return (yield)
"""
REPEATED = """
    import pytest, torch

    SETUPS = []

    @pytest.fixture(scope="module")
    def model():
        SETUPS.append(1)
        if len(SETUPS) == 1:
            raise OSError("not yet")
        kept = [torch.zeros(100 * 256)]
        yield kept
        kept.clear()

    def test_first(model): pass

    def test_last():
        torch.zeros(30 * 256)
"""


def test_a_setup_that_failed_and_was_repeated(run_inner) -> None:
    """Both have a finalizer of ours: pytest-rerunfailures before 16 keeps that of the first, here it is put back."""
    files = {
        "conftest.py": KEPT_FINALIZERS,
        "test_it.py": REPEATED,
        "test_more.py": "import torch\ndef test_more(): torch.zeros(50 * 256)",
    }
    options = ("--cudamem", "--reruns=1", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    inner = run_inner(files, *options, plugins=["rerunfailures"])
    assert inner.last == "3 passed, 1 rerun"
    assert [(one.windows[0].name, one.windows[0].retained) for one in inner.fixture("model")] == [
        ("setup of fixture 'model'", 0),
        ("setup of fixture 'model'", 100 * KIB),
        ("teardown of fixture 'model'", -100 * KIB),
    ]
    wholes = [(test.nodeid.rpartition("::")[2], test.whole[0]) for test in inner.run.tests]
    assert [(name, whole.peak_growth, whole.retained) for name, whole in wholes] == [
        ("test_first", 0, 0),
        ("test_first", 0, 0),
        ("test_last", 30 * KIB, 0),
        ("test_more", 50 * KIB, 0),
    ]
    assert not [finding for test in inner.run.tests for finding in test.findings]
