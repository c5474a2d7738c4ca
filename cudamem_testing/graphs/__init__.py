"""Tests of CUDA graphs: lint without a card, capture, replay, comparison with eager, memory of pools.

``lint`` runs a function once and lists what would break a capture. ``capture`` records it, ``captured`` replays it
and holds the assertions, ``compare`` compares replays with calls, ``liveness`` knows which tensors must live, ``pools``
counts private pools, ``nodes`` turns the graph into text, ``failure`` explains a capture that failed, ``obstacles``
and ``callables`` are about ``make_graphed_callables``. All access to the device goes through ``backend``.
PYTEST_DONT_REWRITE
"""

from cudamem_testing.graphs.captured import Captured, GraphError
from cudamem_testing.graphs.failure import CaptureError, Failure
from cudamem_testing.graphs.inputs import InputError
from cudamem_testing.graphs.lint import check
from cudamem_testing.graphs.nodes import LevelError, Node, NodeList
from cudamem_testing.graphs.obstacles import Obstacle, ObstacleError
from cudamem_testing.graphs.report import LintError, LintFinding, LintReport
from cudamem_testing.graphs.session import GraphCapture, UnavailableError

__all__ = [
    "CaptureError",
    "Captured",
    "Failure",
    "GraphCapture",
    "GraphError",
    "InputError",
    "LevelError",
    "LintError",
    "LintFinding",
    "LintReport",
    "Node",
    "NodeList",
    "Obstacle",
    "ObstacleError",
    "UnavailableError",
    "check",
]
