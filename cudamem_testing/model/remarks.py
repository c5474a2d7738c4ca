"""What policy adds to a finding; imported alone, as it is used inside collections too. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from enum import Enum


class Remark(str, Enum):
    """What policy adds to a finding, besides its standing."""

    HARNESS = "harness"  #: The test harness is part of the cycle.
    MOCK = "mock"  #: A mock is part of the cycle, and keeps the arguments of its calls.
    OTHER_HARNESS = "other harness"  #: Another part of the test harness is part of the cycle.
    LIBRARY = "library"  #: A library made the cycle, not the project.
    UNREAD = "unread"  #: The objects of the cycle could not be read.
    FIRST_USE = "first use"  #: A cache that was filled for the first time in this process.
    RECORDED = "recorded"  #: The run records it as known.
