"""Results compared with the text at the call: the ``assert_*`` methods of a memory profile.

A text holds on every device where the operators are the same. Where they are not, the test gives a text for each kind
of device, ``expected={"cpu": ..., "cuda": ...}``, or folds the documented families (:mod:`.aliases`); a mismatch that
comes from the device says so and names the operators. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Protocol, TypeAlias

from cudamem_testing.model.sizes import count, format_size
from cudamem_testing.model.stacks import Stack
from cudamem_testing.records.expected.check import Actual, Compare, assert_text
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.torch_api.operators import has_kernel
from cudamem_testing.trace.aliases import fold_device_families
from cudamem_testing.trace.categories import Categories
from cudamem_testing.trace.category_text import category_rows
from cudamem_testing.trace.columns import compare_columns
from cudamem_testing.trace.comparison import compare, compare_tables
from cudamem_testing.trace.graph import DataFlow, Ids, short_name
from cudamem_testing.trace.limits import enforce
from cudamem_testing.trace.peak import Peak, stacks_of_storages
from cudamem_testing.trace.places import EventPlaces
from cudamem_testing.trace.recorded import detail_of, read_text
from cudamem_testing.trace.records import Operator, Storage, Trace
from cudamem_testing.trace.text import Detail, Options, Shown, laid_out, render, shown
from cudamem_testing.trace.timeline import Timeline
from cudamem_testing.trace.timeline_text import By, unit_of

__tracebackhide__ = hide_wrong_arguments

Expected: TypeAlias = str | Mapping[str, str] | None
"""A text, a text for each kind of device (``cpu``, ``cuda``), or ``None`` for one that is kept beside the test."""

_MOST_DOUBTS = 3
_OPERATOR = re.compile(r"(\S.*?) +(?:T\d+\(v|->)")
_WORDS = re.compile("cpu|mkldnn|onednn|cuda|cudnn|miopen|mps|dropout|attention|foreach|fused", re.IGNORECASE)
"""Parts of the names of operators that differ by device: devices, their libraries, the documented families."""


class Analysed(Protocol):
    """What the assertions ask of a profile."""

    @property
    def trace(self) -> Trace:
        """What was recorded."""

    def data_flow(self) -> DataFlow:
        """The data flow of it."""

    def categories(self) -> Categories:
        """The categories of it."""

    def timeline(self) -> Timeline:
        """The timeline of it."""

    def peak(self, device: str | None = None) -> Peak:
        """The peak of it."""


class Expectations:
    """The assertions of a :class:`.profile.MemoryProfile`."""

    def assert_data_flow(
        self: Analysed,
        expected: Expected = None,
        *,
        detail: Detail | None = None,
        ids: Ids = "first-use",
        min_bytes: int | str = 0,
        include: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] = (),
        regions: bool = False,
        frees: bool = True,
        device_aliases: bool = False,
        sizes: bool = False,
        dtypes: bool = False,
    ) -> None:
        """Compare the text of the data flow with the one at the call.

        Args:
            expected: the text, its indentation does not matter; or a text for each kind of device, by ``cpu``,
                ``cuda``; or nothing, when it is kept in a file beside the test.
            detail: ``"operators"``, those that make or change a tensor, in a line each; ``"full"``, with views, frees
                and versions; ``"modules"``, a line for each module and phase. By default that of the expected text, and
                ``"operators"`` for a new one.
            ids: ``"first-use"``, or ``"profiler"`` for the numbers and the layout of torch's own tests.
            min_bytes: leave out storages smaller than this, except those with a name.
            include: show only operators of these names.
            exclude: do not show operators of these names.
            regions: name the annotations around the rows.
            frees: show what is freed.
            device_aliases: one name and one row for families of operators that differ by device.
            sizes: show the size of each tensor that is made.
            dtypes: show the type of its elements.

        Raises:
            TextMismatchError: an ``AssertionError`` that says what has changed, with a diff.
            ValueError: for an option that cannot be read.
        """
        __tracebackhide__ = True
        flow = self.data_flow()
        usual: Detail | None = "full" if ids == "profiler" else None
        given = Options("full", ids, min_bytes, include, exclude, regions, frees, device_aliases, sizes, dtypes)

        def chosen(wanted: str | None) -> Detail:
            return detail if detail is not None else usual or detail_of(wanted)

        @cache  # for the text, and again for the message of a failure
        def rows(kind: Detail) -> Shown:
            return shown(flow, replace(given, detail=kind))

        def text(wanted: str | None) -> str:
            kind = chosen(wanted)
            if kind == "modules":
                return render(flow, replace(given, detail=kind))
            return laid_out(flow, rows(kind), ids)

        def beside(wanted: str, found: str) -> tuple[list[str], str] | None:
            kind = chosen(wanted)
            if kind == "modules":
                return compare_tables(wanted, found) if detail_of(wanted) == "modules" else None
            if ids == "profiler":
                return None
            made = stacks_of_storages(self.timeline())
            return _compared(flow, wanted, found, rows(kind), made, folded=device_aliases)

        assert_on_device(text, expected, self.trace, depth=3, doubts=_doubts(flow), compare=beside)

    def assert_categories(
        self: Analysed,
        expected: Expected = None,
        *,
        ids: Ids = "first-use",
        min_bytes: int | str = 0,
        include: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] = (),
        regions: bool = True,
    ) -> None:
        """Compare operators, what they take and leave, and what it is for, with the text at the call.

        Args:
            expected: the text, its indentation does not matter; or a text for each kind of device; or nothing, when it
                is kept in a file beside the test.
            ids: ``"first-use"``, or ``"profiler"`` for the numbers and the layout of torch's own tests. Their rows are
                calls of the dispatcher: record with ``dispatched=True`` for these, else rows are the usual ones.
            min_bytes: leave out storages smaller than this, except those with a name.
            include: show only operators of these names.
            exclude: do not show operators of these names.
            regions: name the annotations around the rows.

        Raises:
            TextMismatchError: an ``AssertionError`` with a diff.
            ValueError: for an option that cannot be read.
        """
        __tracebackhide__ = True
        categories = self.categories()
        include = include if include is None or isinstance(include, str) else tuple(include)
        exclude = exclude if isinstance(exclude, str) else tuple(exclude)
        text = categories.text(ids=ids, min_bytes=min_bytes, include=include, exclude=exclude, regions=regions)

        def beside(wanted: str, found: str) -> tuple[list[str], str] | None:
            here = category_rows(categories, min_bytes=min_bytes, include=include, exclude=exclude, regions=regions)
            made = stacks_of_storages(self.timeline())
            return None if ids == "profiler" else _compared(categories.flow, wanted, found, here, made, folded=False)

        assert_on_device(text, expected, self.trace, depth=3, compare=beside)

    def assert_timeline(
        self: Analysed,
        expected: Expected = None,
        *,
        device: str | None = None,
        by: By = "region",
        depth: int = 2,
        unit: str | None = None,
        min_bytes: int | str = 0,
    ) -> None:
        """Compare a coarse table, bytes by category at the peak of each region or module, with the text at the call.

        Args:
            expected: the text, its indentation does not matter; or a text for each kind of device; or nothing, when it
                is kept in a file beside the test.
            device: any spelling of one; by default the accelerator with the highest peak, else the CPU.
            by: what has a row: ``"region"`` for annotations and optimizer steps, ``"module"`` for calls of modules.
            depth: how many levels of them inside each other have rows.
            unit: the unit that sizes are rounded to and shown in; by default that of the expected text, and for a new
                one the largest of MiB, KiB and B in which the peak has at least two digits.
            min_bytes: leave out regions and modules whose peak is smaller than this.

        Raises:
            TextMismatchError: an ``AssertionError`` with a diff.
            ValueError: for an option that is not known, a device on which nothing happened, or a unit in which all
                is 0.
        """
        __tracebackhide__ = True
        timeline = self.timeline()

        def text(wanted: str | None) -> str:
            return timeline.text(device=device, by=by, depth=depth, unit=unit or unit_of(wanted), min_bytes=min_bytes)

        assert_on_device(text, expected, self.trace, depth=3, compare=compare_columns)

    def assert_peak(
        self: Analysed,
        categories: Mapping[str, object] | None = None,
        *,
        total: object = None,
        at_least: Mapping[str, object] | None = None,
        device: str | None = None,
    ) -> None:
        """Check memory in use at the peak against limits: ``assert_peak({"ACTIVATION": "40MiB"}, total="100MiB")``.

        Args:
            categories: the most for each category (``"unknown"`` for memory without one): bytes, a size as text, or
                one for each kind of device.
            total: the most in all.
            at_least: the least for each category, or for ``"total"``.
            device: any spelling of one; by default the accelerator with the highest peak, else the CPU.

        Raises:
            OverBudget: an ``AssertionError`` with every limit that is broken and what was live.
            LimitError: for a limit that cannot be read; a ``ValueError``.
            ValueError: for an unknown category, or a device on which nothing happened.
        """
        __tracebackhide__ = True
        enforce(self.peak(device), categories or {}, total, at_least or {})


def assert_on_device(
    text: Actual,
    expected: Expected,
    trace: Trace,
    *,
    depth: int,
    doubts: Iterable[str] = (),
    compare: Compare | None = None,
) -> None:
    """Compare a text with the one for the device that a trace was recorded on.

    Args:
        text: the actual text, or a function that makes it from the expected one.
        expected: what the caller of the assertion gave for ``expected``.
        trace: the trace that it describes.
        depth: which call holds the literal; 3 is the call of a method that calls this function.
        doubts: possible reasons for a mismatch, a line each.
        compare: what a mismatch shows of both texts.
    """
    __tracebackhide__ = True
    text = cache(text) if callable(text) else text

    def remark(wanted: str) -> str:
        found = text(wanted) if callable(text) else text
        return "\n".join([*_differences(wanted, found, trace), *doubts])

    assert_text(text, expected, key=kind_of_device(trace), depth=depth, remark=remark, compare=compare)


def _compared(
    flow: DataFlow, wanted: str, found: str, here: Shown, made_at: Mapping[Storage, Stack], *, folded: bool
) -> tuple[list[str], str] | None:
    before, after = read_text(wanted), read_text(found)
    if before is None or after is None:
        return None
    places = EventPlaces(fold_device_families(flow) if folded else flow)
    storages = {f"T{number}": storage for storage, number in here.numbers.items()}

    def told(place: int) -> str:
        node = here.nodes[place]
        created = [use.storage for use in node.uses if use.is_created]
        made = sum(one.nbytes for one in created)
        seen = (made_at[one].project_frame for one in created if one in made_at)
        frame = next(filter(None, seen), None) or places.stack(node.event).project_frame
        line = places.modules(node.event) if frame is None else str(frame)
        return ", ".join(filter(None, (format_size(made) if made else "", line)))

    def size_of(name: str) -> str:
        return format_size(storages[name].nbytes) if name in storages else ""

    return compare(before, after, told, size_of)


def kind_of_device(trace: Trace) -> str:
    """``cuda`` when a trace has memory on a CUDA device, and alike for other kinds; else ``cpu``."""
    kinds = Counter(storage.device.partition(":")[0] for storage in trace.storages)
    del kinds["cpu"]
    return kinds.most_common(1)[0][0] if kinds else "cpu"


def _doubts(flow: DataFlow) -> list[str]:
    """What the trace does not show, and where it contradicts itself."""
    contradictions = [f"note: the trace contradicts itself: {one}" for one in flow.diagnostics[:_MOST_DOUBTS]]
    more = len(flow.diagnostics) - len(contradictions)
    return [
        *(f"note: {note}" for note in flow.notes),
        *contradictions,
        *([f"note: and {count(more, 'more contradiction')}"] if more else []),
    ]


def _differences(expected: str, actual: str, trace: Trace) -> list[str]:
    """The operators that differ, if some of them belong to one kind of device."""
    device = kind_of_device(trace)
    wanted, found = Counter(_operators(expected)), Counter(_operators(actual))
    missing, added = [*(wanted - found)], [*(found - wanted)]
    names = {short_name(event.name): event.name for event in trace.events if isinstance(event, Operator)}
    if not any(_belongs_to_a_device(names.get(name, name), device) for name in (*missing, *added)):
        return []
    return [
        f"operators that differ from device to device are among the changes; this run was on {device}:",
        f"  only expected: {', '.join(missing) or 'none'}",
        f"  only here:     {', '.join(added) or 'none'}",
        'give a text for each device, expected={"cpu": ..., "cuda": ...}, or let device_aliases=True fold dropout,',
        "attention, foreach and optimizers into names that hold on all",
    ]


def _operators(text: str) -> Iterator[str]:
    """The operators of the rows of a data flow."""
    for line in text.splitlines():
        match = _OPERATOR.match(line)
        if match is not None:
            yield match[1]


def _belongs_to_a_device(name: str, device: str) -> bool:
    """Whether other devices have another operator in its place."""
    return bool(_WORDS.search(name)) or has_kernel(name, device) is False
