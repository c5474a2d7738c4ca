"""Calls a function right after a module was imported, and runs imports without garbage collection.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from typing import Any

from cudamem_testing.guards import CollectorPaused


class AfterImport:
    """A finder of modules that calls a function once, right after a module was imported.

    The import raises what the function raises.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def start(self) -> None:
        """Wait for the import."""
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Stop waiting; also works after the import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        """Use the finders after this one; ``None`` for other modules."""
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


def import_whole(package: str) -> None:
    """From here on, run imports of a package's modules without garbage collection.

    Nothing is added to ``sys.meta_path``: only the finders of the package's own folders are replaced.
    """
    for root in sys.modules[package].__path__:
        if not isinstance(sys.path_importer_cache.get(root), _WholeFinder):
            folders = [root, *(entry.path for entry in os.scandir(root) if entry.is_dir())]
            sys.path_importer_cache.update({folder: _WholeFinder(folder) for folder in folders})


class _WholeFinder(FileFinder):
    """Finds the modules of a folder like Python's own finder."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, (SourceFileLoader, SOURCE_SUFFIXES))

    def find_spec(self, fullname: str, target: types.ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec, with a loader that runs it without a collection."""
        spec = super().find_spec(fullname, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WholeLoader(spec.loader)
        return spec


class _WholeLoader(Loader):
    """Wraps a loader, without a collection while a module runs. Not a ``SourceFileLoader``: pytest would rewrite it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """Delegate to the wrapped loader."""
        found: types.ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Delegate to the wrapped loader."""
        with CollectorPaused():
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
