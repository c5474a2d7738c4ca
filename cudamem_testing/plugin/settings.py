"""Reads the command line, the environment and the ini file, once. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from cudamem_testing.model import options
from cudamem_testing.model.settings import RECORDED, Settings

if TYPE_CHECKING:
    from cudamem_testing.model.rules import Rule
    from cudamem_testing.model.simulated_cards import Cards

UNSET = None
#: Options without effect if no test is measured.
OF_MEASURED_TESTS = ("cudamem_device", "cudamem_dump", "cudamem_json", "cudamem_html")
PLANS = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")
GROUP = "cudamem", "memory of PyTorch tests"


def read_settings(config: pytest.Config) -> Settings:
    """Read all options.

    Raises:
        pytest.UsageError: that names every problem, not only the first.
    """
    problems: list[str] = []
    read = _Reader(config, problems)
    enforce = not config.getoption("no_cudamem")
    device, simulated = read.parsed("cudamem_device", options.device, ("auto", None))
    settings = Settings(
        on=enforce and (read.flag("cudamem") or read.flag("cudamem_audit")),
        enforce=enforce,
        device=device,
        simulated=simulated,
        leaks=read.parsed("cudamem_leaks", options.choice("fail", "warn", "off"), "fail"),
        cycles=read.parsed("cudamem_cycles", options.choice("fail", "warn", "off", "strict"), None),
        ignore_below=read.parsed("cudamem_ignore_below", options.size, None),
        ignore=read.rules("cudamem_ignore"),
        first_use=read.parsed(options.FIRST_USE, options.choice("fail", "warn"), "fail"),
        budget=read.parsed("cudamem_budget", options.budget, None),
        stacks=read.parsed("cudamem_stacks", options.choice("auto", "off"), "auto") == "auto",
        gpus=read.parsed("cudamem_gpus", options.choice("auto", "fraction"), None),
        top=read.parsed("cudamem_top", options.rows, 10),
        dump=read.parsed("cudamem_dump", lambda text: options.folder(_base(config, "cudamem_dump"), text), None),
        json=read.parsed("cudamem_json", lambda text: options.file(_base(config, "cudamem_json"), text), None),
        html=read.parsed("cudamem_html", lambda text: options.file(_base(config, "cudamem_html"), text), None),
        audit=read.flag("cudamem_audit"),
        known=read.parsed("cudamem_known", lambda text: options.file(_base(config, "cudamem_known"), text), None),
        baseline=read.parsed("cudamem_baseline", options.choice("compare", "require", "simulated", "off"), "compare"),
        update=read.parsed("cudamem_update", options.recorded_kinds, frozenset()) | options.asked_by_expecttest(),
        prune=read.flag("cudamem_prune"),
        repeat=read.parsed("cudamem_repeat", options.runs, 1),
    )
    if not problems and enforce and not settings.on and runs_tests(config):
        problems += _without_accounting(config)
    if settings.baseline == "simulated" and simulated is None and config.getoption("cudamem_baseline") is not None:
        problems.append("--cudamem-baseline=simulated requires --cudamem-device=simulated")
    if "known" in settings.update and settings.update != {*RECORDED} and not settings.on:
        problems.append("--cudamem-update=known requires --cudamem")
    if problems:
        raise pytest.UsageError("cudamem: " + "\ncudamem: ".join(problems))
    return settings


def simulated_early(config: pytest.Config) -> Cards | None:
    """The cards that this process is to simulate, as known before conftest files are read.

    ``None`` in the controller of pytest-xdist, and if the option is wrong, which is reported when all are read.
    """
    if _is_controller(config):
        return None
    try:
        text = getattr(config.known_args_namespace, "cudamem_device", None) or config.getini("cudamem_device")
        return options.device(str(text or "auto").strip())[1]
    except (ValueError, TypeError, pytest.UsageError):
        return None


def accounts_early(config: pytest.Config) -> bool:
    """Whether this process will account for every test on the CPU, as known before conftest files are read."""
    given = config.known_args_namespace

    def asked(name: str) -> Any:
        try:
            return getattr(given, name, None) or config.getini(name)
        except (ValueError, TypeError, pytest.UsageError):  # reported when all options are read
            return None

    if getattr(given, "no_cudamem", False) or not (asked("cudamem") or asked("cudamem_audit")):
        return False
    if any(getattr(given, name, False) for name in PLANS):
        return False
    if _is_controller(config):
        return False
    return str(asked("cudamem_device") or "auto").strip() in ("auto", "cpu", "all")


def _is_controller(config: pytest.Config) -> bool:
    """Whether this process leaves all tests to workers of pytest-xdist."""
    given = config.known_args_namespace
    distributed = getattr(given, "numprocesses", None) or getattr(given, "dist", "no") != "no"
    return "PYTEST_XDIST_WORKER" not in os.environ and bool(distributed)


def runs_tests(config: pytest.Config) -> bool:
    """Whether tests run, rather than only being listed or planned."""
    return not any(config.getoption(name, False) for name in PLANS)


def add_options(parser: pytest.Parser) -> None:
    """Register every flag and its ini setting; each default is ``None`` so that the ini file can set it.

    Each flag names its ``dest``: without one, pytest compares it with those of all other options.
    """
    group = parser.getgroup(*GROUP)
    for option in options.OPTIONS:
        more: dict[str, Any] = {"dest": option.name, "default": UNSET, "help": option.purpose}
        if option.metavar is None:
            more["action"] = "store_true"
        else:
            more["metavar"] = option.metavar
            if option.flag == "--cudamem-update":
                more |= {"nargs": "?", "const": "all"}
        group.addoption(option.flag, **more)
        if option.ini:
            kind: Literal["bool", "string"] = "bool" if option.metavar is None else "string"
            parser.addini(option.name, option.purpose, type=kind, default=UNSET)
    parser.addini("cudamem_ignore", "leaks to ignore, one per line: FIELD: PATTERN  # REASON", type="linelist")
    parser.addini(
        options.FIRST_USE, "what the first leak of a module, class or cache does: fail (default), warn", default=UNSET
    )


def _without_accounting(config: pytest.Config) -> list[str]:
    """Problems with flags that have no effect unless every test is measured."""
    given = {name: config.getoption(name, None) for name in options.OF_EVERY_TEST}
    return [
        f"{options.flag_of(name)} requires --cudamem"
        for name, value in given.items()
        if value is not None and value.strip() not in options.OF_EVERY_TEST[name]
    ]


class _Reader:
    """Reads one option after the other and collects the problems."""

    def __init__(self, config: pytest.Config, problems: list[str]) -> None:
        self._config = config
        self._problems = problems

    def flag(self, name: str) -> bool:
        if self._config.getoption(name):
            return True
        return options.has_ini(name) and bool(self._ini(name))

    def rules(self, name: str) -> tuple[Rule, ...]:
        lines = self._config.getini(name)
        if not lines:
            return ()
        from cudamem_testing.model.rules import RuleError, parse_rules

        try:
            return parse_rules(lines)
        except RuleError as error:
            self._problems += [f"ini {name}: {problem}" for problem in error.problems]
            return ()

    def parsed(self, name: str, parse: Any, default: Any) -> Any:
        given, source = self._config.getoption(name, None), options.flag_of(name)
        if given is None and options.has_ini(name):
            given, source = self._ini(name), f"ini {name}"
        if given is None:
            return default
        try:
            return parse(given.strip())
        except (ValueError, OSError) as error:
            self._problems += [f"{source}: {problem}" for problem in getattr(error, "problems", (error,))]
            return default

    def _ini(self, name: str) -> Any:
        try:
            return self._config.getini(name)
        except (ValueError, TypeError, pytest.UsageError) as error:  # which one depends on pytest and the kind of file
            self._problems.append(f"ini {name}: {error}")
            return None


def _base(config: pytest.Config, name: str) -> Path:
    """Where a relative path starts: at the current folder for a flag, at the ini file's folder for an ini setting."""
    if config.getoption(name) is None and config.inipath is not None:
        return config.inipath.parent
    return config.invocation_params.dir
