"""The settings of torch's allocator that the environment asks for.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
INTERVALS = 16
_PAIR = re.compile(r"\s*(\w+)\s*:\s*(\[[^\]]*\]|[^,]*)\s*(?:,|$)")


class AllocatorSettings(NamedTuple):
    """Sizes in bytes; 0 is torch's default. ``divisions`` are of powers of two, from 1 MiB up."""

    text: str = ""
    expandable: bool = False
    max_split: int = 0
    max_unsplit_rounding: int = 0
    collect_above: float = 0.0
    fraction: float | None = None
    divisions: tuple[int, ...] = (0,) * INTERVALS

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> AllocatorSettings:
        """Those of the first variable that is set; what torch knows and has no effect here is passed over.

        Raises:
            ValueError: a value cannot be read.
        """
        text = next((environ[name] for name in VARIABLES if environ.get(name)), "")
        given = {match[1]: match[2].strip() for match in _PAIR.finditer(text)}
        try:
            return cls(
                text=text,
                expandable=given.get("expandable_segments", "False") in ("True", "true", "1"),
                max_split=int(given.get("max_split_size_mb", 0)) * 2**20,
                max_unsplit_rounding=int(given.get("max_non_split_rounding_mb", 0)) * 2**20,
                collect_above=float(given.get("garbage_collection_threshold", 0)),
                fraction=float(given["per_process_memory_fraction"])
                if "per_process_memory_fraction" in given
                else None,
                divisions=_divisions(given.get("roundup_power2_divisions", "")),
            )
        except ValueError as error:
            raise ValueError(f"the allocator's settings cannot be read ({error}): {text}") from error

    def named(self, **changed: str) -> str:
        """The text of these settings with some of them ``changed``: all that is to be set together.

        >>> AllocatorSettings(text="max_split_size_mb:64,backend:native").named(expandable_segments="True")
        'expandable_segments:True,max_split_size_mb:64,backend:native'
        """
        kept = {match[1]: match[2].strip() for match in _PAIR.finditer(self.text)}
        return ",".join(f"{name}:{value}" for name, value in {**changed, **kept, **changed}.items())


def _divisions(text: str) -> tuple[int, ...]:
    if not text:
        return (0,) * INTERVALS
    if not text.startswith("["):
        return (int(text),) * INTERVALS
    found = [0] * INTERVALS
    last = 0
    for place, pair in enumerate(text.strip("[]").split(",")):
        size, _, value = pair.partition(":")
        if size.strip() == ">":
            found[last + 1 :] = [int(value)] * (INTERVALS - last - 1)
            continue
        index = min(int(size).bit_length() - 1, INTERVALS - 1)
        found[(0 if place == 0 else index) : index + 1] = [int(value)] * (index + 1 - (0 if place == 0 else index))
        last = index
    return tuple(found)
