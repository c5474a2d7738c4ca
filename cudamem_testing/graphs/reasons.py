"""Why a capture broke, from the error text and what was running: tables only, nothing that touches a device.

The texts are those of torch, its libraries and the driver, which are the same in all supported versions.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cudamem_testing.graphs.operators import BACKWARD_NODES, FROM_DATA, HOST_READS, OPERATORS, READING, shown
from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.graphs.rules import MEANINGS, Meaning, Rule

#: torch's warning about a graph without nodes, and the error after an earlier call broke the capture silently.
EMPTY_SAID, SILENT_SAID = "CUDA Graph is empty", "previous error during capture"
#: Our own error for a capture inside another one.
NESTED_SAID = "the current stream captures already"
#: The error if the function left another stream current than the capturing one.
SAME_STREAM_SAID = "must end on the same stream"

#: Texts of torch and the driver, the most specific first, with the rule that was broken.
_SAID = (
    ("Cannot copy between CPU and CUDA tensors", Rule.HOST_COPY),
    ("device type tensor to numpy", Rule.HOST_READ),
    ("Expected all tensors to be on the same device", Rule.DEVICE),
    ("indices should be either on", Rule.DEVICE),
    ("with CPU length tensors", Rule.DEVICE),
    ("capturing stream has unjoined work", Rule.STREAM),
    ("dependency created on uncaptured work", Rule.STREAM),
    ("merge of separate capture sequences", Rule.STREAM),
    ("make the legacy stream depend", Rule.STREAM),
    ("not ended in the same stream", Rule.STREAM),
    (SAME_STREAM_SAID, Rule.STREAM),
    ("last recorded in a capturing stream", Rule.SYNCHRONIZE),
    ("Offset increment outside graph capture", Rule.GENERATOR),
    ("generator state", Rule.GENERATOR),
    ("CUDAGeneratorImpl", Rule.GENERATOR),
    ("CUDA generator not in capture mode", Rule.GENERATOR),
)
#: Operators that are fine in general and that a capture refuses for one reason only.
_REFUSED = {
    "aten::copy_": Rule.HOST_COPY,
    "aten::_to_copy": Rule.HOST_COPY,
    "aten::index": Rule.DATA_SHAPE,  # a mask; host indices fail earlier
    "aten::index_put_": Rule.DATA_SHAPE,
    "aten::_index_put_impl_": Rule.DATA_SHAPE,
    "aten::repeat_interleave": Rule.DATA_SHAPE,
}
#: Functions that copy internally, without a visible operator.
_INDEXING = frozenset({"torch.Tensor.__getitem__", "torch.Tensor.__setitem__"})
#: Words that torch, the driver and CUDA libraries use when they refuse something.
_REFUSAL = re.compile(r"(?i)captur|CUDA (driver )?error|(cu(blas|solver|dnn|fft|sparse)|nccl)\w*( error|_status)")
AT_ANOTHER_TIME = (
    "make it before the capture (more warm-up), or use capture_error_mode='thread_local' if another thread makes it"
)
LONGER = "make the call before the capture: use more warm-up (graph_capture's default is warmup=3)"
OTHER_LIBRARY = Meaning(
    True,
    "a call that the driver does not allow while a stream captures, such as an allocation or a wait of another library",
    AT_ANOTHER_TIME,
)
INSIDE = Meaning(
    True,
    "inside, the operator does something that cannot be recorded: it reads a value, waits, or a library allocates",
    "call it outside the function, or use one that works on the device only; if it is the first use of a library, "
    "use more warm-up",
)
ONCE = Meaning(
    True,
    "it happens in the first call only, such as the first use of a library: a second capture worked",
    LONGER,
)
SILENT = Meaning(
    True,
    "a call broke the capture without an exception here: its error was not checked, or another thread made it",
    AT_ANOTHER_TIME,
)
DEFAULT_STREAM = Meaning(
    True,
    "the default stream cannot be captured",
    "leave stream= out, or pass a torch.cuda.Stream()",
)
NESTED = Meaning(
    True,
    "a capture starts inside the capture",
    "capture one function at a time: call the inner function directly, or capture it earlier and replay it outside",
)
OPTIMIZER = Meaning(
    True,
    "the optimizer keeps its step count on the host, and replays do not change it",
    "create the optimizer with capturable=True",
)
MEMORY = Meaning(
    True,
    "the device has no memory for the graph's pool, which cannot use memory of other pools",
    "reset graphs that are no longer needed, or let captures share a pool (pool=graph_capture.pool_handle())",
)
OWN = Meaning(
    True,
    "the function itself raised this",
    "call it without a capture, and check what it does differently while torch.cuda.is_current_stream_capturing()",
)
EMPTY = Meaning(
    True,
    "the graph is empty: the function launches nothing (views, shapes, work on the "
    "host) and needs no graph, or its work went to another device, or to a stream that does not start from the "
    "capturing one",
    "create its tensors on the capture's device, and let side streams wait for torch.cuda.current_stream()",
)


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known about the moment at which a capture broke; unknown fields are empty or false.

    ``operator`` and the Python ``function`` were running, ``call`` is the library function that
    the line called. ``waits`` and ``nested``: that function waits for the device, or begins a capture. ``to_host``: the
    operator copies to the host. ``aside``: the current stream did not capture. ``place`` and ``said`` are where it
    broke and with what message, where that was another line, or another exception, than the one that ended the capture.
    ``worked``: the same capture succeeded on the second try.
    """

    operator: str = ""
    function: str = ""
    call: str = ""
    waits: bool = False
    nested: bool = False
    to_host: bool = False
    aside: bool = False
    place: SourceLine | None = None
    said: str = ""
    worked: bool = False

    @property
    def at_work(self) -> str:
        """What was running: an operator, else a function, else a call."""
        return self.operator or (shown(self.function) if self.function else self.call)


def refused(said: str) -> bool:
    """Whether the driver or torch refused something because a stream was capturing."""
    return _REFUSAL.search(said) is not None and EMPTY_SAID not in said


def reason(said: str, clues: Clues, *, mistake: bool = False) -> tuple[Rule | None, Meaning]:
    """The rule that was broken, ``None`` if none was, and what that means.

    Args:
        said: the full message of the exception.
        clues: what was running.
        mistake: whether the exception is an ordinary bug of the program.
    """
    rule = rule_of(said, clues)
    return (None, _meaning(said, clues, mistake)) if rule is None else (rule, MEANINGS[rule])


def rule_of(said: str, clues: Clues) -> Rule | None:
    """The rule of the lint that was broken, if it is one of them."""
    if clues.nested:
        return None
    found = next((rule for words, rule in _SAID if words in said), None)
    if found is None and clues.waits:
        found = Rule.SYNCHRONIZE
    if (
        found is None
        and SILENT_SAID not in said
        and (refused(said) or clues.operator in OPERATORS or clues.operator in READING)
    ):
        found = Rule.STREAM if clues.aside else _rule_at_work(clues.operator, clues.function)
    reads = clues.to_host or clues.function in HOST_READS or clues.operator in READING
    return Rule.HOST_READ if found is Rule.HOST_COPY and reads else found


def _rule_at_work(operator: str, function: str) -> Rule | None:
    found = OPERATORS.get(operator) or BACKWARD_NODES.get(operator.removeprefix("backward of "))
    found = found or _REFUSED.get(operator)
    if found is None and (function in HOST_READS or operator in READING):
        found = Rule.HOST_READ
    if found is None and not operator and function in FROM_DATA:
        found = Rule.HOST_READ  # for a list with tensors; other host data is recognised by its text
    if found is None and not operator and function in _INDEXING:
        found = Rule.HOST_COPY
    return found


def _meaning(said: str, clues: Clues, mistake: bool) -> Meaning:
    if clues.nested or NESTED_SAID in said:
        return NESTED
    if EMPTY_SAID in said:
        return EMPTY
    if "captured on a non-default stream" in said:
        return DEFAULT_STREAM
    if "out of memory" in said:
        return MEMORY
    if "capturable" in said:
        return OPTIMIZER
    if clues.worked or "warmup iterations" in said:
        return ONCE
    if SILENT_SAID in said:
        return SILENT
    if mistake:
        return OWN
    return INSIDE if refused(said) and (clues.operator or clues.function) else OTHER_LIBRARY
