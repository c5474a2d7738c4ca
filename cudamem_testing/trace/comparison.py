"""Statements about what changed between a recorded text and the current one.

One more operator shifts the number of every tensor after it, so lines cannot be compared directly. Rows are aligned
first: two rows are the same if operator, shape and the operators that made their inputs are. Tensors in the same place
of the same rows are the same, independent of their numbers. The differences that remain are new and missing operators,
tensors that are read or freed elsewhere, and tensors of another size, type or category. The texts are then shown with
the numbers of the recorded one. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeAlias

from cudamem_testing.model.sizes import count
from cudamem_testing.records.expected.difference import in_brief
from cudamem_testing.trace.recorded import Recorded, Tensor
from cudamem_testing.trace.text import TextRow

_MOST_ROWS = 4000  # of each text: the time for aligning grows faster than their length
_MEMORY = "[memory]"
_INPUT = "input"
UNUSED = "unused"
_GRADIENT = re.compile(r", grad (T\d+)")
_DTYPE = re.compile(r" ([a-z]\w*)\b")

Told: TypeAlias = Callable[[int], str]
"""More about a current row, by its place: ``64.0 KiB, net.py:22 in forward``."""
SizeOf: TypeAlias = Callable[[str], str]
"""The size of a current tensor by its name, ``4.0 MiB``; empty if unknown."""


def _unknown(_: object) -> str:
    return ""


def compare(
    before: Recorded, after: Recorded, told: Told = _unknown, size_of: SizeOf = _unknown
) -> tuple[list[str], str] | None:
    """Statements of what has changed, and a short diff in which tensors that are the same have their recorded numbers.

    ``None`` where the texts are too long, or too little is the same for a comparison to say more than the texts do.
    """
    if max(len(before.rows), len(after.rows)) > _MOST_ROWS:
        return None
    alignment = align(before, after)
    if before.rows and len(alignment.pairs) * 4 < len(before.rows):
        return None
    order = {**before.heads, **after.heads}
    old, new = _lines(before, {}, order), _lines(after, alignment.names, order)
    if old == new:  # only blanks differ
        return None
    widths = [max(map(len, column)) for column in zip(*(row[:2] for row in (*old, *new)), strict=True)]
    texts = ("\n".join(_line(row, widths) for row in rows) for rows in (old, new))
    return in_brief(_statements(before, after, alignment, told, size_of), *texts)


def compare_tables(before: str, after: str) -> tuple[list[str], str] | None:
    """The same of two tables of modules and phases, row by row."""
    (head, old), (heads, new) = _table(before), _table(after)
    if head != heads:
        return None
    found = []
    for key, cells in new.items():
        if key not in old:
            found.append(f"{' '.join(key)} is new: {_named(heads[2:], cells)}")
        elif changes := [
            f"{name} {then} -> {now}" for name, then, now in zip(heads[2:], old[key], cells, strict=True) if then != now
        ]:
            found.append(f"{' '.join(key)}: {', '.join(changes)}")
    found += [f"{' '.join(key)} is gone" for key in old if key not in new]
    rows = [[(*key, *cells) for key, cells in table.items()] for table in (old, new)]
    widths = [max(map(len, column)) for column in zip(heads, *rows[0], *rows[1], strict=True)]
    texts = ("\n".join(_padded(row, widths) for row in (heads, *table)) for table in rows)
    return in_brief(found, *texts)


def _table(text: str) -> tuple[tuple[str, ...], dict[tuple[str, ...], tuple[str, ...]]]:
    head, *rows = (tuple(re.split(" {2,}", line.strip())) for line in text.split("\n") if line.strip())
    return head, {row[:2]: row[2:] for row in rows}


def _named(names: Sequence[str], cells: Sequence[str]) -> str:
    return ", ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which rows are the same, by their places, and the recorded name of each current tensor."""

    pairs: dict[int, int]
    """From current rows to recorded ones."""
    names: dict[str, str]


def align(before: Recorded, after: Recorded) -> Alignment:
    """Align the rows of two texts."""
    old, new = _keys(before), _keys(after)
    pairs: dict[int, int] = {}
    for tag, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs.update(zip(range(j, j_end), range(i, i_end), strict=True))
        elif tag == "replace":  # rows with changed neighbours are aligned by their operators
            names = SequenceMatcher(
                None, [row.name for row in before.rows[i:i_end]], [row.name for row in after.rows[j:j_end]], False
            )
            for block in names.get_matching_blocks():
                pairs.update((j + block.b + place, i + block.a + place) for place in range(block.size))
    return Alignment(pairs, _names(before, after, pairs))


def _keys(text: Recorded) -> list[tuple[object, ...]]:
    """The identity of rows, independent of the names of their tensors."""
    makers: dict[str, str] = {}
    keys: list[tuple[object, ...]] = []
    for row in text.rows:
        inputs, outputs = _tensors(row.inputs), _tensors(row.outputs)
        keys.append((row.name, tuple(makers.get(one.name, _INPUT) for one in inputs), len(outputs)))
        makers.update((one.name, row.name) for one in outputs)
    return keys


def _names(before: Recorded, after: Recorded, pairs: dict[int, int]) -> dict[str, str]:
    """The recorded name of each current tensor, from its first aligned place; new numbers for the others."""
    found: dict[str, str] = {}
    taken: set[str] = set()

    def same(here: str, there: str) -> None:
        if here not in found and there not in taken and UNUSED not in (here, there):
            found[here] = there
            taken.add(there)

    for name, meaning in after.heads.items():
        if name in before.heads:
            for here, there in zip(_of_head(meaning), _of_head(before.heads[name]), strict=False):
                same(here, there)
    for place, old in sorted(pairs.items()):
        row, recorded = after.rows[place], before.rows[old]
        for here_side, there_side in ((row.inputs, recorded.inputs), (row.outputs, recorded.outputs)):
            if len(here_side) == len(there_side):
                for one, other in zip(_tensors(here_side), _tensors(there_side), strict=True):
                    same(one.name, other.name)
    number = max((int(name[1:]) for name in _all_names(before)), default=-1)
    for name in _all_names(after):
        if name not in found:
            number += 1
            found[name] = f"T{number}"
    return found


def _statements(before: Recorded, after: Recorded, alignment: Alignment, told: Told, size_of: SizeOf) -> Iterator[str]:
    names, pairs = alignment.names, alignment.pairs
    matched = set(pairs.values())
    yield from _more_or_fewer(
        [place for place, row in enumerate(after.rows) if place not in pairs and row.name != _MEMORY],
        after,
        "more",
        told,
    )
    gone = [place for place, row in enumerate(before.rows) if place not in matched and row.name != _MEMORY]
    yield from _more_or_fewer(gone, before, "fewer", _unknown)
    yield from _dtypes(before, after, alignment, told)
    sizes = {names[name]: size for name in _all_names(after) if (size := size_of(name))}
    yield from _kept(before, after, alignment, sizes)
    made, makers = _makers(before.rows), {names[name]: maker for name, maker in _makers(after.rows).items()}
    yield from (
        f"{name} is made by {maker}, before: {made[name]}"
        for name, maker in makers.items()
        if made.get(name, maker) != maker
    )
    seen: set[str] = set()
    aligned = [(_renamed(after.rows[place], names), before.rows[old]) for place, old in sorted(pairs.items())]
    yield from _read(aligned, sizes)
    for row, recorded in aligned:
        for here, there in _same_tensors(row, recorded):
            if (
                here.more != there.more
                and here.name not in seen
                and here.more.strip()
                and not _dtype_changes(here, there)
            ):
                seen.add(here.name)
                yield f"{here.name} of {row.name} is{here.more}, was{there.more or ' not told'}"
    for name, meaning in after.heads.items():
        now, then = _renamed_label(meaning, names), before.heads.get(name)
        gradient = _new_gradient(name, now, then)
        if gradient is not None:
            yield f"GRADIENT{_plus(sizes.get(gradient))} from {name.removesuffix('.grad')}: {gradient}"
        elif then is None:
            yield f"{name} is new: {now}"
        elif now != then:
            yield f"{name} is {now}, was {then}"
    yield from (f"{name} is gone, was {then}" for name, then in before.heads.items() if name not in after.heads)


def _new_gradient(name: str, now: str, then: str | None) -> str | None:
    """The gradient of a name that had none: behind its tensor (``T0, grad T6``), or under a name of its own."""
    found = _GRADIENT.search(now)
    if found is not None and then is not None and _GRADIENT.search(then) is None:
        return found[1]
    return now if name.endswith(".grad") and then in (None, UNUSED) and now != UNUSED else None


def _plus(size: str | None) -> str:
    return f" +{size}" if size else ""


def _same_tensors(row: TextRow, recorded: TextRow) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs of both rows in the same place that are the same tensor."""
    both = zip(_tensors(row.outputs), _tensors(recorded.outputs), strict=False)
    return ((here, there) for here, there in both if here.name == there.name)


def _dtype_changes(here: Tensor, there: Tensor) -> tuple[str, str] | None:
    """The dtype before and now, if both are told and differ."""
    then, now = (_DTYPE.match(one.more) for one in (there, here))
    return None if then is None or now is None or then[1] == now[1] else (then[1], now[1])


def _dtypes(before: Recorded, after: Recorded, alignment: Alignment, told: Told) -> Iterator[str]:
    """A statement for each change of dtype: how many tensors, and the first of them."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for place, old in sorted(alignment.pairs.items()):
        row = _renamed(after.rows[place], alignment.names)
        for here, there in _same_tensors(row, before.rows[old]):
            changed = _dtype_changes(here, there)
            if changed is not None:
                more = told(place)
                found.setdefault(changed, {}).setdefault(here.name, f"{row.name}{f', {more}' if more else ''}")
    for (then, now), tensors in found.items():
        name, where = next(iter(tensors.items()))
        yield f"dtype {then} -> {now}: {count(len(tensors), 'tensor')}, first {name} of {where}"


def _makers(rows: Sequence[TextRow]) -> dict[str, str]:
    """The operator in whose row each tensor first is an output."""
    found: dict[str, str] = {}
    for row in rows:
        for one in _tensors(row.outputs):
            found.setdefault(one.name, row.name)
    return found


def _more_or_fewer(places: Sequence[int], text: Recorded, word: str, told: Told) -> Iterator[str]:
    """Operators that only one text has, grouped by name and place."""
    counted = Counter((text.rows[place].name, told(place)) for place in places)
    for (name, more), number in counted.items():
        noun = "operator" if number == 1 else "operators"
        yield f"{number} {noun} {word}: {name}" + (f", {more}" if more else "")


def _read(aligned: Sequence[tuple[TextRow, TextRow]], sizes: dict[str, str]) -> Iterator[str]:
    """Tensors that operators read now, or no longer read; a statement for each tensor, or for each pair of them."""
    replaced: dict[tuple[str, str], dict[str, None]] = {}
    come_to: dict[str, dict[str, None]] = {}
    gone_from: dict[str, dict[str, None]] = {}
    for row, recorded in aligned:
        if row.name == _MEMORY:
            continue
        now, then = [one.name for one in _tensors(row.inputs)], [one.name for one in _tensors(recorded.inputs)]
        come = [one for one in dict.fromkeys(now) if one not in then]
        gone = [one for one in dict.fromkeys(then) if one not in now]
        if len(come) == len(gone) == 1:
            replaced.setdefault((come[0], gone[0]), {})[row.name] = None
            continue
        for found, names in ((come_to, come), (gone_from, gone)):
            for one in names:
                found.setdefault(one, {})[row.name] = None
    for (one, other), rows in replaced.items():
        yield f"{one} in place of {other}: {', '.join(rows)}"
    for one, rows in come_to.items():
        yield f"{one} is now kept until {[*rows][-1]}, which takes it as well{_sized(sizes.get(one))}"
    for one, rows in gone_from.items():
        yield f"{one} is taken no more by {', '.join(rows)}"


def _kept(before: Recorded, after: Recorded, alignment: Alignment, sizes: dict[str, str]) -> Iterator[str]:
    """Tensors that are freed later or earlier than recorded, if texts show frees: after which operator."""
    old, new = _last_rows(before.rows), _last_rows(after.rows)
    if not old or not new:
        return
    here = {alignment.names[name]: place for name, place in new.items()}
    for name, then in old.items():
        if name not in here:
            if name in alignment.names.values():
                yield f"{name} is not freed any more{_sized(sizes.get(name))}"
            continue
        now = here[name]
        recorded = next((alignment.pairs[place] for place in range(now, -1, -1) if place in alignment.pairs), -1)
        if alignment.pairs.get(now) != then and recorded != then:
            verb = "is now kept until" if recorded > then else "is now freed after"
            yield f"{name} {verb} {_name(after.rows, now)}{_sized(sizes.get(name))}, before: {_name(before.rows, then)}"


def _last_rows(rows: Sequence[TextRow]) -> dict[str, int]:
    """For each tensor that is freed, the place of the last operator before it is, or in which it is; -1 for none."""
    found: dict[str, int] = {}
    last = -1
    for place, row in enumerate(rows):
        last = last if row.name == _MEMORY else place
        found.update((one.name, last) for one in _tensors(row.inputs) if "*" in one.more)
    return found


def _name(rows: Sequence[TextRow], place: int) -> str:
    return "the start" if place < 0 else rows[place].name


def _sized(size: str | None) -> str:
    return f" ({size})" if size else ""


def _tensors(labels: Sequence[str]) -> list[Tensor]:
    return [Tensor.read(label) for label in labels]


def _of_head(meaning: str) -> list[str]:
    return [one.name for one in (Tensor.read(part.strip().removeprefix("grad ")) for part in meaning.split(","))]


def _all_names(text: Recorded) -> dict[str, None]:
    names = [name for meaning in text.heads.values() for name in _of_head(meaning) if name.startswith("T")]
    names += [one.name for row in text.rows for one in _tensors((*row.inputs, *row.outputs))]
    return dict.fromkeys(names)


def _renamed(row: TextRow, names: dict[str, str]) -> TextRow:
    inputs, outputs = (tuple(_renamed_label(label, names) for label in side) for side in (row.inputs, row.outputs))
    return row._replace(inputs=inputs, outputs=outputs)


def _renamed_label(label: str, names: dict[str, str]) -> str:
    parts = []
    for part in label.split(", "):
        lead, tensor = ("grad ", part[5:]) if part.startswith("grad ") else ("", part)
        one = Tensor.read(tensor)
        parts.append(f"{lead}{names.get(one.name, one.name)}{one.more}")
    return ", ".join(parts)


def _lines(text: Recorded, names: dict[str, str], order: Iterable[str]) -> list[tuple[str, str, str]]:
    """Cells of the shown lines: names first, each region before its rows."""
    lines = [(f"{name}:", _renamed_label(text.heads[name], names), "") for name in order if name in text.heads]
    region: tuple[str, ...] = ()
    for row in text.rows:
        if row.region != region:
            region = row.region
            lines.append((f"-- {' / '.join(region) or '(no region)'}", "", ""))
        shown = _renamed(row, names)
        lines.append((row.name, ", ".join(shown.inputs), f"->  {', '.join(shown.outputs)}"))
    return lines or [("", "", "")]


def _line(cells: tuple[str, str, str], widths: Sequence[int]) -> str:
    if not cells[2]:
        return f"{cells[0]:<{widths[0]}} {cells[1]}".rstrip()
    return f"{cells[0]:<{widths[0]}} {cells[1]:<{widths[1]}}  {cells[2]}".rstrip()
