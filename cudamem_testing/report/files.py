"""Report files: written whole or not at all. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
from pathlib import Path

from cudamem_testing.model.records import RunRecord
from cudamem_testing.report.schema import run_from_json, run_to_json
from cudamem_testing.show.files import replace_file


def write_json(run: RunRecord, path: Path) -> None:
    """Write the report to ``path``, through a temporary file beside it.

    Raises:
        OSError: when it cannot be written; what stood at ``path`` is then untouched.
    """
    replace_file(path, (json.dumps(run_to_json(run), indent=1) + "\n").encode())


def read_json(path: Path) -> RunRecord:
    """Read a report.

    Raises:
        ValueError: when the file is no report, with its name and the reason.
        OSError: when it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("the top level is no object")
        return run_from_json(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply for a report") from None
