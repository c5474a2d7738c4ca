"""Known findings at the end of a run: what is recorded and dropped, and what was not seen. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.baselines.known import Evidence, KnownError, KnownFinding, recorded, unseen, without
from cudamem_testing.baselines.known_file import change_known
from cudamem_testing.model.causes import causes
from cudamem_testing.model.records import RunRecord, TestRecord
from cudamem_testing.plugin.recorded import Said

if TYPE_CHECKING:
    from cudamem_testing.plugin.ratchet import Ratchet
    from cudamem_testing.plugin.settings import Settings

SHOWN = 3


def finish(settings: Settings, ratchet: Ratchet, run: RunRecord, evidence: Evidence) -> Said:
    """Record and drop what was asked for; only the process that has every record does so.

    ``ratchet`` has the lines that the run judged with.
    """
    name, lines = ratchet.name, ratchet.lines
    found = causes(run)
    gone = unseen(lines, found, evidence)
    said: list[str] = []
    try:
        if "known" in settings.update:
            said.append(change_known(settings.known, name, lambda now: recorded(now, found, evidence)))
        if settings.prune and gone:
            said.append(change_known(settings.known, name, lambda now: without(now, gone)))
        elif gone:
            said.append(_unseen(gone))
    except (KnownError, OSError) as error:
        return Said(said, [f"known findings were not written: {error}"])
    return Said(said, [])


def evidence_of(
    settings: Settings,
    root: Path,
    tests: Iterable[TestRecord],
    unfinished: Iterable[str],
    whole: Callable[[str], bool] | None,
) -> Evidence:
    """What a run says about causes that it did not meet.

    ``unfinished`` are ids of tests that began and never ended, ``whole`` tells which files were collected whole.
    """
    ran: dict[str, bool] = dict.fromkeys(unfinished, False)
    devices: set[str] = set()
    for test in tests:
        ran[test.nodeid] = ran.get(test.nodeid, False) or _is_complete(test)
        devices |= {window.device.kind for window in test.windows if window.complete}
    off = {kind for kind, asked in (("leak", settings.leaks), ("cycle", settings.cycles)) if asked == "off"}

    def looked(line: KnownFinding) -> bool:
        return settings.on and settings.stacks and line.device in devices and line.kind not in off

    return Evidence(ran, whole or (lambda file: False), lambda file: (root / file).exists(), looked)


def recording_command(arguments: Sequence[str]) -> str:
    """The command that records as known what an audit with these arguments found."""
    kept = [one for one in arguments if one not in ("--cudamem", "--cudamem-audit")]
    return shlex.join(["pytest", "--cudamem", "--cudamem-update=known", *kept])


def _is_complete(test: TestRecord) -> bool:
    """Whether the test came to its end: then its findings are all that there are."""
    return test.outcome in ("passed", "xpassed", "xfailed") or bool(test.failing)


def _unseen(gone: Sequence[KnownFinding]) -> str:
    was = "known cause was" if len(gone) == 1 else "known causes were"
    rest = [f"... and {len(gone) - SHOWN} more"] if len(gone) > SHOWN else []
    names = [f"{line.cause} ({line.device})" for line in gone[:SHOWN]]
    return "\n".join((f"{len(gone)} {was} not seen (--cudamem-prune drops what is gone):", *names, *rest))
