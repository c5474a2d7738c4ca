"""Imports torch without full garbage collections, and the package's own modules without any.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import gc
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from typing import Any

from cudamem_testing.guards import CollectorPaused, somebody_froze

_NEVER = 2**31 - 1  # as third threshold: no full collection


class WholeImport:
    """Imports one module without full collections, and calls a function right after: a finder of modules.

    An import of torch makes 170,000 objects that stay. Each full collection on the way visits all that are there by
    then, and frees next to nothing; young ones free what is temporary. The import raises what the function raises.
    """

    def __init__(self, name: str, then: Callable[[], object] | None = None) -> None:
        self._name = name
        self._then = then

    def start(self) -> Callable[[], None]:
        """Wait for the import, unless it has happened; returns ``stop``."""
        if self._name not in sys.modules:
            sys.meta_path.insert(0, self)
        return self.stop

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
                with _young_collections_only():
                    execute(module)
                    if self._then is not None:
                        self._then()

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


@contextmanager
def _young_collections_only() -> Iterator[None]:
    """No full collections inside the block. Afterwards all objects are old, unless some were frozen before."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        first, second, third = gc.get_threshold()
        if third == _NEVER:  # else an imported module has set its own; it may also have set only the others
            gc.set_threshold(first, second, before[2])
    if not somebody_froze():  # what a user has frozen stays so
        gc.freeze()
        gc.unfreeze()


def import_whole(package: str) -> None:
    """From here on, run imports of a package's modules without garbage collection.

    Nothing is added to ``sys.meta_path``: only the finders of the package's own folders are replaced.
    """
    for root in sys.modules[package].__path__:
        if not isinstance(sys.path_importer_cache.get(root), _WholeFinder):
            folders = [root, *(entry.path for entry in os.scandir(root) if entry.is_dir())]
            sys.path_importer_cache.update({folder: _WholeFinder(folder) for folder in folders})


@contextmanager
def own_imports(package: str = __name__.partition(".")[0]) -> Iterator[None]:
    """Import many modules of a package inside the block: without a collection, and without the finders of others.

    pytest's finder compares every name with those of test files, and may compile our modules as it does those: that
    takes as long as reading them.
    """
    import_whole(package)
    finder, before = _OwnFinder(package), sys.meta_path
    ours = sys.meta_path = [finder, *before]  # a new list: another thread may be going through the other one
    try:
        with CollectorPaused():
            yield
    finally:
        if sys.meta_path is ours:
            sys.meta_path = before
            if ours[1:] != before:  # a module that was imported has a finder
                before[:] = [one for one in ours if one is not finder]
        elif finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _OwnFinder:
    """Finds the modules of a package in its folders, and no others."""

    def __init__(self, package: str) -> None:
        self._start = f"{package}."

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec; ``None`` for modules of others."""
        if not name.startswith(self._start):
            return None
        finders = (sys.path_importer_cache.get(folder) for folder in path or ())
        found = (FileFinder.find_spec(one, name, target) for one in finders if isinstance(one, _WholeFinder))
        return next(filter(None, found), None)


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
