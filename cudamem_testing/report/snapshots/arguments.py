"""``python -m cudamem_testing snapshot VERB FILE...``: the arguments (commands.py runs them). PYTEST_DONT_REWRITE"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from cudamem_testing.model.allocator_settings import VARIABLES, AllocatorSettings
from cudamem_testing.model.sizes import parse_size

#: What each verb shows. A call without a verb is ``show``, and with a second file ``diff``.
VERBS = {
    "show": "what was live at the peak and at the end, and how segments are used",
    "peak": "what was live at the peak, by line",
    "diff": "what is new, gone and grown between two snapshots of one process",
    "fragmentation": "how the segments of each pool are used",
    "flamegraph": "a flame graph by stack: folded stacks, speedscope JSON, HTML, SVG or PNG",
    "churn": "which lines allocate blocks and free them again at once, in a loop",
    "timeline": "the memory over the recorded events",
    "why": "why a request did not fit, and what other settings of the allocator would have changed",
}
CONVERT = "the pickle of torch's own snapshots, which pytorch.org/memory_viz loads"
PLAIN = "look"
_FILE = "a snapshot that torch (_dump_snapshot) or --cudamem-dump wrote: a pickle or JSON, compressed with gzip or not"


def with_verb(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command; ``snapshot FILE [LATER]`` gets the verb that it leaves out."""
    given = [*arguments]
    if given[:1] == ["snapshot"] and len(given) > 1 and given[1] not in (*VERBS, "convert", "-h", "--help"):
        given.insert(1, PLAIN)
    return given


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    """Add the verbs to the parser of ``snapshot``."""
    parser.usage = "python -m cudamem_testing snapshot [VERB] FILE... [options]"
    command = "python -m cudamem_testing snapshot"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", prog=command)
    for verb, words in VERBS.items():
        one = verbs.add_parser(verb, help=words, description=f"Show {words}.")
        if verb == "diff":
            one.add_argument(
                "files", type=path, nargs=2, metavar="FILE", help=f"the earlier and the later one: {_FILE}"
            )
        else:
            one.add_argument("files", type=path, nargs="+", metavar="FILE", help=_FILE)
        one.add_argument("--top", type=_rows, default=10, metavar="N", help="rows of each table (default 10)")
        if verb == "fragmentation":
            one.add_argument("--request", type=_size, metavar="SIZE", help="whether a request of this size would fit")
        if verb == "flamegraph":
            one.add_argument(
                "--of",
                choices=("peak", "volume", "end"),
                default="peak",
                help="what is live at the peak or at the end, or all allocations (default: peak)",
            )
            one.add_argument(
                "-o",
                "--output",
                type=path,
                metavar="OUT",
                help="file: .folded, .txt, .json (speedscope), .html, .svg or .png (default: print folded stacks)",
            )
        if verb == "why":
            one.add_argument("--capacity", type=_size, metavar="SIZE", help="what the process could reserve (64GiB)")
            one.add_argument(
                "--with",
                dest="settings",
                type=_settings,
                action="append",
                metavar="SETTINGS",
                help="also ask for these settings (max_split_size_mb:48); can be repeated",
            )
        _add_common(one)
        one.add_argument("--html", type=path, metavar="OUT", help="write a page that opens without a network instead")
    convert = verbs.add_parser("convert", help=CONVERT, description=f"Write {CONVERT}.")
    convert.add_argument("files", type=path, nargs=1, metavar="FILE", help=_FILE)
    convert.add_argument("output", type=path, metavar="OUT.pickle")
    convert.add_argument("--device", metavar="DEVICE", help="device to write (default: the only one that was used)")
    convert.set_defaults(top=10, html=None, capacity=None, settings=None, request=None, of="peak")
    plain = verbs.add_parser(PLAIN)
    plain.add_argument("files", type=path, nargs="+", metavar="FILE")
    _add_common(plain)
    plain.set_defaults(top=10, html=None)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="DEVICE", help="device to show (default: the only one that was used)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(capacity=None, settings=None, request=None, of="peak", output=None)


def path(text: str) -> Path:
    """A path that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _rows(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows: write 1 or more")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _settings(text: str) -> AllocatorSettings:
    try:
        return AllocatorSettings.read({VARIABLES[0]: text})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
