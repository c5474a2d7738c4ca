"""The collector: joins records and outcomes in the process that prints the summary, and writes the report.

It runs in the controller under pytest-xdist and in the only process otherwise; a worker sends each record with the
report of the test's teardown and the rest when it ends. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.options import rerun_flags
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.model.settings import Settings
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.failures import PHASES, RunFailures, worker_of
from cudamem_testing.plugin.items import failure_lines
from cudamem_testing.plugin.run_coverage import is_whole, whole_paths
from cudamem_testing.plugin.settings import runs_tests
from cudamem_testing.run.gathered import Gathered
from cudamem_testing.run.outcomes import Outcomes
from cudamem_testing.run.process_summary import process_summary
from cudamem_testing.show.printable import printable

if TYPE_CHECKING:
    from cudamem_testing.report.deduplicate import Deduplicated
    from cudamem_testing.verdicts.policy import Policy

RUN = pytest.StashKey[RunRecord]()
LETTERS = {"OVER BUDGET": "M", "LEAKED": "L", "CYCLE": "C", "BASELINE": "B"}


class Statuses:
    """Names for our failures; registered with the first one, because its hook runs for each report of each test."""

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Give a failure of ours its name, such as ``OVER BUDGET``."""
        status = getattr(report, "cudamem_status", None)
        if status is None or not report.failed:
            return None
        return "failed" if report.when == "call" else "error", LETTERS.get(status, "M"), status


class Collector:
    """Collects test records, and adds the notes of the run before reporting."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._quiet = config.get_verbosity() < 0
        self._gathered = Gathered(settings, config.rootpath, rerun_flags(config.invocation_params.args))
        self._outcomes = Outcomes(self._gathered, each=config.getoption("dist", "no") == "each")
        self._collected = config.stash[keys.COLLECTED]
        self._undelivered = config.stash.setdefault(keys.UNDELIVERED, {})
        self._markers_fail = False  # in a worker of pytest-xdist
        failures = RunFailures()
        self._failed = failures.lines
        config.pluginmanager.register(failures, "cudamem-failures")
        self._shortens = config.get_verbosity() < 2

    @cached_property
    def _shown(self) -> Deduplicated:
        from cudamem_testing.report.deduplicate import Deduplicated

        return Deduplicated()

    @property
    def _policy(self) -> Policy | None:
        """The policy that judged the tests of this process."""
        session = self._config.stash.get(keys.SESSION, None)
        return None if session is None else session.policy

    @pytest.hookimpl(tryfirst=True)  # before others print the report
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Follow the outcome through the phases; the record arrives with teardown."""
        about = vars(report)  # asking a report for what it lacks raises an error each time
        nodeid, when, failed = report.nodeid, report.when, report.outcome == "failed"  # not by its properties: calls
        node = about.get("node")
        if when not in PHASES:
            if failed:
                self._failed.crashed(nodeid, worker_of(node), str(report.longrepr))
                if self._settings.on:
                    self._outcomes.crashed(nodeid)
            return
        worker = "" if node is None else worker_of(node)
        passes = report.outcome == "passed" and "wasxfail" not in about
        if passes and when != "teardown" and self._outcomes.running.setdefault((nodeid, worker), "passed") == "passed":
            if "cudamem_expected" not in about and not self._gathered.checked:
                return  # so it is for most phases
        elif when != "teardown" or report.outcome != "passed":  # a teardown that passes changes no outcome
            self._outcomes.phase(nodeid, worker, when, str(report.outcome), xfail="wasxfail" in about)
        if failed:
            plugins = self._config.pluginmanager
            if "cudamem_status" in about and not plugins.hasplugin("cudamem-statuses"):
                plugins.register(Statuses(), "cudamem-statuses")
        if when == "setup" and self._gathered.checked:  # the last attempt of a test counts
            self._gathered.checked.pop(nodeid, None)
        lines = failure_lines(report) if failed and self._shortens else None
        if lines and when == "call" and "cudamem_parts" in about:
            self._shown.shorten_parameters(nodeid, lines, about["cudamem_parts"])
        if "cudamem_expected" in about:
            found = [_schema().CHECKED.read(one, "expected") for one in json.loads(about["cudamem_expected"])]
            self._gathered.checked.setdefault(nodeid, []).extend(found)
        if when == "teardown":
            self._undelivered.pop(nodeid, None)
            records = [one if isinstance(one, TestRecord) else _as_record(one) for one in about.get("cudamem", ())]
            outcome, ended = self._outcomes.end(nodeid, worker, records)
            if not records:
                self._failed.unmeasured(nodeid, outcome)
                return
            if lines:
                known = records[-1].findings
                self._shown.shorten(nodeid, lines, [known[place] for place in about.get("cudamem_shown", ())])
            about["cudamem"] = ended  # pytest keeps the report: one record is enough

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker of pytest-xdist starts: it judges with the known findings that were read here."""
        if self._policy is not None:
            node.workerinput[keys.KNOWN_INPUT] = self._policy.content

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended; a crashed one left nothing, an interrupted one is reported twice.

        Raises:
            pytest.UsageError: when markers were wrong.
        """
        if error:
            self._outcomes.lost(worker_of(node))
            return
        output = getattr(node, "workeroutput", {})
        if keys.USAGE_OUTPUT in output:
            raise pytest.UsageError(output[keys.USAGE_OUTPUT])
        from cudamem_testing.plugin.worker import KEY

        if KEY in output:
            self._gathered.add(_schema().PROCESS.read(output[KEY], "what a worker has sent"))
            self._collected.add(output[KEY]["collected"])
        problems, fails = output.get(keys.PROBLEMS_OUTPUT, ((), False))
        self._config.stash.setdefault(keys.PROBLEMS, []).extend(problems)
        self._markers_fail |= fails
        if keys.UNENFORCED_OUTPUT in output:  # every worker has collected all tests
            self._config.stash[keys.UNENFORCED] = output[keys.UNENFORCED_OUTPUT]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; a failure to do so fails a run that had passed."""
        measuring = self._config.stash.get(keys.SESSION, None)
        if measuring is not None:
            self._gathered.add(process_summary(measuring))
        self._cover(session)
        gathered, runs = self._gathered, runs_tests(self._config)
        asked = runs and self._settings.on and self._settings.leaks != "off"
        if runs:
            gathered.note_unused()
        gathered.note_rules(whole=asked and is_whole(session))
        unwritten = runs and gathered.record(self._outcomes.seen, self._collected.outside_root, self._policy)
        if self._markers_fail or unwritten or gathered.fails:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        gathered.failures = self._failed.of_run(self.run(), session.exitstatus)
        run = self._config.stash[RUN] = self.run()
        if self._settings.reports and runs_tests(self._config):
            from cudamem_testing.report.report_files import write_reports

            written, problems = write_reports(run, self._settings.json, self._settings.html)
            gathered.notes += [*([] if self._quiet else written), *problems]
            if problems:
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary; with -q only if there are findings, or something was not checked, measured or written."""
        run = self.run()
        if not (run.tests or run.notes or run.unchecked or run.unseen.causes) or not runs_tests(self._config):
            return
        top = 0 if self._quiet else self._settings.top
        if not self._quiet or self._gathered.has_news or run.is_partly_unchecked or run.has_findings:
            from cudamem_testing.report.terminal import summary_lines

            run = run._replace(failures=())  # pytest has shown them
            terminalreporter.write_sep("=", "cudamem summary")
            width = min(terminalreporter._tw.fullwidth, 120)
            cut = is_terminal(terminalreporter)
            for line in summary_lines(run, top=top, width=width, grouped=not self._settings.audit, cut=cut):
                terminalreporter.write_line(printable(line.text), **({line.colour: True} if line.colour else {}))
        if self._settings.audit:
            from cudamem_testing.report.causes import audit_of_run

            for text in audit_of_run(run, self._config.invocation_params.args, self._policy):
                terminalreporter.write_line(printable(text))

    def run(self) -> RunRecord:
        """Everything so far."""
        return self._gathered.run()

    def _cover(self, session: pytest.Session) -> None:
        """Note what the run covered; a test that began and did not end was left out."""
        self._outcomes.seen |= self._collected.files
        paths = whole_paths(session) if self._collected.tests else ()  # no worker reported its collection
        self._gathered.covered(paths, self._collected.left_out(self._outcomes.seen) | {*self._outcomes.unfinished()})


def is_terminal(reporter: pytest.TerminalReporter) -> bool:
    """Whether the report goes to a terminal, where names may be cut."""
    return bool(reporter.isatty)


def _schema() -> ModuleType:
    """What reads the records of workers and checked texts: few runs have any."""
    from cudamem_testing.report import schema

    return schema


def _as_record(sent: Any) -> TestRecord:
    """The record that a worker has sent."""
    record: TestRecord = _schema().TEST.read(sent, "the record of a test")
    return record
