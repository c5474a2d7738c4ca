"""Categories as text: a row for each operator, with what it takes and leaves, and what each is for.

::

    x:       T0 (INPUT)
    w:       T1 (PARAMETER)
    w.grad:  T5 (GRADIENT)

    -- forward ----------------------------------------------------------------------
    aten::mul                 T0 (INPUT), T1 (PARAMETER)  ->  T2 (ACTIVATION)

A row shows the category of the version that the operator uses, ``unknown`` where there is none (``???`` in torch's
dialect). ``ids="profiler"`` is the dialect of torch's own tests: its allocation numbers, its columns, and behind each
number every category that the storage ever had. Operators are those of the data flow; in torch's dialect they are the
calls of the dispatcher, with their overloads, where these were recorded. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cudamem_testing.trace.categories import UNKNOWN, Categories, Category
from cudamem_testing.trace.categories import categories as find_categories
from cudamem_testing.trace.flow import MEMORY, Node, Use
from cudamem_testing.trace.graph import DataFlow, Ids, check_ids, number_storages, short_name
from cudamem_testing.trace.places import region_name
from cudamem_testing.trace.records import Dispatched, Storage
from cudamem_testing.trace.text import (
    Shown,
    TextRow,
    layout,
    name_filter,
    select_nodes,
    size_filter,
    torch_region_line,
    without_hidden,
)

from ..model.sizes import parse_size
from ..show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

NAME_COLUMN, INPUT_COLUMN = 40, 45
"""Widths in torch's dialect."""
Label = Callable[[Use, bool], str]


def render_categories(
    categories: Categories,
    *,
    ids: Ids = "first-use",
    min_bytes: int | str = 0,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    regions: bool = True,
) -> str:
    """The text of the categories of a data flow; options as in :func:`.text.render`.

    Raises:
        ValueError: for an unknown kind of ids or a size that cannot be read.
    """
    check_ids(ids)
    flow = categories.flow
    if ids == "profiler" and (flow.trace.gradients or flow.trace.states):
        categories = find_categories(flow, witnesses=False)
    is_shown = size_filter(parse_size(min_bytes), flow.names)
    if ids == "profiler" and flow.trace.dispatched is not None:
        is_wanted = name_filter(include, exclude)
        calls = [
            call for call in flow.trace.dispatched if is_wanted(call.name) or is_wanted(call.name.partition(".")[0])
        ]
        return "\n".join(_torch_layout(_dispatched_rows(categories, calls, is_shown, regions)))
    if ids == "profiler":
        nodes = _nodes(flow, is_shown, include, exclude)
        return "\n".join(_torch_layout(_rows(flow, nodes, _torch_label(categories), regions=regions)))
    rows = category_rows(categories, min_bytes=min_bytes, include=include, exclude=exclude, regions=regions)
    return "\n".join(layout(rows.heads, rows.rows))


def category_rows(
    categories: Categories,
    *,
    min_bytes: int | str = 0,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    regions: bool = True,
) -> Shown:
    """The names and rows of the text in our layout, before they are laid out."""
    flow = categories.flow
    nodes = _nodes(flow, size_filter(parse_size(min_bytes), flow.names), include, exclude)
    numbers = number_storages(nodes, flow.names, "first-use")
    rows = _rows(flow, nodes, _label(categories, numbers), regions=regions)
    heads = [
        (
            name.text,
            "unused"
            if name.storage is None
            else f"T{numbers.setdefault(name.storage, len(numbers))} "
            f"({_spelt(categories.of(name.storage, categories.last_version(name.storage)))})",
        )
        for name in flow.names
    ]
    return Shown(heads, rows, nodes, numbers)


def _nodes(
    flow: DataFlow,
    is_shown: Callable[[Storage], bool],
    include: str | Iterable[str] | None,
    exclude: str | Iterable[str],
) -> list[Node]:
    """Operators with what is shown of them."""
    return [
        shown
        for node in select_nodes(flow.nodes, include, exclude)
        if node.name != MEMORY and (shown := without_hidden(node, is_shown, frees=True)) is not None
    ]


def _rows(flow: DataFlow, nodes: Iterable[Node], label: Label, *, regions: bool) -> list[TextRow]:
    return [_row(node, label, tuple(map(region_name, flow.regions(node))) if regions else ()) for node in nodes]


def _spelt(category: Category | None) -> str:
    return UNKNOWN if category is None else category.name


def _row(node: Node, label: Label, region: tuple[str, ...]) -> TextRow:
    return TextRow(
        region,
        short_name(node.name),
        tuple(label(use, False) for use in node.uses if use.is_input),
        tuple(label(use, True) for use in node.uses if use.is_output),
    )


def _label(categories: Categories, numbers: dict[Storage, int]) -> Label:
    def label(use: Use, output: bool) -> str:
        version = use.after if output else use.before
        return f"T{numbers[use.storage]} ({_spelt(categories.of(use.storage, version or 0))})"

    return label


def _dispatched_rows(
    categories: Categories, calls: Iterable[Dispatched], is_shown: Callable[[Storage], bool], regions: bool
) -> Iterator[TextRow]:
    """A row for each call; tensors that no operator took are ``???``, as in torch's tests."""
    trace, name_of = categories.flow.trace, _torch_names(categories)

    def labels(storages: tuple[Storage | None, ...]) -> tuple[str, ...]:
        return tuple("???" if one is None else name_of(one) for one in storages if one is None or is_shown(one))

    for call in calls:
        inputs, outputs = labels(call.inputs), labels(call.outputs)
        if inputs or outputs:
            around = trace.regions_at(call.start, trace.main) if regions else ()
            yield TextRow(tuple(region_name(region.name) for region in around), call.name, inputs, outputs)


def _torch_label(categories: Categories) -> Label:
    name_of = _torch_names(categories)
    return lambda use, output: name_of(use.storage)


def _torch_names(categories: Categories) -> Callable[[Storage], str]:
    """An allocation's number, with every category that it ever had."""
    names: dict[int, list[str]] = {}
    for (storage, _), category in categories.snapshot().items():
        known = names.setdefault(storage.allocation, [])
        name = "???" if category is None else category.name
        if known[-1:] != [name]:
            known.append(name)
    return lambda storage: f"{storage.allocation} ({','.join(names[storage.allocation])})"


def _torch_layout(rows: Iterable[TextRow]) -> Iterator[str]:
    region: tuple[str, ...] = ()
    for row in rows:
        yield from torch_region_line(region, row.region)
        region = row.region
        inputs, outputs = ", ".join(row.inputs), ", ".join(row.outputs)
        yield f"{row.name:<{NAME_COLUMN}} {inputs:<{INPUT_COLUMN}} -> {outputs}".rstrip()
