"""One reading of the counters of one device.

Names are those of ``torch.cuda.memory_stats``. Sizes are bytes. ``None`` means that the device, its allocator or
the recorder does not know it; ``notes`` give the reason. PYTEST_DONT_REWRITE
"""

# Annotations are not postponed here: Python compiles the text of each field of a named tuple.
from typing import NamedTuple


class Counters(NamedTuple):
    """Current values and, for sizes, the peak since the peaks were last reset (a tuple: it is read at each boundary).

    ``blocks`` is the number of live blocks. ``allocations``, ``segments`` and ``retries`` only grow: the number of
    blocks and of driver segments ever allocated, and of allocations that succeeded only after the cache was emptied.
    """

    allocated: int | None = None
    allocated_peak: int | None = None
    requested: int | None = None
    requested_peak: int | None = None
    reserved: int | None = None
    reserved_peak: int | None = None
    active: int | None = None
    active_peak: int | None = None
    allocations: int | None = None
    segments: int | None = None
    retries: int | None = None
    blocks: int | None = None
    notes: tuple[str, ...] = ()


PEAKS = ("allocated_peak", "requested_peak", "reserved_peak", "active_peak")
ZERO = Counters(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
