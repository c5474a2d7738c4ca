"""Reads the command line, the environment and the ini file, once. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from cudamem_testing.model import options
from cudamem_testing.model.settings import Settings

if TYPE_CHECKING:
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
    settings, problems = options.read_settings(_Given(config), runs_tests=runs_tests(config))
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
    """Whether this process will account for every test, as known before conftest files are read."""
    given = config.known_args_namespace
    if getattr(given, "no_cudamem", False) or not (_early(config, "cudamem") or _early(config, "cudamem_audit")):
        return False
    return not (any(getattr(given, name, False) for name in PLANS) or _is_controller(config))


def measures_cpu_early(config: pytest.Config) -> bool:
    """Whether it will measure the CPU, as known by then."""
    return str(_early(config, "cudamem_device") or "auto").strip() in ("auto", "cpu", "all")


def _early(config: pytest.Config, name: str) -> Any:
    """A setting, as known by then."""
    try:
        return getattr(config.known_args_namespace, name, None) or config.getini(name)
    except (ValueError, TypeError, pytest.UsageError):  # reported when all options are read
        return None


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


class _Given:
    """The values that the command line and the ini file give to options."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def flag(self, name: str) -> Any:
        return self._config.getoption(name, None)

    def ini(self, name: str) -> Any:
        try:
            return self._config.getini(name)
        except (TypeError, pytest.UsageError) as error:  # which one depends on pytest and the kind of file
            raise ValueError(str(error)) from None

    def base(self, name: str) -> Path:
        """The current folder for a flag, the folder of the ini file for an ini setting."""
        if self._config.getoption(name) is None and self._config.inipath is not None:
            return self._config.inipath.parent
        return self._config.invocation_params.dir
