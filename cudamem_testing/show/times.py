"""Durations as text. PYTEST_DONT_REWRITE"""

from __future__ import annotations


def format_time(micros: int) -> str:
    """A duration in microseconds for people: ``12 µs``, ``3.4 ms``, ``5.6 s``, ``7.8 min``."""
    if micros < 1000:
        return f"{micros} µs"
    if micros < 1_000_000:
        return f"{micros / 1000:.1f} ms"
    return f"{micros / 1e6:.1f} s" if micros < 120_000_000 else f"{micros / 6e7:.1f} min"
