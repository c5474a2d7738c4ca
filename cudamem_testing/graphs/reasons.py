"""Why a capture broke, from what was said and what was at work then: tables, and nothing that touches a device.

What is said is text of torch, of its libraries and of the driver, which is the same in every version that is supported.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cudamem_testing.graphs.operators import BACKWARD_NODES, FROM_DATA, HOST_READS, OPERATORS, READING, shown
from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.graphs.rules import MEANINGS, Meaning, Rule

#: How torch warns of a graph without nodes, and what is said where an earlier call broke the capture without a word.
EMPTY_SAID, SILENT_SAID = "CUDA Graph is empty", "previous error during capture"
#: What a capture says inside of another one, here.
NESTED_SAID = "the current stream captures already"
#: Where the function left another stream current than the one that captures.
SAME_STREAM_SAID = "must end on the same stream"

#: What torch and the driver say, in the order of what tells most, with the rule it is about.
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
#: Operators that a capture refuses for one reason only, though they are no fault in themselves.
_REFUSED = {
    "aten::copy_": Rule.HOST_COPY,
    "aten::_to_copy": Rule.HOST_COPY,
    "aten::index": Rule.DATA_SHAPE,  # a mask; indices of the host fail before they arrive here
    "aten::index_put_": Rule.DATA_SHAPE,
    "aten::_index_put_impl_": Rule.DATA_SHAPE,
    "aten::repeat_interleave": Rule.DATA_SHAPE,
}
#: Functions that copy inside, where no operator can be seen.
_INDEXING = frozenset({"torch.Tensor.__getitem__", "torch.Tensor.__setitem__"})
#: Words of torch, the driver and the libraries of CUDA when they refuse something.
_REFUSAL = re.compile(r"(?i)captur|CUDA (driver )?error|(cu(blas|solver|dnn|fft|sparse)|nccl)\w*( error|_status)")
AT_ANOTHER_TIME = (
    "make it before the capture (warm up longer), or capture with capture_error_mode='thread_local' if another thread "
    "makes it"
)
LONGER = "make the call before the capture: warm up longer (warmup=3 is what graph_capture does by itself)"
OTHER_LIBRARY = Meaning(
    True,
    "a call that the driver does not allow while a stream captures, such as an allocation or a wait of another library",
    AT_ANOTHER_TIME,
)
INSIDE = Meaning(
    True,
    "the operator does inside what cannot be recorded: it reads a value, waits, or a library below it allocates",
    "call it outside of the function, or use one that works on the device alone; if it is the first use of a library, "
    "warm up longer",
)
ONCE = Meaning(
    True,
    "it happens in the first call alone, such as the first use of a library: a second capture worked",
    LONGER,
)
SILENT = Meaning(
    True,
    "a call broke the capture and raised nothing here: one whose error nobody looked at, or one of another thread",
    AT_ANOTHER_TIME,
)
DEFAULT_STREAM = Meaning(
    True,
    "the default stream cannot be captured",
    "leave stream= out, or pass a torch.cuda.Stream()",
)
NESTED = Meaning(
    True,
    "a capture begins inside of the capture",
    "capture one function at a time: call the inner function itself, or capture it before and replay it outside",
)
OPTIMIZER = Meaning(
    True,
    "the optimizer keeps its step count on the host, where no replay changes it",
    "make the optimizer with capturable=True",
)
MEMORY = Meaning(
    True,
    "the device has no memory for the pool of the graph, which cannot use what other pools keep",
    "reset graphs that are not needed any more, or let captures share a pool (pool=graph_capture.pool_handle())",
)
OWN = Meaning(
    True,
    "the function raised this itself",
    "call it without a capture, and look at what it does differently while torch.cuda.is_current_stream_capturing()",
)
EMPTY = Meaning(
    True,
    "the graph is empty, nothing that the function did was recorded: it launches nothing (views, shapes, work of the "
    "host) and needs no graph, or its work went to another device, or to a stream that does not begin from the "
    "capturing one",
    "make its tensors on the device of the capture, and let side streams wait for torch.cuda.current_stream()",
)


@dataclass(frozen=True, slots=True)
class Clues:
    """What is known of the moment at which a capture broke; what is empty or false is not.

    ``operator`` and the ``function`` of the Python interface were at work, ``call`` is the function of a library that
    the line called. ``waits`` and ``nested``: that function waits for the device, or begins a capture. ``to_host``: the
    operator copies to the host. ``aside``: the current stream did not capture. ``place`` and ``said`` are where it
    broke and with what message, where that was another line, or another exception, than the one that ended the capture.
    ``worked``: the same capture worked when it was tried again.
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
        """What was at work in words: an operator, else a function, else a call."""
        return self.operator or (shown(self.function) if self.function else self.call)


def refused(said: str) -> bool:
    """Whether the driver or torch refused something because a stream was capturing."""
    return _REFUSAL.search(said) is not None and EMPTY_SAID not in said


def reason(said: str, clues: Clues, *, mistake: bool = False) -> tuple[Rule | None, Meaning]:
    """The rule that was broken, ``None`` where it is none of them, and what that means.

    Args:
        said: the message of the exception, whole.
        clues: what was at work.
        mistake: whether the exception is one that Python raises for mistakes of a program.
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
        found = Rule.HOST_READ  # of a list with tensors; other data of the host says so
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
