"""What a run says at its end, and what it writes."""

from __future__ import annotations

import gc
import json
import os
import stat

import pytest

from cudamem_testing.report.report_files import read_json
from cudamem_testing.wording.findings import title
from suites.plugin.inner import KIB

SEVERAL = """
    import pytest, torch

    def takes(kib):
        return torch.empty(kib * 256)

    def test_small():
        takes(2)

    @pytest.mark.memory_budget(peak="400KiB")
    def test_large():
        takes(300), takes(100)

    def test_middle_of_a_long_name_that_goes_on_and_on_until_it_does_not_fit_into_the_line():
        takes(20)

    @pytest.mark.memory_budget(peak="1KiB")
    def test_over():
        takes(3)

    @pytest.mark.memory_budget(at_least="1KiB")
    def test_under():
        pass
"""
LONG = "test_it.py::test_middle_of_a_long_name_that_goes_on_and_on_until_it_does_not_fit_into_the_line"
TABLE = [
    "budget: 1 finding (over budget) in 1 test",
    "budget: 1 finding (under lower bound) in 1 test",
    "     peak  retained  allocs  budget  test",
    "400.0 KiB       0 B       2    100%  test_it.py::test_large",
    f" 20.0 KiB       0 B       1       -  {LONG}",
    "  3.0 KiB       0 B       1    300%  test_it.py::test_over",
    "  2.0 KiB       0 B       1       -  test_it.py::test_small",
    "      0 B       0 B       0       -  test_it.py::test_under",
    "measured 5 tests on cpu",
    "suggested budgets (current peak + 10 %):",
    f"  {LONG}",
    '    @pytest.mark.memory_budget(peak="23KiB")',
    "  test_it.py::test_small",
    '    @pytest.mark.memory_budget(peak="3KiB")',
]


def test_summary(run_inner):
    inner = run_inner(SEVERAL, "--cudamem")
    assert inner.summary == TABLE
    place = next(number for number, line in enumerate(inner.lines) if "cudamem summary" in line)
    assert place < next(number for number, line in enumerate(inner.lines) if "short test summary info" in line)


def test_a_summary_of_passing_tests_has_no_empty_line_in_it(run_inner):
    inner = run_inner("import torch\ndef test_it(): torch.empty(256)", "--cudamem")
    assert inner.summary == [
        "   peak  retained  allocs  test",
        "1.0 KiB       0 B       1  test_it.py::test_it",
        "measured 1 test on cpu",
        "suggested budgets (current peak + 10 %):",
        "  test_it.py::test_it",
        '    @pytest.mark.memory_budget(peak="2KiB")',
    ]


def test_rows(run_inner):
    assert run_inner(SEVERAL, "--cudamem", "--cudamem-top=2").summary[3:6] == [
        "400.0 KiB       0 B       2    100%  test_it.py::test_large",
        TABLE[4],
        "... 3 more (--cudamem-top=5 shows them)",
    ]
    assert run_inner({}, "--cudamem", "--cudamem-top=0").summary == [*TABLE[:2], TABLE[8]]


def test_quiet(run_inner):
    inner = run_inner(SEVERAL, "--cudamem", "-q")
    assert inner.summary == [*TABLE[:2], TABLE[8]]
    inner = run_inner({}, "--cudamem", "-q", "-k", "small or large", "--cudamem-json=report.json")
    assert inner.lines == [
        "..                                                                       [100%]",
        "2 passed, 3 deselected" + inner.lines[-1].partition("deselected")[2],
    ]
    assert [record.nodeid for record in inner.run.tests] == ["test_it.py::test_small", "test_it.py::test_large"]


def test_json(run_inner, pytester):
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=out/deep/report.json")
    path = pytester.path / "out/deep/report.json"
    assert inner.summary[9:11] == ["note: report written to", f"  {path}"] or f"note: report written to {path}" in (
        inner.summary
    )
    data = json.loads(path.read_text())
    assert (data["schema"], data["kind"]) == (1, "report")
    assert data["environment"] == {"devices": ["cpu"], "torch": inner.run.environment.torch, "allocator": "cpu"}
    assert {test["nodeid"]: test["outcome"] for test in data["tests"]} == {
        "test_it.py::test_small": "passed",
        "test_it.py::test_large": "passed",
        "test_it.py::test_middle_of_a_long_name_that_goes_on_and_on_until_it_does_not_fit_into_the_line": "passed",
        "test_it.py::test_over": "failed",
        "test_it.py::test_under": "failed",
    }
    over = data["tests"][3]
    assert [window["name"] for window in over["windows"]] == ["setup", "call", "teardown"]
    call = over["windows"][1]
    start = call["start"]
    assert call == call | {
        "device": "cpu",
        "peak": start + 3 * KIB,
        "end": start,
        "requested_peak": start + 3 * KIB,
        "reserved_start": None,
        "reserved_peak": None,
        "retained": 0,
        "allocations": 1,
        "complete": True,
        "notes": [],
    }
    (finding,) = over["findings"]
    assert finding == finding | {
        "kind": "budget",
        "verdict": "over budget",
        "severity": "fail",
        "bytes": 2 * KIB,
        "device": "cpu",
        "cause": "budget peak at most",
        "message": "cudamem: peak 3.0 KiB above start is over its budget of 1.0 KiB by 2.0 KiB (cpu)",
    }
    assert {"allocated", "holder"} <= finding.keys()
    assert {"fixtures", "findings", "ledger", "notes"} <= data["run"].keys()
    assert read_json(path) == inner.run
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444
    assert [one.name for one in path.parent.iterdir()] == ["report.json"]  # no temporary file is left


def test_json_replaces_an_older_report_whole(run_inner, pytester):
    (pytester.path / "report.json").write_text("old")
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=report.json", "-k", "small")
    assert read_json(pytester.path / "report.json") == inner.run


def test_a_report_that_cannot_be_written_fails_a_green_run(run_inner, pytester):
    (pytester.path / "file").write_text("not a folder")
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=file/report.json", "-k", "small", "-q")
    assert inner.status == 1
    text = " ".join(line.strip() for line in inner.summary)
    assert f"note: the report was not written to {pytester.path}/file/report.json: " in text
    assert (pytester.path / "file").read_text() == "not a folder"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_ours(run_inner, pytester):
    (pytester.path / "locked").mkdir(mode=0o500)
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=locked/report.json", "-k", "small")
    assert inner.status == 1


def test_a_report_is_written_when_nothing_was_measured(run_inner, pytester):
    file = "def test_it(): pass"
    for options in (("--no-cudamem",), ("--cudamem",)):
        inner = run_inner(file, "--cudamem-json=report.json", *options)
        found = read_json(pytester.path / "report.json")
        assert inner.status == 0
        assert len(found.tests) == (1 if options == ("--cudamem",) else 0)
        (pytester.path / "report.json").unlink()


@pytest.mark.parametrize(
    "plan", ["--collect-only", "--setup-plan", "--fixtures", "--fixtures-per-test", "--markers", "--help"]
)
def test_plans_measure_and_write_nothing(run_inner, pytester, plan):
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=report.json", plan, plugins=["setuponly", "setupplan"])
    assert inner.status == 0
    assert not inner.has_section("cudamem summary")
    assert not (pytester.path / "report.json").exists()


def test_setups_alone(run_inner):
    file = """
        import pytest, torch
        @pytest.fixture(scope="module")
        def wide(): return torch.empty(256)
        def test_it(wide): torch.empty(512)
    """
    inner = run_inner(file, "--cudamem", "--setup-only", plugins=["setuponly"])
    assert inner.fixture("wide")[0].windows[0].retained == KIB
    assert inner.summary == ["measured 1 test on cpu"]


def test_empty_runs(run_inner):
    inner = run_inner("import torch", "--cudamem")
    assert (inner.status, inner.last) == (5, "no tests ran")
    assert not inner.has_section("cudamem summary")
    inner = run_inner(SEVERAL, "--cudamem", "-k", "nothing")
    assert (inner.status, inner.run.tests) == (5, ())


def test_errors_while_collecting(run_inner, pytester):
    files = {"test_bad.py": "import torch\nraise RuntimeError('no luck')", "test_it.py": SEVERAL}
    inner = run_inner(files, "--cudamem", "--cudamem-json=report.json")
    assert (inner.status, inner.last) == (2, "1 error")
    assert read_json(pytester.path / "report.json").tests == ()
    inner = run_inner({}, "--cudamem", "--continue-on-collection-errors", "-k", "small")
    assert inner.last == "1 passed, 4 deselected, 1 error"
    assert inner.outcomes == {"test_small": "passed"}


INTERRUPTED = """
    import pytest, torch

    @pytest.fixture(scope="module", autouse=True)
    def wide():
        yield torch.empty(256)

    @pytest.mark.memory_budget(peak="4KiB")
    def test_before():
        torch.empty(512)

    def test_stops(cuda_memory):
        with cuda_memory.window("inside"), cuda_memory.limit("1MiB"):
            torch.empty(256)
            {how}

    def test_never():
        pass
"""


@pytest.mark.parametrize(
    ("how", "status"), [("raise KeyboardInterrupt", 2), ("pytest.exit('enough', 3)", 3)], ids=["keys", "exit"]
)
def test_interrupted_runs_are_reported(run_inner, pytester, how, status):
    before = [*gc.callbacks]
    inner = run_inner(INTERRUPTED.replace("{how}", how), "--cudamem", "--cudamem-json=report.json")
    assert inner.status == status
    assert gc.callbacks == before
    assert inner.outcomes == {"test_before": "passed"}
    setup, teardown = inner.fixture("wide")
    assert (setup.windows[0].retained, teardown.windows[0].name) == (KIB, "teardown of fixture 'wide'")
    assert read_json(pytester.path / "report.json") == inner.run
    assert run_inner("import torch\ndef test_it(): torch.empty(1 << 20)", "--cudamem").last == "1 passed"


RERUNS = """
    import pytest, torch
    ATTEMPTS = []

    @pytest.mark.memory_budget(peak="1KiB")
    def test_flaky():
        ATTEMPTS.append(1)
        torch.empty(512 if len(ATTEMPTS) < 3 else 256)

    def test_steady():
        pass
"""


def test_reruns_keep_the_findings_of_earlier_attempts(run_inner, pytester):
    options = ("--cudamem", "--reruns=3", "--junitxml=junit.xml", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    inner = run_inner(RERUNS, *options, plugins=["rerunfailures", "junitxml"])
    assert inner.last == "2 passed, 2 rerun"
    assert [(test.attempt, test.outcome, len(test.findings)) for test in inner.run.tests] == [
        (1, "rerun", 1),
        (2, "rerun", 1),
        (3, "passed", 0),
        (1, "passed", 0),
    ]
    assert inner.summary[0] == "budget: 2 findings (over budget) in 1 test"
    assert inner.window("test_flaky").peak_growth == KIB
    text = (pytester.path / "junit.xml").read_text()
    assert text.count('name="cudamem.cpu.peak"') == 4  # each attempt's teardown has its own, once


def test_a_report_that_pytest_keeps_has_the_records_of_the_run(run_inner):
    """And no others: thousands of tests would have each record twice."""
    kept = """
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def reports(request):
            yield
            request.config.pluginmanager.register(Last(), "last")

        class Last:
            def pytest_terminal_summary(self, terminalreporter, config):
                run = config.pluginmanager.getplugin("cudamem-collector").run()
                reports = terminalreporter.stats[""]
                records = [record for report in reports for record in getattr(report, "cudamem", ())]
                same = all(record is one for record, one in zip(records, run.tests, strict=True))
                print("KEPT", [(record.nodeid, record.outcome) for record in records], same)
    """
    inner = run_inner({"conftest.py": kept, "test_it.py": "def test_a(): pass\ndef test_b(): pass"}, "--cudamem", "-s")
    assert "KEPT [('test_it.py::test_a', 'passed'), ('test_it.py::test_b', 'passed')] True" in inner.lines


def test_a_plugin_that_logs_no_teardown_of_early_attempts(run_inner):
    files = {
        "conftest.py": """
            from _pytest.runner import runtestprotocol

            def pytest_runtest_protocol(item, nextitem):
                for attempt in range(3):
                    reports = runtestprotocol(item, nextitem=nextitem, log=False)
                    if not any(report.failed for report in reports):
                        break
                    if attempt < 2:
                        item.ihook.pytest_runtest_logreport(report=reports[0])
                for report in reports:
                    item.ihook.pytest_runtest_logreport(report=report)
                return True
        """,
        "test_it.py": RERUNS,
    }
    inner = run_inner(files, "--cudamem")
    assert [(test.attempt, test.outcome, len(test.findings)) for test in inner.run.tests] == [
        (1, "rerun", 1),
        (2, "rerun", 1),
        (3, "passed", 0),
        (1, "passed", 0),
    ]


LIKE_FORKED = """
    import json, marshal, pytest
    from _pytest.runner import runtestprotocol

    def pytest_addoption(parser):
        parser.addoption("--forked", action="store_true")

    def pytest_configure(config):
        config.addinivalue_line("markers", "forked: in a process of its own")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        if not item.config.getoption("forked") and item.get_closest_marker("forked") is None:
            return None
        hook, config = item.ihook, item.config
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            if hasattr(report, "cudamem"):
                report.cudamem = marshal.loads(marshal.dumps(report.cudamem))
            data = json.loads(json.dumps(hook.pytest_report_to_serializable(config=config, report=report)))
            hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=data))
        return True
"""


@pytest.mark.parametrize("flags", [("--forked",), ("-k", "marked")])
def test_forked_tests(run_inner, flags):
    """As pytest-forked does, reports are marshalled, also in a worker of pytest-xdist, which sends them on."""
    file = """
        import pytest, torch

        @pytest.mark.forked
        @pytest.mark.memory_budget(peak="1KiB")
        def test_marked():
            torch.empty(512)

        @pytest.mark.memory_budget(peak="1KiB")
        def test_other():
            torch.empty(512)
    """
    inner = run_inner({"conftest.py": LIKE_FORKED, "test_it.py": file}, "--cudamem", *flags)
    over = "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    names = ["test_marked"] if "-k" in flags else ["test_marked", "test_other"]
    assert [*inner.outcomes.items()] == [(name, "failed") for name in names]
    for test in inner.run.tests:
        assert [title(one) for one in test.failing] == [over]
        assert test.window("call").peak_growth == 2 * KIB


@pytest.mark.parametrize("missing", ["cacheprovider", "terminal", "junitxml", "setuponly", "capture", "skipping"])
def test_without_a_plugin_of_pytest(run_inner, pytester, missing):
    inner = run_inner(SEVERAL, "--cudamem", "--cudamem-json=report.json", "-p", f"no:{missing}", "-k", "not middle")
    assert inner.status == 1
    assert [*inner.outcomes.values()] == ["passed", "passed", "failed", "failed"]
    assert read_json(pytester.path / "report.json") == inner.run


def test_warnings_as_errors(run_inner):
    inner = run_inner(SEVERAL, "--cudamem", "-W", "error", "-k", "small or large")
    assert inner.last == "2 passed, 3 deselected"


NESTED = """
    import pytest, torch
    pytest_plugins = ["pytester"]

    @pytest.mark.memory_budget(peak="100KiB")
    def test_outer(pytester, cuda_memory):
        pytester.makepyfile('''
            import pytest, torch
            def test_inner(cuda_memory):
                with cuda_memory.limit("40KiB"), cuda_memory.window("inside"):
                    torch.empty(30 * 256)
            @pytest.mark.memory_budget(peak="1KiB")
            def test_over():
                torch.empty(20 * 256)
        ''')
        kept = torch.empty(10 * 256)
        with cuda_memory.window("run"):
            result = pytester.runpytest_inprocess("-p", "cudamem", "--cudamem", "-p", "no:cacheprovider")
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(["*30.0 KiB * test_outer.py::test_inner", "*20.0 KiB * test_outer.py::test_over"])
        torch.empty(50 * 256)

    def test_after():
        torch.empty(5 * 256)
"""


def test_nested_sessions(run_inner):
    """The window outside sees all that the inner run took; each judges its own."""
    inner = run_inner(NESTED, "--cudamem")
    assert inner.last == "2 passed"
    assert inner.window("test_outer", "run").peak_growth == 30 * KIB
    assert inner.window("test_outer").peak_growth == 60 * KIB
    assert inner.window("test_after").peak_growth == 5 * KIB
    assert [test.nodeid for test in inner.run.tests] == ["test_it.py::test_outer", "test_it.py::test_after"]
    assert inner.test("test_outer").findings == ()


WARNS = """
    import pytest, torch

    KEPT = []

    class Node: pass

    def test_cycle():
        node = Node()
        node.me, node.big = node, torch.empty(2**18)

    @pytest.mark.parametrize("n", range(3))
    def test_leak(n):
        KEPT.append(torch.empty(2**18))
"""


@pytest.mark.parametrize("args", [(), ("-q",)])
def test_warnings_are_named_with_their_tests(run_inner, args):
    """Of failures pytest shows the text, and no line of ours repeats it."""
    inner = run_inner(WARNS, "--cudamem", "--cudamem-leaks=warn", *args)
    assert inner.status == 0
    said = " ".join(line.strip() for line in inner.summary)
    leak = "warning: test_it.py::test_leak[0] and 2 more tests: 1.0 MiB leaked (1 block, cpu): module test_it > KEPT"
    cycle = "warning: test_it.py::test_cycle: 1.0 MiB kept by a reference cycle (1 tensor, cpu): Node."
    assert leak in said
    assert cycle in said
    inner = run_inner(WARNS, "--cudamem", "--cudamem-cycles=fail", *args)
    assert not [line for line in inner.summary if line.startswith("warning: ")]


def test_colours_where_there_are_some(run_inner, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    first = TABLE[0]
    assert f"\x1b[31m{first}\x1b[0m" in run_inner(SEVERAL, "--cudamem", "--color=yes").out
    assert "\x1b" not in run_inner({}, "--cudamem", "--color=no").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run_inner({}, "--cudamem").out


def test_names_are_cut_in_a_terminal_alone(run_inner, monkeypatch):
    wide = {f"{'d' * 40}/test_{'n' * 30}.py": "import torch\ndef test_it(): torch.empty(256)"}
    assert run_inner(wide, "--cudamem").summary[1].endswith(f"  {'d' * 40}/test_{'n' * 30}.py::test_it")
    monkeypatch.setattr("cudamem_testing.plugin.collector.is_terminal", lambda reporter: True)
    assert run_inner({}, "--cudamem").summary[1].endswith(f"  .../test_{'n' * 30}.py::test_it")
