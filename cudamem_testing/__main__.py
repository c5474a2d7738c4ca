"""The command line: ``python -m cudamem_testing COMMAND``. Parses arguments and calls what does the work.

Exit status: 0 for success, 1 if a check failed, 2 for wrong arguments and files that cannot be read.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.report.snapshots.commands import add_snapshot, with_verb
from cudamem_testing.show.printable import say

if TYPE_CHECKING:
    from cudamem_testing.model.changes import Tolerance
    from cudamem_testing.model.records import RunRecord


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m cudamem_testing", description="Memory tests for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands.add_parser("doctor", help="show what can be measured on this machine"))
    _add_compare(commands.add_parser("compare", help="show what changed between two reports"))
    _add_accept(commands.add_parser("accept", help="record the results of a report, as the run itself would have"))
    _add_merge(commands.add_parser("merge", help="join the reports of shards and judge them as one run"))
    _add_report(commands.add_parser("report", help="print the summary of a report"))
    add_snapshot(commands.add_parser("snapshot", help="show what an allocator snapshot holds, or how two differ"))
    _add_explain(commands.add_parser("explain", help="explain a verdict: what it means, usual causes, what to do"))
    given = parser.parse_args(with_verb(sys.argv[1:] if arguments is None else arguments))
    try:
        status: int = given.run(given)
    except (ValueError, OSError) as error:
        say(f"error: {error}", sys.stderr)
        return 2
    return status


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    fix = "first compile the native parts again, and remove temporary files that killed processes left in this folder"
    parser.add_argument("--fix", action="store_true", help=fix)
    parser.set_defaults(run=_doctor)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=_path, metavar="A.json")
    parser.add_argument("after", type=_path, metavar="B.json")
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="METRIC:TOLERANCE",
        help="exit with status 1 if a test grew by more, such as 'requested:5%%|10MiB'; can be repeated",
    )
    parser.add_argument("--across-env", action="store_true", help="also compare tests of different environments")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument("--html", type=_path, metavar="FILE", help="write a page that shows both, and print nothing")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="rows of the table (default 20)")
    parser.set_defaults(run=_compare)


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=_path, metavar="REPORT.json")
    parser.add_argument("--baselines", action="store_true", help="record baselines (default: baselines and texts)")
    parser.add_argument("--known", action="store_true", help="record known findings (never by default)")
    parser.add_argument("--expected", action="store_true", help="write expected texts into the test files")
    _add_known(parser)
    parser.set_defaults(run=_accept)


def _add_known(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--known-file", type=_path, metavar="FILE", help="default: __cudamem__/known.jsonl at rootdir")
    parser.add_argument("--root", type=_path, default=Path(), metavar="DIR", help="pytest's rootdir (default: here)")


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reports", type=_path, nargs="+", metavar="REPORT.json")
    parser.add_argument("-o", "--output", type=_path, required=True, metavar="FILE", help="file for the merged report")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default 10)")
    parser.add_argument("--prune", action="store_true", help="remove known findings that no shard has seen")
    _add_known(parser)
    parser.set_defaults(run=_merge)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=_path, metavar="REPORT.json")
    parser.add_argument(
        "--markdown", action="store_true", help="print findings by cause as Markdown, for a pull request"
    )
    parser.add_argument("--html", type=_path, metavar="FILE", help="write a page that opens without a network")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default 10)")
    parser.set_defaults(run=_report)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verdict", metavar="VERDICT", help="such as reachable, held-by-c")
    parser.set_defaults(run=_explain)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _doctor(given: argparse.Namespace) -> int:
    from cudamem_testing.report.doctor import examine

    failed = False
    if given.fix:
        from cudamem_testing.report.repair import repair

        repaired = repair(Path(), lambda line: say(f"... {line}", sys.stderr))
        failed = bool(repaired.failed)
        say(repaired)
    say("\n".join(examine().lines(header=False)))
    return 1 if failed else 0


def _explain(given: argparse.Namespace) -> int:
    from cudamem_testing.wording.meanings import explained

    say(explained(given.verdict))
    return 0


def _compare(given: argparse.Namespace) -> int:
    from dataclasses import replace

    from cudamem_testing.model.changes import TRACKED, parse_conditions
    from cudamem_testing.report.compare import compare_runs
    from cudamem_testing.report.report_files import read_json, write_comparison

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
        say(compared.markdown(given.top) if given.markdown else compared.text(given.top, _room()))
    return 1 if compared.broken or (asked and compared.absent) else 0


def _accept(given: argparse.Namespace) -> int:
    from cudamem_testing.model.causes import causes
    from cudamem_testing.records.expected.accept import accept_texts
    from cudamem_testing.records.known_file import PLACE, name_of
    from cudamem_testing.records.known_file import accept as accept_known
    from cudamem_testing.records.update import accept
    from cudamem_testing.report.report_files import read_json

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
    from cudamem_testing.report.markdown import markdown
    from cudamem_testing.report.report_files import read_json, write_html

    run = read_json(given.report)
    if given.html is not None:
        write_html(run, given.html)
        say(f"written to {given.html}")
        return 0
    say(markdown(run) if given.markdown else _summary(run, given.top))
    return 0


def _merge(given: argparse.Namespace) -> int:
    from cudamem_testing.model.causes import causes
    from cudamem_testing.records.known import named, open_lines, parse, without
    from cudamem_testing.records.known_file import PLACE, change_known, name_of
    from cudamem_testing.records.known_of_run import UNJUDGED
    from cudamem_testing.report.merge import judge, merge_runs, unseen_by_all
    from cudamem_testing.report.report_files import read_json, write_json

    runs = [read_json(path).named(path) for path in given.reports]
    path = given.known_file or given.root / PLACE
    name = name_of(path, given.root)
    lines = parse(name, path.read_bytes() if given.known_file or path.exists() else b"")
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
    from cudamem_testing.report.named import named_lines
    from cudamem_testing.report.terminal import summary_lines

    lines = summary_lines(run, top=top, width=_width(), cut=_room() is not None)
    return "\n".join((*named_lines(run), *(line.text for line in lines)))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _room() -> int | None:
    """The width of the terminal; ``None`` where the output is no terminal, for there nothing is cut."""
    return _width() if sys.stdout.isatty() else None


if __name__ == "__main__":
    raise SystemExit(main())
