"""Makes the session of a process and registers its hooks. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import sys

import pytest

from cudamem_testing.model.settings import Settings
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.hooks import Hooks
from cudamem_testing.plugin.items import harness_codes
from cudamem_testing.run.session import Session
from cudamem_testing.show.printable import one_line


def start(config: pytest.Config, settings: Settings) -> Hooks:
    """Start measuring: the hooks of every test.

    Raises:
        pytest.UsageError: known findings are broken, or cannot be read.
    """
    session = config.stash[keys.SESSION] = _session(config, settings)
    hooks = Hooks(config, session)
    config.pluginmanager.register(hooks, "cudamem-session")
    config.pluginmanager.register(hooks.reports, "cudamem-reports")
    config.pluginmanager.register(hooks.wider, "cudamem-wider")
    if settings.repeat > 1:
        from cudamem_testing.plugin.repeat import Repeats

        config.pluginmanager.register(Repeats(hooks, settings.repeat), "cudamem-repeats")
    if "pytest_benchmark.plugin" in sys.modules:
        from cudamem_testing.plugin.benchmarks import Benchmarks

        config.pluginmanager.register(Benchmarks(session), "cudamem-benchmarks")
    return hooks


def _session(config: pytest.Config, settings: Settings) -> Session:
    def say(line: str) -> None:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        measuring = config.stash.get(keys.SESSION, None)
        if reporter is not None and (measuring is None or measuring.running is None):
            reporter.write_line(one_line(f"cudamem: {line}"))

    known = getattr(config, "workerinput", {}).get(keys.KNOWN_INPUT)
    try:
        return Session(
            settings,
            config.rootpath,
            harness=harness_codes(),
            without=config.stash[keys.COLLECTED].outside_root,
            sent=hasattr(config, "workerinput"),
            known=known if isinstance(known, bytes) else None,
            say=say,
            early=config.stash.get(keys.EARLY, None),
            quiet=config.get_verbosity() < 0,
        )
    except OSError as error:
        raise pytest.UsageError(f"cudamem: known findings cannot be read: {error}") from None
    except ValueError as error:  # a RecordError, whose module is imported only if there is such a file
        raise pytest.UsageError(f"cudamem: {error}") from None
