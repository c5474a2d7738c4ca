"""The collector: puts records and outcomes together where the summary is printed, and writes the report.

It runs in the controller under pytest-xdist and in the only process otherwise; a worker sends each record with the
report of the test's teardown and the rest when it ends. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cudamem_testing.model.findings import GROUPED, Finding, Kind, Severity
from cudamem_testing.model.records import (
    Environment,
    Extent,
    FixtureRecord,
    LedgerEntry,
    RunRecord,
    TestRecord,
    Unchecked,
    Unseen,
)
from cudamem_testing.model.settings import Settings
from cudamem_testing.model.sizes import count
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.failures import PHASES, RunFailures
from cudamem_testing.plugin.settings import OPTIONS, runs_tests
from cudamem_testing.plugin.whole import is_whole, whole_paths
from cudamem_testing.run.totals import Totals, totals
from cudamem_testing.show.places import FOLDER
from cudamem_testing.show.printable import printable

if TYPE_CHECKING:
    from cudamem_testing.model.checked import Checked
    from cudamem_testing.plugin.brief import Brief

RUN = pytest.StashKey[RunRecord]()
_VALUED = {option.flag for option in OPTIONS if option.metavar is not None and option.flag != "--cudamem-update"}
_ONCE = {f"--cudamem-{name}" for name in ("json", "html", "dump", "update", "prune", "audit", "top", "gpus")}
LETTERS = {"OVER BUDGET": "M", "LEAKED": "L", "CYCLE": "C", "BASELINE": "B"}


class Statuses:
    """Names for what we found; registered with the first one, for each report of each test is asked."""

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """A test over its budget is a failure with a name of its own."""
        status = getattr(report, "cudamem_status", None)
        if status is None or not report.failed:
            return None
        return "failed" if report.when == "call" else "error", LETTERS.get(status, "M"), status


class Collector:
    """What arrived of every test, and what the run adds."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._quiet = config.get_verbosity() < 0
        self._tests: list[TestRecord] = []
        self._outcomes: dict[str, str] = {}
        self._environments: list[Environment] = []
        self._fixtures: list[FixtureRecord] = []
        self._unenforced: Counter[str] = Counter()
        self._unchecked: Counter[Unchecked] = Counter()
        self._notes: list[str] = []
        self._findings: list[Finding] = []
        self._ledger: list[LedgerEntry] = []
        self._checked: dict[str, list[Checked]] = {}
        self._ignored: Counter[str] = Counter()
        self._about_rules: list[str] = []
        self._about_records: list[str] = []
        self._seen: set[str] = set()
        self._collected = config.stash[keys.COLLECTED]
        self._undelivered = config.stash.setdefault(keys.UNDELIVERED, {})
        self._extent = Extent()
        self._unseen = Unseen()
        self._markers_fail = False  # in a worker of pytest-xdist
        self._failed = RunFailures()
        self._failures: tuple[str, ...] = ()
        config.pluginmanager.register(self._failed, "cudamem-failures")
        self._shortens = config.get_verbosity() < 2

    @cached_property
    def _brief(self) -> Brief:
        from cudamem_testing.plugin.brief import Brief

        return Brief()

    @pytest.hookimpl(tryfirst=True)  # before anybody prints
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Follow the outcome through the phases; the record comes with teardown."""
        nodeid, when = report.nodeid, report.when
        before = self._outcomes.get(nodeid, "passed")
        plain = report.outcome == before == "passed" and not hasattr(report, "wasxfail")
        outcome = self._outcomes[nodeid] = before if plain else _outcome(report, self._outcomes.get(nodeid))
        if report.failed:
            if when not in PHASES:
                self._failed.crashed(report)
            plugins = self._config.pluginmanager
            if hasattr(report, "cudamem_status") and not plugins.hasplugin("cudamem-statuses"):
                plugins.register(Statuses(), "cudamem-statuses")
        if when == "setup":  # of the attempts of a test the last one counts
            self._checked.pop(nodeid, None)
        if report.failed and when == "call" and self._shortens and hasattr(report, "cudamem_parts"):
            self._brief.shorten_parameters(report, report.cudamem_parts)
        checks = getattr(report, "cudamem_expected", None)
        if checks is not None:
            from cudamem_testing.report.schema import CHECKED

            self._checked.setdefault(nodeid, []).extend(CHECKED.read(one, "expected") for one in json.loads(checks))
        if when == "teardown":
            self._seen.add(nodeid)
            if "@" in nodeid:
                self._seen.update(_without_groups(nodeid))
            self._undelivered.pop(nodeid, None)
            del self._outcomes[nodeid]
            records = [*map(_as_record, getattr(report, "cudamem", ()))]
            if not records:
                self._failed.unmeasured(nodeid, outcome)
                return
            if report.failed and self._shortens:
                found = records[-1].findings
                self._brief.shorten(report, [found[place] for place in getattr(report, "cudamem_shown", ())])
            *earlier, last = records
            ended = [one.ended("rerun") for one in earlier] if earlier else []
            ended.append(last.ended(outcome))
            self._tests += ended
            report.cudamem = ended  # type: ignore[attr-defined] # pytest keeps the report: one record is enough

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker of pytest-xdist begins: it judges with the known findings that were read here."""
        measuring = self._config.stash.get(keys.SESSION, None)
        if measuring is not None:
            node.workerinput[keys.KNOWN_INPUT] = measuring.policy.content

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended; a crashed one left nothing, an interrupted one is reported twice.

        Raises:
            pytest.UsageError: when markers were wrong.
        """
        if error:
            return
        output = getattr(node, "workeroutput", {})
        if keys.USAGE_OUTPUT in output:
            raise pytest.UsageError(output[keys.USAGE_OUTPUT])
        from cudamem_testing.plugin.worker import KEY, received

        if KEY in output:
            self._add(received(output[KEY]))
            self._collected.add(output[KEY]["collected"])
        problems, fails = output.get(keys.PROBLEMS_OUTPUT, ((), False))
        self._config.stash.setdefault(keys.PROBLEMS, []).extend(problems)
        self._markers_fail |= fails
        if keys.UNENFORCED_OUTPUT in output:  # every worker has collected all tests
            self._config.stash[keys.UNENFORCED] = output[keys.UNENFORCED_OUTPUT]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report; a failure to do so fails a run that was green."""
        measuring = self._config.stash.get(keys.SESSION, None)
        if measuring is not None:
            self._add(totals(measuring))
        if self._markers_fail:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        self._extent = self._extent_of(session)
        self._seen |= self._collected.files
        self._about_rules = self._rules(session)
        self._record(session)
        if any(finding.severity is Severity.FAIL for finding in self._findings):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        self._failures = self._failed.lines(self.run(), session.exitstatus)
        run = self._config.stash[RUN] = self.run()
        if self._settings.reports and runs_tests(self._config):
            from cudamem_testing.report.files import write_html, write_json

            for path, write in ((self._settings.json, write_json), (self._settings.html, write_html)):
                if path is not None:
                    self._write(session, run, path, write)

    def _write(
        self, session: pytest.Session, run: RunRecord, path: Path, write: Callable[[RunRecord, Path], None]
    ) -> None:
        """Write one report; a failure to do so fails a run that was green."""
        try:
            write(run, path)
        except OSError as error:
            self._notes.append(f"the report was not written to {path}: {error}")
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        else:
            if not self._quiet:
                self._notes.append(f"report written to {path}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary; with -q only if there are findings, or something was not checked, measured or written."""
        run = self.run()
        if not (run.tests or run.notes or run.unchecked or run.unseen.causes) or not runs_tests(self._config):
            return
        top = 0 if self._quiet else self._settings.top
        asked = self._settings.prune or self._settings.update  # then a file was written, or not
        said = self._notes or (asked and (self._about_records or self._unseen.causes))
        if not self._quiet or said or run.is_partly_unchecked or self._found(run):
            from cudamem_testing.report.terminal import summary_lines

            run = run._replace(failures=())  # pytest has shown them
            terminalreporter.write_sep("=", "cudamem summary")
            width = min(terminalreporter._tw.fullwidth, 120)
            cut = is_terminal(terminalreporter)
            for line in summary_lines(run, top=top, width=width, grouped=not self._settings.audit, cut=cut):
                terminalreporter.write_line(printable(line.text), **({line.colour: True} if line.colour else {}))
        if self._settings.audit:
            from cudamem_testing.records import known_of_run as known
            from cudamem_testing.report.causes import audit_lines, matched_lines

            lines = audit_lines(run, known.recording_command(self._config.invocation_params.args))
            measuring = self._config.stash.get(keys.SESSION, None)
            if measuring is not None:
                lines += matched_lines(measuring.policy.lines, run, measuring.policy.name)
            for line in lines:
                terminalreporter.write_line(printable(line))

    @staticmethod
    def _found(run: RunRecord) -> bool:
        failing = any(finding.severity is Severity.FAIL for finding in run.findings)
        return failing or any(test.findings for test in run.tests)

    def run(self) -> RunRecord:
        """Everything so far."""
        environments = self._environments or [Environment()]
        devices = dict.fromkeys(device for one in environments for device in one.devices)
        first = environments[0]
        return RunRecord(
            Environment(tuple(devices), first.torch, first.allocator),
            tuple(self._tests),
            tuple(self._fixtures),
            tuple(self._findings),
            tuple(dict.fromkeys((*self._notes, *self._about_rules, *self._about_records))),
            dict(sorted(self._unenforced.items())),
            tuple(self._ledger),
            tuple(one for checks in self._checked.values() for one in checks),
            self._extent,
            self._failures,
            dict(self._unchecked),
            _flags(self._config.invocation_params.args),
            self._unseen,
        )

    def _record(self, session: pytest.Session) -> None:
        """Write baselines and known findings if that was asked for; a failure to do so fails a run that was green."""
        if not runs_tests(self._config):
            return
        settings, root = self._settings, self._config.rootpath
        said = []
        if settings.update or _has_records(root, self._seen) or any(test.measured for test in self._tests):
            from cudamem_testing.records import baselines_of_run as recorded

            outside = self._collected.outside_root
            said.append(recorded.finish(settings, root, self._tests, self._seen, self._extent.covers(), outside))
        measuring = self._config.stash.get(keys.SESSION, None)
        if settings.on and measuring is not None and (measuring.policy.lines or "known" in settings.update):
            from cudamem_testing.records import known_of_run as known

            policy = measuring.policy
            said.append(known.finish(settings, policy.file, policy.name, policy.lines, self.run(), root))
            self._unseen = said[-1].unseen
        elif settings.on and settings.known is not None and not settings.known.exists():
            self._notes.append(f"--cudamem-known: there is no {settings.known}; --cudamem-update=known writes it")
        self._about_records = [line for one in said for line in one.lines]
        for one in said:
            self._unchecked.update(one.unchecked)
        problems = [problem for one in said for problem in one.problems]
        self._notes += problems
        if problems:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _extent_of(self, session: pytest.Session) -> Extent:
        """What the run looked at; a test that began and did not end was left out as well."""
        settings = self._settings
        off = {kind for kind, asked in ((Kind.LEAK, settings.leaks), (Kind.CYCLE, settings.cycles)) if asked == "off"}
        looked = GROUPED - off if settings.on and settings.stacks else ()
        unfinished = {*self._outcomes, *(name for one in self._outcomes for name in _without_groups(one))}
        left_out = self._collected.left_out(self._seen) | unfinished
        paths = whole_paths(session) if self._collected.tests else ()  # no worker that measured has told of them
        return Extent(paths, tuple(sorted(left_out)), tuple(sorted(kind.value for kind in looked)))

    def _rules(self, session: pytest.Session) -> list[str]:
        """What each rule of the ini file ignored; that it ignored nothing is worth a word after a whole run."""
        asked = self._settings.on and self._settings.leaks != "off" and runs_tests(self._config)
        measured = asked and bool(self._environments and self._environments[0].devices) and bool(self._tests)
        whole = measured and not self._extent.left_out and is_whole(session)
        notes = []
        for rule in self._settings.ignore:
            number = self._ignored[str(rule)]
            if number:
                notes.append(f"ignored {count(number, 'finding')} by rule '{rule}' ({rule.reason})")
            elif whole:
                notes.append(f"rule '{rule}' ({rule.reason}) ignored nothing: it can go from cudamem_ignore")
        return notes

    def _add(self, known: Totals) -> None:
        self._environments.append(known.environment)
        self._fixtures += known.fixtures
        self._unenforced.update(known.unenforced)
        self._unchecked.update(known.unchecked)
        self._findings += known.findings
        self._ledger += known.ledger
        self._ignored.update(known.ignored)
        self._notes += known.notes


def is_terminal(reporter: pytest.TerminalReporter) -> bool:
    """Whether what is reported goes to a terminal, where names may have to give way."""
    return bool(reporter.isatty)


def _has_records(root: Path, nodeids: Iterable[str]) -> bool:
    """Whether there is a folder of recorded things beside one of the files of some ids."""
    folders = {os.path.dirname(nodeid.partition("::")[0]) for nodeid in nodeids}
    return any((root / folder / FOLDER).is_dir() for folder in folders)


def _flags(arguments: Sequence[str]) -> tuple[str, ...]:
    """The memory flags of a command line that running one of its tests once more needs."""
    found = []
    for one, following in itertools.pairwise((*arguments, "-")):
        name, equals, _ = one.partition("=")
        if name.startswith("--cudamem") and name not in _ONCE:
            found += [one, following] if name in _VALUED and not equals and not following.startswith("-") else [one]
    return tuple(found)


def _as_record(sent: Any) -> TestRecord:
    """The record as it was made in this process, or as a worker sent it."""
    if isinstance(sent, TestRecord):
        return sent
    from cudamem_testing.report.schema import TEST

    record: TestRecord = TEST.read(sent, "the record of a test")
    return record


def _without_groups(nodeid: str) -> Iterator[str]:
    """What the test may be called as well: a group of pytest-xdist may follow its id, and have an ``@`` in its name."""
    for place, character in enumerate(nodeid):
        if character == "@":
            yield nodeid[:place]


def _outcome(report: pytest.TestReport, before: str | None) -> str:
    """The outcome so far; a failed subtest, which pytest reports before the test, has failed it if it runs no more."""
    if str(report.outcome) == "rerun":  # set by pytest-rerunfailures
        return "rerun"
    if before == "failed":
        return before
    if report.when == "call":
        if hasattr(report, "wasxfail"):
            return "xfailed" if report.skipped else "xpassed"
        return report.outcome
    if report.failed:
        return "error"
    if report.skipped:
        return "xfailed" if hasattr(report, "wasxfail") else "skipped"
    return before or "passed"
