"""``python -m suites.benchmarks``: what measuring costs, and its limits; exit status 1 if one is broken.

A run takes three to four minutes, on a card ten; ``--quick`` takes one, for a look: its ratios are noisy. ``--only``
takes some parts alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from suites.benchmarks import cpu_recorder, plugin_overhead


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m suites.benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where the tests run")
    parser.add_argument("--rounds", type=int, help="runs of each kind (5; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work")
    parser.add_argument("--recorder", action="store_true", help="also time the CPU recorder alone")
    parser.add_argument("--only", nargs="+", choices=plugin_overhead.PARTS, default=plugin_overhead.PARTS)
    options = parser.parse_args(arguments)

    import torch

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds = options.rounds or (2 if options.quick else 5)
    passed = plugin_overhead.measure(device, rounds, 5 if options.quick else 1, options.only)
    if options.recorder:
        cpu_recorder.main()
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
