"""Report files: written whole or not at all. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from cudamem_testing.model.records import RunRecord
from cudamem_testing.report.schema import run_from_json, run_to_json


def write_json(run: RunRecord, path: Path) -> None:
    """Write the report to ``path``, through a temporary file beside it.

    Raises:
        OSError: when it cannot be written; what stood at ``path`` is then untouched.
    """
    text = json.dumps(run_to_json(run), indent=1) + "\n"
    path = Path(os.path.realpath(path))  # a link stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
