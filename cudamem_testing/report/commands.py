"""What each command of ``python -m cudamem_testing`` does, except ``snapshot`` and ``explain``.

A command returns its exit status. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.causes import causes
from cudamem_testing.model.changes import TRACKED, parse_conditions
from cudamem_testing.records.expected.accept import accept_texts
from cudamem_testing.records.known import named, open_lines, parse, without
from cudamem_testing.records.known_file import PLACE, change_known
from cudamem_testing.records.known_file import accept as accept_known
from cudamem_testing.records.known_of_run import UNJUDGED
from cudamem_testing.records.update import accept
from cudamem_testing.report.compare import compare_runs
from cudamem_testing.report.doctor import examine
from cudamem_testing.report.markdown import markdown
from cudamem_testing.report.merge import judge, merge_runs, unseen_by_all
from cudamem_testing.report.named import named_lines
from cudamem_testing.report.page import write_comparison, write_html
from cudamem_testing.report.repair import repair
from cudamem_testing.report.report_files import read_json, write_json
from cudamem_testing.report.terminal import summary_lines
from cudamem_testing.show.places import content_of, name_of
from cudamem_testing.show.printable import room, say, width

if TYPE_CHECKING:
    import argparse

    from cudamem_testing.model.changes import Tolerance
    from cudamem_testing.model.records import RunRecord


def run(given: argparse.Namespace) -> int:
    """Run one command.

    Raises:
        ValueError: a file cannot be understood.
        OSError: a file cannot be read or written.
    """
    return _COMMANDS[given.command](given)


def _doctor(given: argparse.Namespace) -> int:
    failed = False
    if given.fix:
        repaired = repair(Path(), lambda line: say(f"... {line}", sys.stderr))
        failed = bool(repaired.failed)
        say(repaired)
    say("\n".join(examine().lines(header=False)))
    return 1 if failed else 0


def _compare(given: argparse.Namespace) -> int:
    before, after = (read_json(path).named(path) for path in (given.before, given.after))
    asked = parse_conditions(given.fail_on)
    every: dict[str, Tolerance | None] = dict.fromkeys(TRACKED if given.html is not None else ())
    shown = {**every, **asked} or {"requested": None}
    compared = compare_runs(before, after, shown, across=given.across_env)
    if given.html is not None:
        compared = replace(compared, absent=tuple(metric for metric in compared.absent if metric in asked))
        write_comparison(before, after, compared, given.html)
        say(f"written to {given.html}")
    else:
        say(compared.markdown(given.top) if given.markdown else compared.text(given.top, room()))
    return 1 if compared.broken or (asked and compared.absent) else 0


def _accept(given: argparse.Namespace) -> int:
    run = read_json(given.report)
    every = not (given.baselines or given.known or given.expected)
    refused = False
    unwritten: OSError | None = None
    if given.known or every:  # first, because a file that cannot be understood ends the command
        path = given.known_file or given.root / PLACE
        try:
            accepted = accept_known(path, name_of(path, given.root), given.root, causes(run), record=given.known)
        except OSError as error:  # there may be room for the other files
            unwritten = error
        else:
            refused = bool(accepted.refused)
            if given.known or accepted.sizes:
                say(accepted)
    if given.baselines or every:
        updated = accept(given.root, run.tests)
        refused |= bool(updated.refused)
        say(updated)
    if given.expected or every:
        written = accept_texts(given.root, run.checked)
        refused |= bool(written.refused)
        say(written)
    if unwritten is not None:
        raise unwritten
    return 1 if refused else 0


def _report(given: argparse.Namespace) -> int:
    run = read_json(given.report)
    if given.html is not None:
        write_html(run, given.html)
        say(f"written to {given.html}")
        return 0
    say(markdown(run) if given.markdown else _summary(run, given.top))
    return 0


def _merge(given: argparse.Namespace) -> int:
    runs = [read_json(path).named(path) for path in given.reports]
    path = given.known_file or given.root / PLACE
    name = name_of(path, given.root)
    lines = parse(name, path.read_bytes() if given.known_file else content_of(path) or b"")
    merged = judge(merge_runs(runs), lines, name)
    gone = unseen_by_all(runs, lines, lambda file: os.path.exists(given.root / file))
    if gone and given.prune:
        merged = merged.noting(str(change_known(path, name, lambda now: without(now, gone))))
    elif gone:
        merged = merged._replace(unseen=named(gone, "merge --prune"))
    if given.prune and (rest := open_lines(lines, causes(merged), gone)):
        merged = merged.noting(f"known findings: {rest} not pruned: {UNJUDGED.format('these runs')}")
    write_json(merged, given.output)
    say(_summary(merged, given.top))
    return 1 if merged.failed else 0


def _summary(run: RunRecord, top: int) -> str:
    """The findings of a report by test, and its summary."""
    lines = summary_lines(run, top=top, width=width(), cut=room() is not None)
    return "\n".join((*named_lines(run), *(line.text for line in lines)))


_COMMANDS = {
    "doctor": _doctor,
    "compare": _compare,
    "accept": _accept,
    "report": _report,
    "merge": _merge,
}
