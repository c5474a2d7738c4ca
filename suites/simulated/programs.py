"""Random programs on a simulated card and on the CPU: ``python -m suites.simulated.programs FIRST LAST``.

Prints as JSON which programs come to other values than on the CPU, and which counters of the card do not follow from
the events that its allocator recorded. A model of the counters alone: requests are rounded to 512 bytes and added up.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from cudamem_testing.strategies.random_programs import Program, make

RESULT = "    return [v.detach() for v in locals().values() if isinstance(v, torch.Tensor) and not v.is_meta]\n"
ENTRIES = 100_000


def results(program: Program, device: str) -> list[torch.Tensor]:
    """The tensors that a program ends with, made on a device."""
    torch.set_default_device(device)
    try:
        found: Any = replace(program, source=program.source + RESULT).compile()()
        return list(found)
    finally:
        torch.set_default_device(None)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results have the same values, up to the order of sums."""
    return one.shape == other.shape and torch.allclose(
        one.cpu().double(), other.cpu().double(), rtol=1e-4, atol=1e-5, equal_nan=True
    )


def modelled(events: list[dict[str, Any]], start: dict[str, Any]) -> dict[str, int]:
    """The counters after some events, from those before."""
    live: dict[int, int] = {}
    kept = {name: start[f"{name}.all.current"] for name in ("allocated_bytes", "requested_bytes", "reserved_bytes")}
    count, made, freed = start["allocation.all.current"], 0, 0
    peaks = Counter(kept)
    for event in events:
        size, action = event["size"], event["action"]
        if action == "alloc":
            live[event["addr"]] = size
            sign, made, count = 1, made + 1, count + 1
        elif action == "free_requested":
            sign, freed, count = -1, freed + 1, count - 1
        elif action in ("segment_alloc", "segment_free"):
            kept["reserved_bytes"] += size if action == "segment_alloc" else -size
            peaks["reserved_bytes"] = max(peaks["reserved_bytes"], kept["reserved_bytes"])
            continue
        else:
            continue
        kept["allocated_bytes"] += sign * -(-size // 512) * 512
        kept["requested_bytes"] += sign * size
        for name in ("allocated_bytes", "requested_bytes"):
            peaks[name] = max(peaks[name], kept[name])
    found = {f"{name}.all.current": value for name, value in kept.items()}
    found |= {f"{name}.all.peak": value for name, value in peaks.items()}
    found["allocation.all.current"] = count
    found["allocation.all.allocated"] = start["allocation.all.allocated"] + made
    found["allocation.all.freed"] = start["allocation.all.freed"] + freed
    return found


def main(first: int, last: int) -> None:
    """Compare the programs of some seeds."""
    from cudamem_testing import simulated_cuda

    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"programs": 0, "tensors": 0, "values": [], "counters": []}
    with simulated_cuda("24GiB"):
        for seed in range(first, last):
            for kind in ("any", "training"):
                program = make(seed, kind)
                expected = results(program, "cpu")
                gc.collect()
                torch.cuda.reset_peak_memory_stats()
                start = dict(torch.cuda.memory_stats())
                torch.cuda.memory._record_memory_history("all", context=None, max_entries=ENTRIES)
                mine = results(program, "cuda")
                end = torch.cuda.memory_stats()
                events = torch.cuda.memory._snapshot()["device_traces"][0]
                torch.cuda.memory._record_memory_history(None)
                found["programs"] += 1
                found["tensors"] += sum(one.is_cuda for one in mine)
                if len(mine) != len(expected) or not all(map(same, mine, expected)):
                    found["values"].append([kind, seed])
                wrong = {
                    name: [value, end[name]] for name, value in modelled(events, start).items() if end[name] != value
                }
                if wrong or len(events) >= ENTRIES:
                    found["counters"].append([kind, seed, wrong])
                del mine, expected, events
                gc.collect()
                gc.freeze()  # the next collections do not read what torch has imported
                torch.cuda.empty_cache()
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
