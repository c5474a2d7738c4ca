"""Shows errors about wrong arguments at the user's line, without frames of this package.

pytest leaves out frames whose module has ``__tracebackhide__``; modules of this package that users call import it from
here. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1])
_ABOUT_ARGUMENTS = (ValueError, TypeError, RuntimeError, KeyError)


def refuse_unknown(function: Callable[..., object], unknown: Mapping[str, object]) -> None:
    """Refuse keyword arguments that a function does not have.

    Raises:
        TypeError: naming them, and what the function takes by keyword.
    """
    __tracebackhide__ = True
    if unknown:
        known = sorted(name for name, one in signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY)
        raise TypeError(
            f"{function.__name__}() has no argument {', '.join(sorted(unknown))}: it takes {', '.join(known)}"
        )


def hide_wrong_arguments(excinfo: Any) -> bool:
    """Whether an error is about arguments: one of ours raised it, and no code of the user's or of torch in it."""
    traceback = excinfo.tb
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    ours = traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE)
    return ours and excinfo.type is not None and issubclass(excinfo.type, _ABOUT_ARGUMENTS)
