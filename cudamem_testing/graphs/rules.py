"""Rules of the lint: what breaks or freezes in a CUDA graph, what happens then, and what to do about it.

A capture records the work that the function queues on a stream, and runs none of it. So nothing may wait for a value,
and Python code runs once, not in each replay. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(str, Enum):
    """What the lint can find."""

    HOST_READ = "host read"
    DATA_SHAPE = "data-dependent shape"
    HOST_COPY = "host-device copy"
    SYNCHRONIZE = "synchronize"
    STREAM = "stream"
    GENERATOR = "generator"
    OUTSIDE = "outside tensor"
    SIDE_EFFECT = "side effect"
    DEVICE = "wrong device"
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a rule means. ``breaks``: the capture fails; otherwise replays differ from the function."""

    breaks: bool
    happens: str
    advice: str


MEANINGS = {
    Rule.HOST_READ: Meaning(
        True,
        "the host reads a value while the work that makes it is only recorded: the capture fails",
        "keep it on the device (torch.where, torch.clamp, index_select), or read it after the replay",
    ),
    Rule.DATA_SHAPE: Meaning(
        True,
        "the size of the result depends on values, so the host waits for them: the capture fails",
        "give it a fixed size: torch.where(mask, x, 0), nonzero_static(size=...), repeat_interleave(output_size=...)",
    ),
    Rule.HOST_COPY: Meaning(
        True,
        "a copy between pageable host memory and the device waits for it: the capture fails",
        "create the tensor on the device outside the function, or copy from pinned memory with non_blocking=True",
    ),
    Rule.SYNCHRONIZE: Meaning(
        True,
        "the host waits for a stream that only records: the capture fails",
        "wait outside the function, after the replay",
    ),
    Rule.STREAM: Meaning(
        True,
        "work on a side stream that does not start from the capturing stream, or is not joined to it: the "
        "capture fails or misses it",
        "side.wait_stream(torch.cuda.current_stream()) before the work, "
        "torch.cuda.current_stream().wait_stream(side) after it",
    ),
    Rule.GENERATOR: Meaning(
        False,
        "the graph does not know this random-number source: the capture fails, or every replay draws the same numbers",
        "pass the torch.Generator as an argument (graph_capture registers it), or use the default generator",
    ),
    Rule.OUTSIDE: Meaning(
        False,
        "the graph always reads the tensor of the capture, even if the name refers to another one later",
        "keep one tensor and write into it with copy_()",
    ),
    Rule.SIDE_EFFECT: Meaning(
        False,
        "Python runs during the capture only, so no replay repeats it",
        "do it outside the function, or keep the state in a tensor that is changed in place",
    ),
    Rule.DEVICE: Meaning(
        True,
        "a host tensor is used with device tensors: the operator fails",
        "create it with device=x.device, and outside the function if its content never changes",
    ),
    Rule.RAISED: Meaning(
        True,
        "the function raised an exception, so code after this line was not checked",
        "make the function run on CPU tensors first, then check again",
    ),
}
