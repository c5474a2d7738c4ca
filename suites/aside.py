"""Importing this gives a run of the zoo, or a server of its processes, a small heap (see ``suites.heap``)."""

from __future__ import annotations

import torch  # noqa: F401 - to be set aside

from fixtures.zoo import SERVERS_IMPORT, SMALL_HEAP
from suites.heap import set_aside

SMALL_HEAP.enter_context(set_aside())
SERVERS_IMPORT.append(__name__)
