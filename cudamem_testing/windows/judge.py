"""The judge: which limits apply on which device, and the findings of broken ones. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cudamem_testing.model.facts import OverLimit
from cudamem_testing.model.findings import Finding, Kind, Severity, Verdict
from cudamem_testing.model.limits import SIZES, Breach, Budget, Limit, effective

if TYPE_CHECKING:
    from pathlib import Path

    from cudamem_testing.model.churn import Churn
    from cudamem_testing.model.counters import Counters
    from cudamem_testing.model.evidence import Evidence
    from cudamem_testing.model.windows import Window

    Explain = Callable[[Breach], Sequence[Evidence]]
    Draw = Callable[[Sequence[Window], Counters, str | Path], Path]
    Count = Callable[[Sequence[Window], Counters], Churn]

WHOLE = ("retained",)
SUMMED = ("allocations", "retries")
"""What a window adds up over the windows inside; upper limits on it may be meant for each of them."""


class Judge:
    """Compares windows with budgets, and counts the budgets that could not be enforced by reason.

    ``explainer`` is called once for each set of windows with a broken limit; what it returns is the evidence
    of each finding. ``draw`` draws the memory of a window over time, ``churn`` counts its allocations by line.
    """

    def __init__(
        self,
        explainer: Callable[[], Explain] | None = None,
        draw: Draw | None = None,
        churn: Count | None = None,
    ) -> None:
        self.unenforced: Counter[str] = Counter()
        self._explainer = explainer
        self._draw = draw
        self._churn = churn

    def call(self, budgets: Sequence[Budget], windows: Sequence[Window], *, summed: bool = True) -> list[Finding]:
        """The limits of a call window; also counts what is not enforced.

        Not ``summed``: without upper limits on what :data:`SUMMED` names.
        """
        if budgets:
            self._count_unenforced(budgets, windows)
        return self._judge(budgets, windows, lambda limit: limit.metric not in WHOLE and (summed or not _sums(limit)))

    def each(self, budgets: Sequence[Budget], windows: Sequence[Window]) -> list[Finding]:
        """The upper limits of a call, on the window of one of its examples."""
        return self._judge(budgets, windows, lambda limit: limit.metric not in WHOLE and limit.side == "at most")

    def whole(self, budgets: Sequence[Budget], windows: Sequence[Window]) -> list[Finding]:
        """The limits of the whole test, from the start of its setup to the end of its teardown."""
        return self._judge(budgets, windows, lambda limit: limit.metric in WHOLE)

    def all(self, budgets: Sequence[Budget], windows: Sequence[Window]) -> list[Finding]:
        """Every limit on the same windows: a region has no teardown to wait for."""
        return self._judge(budgets, windows, lambda limit: limit.metric not in WHOLE) + self.whole(budgets, windows)

    def used(self, budgets: Sequence[Budget], windows: Sequence[Window], *, summed: bool = True) -> float | None:
        """The largest used share of an upper limit; ``summed`` as in :meth:`call`."""
        if not budgets:
            return None
        shares = [
            measured / max(limit.value, 1)
            for window in windows
            for limit in effective(budgets, window.device)
            if limit.side == "at most" and limit.value is not None and limit.metric not in WHOLE
            if summed or not _sums(limit)
            if (measured := limit.measured(window)) is not None
        ]
        return max(shares, default=None)

    def draw(self, windows: Sequence[Window], now: Counters, path: str | Path) -> Path:
        """Draw the memory of a window over time; ``now`` are the counters at this moment.

        Raises:
            ValueError: nothing was recorded, or the file has another ending than ``.png`` and ``.svg``.
            ModuleNotFoundError: matplotlib is not installed.
        """
        if self._draw is None:
            raise ValueError("no picture: stacks and events are not recorded here")
        return self._draw(windows, now, path)

    def churn(self, windows: Sequence[Window], now: Counters) -> Churn:
        """The allocations of a window by line; ``now`` are the counters at this moment.

        Raises:
            ValueError: nothing was recorded.
        """
        if self._churn is None:
            raise ValueError("churn is unknown: stacks and events are not recorded here")
        return self._churn(windows, now)

    def _judge(
        self, budgets: Sequence[Budget], windows: Sequence[Window], asked: Callable[[Limit], bool]
    ) -> list[Finding]:
        if not budgets:
            return []
        breaches = [
            breach
            for window in windows
            for limit in effective(budgets, window.device)
            if asked(limit)
            if (breach := limit.judge(window)) is not None
        ]
        if not breaches:
            return []
        explain: Explain = (lambda breach: ()) if self._explainer is None else self._explainer()
        return [over_budget(breach, explain(breach)) for breach in breaches]

    def _count_unenforced(self, budgets: Sequence[Budget], windows: Sequence[Window]) -> None:
        reasons = set()
        for limit in (limit for one in budgets for limit in one.limits if limit.value is not None):
            fitting = [window for window in windows if limit.covers(window.device)]
            if not fitting:
                reasons.add(f"{limit.device} is not measured here" if limit.device else "nothing is measured here")
            elif limit.metric not in WHOLE and all(limit.measured(window) is None for window in fitting):
                reasons.add(_unknown(limit, fitting[0]))
        self.unenforced.update(reasons)


def _sums(limit: Limit) -> bool:
    return limit.metric in SUMMED and limit.side == "at most"


def _unknown(limit: Limit, window: Window) -> str:
    reason = f": {window.notes[0]}" if window.notes else ""
    return f"{limit.metric} is unknown on {window.device}{reason}"


def over_budget(breach: Breach, evidence: Sequence[Evidence] = ()) -> Finding:
    """The finding of a broken limit, with its numbers and what the memory consisted of."""
    limit, window = breach.limit, breach.window
    return Finding(
        Kind.BUDGET,
        Verdict.OVER if limit.side == "at most" else Verdict.UNDER,
        Severity.FAIL,
        OverLimit(replace(breach, window=window._replace(opened=None, closed=None)), tuple(evidence)),
        bytes=breach.excess if limit.metric in SIZES else None,
        device=window.device,
        cause=f"budget {limit.metric} {limit.side}",
    )
