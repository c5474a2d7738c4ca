"""Errors of private names that this torch does not have, in one line that says which. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from cudamem_testing.torch_api.process import version

_IMPORTED = r"cannot import name '(\w+)' from '(torch[\w.]*)'"


class TorchLacksError(RuntimeError):
    """This torch has no such name: what needs it does not work, and the rest does."""


@contextmanager
def needed_for(capability: str) -> Iterator[None]:
    """Code in the block uses names of torch that another version may lack; only our own code may run there.

    Raises:
        TorchLacksError: one is missing; it names the capability and what is missing.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        name = missing_name(error)
        if name is None:
            raise
        raise lacks(capability, name) from error


def lacks(capability: str, name: str) -> TorchLacksError:
    """The error of a capability that needs a name which torch lacks."""
    return TorchLacksError(f"{capability} needs {name}, which torch {version()} does not have")


def missing_name(error: BaseException) -> str | None:
    """The name that torch lacks, as in ``torch._C._is_cow_tensor``; ``None`` for any other error."""
    if isinstance(error, ImportError):
        found = re.search(_IMPORTED, str(error))
        return None if found is None else f"{found[2]}.{found[1]}"
    owner = getattr(error, "obj", None)
    if isinstance(owner, ModuleType):
        path = owner.__name__
    elif isinstance(owner, type):
        path = f"{owner.__module__}.{owner.__qualname__}"
    else:
        return None
    return f"{path}.{error.name}" if path.partition(".")[0] == "torch" and isinstance(error, AttributeError) else None
