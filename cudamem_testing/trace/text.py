"""Data flow as text: a row for each node, ``operator  inputs  ->  outputs``.

::

    x:       T0
    w:       T1
    w.grad:  T5

    aten::mul                 T0(v0), T1(v0)   ->  T2(v0)
    aten::sin                 T2(v0)           ->  T3(v0)
    SinBackward0              T2(v0), T4(v0)   ->  T6(v0)
    [memory]                  T2(v0*)          ->

``T2`` is a storage, ``v0`` its contents between two writes, ``*`` marks the read after which it is freed. Nodes that
touch nothing that is shown have no row.

That is ``detail="full"``. With ``detail="operators"`` a row is an operator that makes or changes a tensor: views, frees
and gradients that autograd only passes on have none, and tensors are shown without versions. With ``detail="modules"``
a row is a module and a phase (:mod:`.module_text`).

The text is made to be compared: it has no addresses, times or paths, numbers are given by first use among what is
shown, operands are in the order of the operator's arguments, and lists longer than a column continue in the next line.
``ids="profiler"`` is another dialect, that of torch's own tests: the profiler's numbers in ascending order, columns of
fixed width that long rows break, so that texts written for those tests can be used here as they are.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias

from cudamem_testing.show.printable import one_line
from cudamem_testing.trace.aliases import fold_device_families
from cudamem_testing.trace.flow import MEMORY, Node, Use
from cudamem_testing.trace.graph import DataFlow, Ids, Name, check_ids, number_storages, short_name
from cudamem_testing.trace.module_text import render_modules
from cudamem_testing.trace.records import Storage

from ..model.sizes import format_size, parse_size
from ..show.usage import hide_wrong_arguments

__tracebackhide__ = hide_wrong_arguments

NAME_COLUMN, INPUT_COLUMN, LABEL_COLUMN = 25, 15, 8
"""Least widths, of operators, of inputs and of the names above."""
LIST_WIDTH = 48
"""Where a list of tensors continues in the next line."""
RULE_WIDTH = 80
"""The width of the line that names a region."""
TORCH_RULE_WIDTH = 105
"""The same in torch's tests of categories."""


DETAILS = ("operators", "full", "modules")
Detail: TypeAlias = Literal["operators", "full", "modules"]
"""The kinds of detail of a text."""


GRADIENT = ".grad"


class TextRow(NamedTuple):
    """A node's line before it is padded."""

    region: tuple[str, ...]
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Shown(NamedTuple):
    """What a text shows: its names with their tensors, its rows, and the node of each row."""

    heads: list[tuple[str, str]]
    rows: list[TextRow]
    nodes: list[Node]
    numbers: dict[Storage, int]


@dataclass(frozen=True, slots=True)
class Options:
    """What a text of a data flow shows.

    Args:
        detail: ``"full"``; ``"operators"``, those that make or change a tensor; ``"modules"``, a table.
        ids: ``"first-use"``, or ``"profiler"`` for the numbers and the layout of torch's own tests.
        min_bytes: leave out storages smaller than this, except those with a name; an ``int`` or a size as ``"4KiB"``.
        include: show only operators of these names, ``[memory]`` being one; ``*`` and ``?`` as in file names.
        exclude: do not show operators of these names.
        regions: name the annotations (``record_function``, optimizer steps) around the rows, in separate lines.
        frees: show what is freed; otherwise rows that only free disappear, and so does the ``*``.
        device_aliases: give families of operators that differ by device one name and one row (:mod:`.aliases`).
        sizes: show the size of each tensor that is made, as ``64.0 KiB``.
        dtypes: show the type of its elements, as ``float32``, where an operator took it.

    Raises:
        ValueError: for an unknown detail, or one that torch's layout does not have.
    """

    detail: Detail = "full"
    ids: Ids = "first-use"
    min_bytes: int | str = 0
    include: str | Iterable[str] | None = None
    exclude: str | Iterable[str] = ()
    regions: bool = False
    frees: bool = True
    device_aliases: bool = False
    sizes: bool = False
    dtypes: bool = False

    def __post_init__(self) -> None:
        detail = self.detail
        if detail not in DETAILS:
            raise ValueError(f"detail={detail!r} is not known: write one of {', '.join(map(repr, DETAILS))}")
        if self.ids == "profiler" and detail != "full":
            raise ValueError(
                f"ids='profiler' is the layout of torch's own tests, which is detail='full', not {detail!r}"
            )


def render(flow: DataFlow, options: Options) -> str:
    """The text of a data flow; its names head the text.

    Raises:
        ValueError: for an unknown kind of ids, or a size that cannot be read.
    """
    if options.detail == "modules":
        return render_modules(flow, min_bytes=parse_size(options.min_bytes), dtypes=options.dtypes)
    return laid_out(flow, shown(flow, options), options.ids)


def laid_out(flow: DataFlow, found: Shown, ids: Ids) -> str:
    """The text of what is shown of a data flow."""
    if ids == "profiler":
        return "\n".join(_torch_layout(flow.names, found.rows, found.numbers))
    return "\n".join(layout(found.heads, found.rows))


def shown(flow: DataFlow, options: Options) -> Shown:
    """The names and rows of a text, before they are laid out."""
    ids, full, frees = options.ids, options.detail == "full", options.frees
    check_ids(ids)
    if options.device_aliases:
        flow = fold_device_families(flow)
    nodes = select_nodes(flow.nodes, options.include, options.exclude)
    if options.detail == "operators":
        nodes = [node for node in nodes if flow.makes_or_changes(node)]
        frees = False
    is_shown = size_filter(parse_size(options.min_bytes), flow.names)
    nodes = [node for node in (without_hidden(node, is_shown, frees) for node in nodes) if node is not None]
    numbers = number_storages(nodes, flow.names, ids)
    for name in flow.names:
        if name.storage is not None:
            numbers.setdefault(name.storage, name.storage.number if ids == "profiler" else len(numbers))
    label = _Labels(numbers, full, frees, options.sizes, options.dtypes)
    rows = [_row(node, label, ids, flow.regions(node) if options.regions else ()) for node in nodes]
    heads = [(name.text, _number(name, numbers)) for name in flow.names]
    return Shown(heads if full else _with_gradients(heads), rows, [*nodes], numbers)


def select_nodes(
    nodes: Iterable[Node], include: str | Iterable[str] | None, exclude: str | Iterable[str]
) -> Sequence[Node]:
    """The nodes whose names the options select."""
    is_wanted = name_filter(include, exclude)
    return [node for node in nodes if is_wanted(node.name)]


def name_filter(include: str | Iterable[str] | None, exclude: str | Iterable[str]) -> Callable[[str], bool]:
    """Whether the options select an operator of some name."""
    wanted = None if include is None else _patterns(include)
    unwanted = _patterns(exclude)
    return lambda name: (wanted is None or _matches(name, wanted)) and not _matches(name, unwanted)


def _patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern fits a name, as the trace or as the text has it; ``[memory]`` is no pattern."""
    return any(
        pattern == spelt or fnmatchcase(spelt, pattern) for pattern in patterns for spelt in (name, short_name(name))
    )


def size_filter(min_bytes: int, names: Iterable[Name]) -> Callable[[Storage], bool]:
    """Whether a storage is large enough to be shown, or has a name."""
    named = {name.storage for name in names}
    return lambda storage: storage.nbytes >= min_bytes or storage in named


def without_hidden(node: Node, is_shown: Callable[[Storage], bool], frees: bool) -> Node | None:
    """The node with only the uses that the text shows, or ``None`` when there are none."""
    uses = tuple(use for use in node.uses if is_shown(use.storage) and not use.is_intermediate)
    if not frees and node.name == MEMORY:
        uses = tuple(use for use in uses if not use.is_freed)
    return None if not uses else Node(node.index, node.event, node.name, node.start, node.thread, node.scope, uses)


def _with_gradients(heads: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each name with that of its gradient in one line."""
    found: dict[str, str] = {}
    for name, meaning in heads:
        owner = name.removesuffix(GRADIENT)
        if owner != name and owner in found and ", " not in found[owner]:
            found[owner] += f", grad {meaning}"
        else:
            found[name] = meaning
    return [*found.items()]


class _Labels(NamedTuple):
    """How tensors are written."""

    numbers: dict[Storage, int]
    versions: bool
    frees: bool
    sizes: bool
    dtypes: bool

    def read(self, use: Use) -> str:
        number = f"T{self.numbers[use.storage]}"
        return f"{number}(v{use.before}{'*' if self.frees and use.is_freed else ''})" if self.versions else number

    def left(self, use: Use) -> str:
        parts = [f"T{self.numbers[use.storage]}" + (f"(v{use.after})" if self.versions else "")]
        if use.is_created:
            parts += [use.storage.dtype or "unknown"] if self.dtypes else []
            parts += [format_size(use.storage.nbytes)] if self.sizes else []
        return " ".join(parts)


def _row(node: Node, label: _Labels, ids: Ids, region: tuple[str, ...]) -> TextRow:
    uses = node.uses
    if ids == "profiler":
        uses = tuple(sorted(uses, key=lambda use: (use.storage.number, use.storage.allocation)))
    return TextRow(
        region,
        short_name(node.name),
        tuple(label.read(use) for use in uses if use.is_input),
        tuple(label.left(use) for use in uses if use.is_output),
    )


def _torch_layout(names: Sequence[Name], rows: Sequence[TextRow], numbers: dict[Storage, int]) -> list[str]:
    """The layout of torch's tests: fixed columns, and a gradient's label one column wider than the others."""
    lines = [f"{name.text + ':':<{8 + name.text.endswith('.grad')}} {_number(name, numbers)}" for name in names]
    lines += [""] if names else []
    region: tuple[str, ...] = ()
    for row in rows:
        lines += region_line(region, row.region)
        region = row.region
        lines.append(
            f"{row.name:<{NAME_COLUMN}} {', '.join(row.inputs):<{INPUT_COLUMN}}  ->  {', '.join(row.outputs)}".rstrip()
        )
    return lines


def layout(heads: Sequence[tuple[str, str]], rows: Sequence[TextRow]) -> list[str]:
    """Our layout: names and their tensors, then columns as wide as their longest cell, long lists wrapped."""
    heads = [(one_line(name), meaning) for name, meaning in heads]
    label = max([LABEL_COLUMN, *(len(name) + 1 for name, _ in heads)])
    lines = [f"{name + ':':<{label}} {meaning}" for name, meaning in heads]
    lines += [""] if heads and rows else []
    cells = [(row, _wrapped(row.inputs), _wrapped(row.outputs)) for row in rows]
    name_width = max([NAME_COLUMN, *(len(row.name) for row in rows)])
    input_width = max([INPUT_COLUMN, *(len(line) for _, inputs, _ in cells for line in inputs)])
    region: tuple[str, ...] = ()
    for row, inputs, outputs in cells:
        lines += region_line(region, row.region)
        region = row.region
        for place in range(max(len(inputs), len(outputs))):
            name, arrow = (row.name, "->") if place == 0 else ("", "")
            left = inputs[place] if place < len(inputs) else ""
            right = outputs[place] if place < len(outputs) else ""
            lines.append(f"{name:<{name_width}} {left:<{input_width}}  {arrow:<2}  {right}".rstrip())
    return lines


def _number(name: Name, numbers: dict[Storage, int]) -> str:
    return "unused" if name.storage is None else f"T{numbers[name.storage]}"


def region_line(previous: tuple[str, ...], current: tuple[str, ...]) -> list[str]:
    """A line that names the region that begins; none where it continues."""
    if previous == current:
        return []
    return [f"-- {one_line(' / '.join(current)) or '(no region)'} ".ljust(RULE_WIDTH, "-")]


def torch_region_line(previous: tuple[str, ...], current: tuple[str, ...]) -> list[str]:
    """The same as torch's tests have it: an empty line before, and wider."""
    if previous == current:
        return []
    return ["", f"-- {' / '.join(current) or '(no region)'} ".ljust(TORCH_RULE_WIDTH, "-")]


def _wrapped(labels: Sequence[str]) -> list[str]:
    """Labels joined by commas, in lines of at most ``LIST_WIDTH`` characters; one line at least."""
    lines = [""]
    for place, label in enumerate(labels):
        piece = label + ("," if place < len(labels) - 1 else "")
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > LIST_WIDTH:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}" if lines[-1] else piece
    return lines
