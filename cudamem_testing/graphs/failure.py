"""Why a capture failed: the operator, the module and the line that broke it, and what to do about it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType

from cudamem_testing.graphs.operators import BACKWARD_NODES, OPERATORS
from cudamem_testing.graphs.places import Places
from cudamem_testing.graphs.report import LintReport, Place
from cudamem_testing.graphs.rules import MEANINGS, Rule
from cudamem_testing.model.sizes import format_size
from cudamem_testing.snapshots.fragmentation import PoolUse

#: What torch and the driver say, in the order of what tells most, with the rule it is about.
_SAID = (
    ("Cannot copy between CPU and CUDA tensors", Rule.HOST_COPY),
    ("Expected all tensors to be on the same device", Rule.DEVICE),
    ("indices should be either on", Rule.DEVICE),
    ("unjoined work", Rule.STREAM),
    ("dependency created on uncaptured work", Rule.STREAM),
    ("capturing stream has", Rule.STREAM),
    ("Offset increment outside graph capture", Rule.GENERATOR),
    ("generator state", Rule.GENERATOR),
    ("set_current_seed", Rule.GENERATOR),
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
#: Modules whose functions of this name wait for the device.
_WAITING, _WAIT = ("torch.cuda", "torch.accelerator"), "synchronize"
OTHER_LIBRARY = (
    "a call that the driver does not allow while a stream captures, such as an allocation or a wait of another "
    "library: make it before the capture (warm up longer), or capture with capture_error_mode='thread_local' if "
    "another thread makes it"
)
OWN = (
    "the function raised this itself: call it without a capture, and look at what it does differently while "
    "torch.cuda.is_current_stream_capturing()"
)
EMPTY = (
    "the graph is empty, nothing that the function did was recorded: it launches nothing (views, shapes, work of the "
    "host) and needs no graph, or its work went to another device, or to a stream that does not begin from the "
    "capturing one: make its tensors on the device of the capture, and let side streams wait for "
    "torch.cuda.current_stream()"
)
#: What Python raises for mistakes of a program. Libraries that the driver refuses something raise others.
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
#: How torch warns of it.
_EMPTY_SAID = "CUDA Graph is empty"


@dataclass(frozen=True, slots=True)
class Failure:
    """A capture that failed.

    ``operator`` is the one that was at work, empty where none was; ``own`` whether the function made a mistake that has
    nothing to do with the capture; ``orphans`` are pools that the capture left and that could not be freed, ``owner``
    who is to blame for them (the test, or the function).
    """

    function: str
    error: str
    place: Place
    operator: str = ""
    rule: Rule | None = None
    own: bool = False
    orphans: tuple[PoolUse, ...] = ()
    owner: str = ""
    lint: LintReport | None = None

    @property
    def refused(self) -> bool:
        """Whether the driver or torch refused something because a stream was capturing."""
        return "captur" in self.error.lower() and _EMPTY_SAID not in self.error

    def named(self, operator: str) -> Failure:
        """The same with the operator that was at work, which may say what rule it broke; a wait is none."""
        if self.rule is Rule.SYNCHRONIZE:
            return self
        return replace(self, operator=operator, rule=_rule(self.error, operator))

    def __str__(self) -> str:
        place = self.place
        lines = [f"the capture of {self.function} failed at {place.line}{f': {place.source}' if place.source else ''}"]
        where = f", in module {place.module}" if place.module else ""
        lines.append(f"   {self.operator or 'no operator'} was at work{where}")
        lines.append(f"   {self.error}")
        if self.rule is None:
            why = EMPTY if _EMPTY_SAID in self.error else OWN if self.own else OTHER_LIBRARY
            lines.append(f"   {why}")
        else:
            meaning = MEANINGS[self.rule]
            lines += [f"   {self.rule.value}: {meaning.happens}", f"   do: {meaning.advice}"]
        for pool in self.orphans:
            name = f"private pool {pool.pool}"
            lines.append(f"   left behind by {self.owner or self.function}: {name} keeps {format_size(pool.reserved)}")
        if self.lint is not None:
            seen = any(finding.place.stable == place.stable for finding in self.lint.findings)
            lines.append(f"   the lint {'had found this line' if seen else 'had not seen this line'}")
        return "\n".join(lines)


class CaptureError(RuntimeError):
    """A capture failed; ``failure`` says where and why. The process can capture again."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def first_cause(error: BaseException) -> BaseException:
    """The exception that began it: what ends a broken capture raises again, with the first one as its context."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        earlier = error.__cause__ or error.__context__
        if earlier is None or isinstance(earlier, (KeyboardInterrupt, SystemExit)):
            break
        error = earlier
    return error


def explain(
    function: str, error: BaseException, places: Places, call: CodeType, code: CodeType | None = None
) -> Failure:
    """Say where a capture failed and what was said there: in the ``call``, or at the function's own ``code``."""
    cause = first_cause(error)
    said = f"{type(cause).__name__}: {_first_line(str(cause))}"
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    called = any(frame.f_code is call for frame in frames)
    rule = Rule.SYNCHRONIZE if any(map(_waits, frames)) else _rule(said, "")
    place = places.of_traceback(cause.__traceback__) if called or code is None else places.of_code(code)
    return Failure(function, said, place, rule=rule, own=isinstance(cause, _MISTAKES))


def _waits(frame: FrameType) -> bool:
    return frame.f_code.co_name == _WAIT and str(frame.f_globals.get("__name__")).startswith(_WAITING)


def _rule(text: str, operator: str) -> Rule | None:
    found = next((rule for words, rule in _SAID if words in text), None)
    if found is None and "captur" in text:
        found = OPERATORS.get(operator) or BACKWARD_NODES.get(operator.removeprefix("backward of "))
        found = found or _REFUSED.get(operator)
    if found is None and "synchronize" in text.lower():
        found = Rule.SYNCHRONIZE
    return found


def _first_line(text: str) -> str:
    return next(_lines(text), "no message")[:200]


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())
