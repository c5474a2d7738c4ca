"""What a broken limit says, to the letter."""

from __future__ import annotations

import pytest

from cudamem_testing.model.devices import Device
from cudamem_testing.model.limits import Limit
from cudamem_testing.model.windows import Window
from cudamem_testing.wording.limits import broken

MIB = 2**20
CPU, CUDA0 = Device("cpu"), Device("cuda", 0)
WINDOW = Window(
    "call", CUDA0, 100, 1124, 90, reserved_start=10, reserved_peak=2058, retained=-10, allocations=4, retries=1
)


@pytest.mark.parametrize(
    ("limit", "window", "text"),
    [
        (Limit("peak", 512), WINDOW, "peak 1.0 KiB above start is over its budget of 512 B by 512 B (cuda:0)"),
        (
            Limit("peak", 512, absolute=True),
            WINDOW,
            "peak 1.1 KiB is over its budget of 512 B by 612 B (cuda:0)",
        ),
        (
            Limit("reserved", 3 * MIB, "at least"),
            WINDOW,
            "reserved 2.0 KiB above start is under its lower bound of 3.0 MiB by 3.0 MiB (cuda:0)",
        ),
        (Limit("allocations", 3), WINDOW, "allocations 4 is over its budget of 3 by 1 (cuda:0)"),
        (
            Limit("retained", 0),
            Window("decode", CPU, 5, 9, 8, retained=3),
            "retained 3 B is over its budget of 0 B by 3 B (decode, cpu)",
        ),
        (
            Limit("retained", 0, "at least"),
            WINDOW,
            "retained -10 B is under its lower bound of 0 B by 10 B (cuda:0)",
        ),
    ],
)
def test_what_a_breach_says(limit: Limit, window: Window, text: str) -> None:
    breach = limit.judge(window)
    assert breach is not None
    assert broken(breach) == text
