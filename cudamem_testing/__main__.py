"""The command line: ``python -m cudamem_testing COMMAND``. Parses arguments and calls what does the work.

Exit status: 0 for success, 1 if a check failed, 2 for wrong arguments and files that cannot be read.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cudamem_testing.report.snapshots.arguments import add_snapshot, with_verb
from cudamem_testing.show.printable import say

_REPORT = "report that --cudamem-json wrote"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m cudamem_testing", description="Memory tests for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add) in _COMMANDS.items():
        add(commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}."))
    given = parser.parse_args(with_verb(sys.argv[1:] if arguments is None else arguments))
    try:
        return _run(given)
    except (ValueError, OSError) as error:
        say(f"error: {error}", sys.stderr)
        return 2


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    fix = "first compile the native parts again, and remove temporary files that killed processes left in this folder"
    parser.add_argument("--fix", action="store_true", help=fix)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=_path, metavar="A.json", help=f"the earlier {_REPORT}")
    parser.add_argument("after", type=_path, metavar="B.json", help=f"the later {_REPORT}")
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


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=_path, metavar="REPORT.json", help=f"a {_REPORT}")
    parser.add_argument("--baselines", action="store_true", help="record baselines (default: baselines and texts)")
    parser.add_argument("--known", action="store_true", help="record known findings (never by default)")
    parser.add_argument("--expected", action="store_true", help="write expected texts into the test files")
    _add_known(parser)


def _add_known(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--known-file", type=_path, metavar="FILE", help="default: __cudamem__/known.jsonl at rootdir")
    parser.add_argument("--root", type=_path, default=Path(), metavar="DIR", help="pytest's rootdir (default: here)")


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "reports", type=_path, nargs="+", metavar="REPORT.json", help=f"a {_REPORT}, one for each shard"
    )
    parser.add_argument("-o", "--output", type=_path, required=True, metavar="FILE", help="file for the merged report")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default 10)")
    parser.add_argument("--prune", action="store_true", help="remove known findings that no shard has seen")
    _add_known(parser)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=_path, metavar="REPORT.json", help=f"a {_REPORT}")
    parser.add_argument(
        "--markdown", action="store_true", help="print findings by cause as Markdown, for a pull request"
    )
    parser.add_argument("--html", type=_path, metavar="FILE", help="write a page that opens without a network")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default 10)")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "verdict", metavar="VERDICT", help="such as reachable or held-by-c; any other word lists all verdicts"
    )


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "doctor": ("show what can be measured on this machine", _add_doctor),
    "compare": ("show what changed between two reports", _add_compare),
    "accept": ("record the results of a report, as the run itself would have", _add_accept),
    "merge": ("join the reports of shards and judge them as one run", _add_merge),
    "report": ("print the summary of a report", _add_report),
    "snapshot": ("show what an allocator snapshot holds, or how two differ", add_snapshot),
    "explain": ("explain a verdict: what it means, usual causes, what to do", _add_explain),
}


def _run(given: argparse.Namespace) -> int:
    """Run a command; its modules are loaded now, and not for ``--help``."""
    if given.command == "explain":
        from cudamem_testing.wording.meanings import explained

        say(explained(given.verdict))
        return 0
    if given.command == "snapshot":
        from cudamem_testing.report.snapshots.commands import run
    else:
        from cudamem_testing.report.commands import run
    return run(given)


if __name__ == "__main__":
    raise SystemExit(main())
