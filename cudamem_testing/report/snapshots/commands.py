"""``python -m cudamem_testing snapshot VERB FILE...``: what each verb does. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cudamem_testing.guards import CollectorPaused
from cudamem_testing.model.devices import Device
from cudamem_testing.report.snapshots import texts
from cudamem_testing.report.snapshots.arguments import PLAIN
from cudamem_testing.report.snapshots.documents import difference, document, json_text
from cudamem_testing.report.snapshots.looked import Looked
from cudamem_testing.report.snapshots.page import write_difference, write_page
from cudamem_testing.report.snapshots.written import write_flame
from cudamem_testing.show.printable import room, say
from cudamem_testing.show.progress import Progress
from cudamem_testing.snapshots import export
from cudamem_testing.snapshots.diff import compare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence


def run(given: argparse.Namespace) -> int:
    """Run one verb; its exit status.

    Raises:
        ValueError: a file cannot be read, or an argument does not fit it.
        OSError: the page cannot be written.
    """
    with CollectorPaused():  # nothing here makes cycles, and it would scan what was read again and again
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    device = None if given.device is None else Device.parse(given.device)
    progress = Progress(lambda line: say(f"... {line}", sys.stderr))
    verb, files = given.verb, given.files
    if verb == PLAIN:
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
        write_page([*looked], verb, given.top, given.html, progress)
        say(f"written to {given.html}")
    elif given.json:
        say(json_text(verb, [document(one, verb, given.top) for one in looked]))
    else:
        for place, one in enumerate(looked):
            if len(files) > 1:
                say(f"{chr(10) if place else ''}{one.name}")
            say("\n".join(_text(verb)(one, given.top, room())))
    return 0


def _write(given: argparse.Namespace, looked: Sequence[Looked], progress: Progress) -> int:
    if given.verb == "convert":
        (one,) = looked
        export.write(given.output, one.recording)
    elif given.output.suffix == ".html":
        write_page(looked, given.verb, given.top, given.output, progress)
    elif len(looked) > 1:
        raise ValueError(f"{given.output.name} can hold the flame graph of one file: a page (.html) can hold several")
    else:
        write_flame(looked[0], given.output)
    say(f"written to {given.output}")
    return 0


def _text(verb: str) -> Callable[[Looked, int, int | None], Iterator[str]]:
    found: Callable[[Looked, int, int | None], Iterator[str]] = getattr(texts, verb)
    return found


def _diff(given: argparse.Namespace, both: Sequence[Looked]) -> int:
    before, after = both
    if before.recording.device != after.recording.device:
        raise ValueError(f"{before.name} is of {before.recording.device}, {after.name} of {after.recording.device}")
    found = compare(before.recording, after.recording)
    ends = [one.recording.events.times[-1] for one in both if one.recording.events.times]
    if len(ends) == 2 and ends[1] < ends[0]:
        say(f"note: {after.name} was taken before {before.name}: name the earlier one first", sys.stderr)
    if given.html is not None:
        write_difference(before, after, found, given.html)
        say(f"written to {given.html}")
    elif given.json:
        say(json_text("diff", [difference(before, after, found)]))
    else:
        say(found.text(given.top))
    return 0
