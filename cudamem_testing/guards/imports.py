"""A call right after a module was imported.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any


class AfterImport:
    """A finder of modules that calls a function once, right after a module was imported.

    What the function raises, an error of its own included, is raised by the import.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def start(self) -> None:
        """Wait for the import."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Wait no longer; also after the import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        """As the finders after this one; ``None`` for other modules."""
        if name != self._name:
            return None
        self.stop()
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: types.ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
