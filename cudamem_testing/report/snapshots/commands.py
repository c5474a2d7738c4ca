"""``python -m cudamem_testing snapshot VERB FILE...``: the arguments, and what each verb does. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.show.printable import say

if TYPE_CHECKING:
    from cudamem_testing.model.allocator_settings import AllocatorSettings
    from cudamem_testing.report.snapshots.looked import Looked
    from cudamem_testing.show.progress import Progress

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
_PLAIN = "look"
_FILE = "a snapshot that torch (_dump_snapshot) or --cudamem-dump wrote: a pickle or JSON, compressed with gzip or not"


def with_verb(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command; ``snapshot FILE [LATER]`` gets the verb that it leaves out."""
    given = [*arguments]
    if given[:1] == ["snapshot"] and len(given) > 1 and given[1] not in (*VERBS, "convert", "-h", "--help"):
        given.insert(1, _PLAIN)
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
    plain = verbs.add_parser(_PLAIN)
    plain.add_argument("files", type=path, nargs="+", metavar="FILE")
    _add_common(plain)
    plain.set_defaults(top=10, html=None)
    parser.set_defaults(run=run)


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
    from cudamem_testing.model.sizes import parse_size

    try:
        return parse_size(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _settings(text: str) -> AllocatorSettings:
    from cudamem_testing.model.allocator_settings import VARIABLES, AllocatorSettings

    try:
        return AllocatorSettings.read({VARIABLES[0]: text})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(given: argparse.Namespace) -> int:
    """Run one verb; its exit status.

    Raises:
        ValueError: a file cannot be read, or an argument does not fit it.
        OSError: the page cannot be written.
    """
    from cudamem_testing.model.devices import Device
    from cudamem_testing.report.snapshots.looked import Looked
    from cudamem_testing.show.progress import Progress

    device = None if given.device is None else Device.parse(given.device)
    progress = Progress(lambda line: say(f"... {line}", sys.stderr))
    verb, files = given.verb, given.files
    if verb == _PLAIN:
        verb = "show" if len(files) == 1 else "diff"
        if len(files) > 2:
            raise ValueError(f"snapshot without a verb takes one file or two, not {len(files)}: write snapshot show")
    asked = given.capacity, given.settings or (), given.request, given.of
    looked = (Looked.read(one, device, progress, *asked) for one in files)
    if given.output is not None:
        return _write(given, [*looked], progress)
    if verb == "diff":
        return _diff(given, [*looked])
    if given.html is not None:
        from cudamem_testing.report.snapshots.page import write_page

        write_page([*looked], verb, given.top, given.html, progress)
        say(f"written to {given.html}")
    elif given.json:
        from cudamem_testing.report.snapshots.documents import document, json_text

        say(json_text(verb, [document(one, verb, given.top) for one in looked]))
    else:
        for place, one in enumerate(looked):
            if len(files) > 1:
                say(f"{chr(10) if place else ''}{one.name}")
            say("\n".join(_text(verb)(one, given.top, _room())))
    return 0


def _write(given: argparse.Namespace, looked: Sequence[Looked], progress: Progress) -> int:
    from cudamem_testing.report.snapshots.written import write_flame

    if given.verb == "convert":
        from cudamem_testing.snapshots import export

        (one,) = looked
        export.write(given.output, one.recording)
    elif given.output.suffix == ".html":
        from cudamem_testing.report.snapshots.page import write_page

        write_page(looked, given.verb, given.top, given.output, progress)
    elif len(looked) > 1:
        raise ValueError(f"{given.output.name} can hold the flame graph of one file: a page (.html) can hold several")
    else:
        write_flame(looked[0], given.output)
    say(f"written to {given.output}")
    return 0


def _text(verb: str) -> Callable[[Looked, int, int | None], Iterator[str]]:
    from cudamem_testing.report.snapshots import texts

    found: Callable[[Looked, int, int | None], Iterator[str]] = getattr(texts, verb)
    return found


def _diff(given: argparse.Namespace, both: Sequence[Looked]) -> int:
    from cudamem_testing.snapshots.diff import compare

    before, after = both
    if before.recording.device != after.recording.device:
        raise ValueError(f"{before.name} is of {before.recording.device}, {after.name} of {after.recording.device}")
    found = compare(before.recording, after.recording)
    ends = [one.recording.events.times[-1] for one in both if one.recording.events.times]
    if len(ends) == 2 and ends[1] < ends[0]:
        say(f"note: {after.name} was taken before {before.name}: name the earlier one first", sys.stderr)
    if given.html is not None:
        from cudamem_testing.report.snapshots.page import write_difference

        write_difference(before, after, found, given.html)
        say(f"written to {given.html}")
    elif given.json:
        from cudamem_testing.report.snapshots.documents import difference, json_text

        say(json_text("diff", [difference(before, after, found)]))
    else:
        say(found.text(given.top))
    return 0


def _room() -> int | None:
    """The width of the terminal; ``None`` where the output is no terminal, for there nothing is cut."""
    return min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else None
