"""Cards that can be simulated, and how one is named: ``h100``, ``24GiB``, ``2x24GiB``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from cudamem_testing.model.devices import Device, parse_selection
from cudamem_testing.model.sizes import format_size, parse_size

MIB = 2**20
SIMULATED = "simulated"
"""The kind of device that simulates cards."""
MOST_CARDS = 16


class CardModel(NamedTuple):
    """What a program can ask of a card; sizes in bytes.

    ``context`` is what the driver and the context of one process take of the card, outside torch's allocator.
    """

    key: str
    name: str
    memory: int
    capability: tuple[int, int]
    processors: int
    context: int = 518 * MIB
    l2_cache: int = 50 * MIB

    @property
    def blas_workspace(self) -> int:
        """Bytes that cuBLAS takes for each thread and stream: torch asks for more on Hopper."""
        return 32 * MIB if self.capability[0] == 9 else (4096 * 2 + 16 * 8) * 1024

    @property
    def title(self) -> str:
        """As reports name it: ``simulated h100``."""
        return f"simulated {self.key}"


#: The H200's figures were read from a card with torch 2.11; the memory of the others is what torch shows for them.
CARDS = {
    card.key: card
    for card in (
        CardModel("h200", "NVIDIA H200", 150_109_880_320, (9, 0), 132, l2_cache=60 * MIB),
        CardModel("h100", "NVIDIA H100 80GB HBM3", 85_017_493_504, (9, 0), 132),
        CardModel("a100", "NVIDIA A100-SXM4-80GB", 85_094_825_984, (8, 0), 108, l2_cache=40 * MIB),
        CardModel("a100-40gb", "NVIDIA A100-SXM4-40GB", 42_298_834_944, (8, 0), 108, l2_cache=40 * MIB),
        CardModel("l4", "NVIDIA L4", 23_580_639_232, (8, 9), 58, l2_cache=48 * MIB),
        CardModel("rtx4090", "NVIDIA GeForce RTX 4090", 25_386_352_640, (8, 9), 128, l2_cache=72 * MIB),
        CardModel("t4", "Tesla T4", 15_828_320_256, (7, 5), 40, l2_cache=4 * MIB),
    )
}
DEFAULT = "h100"
LEAST = CARDS[DEFAULT].context + 2 * MIB
_SPEC = re.compile(r"(?:(\d{1,2})x)?([\w.\-]+)", re.ASCII)


class Cards(NamedTuple):
    """Some cards of one model."""

    model: CardModel
    count: int = 1  # type: ignore[assignment] # not the method of tuples

    @classmethod
    def parse(cls, text: str) -> Cards:
        """The cards meant by ``h100``, ``24GiB``, ``2x24GiB``, or nothing for one ``h100``.

        A size is the whole memory of a card of the default model.

        Raises:
            ValueError: for anything else, with what is accepted.
        """
        match = _SPEC.fullmatch(text or DEFAULT)
        count, name = match.groups() if match else (None, "")
        number = 1 if count is None else int(count)
        why = f"write a size (24GiB), a model ({', '.join(CARDS)}), or up to {MOST_CARDS} of one (2x24GiB)"
        if match and 1 <= number <= MOST_CARDS:
            if name in CARDS:
                return cls(CARDS[name], number)
            with suppress(ValueError):
                size = parse_size(name)
                if size > LEAST:
                    return cls(_of_size(size), number)
                why = f"it needs more than {format_size(LEAST)}, most of it for the context of a process"
        raise ValueError(f"no card {text!r} can be simulated: {why}")

    def __str__(self) -> str:
        return self.model.title if self.count == 1 else f"{self.model.title} x {self.count}"

    @property
    def titles(self) -> tuple[str, ...]:
        """One name for each card."""
        return (self.model.title,) * self.count


def _of_size(size: int) -> CardModel:
    base = CARDS[DEFAULT]
    key = format_size(size).replace(" ", "").replace(".0", "")
    return base._replace(key=key, name=f"Simulated {key}", memory=size)


def selected(text: str) -> tuple[str | Device, Cards | None]:
    """The devices that a text selects, and the cards to simulate.

    Raises:
        ValueError: it names no device, and no card.
    """
    kind, _, cards = text.partition(":")
    return (Device("cuda"), Cards.parse(cards)) if kind == SIMULATED else (parse_selection(text), None)
