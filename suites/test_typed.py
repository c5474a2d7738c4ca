"""A user's typed file passes pyright's strict mode; ``make lint`` checks the same file with ``mypy --strict``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYRIGHT = shutil.which("pyright")


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed (pip install pyright; it needs Node.js)")
def test_pyright_accepts_the_file_of_a_user(tmp_path: Path) -> None:
    text = (ROOT / "fixtures" / "typed_use.py").read_text(encoding="utf-8")
    (tmp_path / "test_right.py").write_text(text, encoding="utf-8")
    (tmp_path / "test_wrong.py").write_text(text.replace("grown: int | None", "grown: str"), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    command = [str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(one["file"]).name for one in found} == {"test_wrong.py"}
    assert 'Type "int | None" is not assignable to declared type "str"' in found[0]["message"]
