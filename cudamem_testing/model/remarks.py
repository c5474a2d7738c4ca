"""What is said of a finding beside numbers; imported alone, for it is used in collections too. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Remark(str, Enum):
    """What policy adds to a finding, besides its standing."""

    HARNESS = "harness"  #: The test harness is part of the cycle.
    MOCK = "mock"  #: A mock is part of the cycle, and keeps the arguments of its calls.
    OTHER_HARNESS = "other harness"  #: Another part of the test harness is part of the cycle.
    LIBRARY = "library"  #: A library made the cycle, not the project.
    UNREAD = "unread"  #: The objects of the cycle could not be read.
    FIRST_USE = "first use"  #: A cache that was filled for the first time in this process.
    RECORDED = "recorded"  #: The run records it as known.


class Knot(str, Enum):
    """What makes a cycle that no weak reference breaks."""

    CLASS = "class"  #: A class refers to itself.
    FUNCTION = "function"  #: A function refers to itself through its closure.
    ERROR = "error"  #: A variable has an error, which refers to the frame of the variable.


class Tied(NamedTuple):
    """A knot of a cycle: ``name`` is that of the class, the function or the variable, ``function`` has the variable."""

    knot: Knot
    name: str
    function: str = ""
