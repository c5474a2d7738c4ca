"""Records, drops and reviews known findings at the end of a run. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cudamem_testing.model.causes import causes
from cudamem_testing.model.records import RunRecord, Unseen
from cudamem_testing.records.baselines_of_run import Messages
from cudamem_testing.records.known import evidence_of, named, open_lines, recorded, unseen, without
from cudamem_testing.records.known_file import change_known
from cudamem_testing.records.store import RecordError

if TYPE_CHECKING:
    from cudamem_testing.model.settings import Settings
    from cudamem_testing.records.known import Lines


UNJUDGED = (
    "{} did not judge them (tests left out, another device, a check that is off, or a higher --cudamem-ignore-below)"
)


def finish(settings: Settings, file: Path, name: str, lines: Lines, run: RunRecord, root: Path) -> Messages:
    """Record and drop what was asked for; only the process that has every record does so.

    ``file`` is that of known findings and ``name`` what messages call it; the run judged with its ``lines``.
    """
    found, evidence = causes(run), evidence_of(run, lambda file: os.path.exists(root / file))
    gone = unseen(lines, found, evidence)
    said: list[str] = []
    left = Unseen()
    try:
        if "known" in settings.update:
            said.append(str(change_known(file, name, lambda now: recorded(now, found, evidence))))
        if settings.prune and gone:
            said.append(str(change_known(file, name, lambda now: without(now, gone))))
        elif gone:
            left = named(gone, "--cudamem-prune")
        if settings.prune and (rest := open_lines(lines, found, gone)):
            said.append(f"known findings: {rest} not pruned: {UNJUDGED.format('this run')}")
    except (RecordError, OSError) as error:
        return Messages(said, [f"known findings were not written: {error}"])
    return Messages(said, [], unseen=left)
