"""Replays the recorded streams of requests on a simulated card: ``python -m suites.simulated.streams SETTING...``.

Prints as JSON, for each of these settings of the allocator, which events differ from the card's, and which counters.
Its own process: the allocator's settings are read from the environment when cards are put in place.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

RECORDED = Path("fixtures/simulated/requests.json.gz")


def kinds(events: list[list[Any]], streams: list[int]) -> list[tuple[Any, ...]]:
    """Events without addresses, streams by their place."""
    places = {stream: place for place, stream in enumerate(streams)}
    return [(one[0], one[2], places[one[3] if len(one) > 3 else 0]) for one in events]


def compared(setting: str, card: dict[str, Any]) -> dict[str, Any]:
    """One setting."""
    from cudamem_testing import simulated_cuda
    from fixtures.simulated.record import SETTINGS, record_requests

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[setting]
    with simulated_cuda("h200", values=False):
        mine = dict(record_requests([], setting))[setting]
    expected, found = (kinds(one["events"], one["streams"]) for one in (card, mine))
    same = next((at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), len(expected))
    different = set()
    for (_, before), (_, after) in zip(card["stats"], mine["stats"], strict=True):
        different |= {name for name in before if before[name] != after[name]}
    places = [_from_the_first(one["events"]) for one in (card, mine)]
    return {
        "events": len(expected),
        "found": len(found),
        "same": same,
        "different": sorted(different),
        "addresses": places[0] == places[1],
    }


def _from_the_first(events: list[list[Any]]) -> list[int]:
    """Addresses of segments from that of the first: how the driver places them. Expandable segments have none."""
    places = [one[1] for one in events if one[0] in "Ss"]
    return [one - places[0] for one in places]


def main(*settings: str) -> None:
    """Compare some settings."""
    cards = json.loads(gzip.decompress(RECORDED.read_bytes()))
    print(json.dumps({setting: compared(setting, cards[setting]) for setting in settings}))


if __name__ == "__main__":
    main(*sys.argv[1:])
