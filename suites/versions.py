"""What differs between the versions of torch (2.7, 2.11, 2.13, 2.14) and Python (3.10 to 3.13) that suites run with."""

from __future__ import annotations

import sys

import torch

#: Up to torch 2.7; where it ends between 2.8 and 2.10 is not known.
OLDER_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8)

#: From torch 2.9 on, the counters of all devices can be read in C++.
COMMON_COUNTERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


def qualified(name: str) -> str:
    """A function's name as its code has it: before Python 3.11 without the class or function around it."""
    return name if sys.version_info >= (3, 11) else name.rpartition(".")[2]
