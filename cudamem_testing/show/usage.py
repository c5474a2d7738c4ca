"""Wrong arguments are shown at the line that gave them, without ours.

pytest leaves out frames whose module has ``__tracebackhide__``; those of our modules that users call import it from
here. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1])


def hide_wrong_arguments(excinfo: Any) -> bool:
    """Whether an error is about arguments: one of ours raised it, and no code of the user's or of torch in it."""
    traceback = excinfo.tb
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    ours = traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE)
    return ours and excinfo.type is not None and issubclass(excinfo.type, (ValueError, TypeError, RuntimeError))
