"""Limits on a peak: each category as a window of its own, which the limits of the whole package judge.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import Shown
from cudamem_testing.model.limits import Budget, LimitError, budget
from cudamem_testing.model.windows import Window
from cudamem_testing.show.usage import hide_wrong_arguments
from cudamem_testing.trace.peak import Peak
from cudamem_testing.trace.series import NAMES
from cudamem_testing.windows.judge import Judge
from cudamem_testing.windows.regions import OverBudget

__tracebackhide__ = hide_wrong_arguments

TOTAL = "total"


def enforce(peak: Peak, at_most: Mapping[str, object], total: object, at_least: Mapping[str, object]) -> None:
    """Check a peak against limits by category and in all.

    Raises:
        OverBudget: when a limit is broken.
        LimitError: naming every limit that cannot be read, and every category that does not exist.
    """
    __tracebackhide__ = True
    budgets = dict(_budgets({**at_most, **({} if total is None else {TOTAL: total})}, at_least))
    sizes = {**{part.name: part.nbytes for part in peak.by_category}, TOTAL: peak.total}
    judge = Judge(lambda: lambda breach: [Shown(tuple(peak.text().splitlines()))])
    broken = [
        finding
        for name, limits in budgets.items()
        for finding in judge.all([limits], [Window(name, Device.parse(peak.device), start=0, peak=sizes.get(name, 0))])
    ]
    if broken:
        raise OverBudget(broken)


def _budgets(at_most: Mapping[str, object], at_least: Mapping[str, object]) -> Iterator[tuple[str, Budget]]:
    problems = []
    for name in dict.fromkeys((*at_most, *at_least)):
        if name not in (*NAMES, TOTAL):
            problems.append(f"there is no category {name!r}: write {', '.join(NAMES)}")
            continue
        try:
            yield (
                name,
                budget(
                    peak=at_most.get(name), at_least=at_least.get(name), absolute=True, source=f"assert_peak({name})"
                ),
            )
        except LimitError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    if problems:
        raise LimitError(problems)
    if not at_most and not at_least:
        raise LimitError(["sets no limit: write for example {'ACTIVATION': '40MiB'}"])
