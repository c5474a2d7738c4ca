"""The options: flags with their ini twins, and how each value is read. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import itertools
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudamem_testing.model.settings import RECORDED, Settings
from cudamem_testing.show.places import mode_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from cudamem_testing.model.devices import Device
    from cudamem_testing.model.limits import Budget
    from cudamem_testing.model.rules import Rule
    from cudamem_testing.model.simulated_cards import Cards

    class Given(Protocol):
        """What the command line and the ini file give."""

        def flag(self, name: str) -> Any:
            """The value of a flag; ``None`` where it is not given."""
            ...

        def ini(self, name: str) -> Any:
            """The value in the ini file; ``None`` where it is not set. ValueError: it cannot be read."""
            ...

        def base(self, name: str) -> Path:
            """The folder where a relative path starts."""
            ...


FIRST_USE = "cudamem_first_use"  # no flag: it is the project's decision
#: Flags that say how all tests are judged, and the values that switch the check off.
OF_EVERY_TEST = {
    "cudamem_budget": (),
    "cudamem_leaks": ("off",),
    "cudamem_cycles": ("off",),
    "cudamem_ignore_below": (),
    "cudamem_known": (),
}


class Option:
    """One flag and its ini twin; ``name`` is the ini name, and the attribute of ``config.option``."""

    def __init__(self, flag: str, purpose: str, metavar: str | None = None, ini: bool = True) -> None:
        self.flag = flag
        self.name = flag.lstrip("-").replace("-", "_")
        self.purpose = purpose
        self.metavar = metavar
        self.ini = ini


OPTIONS = (
    Option("--cudamem", "measure every test, check it for leaks and cycles (ini: cudamem = true)"),
    Option("--no-cudamem", "enforce no memory marker; fixtures still work", ini=False),
    Option(
        "--cudamem-device",
        "what to measure: auto (CUDA if there is any, else cpu), cuda, cuda:N, cpu, all, or cards that are simulated: "
        "simulated, simulated:h100, simulated:24GiB, simulated:2x24GiB",
        "DEVICE",
    ),
    Option("--cudamem-leaks", "what a leak does to its test: fail (default), warn, off", "fail|warn|off"),
    Option(
        "--cudamem-cycles",
        "what a reference cycle does to its test: fail (default on CUDA), warn (default on CPU), off, strict",
        "fail|warn|off|strict",
    ),
    Option(
        "--cudamem-ignore-below",
        "ignore leaks of a test that add up to less (default 0 on CUDA, 64KiB on CPU)",
        "SIZE",
    ),
    Option("--cudamem-budget", "budget of every test without its own, such as peak=2GiB,retained=0", "LIMITS"),
    Option("--cudamem-stacks", "record stacks and events, to show what was live: auto (default), off", "auto|off"),
    Option(
        "--cudamem-gpus",
        "auto: give each pytest-xdist worker one card; fraction: and a hard limit, its share of the card",
        "auto|fraction",
    ),
    Option("--cudamem-top", "rows of the summary table (default 10); 0 hides it", "N"),
    Option("--cudamem-dump", "write allocator snapshots of failed tests to this folder", "DIR"),
    Option("--cudamem-audit", "fail no test; end with the largest causes and the command that records them"),
    Option("--cudamem-known", "file of known findings (default __cudamem__/known.jsonl at rootdir)", "FILE"),
    Option(
        "--cudamem-baseline",
        "compare with recorded baselines (default), require (fail a test without one), simulated (simulated cards with "
        "baselines of real ones, within a margin), off",
        "compare|require|simulated|off",
    ),
    Option(
        "--cudamem-update",
        "record what this run measured: baselines, known, expected (default: all three)",
        "LIST",
        ini=False,
    ),
    Option("--cudamem-prune", "remove recorded entries that a complete run did not see", ini=False),
    Option("--cudamem-repeat", "run each test with a baseline N times and record the spread", "N", ini=False),
    Option("--cudamem-json", "write the report as JSON", "FILE"),
    Option("--cudamem-html", "write the report as one page that opens without a network", "FILE"),
)


def flag_of(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def flags_for_baselines(settings: Settings, *, require: bool) -> list[str]:
    """The flags of a run that only have an effect on baselines; ``require`` is whether the command line needs them."""
    return [
        *(["--cudamem-baseline=require"] if require else []),
        *([f"--cudamem-repeat={settings.repeat}"] if settings.repeat > 1 else []),
        *(["--cudamem-update=baselines"] if "baselines" in settings.update and settings.update != {*RECORDED} else []),
        *(["--cudamem-prune"] if settings.prune and "expected" not in settings.update else []),
    ]


def has_ini(name: str) -> bool:
    """Whether the ini file can have a setting."""
    return name == FIRST_USE or any(option.name == name and option.ini for option in OPTIONS)


def device(text: str) -> tuple[str | Device, Cards | None]:
    """The devices that a text selects, and the cards to simulate."""
    from cudamem_testing.model.simulated_cards import selected

    return selected(text)


def budget(text: str) -> Budget:
    """The budget of every test."""
    from cudamem_testing.model.limits import parse_budget

    return parse_budget(text, source="--cudamem-budget")


def choice(*words: str) -> Callable[[str], str]:
    """A parser that accepts one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            known = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
            raise ValueError(f"{text!r} is not known: write {known}")
        return text

    return parse


def recorded_kinds(text: str) -> frozenset[str]:
    """What ``--cudamem-update`` records."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name or "''" for name in names if name not in (*RECORDED, "all")]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not known: write {', '.join(RECORDED)}, or nothing for all")
    return frozenset(RECORDED) if "all" in names else frozenset(names)


def asked_by_expecttest() -> frozenset[str]:
    """What expecttest's environment variable requests."""
    return frozenset({"expected"}) if os.environ.get("EXPECTTEST_ACCEPT") else frozenset()


def size(text: str) -> int:
    """A size in bytes."""
    from cudamem_testing.model.sizes import parse_size

    return parse_size(text)


def rows(text: str) -> int:
    """A number of rows."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of rows")
    return int(text)


def runs(text: str) -> int:
    """A number of runs."""
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a number of runs")
    return int(text)


def file(base: Path, text: str) -> Path:
    """A file that may be written, below a folder."""
    if not text:
        raise ValueError("no file is given")
    path = base / _expanded(text)
    if stat.S_ISDIR(mode_of(path)):
        raise ValueError(f"{path} is a folder")
    return path


def folder(base: Path, text: str) -> Path:
    """A folder, which may not exist yet."""
    if not text:
        raise ValueError("no folder is given")
    path = base / _expanded(text)
    mode = mode_of(path)
    if mode and not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a file")
    return path


def _expanded(text: str) -> str:
    """With ``~`` and variables expanded as in ``--junitxml``: a shell does not expand them after ``=``."""
    return os.path.expanduser(os.path.expandvars(text))


_VALUED = {option.flag for option in OPTIONS if option.metavar is not None and option.flag != "--cudamem-update"}
_ONCE = {f"--cudamem-{name}" for name in ("json", "html", "dump", "update", "prune", "audit", "top", "gpus")}


def rerun_flags(arguments: Sequence[str]) -> tuple[str, ...]:
    """The memory flags of a command line that running one of its tests once more needs."""
    found = []
    for one, following in itertools.pairwise((*arguments, "-")):
        name, equals, _ = one.partition("=")
        if name.startswith("--cudamem") and name not in _ONCE:
            found += [one, following] if name in _VALUED and not equals and not following.startswith("-") else [one]
    return tuple(found)


def recording_command(arguments: Sequence[str]) -> str:
    """The command that records as known what an audit with these arguments found."""
    kept = [one for one in arguments if one not in ("--cudamem", "--cudamem-audit")]
    return shlex.join(["pytest", "--cudamem", "--cudamem-update=known", *kept])


def read_settings(given: Given, *, runs_tests: bool) -> tuple[Settings, list[str]]:
    """The settings of a run, and every problem with what was given. ``runs_tests``: not only listed or planned."""
    problems: list[str] = []
    read = _Reader(given, problems)
    enforce = not given.flag("no_cudamem")
    chosen, simulated = read.parsed("cudamem_device", device, ("auto", None))
    settings = Settings(
        on=enforce and (read.flag("cudamem") or read.flag("cudamem_audit")),
        enforce=enforce,
        device=chosen,
        simulated=simulated,
        leaks=read.parsed("cudamem_leaks", choice("fail", "warn", "off"), "fail"),
        cycles=read.parsed("cudamem_cycles", choice("fail", "warn", "off", "strict"), None),
        ignore_below=read.parsed("cudamem_ignore_below", size, None),
        ignore=read.rules("cudamem_ignore"),
        first_use=read.parsed(FIRST_USE, choice("fail", "warn"), "fail"),
        budget=read.parsed("cudamem_budget", budget, None),
        stacks=read.parsed("cudamem_stacks", choice("auto", "off"), "auto") == "auto",
        gpus=read.parsed("cudamem_gpus", choice("auto", "fraction"), None),
        top=read.parsed("cudamem_top", rows, 10),
        dump=read.path("cudamem_dump", folder),
        json=read.path("cudamem_json", file),
        html=read.path("cudamem_html", file),
        audit=read.flag("cudamem_audit"),
        known=read.path("cudamem_known", file),
        baseline=read.parsed("cudamem_baseline", choice("compare", "require", "simulated", "off"), "compare"),
        update=read.parsed("cudamem_update", recorded_kinds, frozenset()) | asked_by_expecttest(),
        prune=read.flag("cudamem_prune"),
        repeat=read.parsed("cudamem_repeat", runs, 1),
    )
    if not problems and enforce and not settings.on and runs_tests:
        problems += _without_accounting(given)
    if settings.baseline == "simulated" and simulated is None and given.flag("cudamem_baseline") is not None:
        problems.append("--cudamem-baseline=simulated requires --cudamem-device=simulated")
    if "known" in settings.update and settings.update != {*RECORDED} and not settings.on:
        problems.append("--cudamem-update=known requires --cudamem")
    return settings, problems


def _without_accounting(given: Given) -> list[str]:
    """Problems with flags that have no effect unless every test is measured."""
    values = {name: given.flag(name) for name in OF_EVERY_TEST}
    return [
        f"{flag_of(name)} requires --cudamem"
        for name, value in values.items()
        if value is not None and value.strip() not in OF_EVERY_TEST[name]
    ]


class _Reader:
    """Reads one option after the other and collects the problems."""

    def __init__(self, given: Given, problems: list[str]) -> None:
        self._given = given
        self._problems = problems

    def flag(self, name: str) -> bool:
        return bool(self._given.flag(name) or (has_ini(name) and self._ini(name)))

    def rules(self, name: str) -> tuple[Rule, ...]:
        lines = self._ini(name)
        if not lines:
            return ()
        from cudamem_testing.model.rules import RuleError, parse_rules

        try:
            return parse_rules(lines)
        except RuleError as error:
            self._problems += [f"ini {name}: {problem}" for problem in error.problems]
            return ()

    def path(self, name: str, parse: Callable[[Path, str], Path]) -> Path | None:
        found: Path | None = self.parsed(name, lambda text: parse(self._given.base(name), text), None)
        return found

    def parsed(self, name: str, parse: Callable[[str], Any], default: Any) -> Any:
        value, source = self._given.flag(name), flag_of(name)
        if value is None and has_ini(name):
            value, source = self._ini(name), f"ini {name}"
        if value is None:
            return default
        try:
            return parse(value.strip())
        except (ValueError, OSError) as error:
            self._problems += [f"{source}: {problem}" for problem in getattr(error, "problems", (error,))]
            return default

    def _ini(self, name: str) -> Any:
        try:
            return self._given.ini(name)
        except ValueError as error:
            self._problems.append(f"ini {name}: {error}")
            return None
