"""The settings of a run, as one frozen value.

Every start of pytest imports this module, so its class must be cheap to define: a named tuple of as many fields takes
50 times as long, and a dataclass 200 times. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.rules import Rule
    from cudamem_testing.model.simulated_cards import Cards

#: What can be recorded.
RECORDED = ("baselines", "known", "expected")


class Settings:
    """The settings. ``on``: every test is measured; ``enforce`` is false with --no-cudamem.

    ``device`` is what is measured; ``simulated`` are the cards that are put in place for the run. ``known`` is ``None``
    for the file of known findings at rootdir. ``update`` names what is to be recorded (of ``RECORDED``); ``repeat`` is
    the number of runs of a test, 1 or more. ``gpus`` is how workers of pytest-xdist share the cards, if they do.
    """

    on: bool
    enforce: bool
    device: str | Device
    simulated: Cards | None
    leaks: str
    cycles: str | None
    ignore_below: int | None
    ignore: tuple[Rule, ...]
    first_use: str
    budget: Budget | None
    stacks: bool
    gpus: str | None
    top: int
    dump: Path | None
    json: Path | None
    html: Path | None
    audit: bool
    known: Path | None
    baseline: str
    update: frozenset[str]
    prune: bool
    repeat: int

    def __init__(self, **values: Any) -> None:
        """All of them by name.

        Raises:
            TypeError: one is missing, or there is no such setting.
        """
        wrong = values.keys() ^ Settings.__annotations__.keys()
        if wrong:
            raise TypeError(f"missing or unknown settings: {', '.join(sorted(wrong))}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """They are those of the whole run."""
        raise AttributeError(f"the settings of a run do not change: {name}")

    def replaced(self, **changes: Any) -> Settings:
        """The same with some others."""
        return Settings(**vars(self) | changes)

    @property
    def compares_real_cards(self) -> bool:
        """Whether simulated cards are compared with baselines of real ones; what is recorded is their own."""
        return self.baseline == "simulated" and "baselines" not in self.update

    @property
    def reports(self) -> bool:
        """Whether a report is written to a file."""
        return self.json is not None or self.html is not None
