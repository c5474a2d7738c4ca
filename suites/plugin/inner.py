"""Runs pytest inside a test, and gives what it printed together with what it measured.

Most runs stay in this process, where one costs well under a tenth of a second: torch is imported already and no other
plugin is loaded. What needs a process of its own (an import of torch, pytest-xdist) has one, and its record is read
from the report that it writes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from cudamem_testing import guards, torch_api
from cudamem_testing.model.records import FixtureRecord, RunRecord, TestRecord
from cudamem_testing.model.settings import Settings
from cudamem_testing.model.windows import Window
from cudamem_testing.plugin import keys
from cudamem_testing.plugin.collector import RUN
from cudamem_testing.recorders.build import cache_folder
from cudamem_testing.report.report_files import read_json
from suites import forked

KIB, MIB = 2**10, 2**20
Files = str | Mapping[str, str]
CACHE = str(cache_folder(os.environ))  # pytester moves the home folder, and compiling takes seconds
#: Plugins of pytest's own that hardly a test needs; each takes time at the start of a run. A run that names one has it.
UNUSED = ("pastebin", "setuponly", "setupplan", "stepwise", "junitxml", "faulthandler", "legacypath")
#: Packages that cannot be imported twice: transformers imports this one if it is there, and it registers operators.
ONCE = {"torchvision"}
#: Variables under which pytest and its plugins do otherwise, such as those of the worker that runs the outer test.
HEEDED = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "FORCE_COLOR", "PY_COLORS", "PYTEST_XDIST_WORKER")


@dataclass(frozen=True)
class Inner:
    """One inner run: its exit status, its text, and the record of what was measured (``None`` when nothing was)."""

    status: int
    out: str
    err: str
    folder: Path
    record: RunRecord | None
    settings: Settings | None = None

    @property
    def run(self) -> RunRecord:
        """The record of a run that measured something."""
        assert self.record is not None, self.out + self.err
        return self.record

    @property
    def lines(self) -> list[str]:
        """What was printed, without trailing spaces."""
        return [line.rstrip() for line in self.out.splitlines()]

    @property
    def last(self) -> str:
        """The last line without its rulers and its duration: ``1 failed, 2 passed``."""
        found = re.search(r"^=* ?(\w.*) in \d[\d.:s() ]*=*$", self.out, re.M)
        assert found is not None, self.out + self.err
        return found.group(1)

    @property
    def summary(self) -> list[str]:
        """The lines of our summary, without its title."""
        return self.section("cudamem summary")

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of every measured test by its name, of the last attempt."""
        return {test.nodeid.rpartition("::")[2]: test.outcome for test in self.run.tests}

    def section(self, title: str) -> list[str]:
        """The lines below the ruler with that title, up to the next ruler."""
        lines = iter(self.lines)
        for line in lines:
            if re.fullmatch(rf"([=_])\1+ {re.escape(title)} \1\1+", line):
                break
        else:
            raise AssertionError(f"no section {title!r} in:\n{self.out}")
        found = []
        for line in lines:
            if re.fullmatch(r"([=_])\1{2,}(.* \1{2,})?", line):
                break
            found.append(line)
        return found

    @property
    def retains(self) -> bool:
        """Whether a test of it kept memory."""
        tests = () if self.record is None else self.record.tests
        return any(window.retained for test in tests for window in test.whole)

    def has_section(self, title: str) -> bool:
        """Whether there is a ruler with that title."""
        return re.search(rf"^[=_]+ {re.escape(title)} [=_]+$", self.out, re.M) is not None

    def test(self, name: str) -> TestRecord:
        """The last record of a test."""
        return self.run.test(name)

    def window(self, test: str, name: str = "call") -> Window:
        """One window of a test."""
        return self.run.test(test).window(name)

    def fixture(self, name: str) -> tuple[FixtureRecord, ...]:
        """The records of one wider fixture."""
        return tuple(record for record in self.run.fixtures if record.name == name)


class _Catch:
    """Hears of the inner session's config before it is gone."""

    record: RunRecord | None = None
    settings: Settings | None = None
    modules: Mapping[str, ModuleType] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self.record = config.stash.get(RUN, None)
        self.settings = config.stash.get(keys.SETTINGS, None)
        self.modules = {name: one for name, one in sys.modules.items() if name.partition(".")[0] in ONCE}


def write(pytester: pytest.Pytester, files: Files) -> None:
    """Write the files of a scratch project; one text alone is ``test_it.py``."""
    for name, text in ({"test_it.py": files} if isinstance(files, str) else files).items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def run_inner(pytester: pytest.Pytester, files: Files, *args: str, plugins: Sequence[str] = ()) -> Inner:
    """Run pytest in this process with our plugin and the named ones only; the clock's line of 80 columns is fixed."""
    write(pytester, files)
    catch = _Catch()
    loaded = [piece for name in ("cudamem", *plugins) for piece in ("-p", name)]
    loaded += [piece for name in UNUSED if name not in plugins for piece in ("-p", f"no:{name}")]
    record_calls = pytester.make_hook_recorder

    def record_nothing(pluginmanager: pytest.PytestPluginManager) -> pytest.HookRecorder:
        recorder = record_calls(pluginmanager)
        recorder.finish_recording()  # it would keep every failure of the run alive
        return recorder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        patch.setenv("COLUMNS", "80")
        patch.setenv("CUDAMEM_CACHE", CACHE)
        for name in HEEDED:
            patch.delenv(name, raising=False)
        patch.setattr(pytester, "make_hook_recorder", record_nothing)
        patch.setattr(sys, "dont_write_bytecode", True)  # tests are rewritten faster than a file's time tells
        patch.setattr(torch_api, "cuda_device_count", lambda: 0)  # what is expected here was written for a CPU
        result = pytester.runpytest_inprocess(*loaded, *args, plugins=[catch], no_reraise_ctrlc=True)
    sys.modules.update(catch.modules)  # pytester forgets what its run has imported
    guards.take_last_failure()  # of an inner test; its frames hold the inner session
    return Inner(int(result.ret), result.stdout.str(), result.stderr.str(), pytester.path, catch.record, catch.settings)


def run_outer(
    pytester: pytest.Pytester,
    files: Files,
    *args: str,
    plugins: Sequence[str] = (),
    python: Sequence[str] = (),
    report: bool = True,
    new: bool = False,
    whole_heap: bool = False,
    compiler: bool = False,
    timeout: float = 120,
) -> Inner:
    """Run pytest in a process of its own with our plugin and the named ones; the record comes from its JSON report.

    Torch is imported there already, unless the process is to be ``new``, and set aside, unless searches need the
    ``whole_heap``. With the ``compiler``, that is imported there too.
    """
    write(pytester, files)
    path = pytester.path / "report.json"
    aside = [] if new or whole_heap else ["suites.heap"]
    loaded = [piece for name in ("cudamem", *aside, *plugins) for piece in ("-p", name)]
    command = [sys.executable if new else forked.python(compiler=compiler), *python, "-m", "pytest", *loaded, *args]
    command += [f"--cudamem-json={path}"] if report else []
    path_list = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environ = {
        "COLUMNS": "80",
        "CUDAMEM_CACHE": CACHE,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": path_list,
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command,
        cwd=pytester.path,
        env={**{name: value for name, value in os.environ.items() if name not in HEEDED}, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    record = read_json(path) if path.exists() else None
    return Inner(done.returncode, done.stdout, done.stderr, pytester.path, record)
