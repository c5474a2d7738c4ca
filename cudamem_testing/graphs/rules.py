"""Rules of the lint: what stands in the way of a CUDA graph, what it does, and what to do about it.

A capture records the work that the function gives to a stream, and runs none of it. So nothing may wait for a value,
and what Python does besides happens once, not in each replay. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(str, Enum):
    """What was found."""

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
    """What a rule means. ``breaks``: the capture fails; otherwise the replays are not what the function does."""

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
        "make the tensor on the device outside of the function, or copy from pinned memory with non_blocking=True",
    ),
    Rule.SYNCHRONIZE: Meaning(
        True,
        "the host waits for a stream that only records: the capture fails",
        "wait outside of the function, after the replay",
    ),
    Rule.STREAM: Meaning(
        True,
        "work on a side stream that does not begin from the capturing stream, or is not joined to it again: the "
        "capture fails or lacks it",
        "side.wait_stream(torch.cuda.current_stream()) before the work, "
        "torch.cuda.current_stream().wait_stream(side) after it",
    ),
    Rule.GENERATOR: Meaning(
        False,
        "the graph does not know this source of random numbers: the capture fails, or every replay draws the same",
        "pass the torch.Generator as an argument (graph_capture registers it), or use the default generator",
    ),
    Rule.OUTSIDE: Meaning(
        False,
        "the graph reads the tensor that was there during the capture, whatever stands in its place later",
        "keep one tensor and write into it with copy_()",
    ),
    Rule.SIDE_EFFECT: Meaning(
        False,
        "Python runs during the capture alone, so no replay repeats it",
        "do it outside of the function, or keep the state in a tensor that is changed in place",
    ),
    Rule.DEVICE: Meaning(
        True,
        "a tensor of the host meets tensors of the device: the operator refuses",
        "make it with device=x.device, outside of the function where its content never changes",
    ),
    Rule.RAISED: Meaning(
        True,
        "the function raised, so what comes after this line was not looked at",
        "see that the function runs on CPU tensors, then check again",
    ),
}
