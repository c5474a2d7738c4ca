"""Memory of what pytest-benchmark times: one more, untimed call, beside the times.

While it times, neither stacks nor events are recorded. Its table has no columns of others, so memory follows the names,
in the table of a run as well as in that of ``pytest-benchmark compare``. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudamem_testing import safe_access
from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.run.finished import clear_frames
from cudamem_testing.safe_access import type_name

if TYPE_CHECKING:
    from cudamem_testing.model.windows import Window
    from cudamem_testing.run.session import Session

METRICS = ("peak", "retained", "allocations")
_SHOWN = "cudamem"  # in a row of the table that has its memory after the name
_FIXTURE = "pytest_benchmark.fixture", "BenchmarkFixture"
Groups = list[tuple[Any, list[dict[str, Any]]]]


class BenchmarkMemory:
    """Measures the functions that ``benchmark`` fixtures of measured tests time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def measure(self, made: object) -> None:
        """Give the fixture of a measured test a class that measures as well; other objects stay as they are."""
        if self._session.running is not None and _is_benchmark(made):
            made.cudamem = self  # type: ignore[attr-defined]
            cls: Any = type(made)
            made.__class__ = _measuring(cls)

    def timed(self, fixture: Any, run: Callable[[], Any], once: Callable[[], Callable[[], object]]) -> Any:
        """Let the fixture time without records; then call the function ``once`` more, and note what that takes."""
        if not getattr(fixture, "enabled", True):  # it calls the function once and times nothing
            return run()
        with self._session.tracker.paused():
            result = run()
        for name, value in self._measured(once).items():
            fixture.extra_info.setdefault(name, value)
        return result

    def _measured(self, once: Callable[[], Callable[[], object]]) -> dict[str, int]:
        running = self._session.running
        if running is None:
            return {}
        self._session.prepare()
        tracker = self._session.tracker
        try:
            call = once()
            span = tracker.open("benchmark")
            try:
                call()
            finally:
                windows = tracker.close(span)
        except Exception as error:  # the test has passed without this call
            clear_frames(error)
            running.notes.append(f"memory of the benchmark is unknown: one more call raised {type_name(error)}")
            return {}
        running.add(windows, ())
        return _values(windows)


def _values(windows: Sequence[Window]) -> dict[str, int]:
    """Bytes and counts by name; those of the first device have no device in their names."""
    found: dict[str, int] = {}
    for window in (one for one in windows if not one.device.pseudo):
        suffix = f" {window.device}" if found else ""
        values = dict(zip(METRICS, (window.peak_growth, window.retained, window.allocations), strict=True))
        found |= {f"{name}{suffix}": value for name, value in values.items() if value is not None}
    return found


def _is_benchmark(made: object) -> bool:
    return any((cls.__module__, cls.__qualname__) == _FIXTURE for cls in safe_access.mro(type(made)))


@functools.cache
def _measuring(cls: Any) -> Any:
    """A class of the fixture that measures what its public methods time."""

    class MeasuringBenchmark(cls):  # type: ignore[misc]
        def __call__(self, function_to_benchmark: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.cudamem.timed(
                self,
                lambda: super(MeasuringBenchmark, self).__call__(function_to_benchmark, *args, **kwargs),
                lambda: functools.partial(function_to_benchmark, *args, **kwargs),
            )

        def pedantic(self, *args: Any, **kwargs: Any) -> Any:
            original = super().pedantic
            given = inspect.signature(original).bind(*args, **kwargs).arguments

            def once() -> Callable[[], object]:
                setup = given.get("setup")
                made = setup() if setup is not None else None
                positional, named = made if made else (given.get("args", ()), given.get("kwargs") or {})

                def call() -> None:
                    given["target"](*positional, **named)
                    if given.get("teardown") is not None:
                        given["teardown"](*positional, **named)

                return call

            return self.cudamem.timed(self, lambda: original(*args, **kwargs), once)

    return MeasuringBenchmark


def with_memory(groups: Groups, earlier: Mapping[Any, Any]) -> Groups:
    """Put the memory of each benchmark behind its name; ``earlier`` has the benchmarks of compared files by path."""
    if any(argument.startswith("--between") for argument in sys.argv):  # rows of several files have one name there
        return groups
    for _, rows in groups:
        for row in rows:
            info = row.get("extra_info") or {}
            if row.get("path") and earlier:  # an earlier run's times, beside this run's other values
                known = {str(path): found for path, found in earlier.items()}.get(row["path"], {})
                info = known.get(row["fullname"], {}).get("extra_info") or {}
            text = _text(info)
            if text and not row.get(_SHOWN):
                row[_SHOWN] = True
                row["name"], row["fullname"] = f"{row['name']} {text}", f"{row['fullname']} {text}"
    return groups


def _text(info: dict[str, Any]) -> str:
    """``[peak 2.0 MiB, retained 0 B, 12 allocations]``; empty where nothing was measured."""
    peak, retained, allocations = (info.get(name) for name in METRICS)
    parts = [f"peak {format_size(peak)}"] if isinstance(peak, int) else []
    parts += [f"retained {format_size(retained)}"] if isinstance(retained, int) else []
    parts += [count(allocations, "allocation")] if isinstance(allocations, int) else []
    return f"[{', '.join(parts)}]" if parts else ""
