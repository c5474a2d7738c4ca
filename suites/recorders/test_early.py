"""The CPU recorder from the import of torch on: storages that are older than the first test are followed."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from cudamem_testing import plugin
from cudamem_testing.guards import traced
from cudamem_testing.guards.imports import WholeImport
from cudamem_testing.recorders import early
from cudamem_testing.recorders import native as native_module
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.recorders.early import EarlyRecorder
from cudamem_testing.recorders.native import NativeRecorder
from suites.plugin.inner import MIB, Inner, run_inner, run_outer
from suites.recorders.interrupts import Interrupt, interrupting

EARLIER = """
    import pytest
    import torch

    BUFFER, OTHER = torch.empty(0), torch.empty(0)

    @pytest.mark.memory_budget(peak="1MiB", retained=0)
    def test_grows():
        BUFFER.resize_(2**20)

    def test_writes_into_it():
        torch.arange(2**20, dtype=torch.float32, out=OTHER)

    def test_control():
        torch.empty(0).resize_(2**20)
"""
THRESHOLDS = 1000, 2, 1
IN_CONFTEST = {
    "conftest.py": """
        import gc, sys
        import pytest

        collected = []

        def collects(phase, about):
            torch = sys.modules.get("torch")
            if phase == "start" and torch is not None and torch.__spec__._initializing:
                collected.append(about["generation"])

        gc.callbacks.append(collects)
        import torch
        FROM_CONFTEST = torch.empty(0)

        @pytest.fixture
        def buffer():
            return FROM_CONFTEST
    """,
    "test_it.py": """
        def test_grows(buffer):
            buffer.resize_(2**20)

        def test_torch_was_imported_without_full_collections():
            from conftest import collected
            assert collected and 2 not in collected
    """,
}


def grown(inner: Inner, test: str) -> tuple[int | None, ...]:
    window = inner.window(test)
    return window.peak_growth, window.retained, window.allocations


def test_a_storage_that_is_older_than_the_tests_is_followed(native: NativeRecorder, pytester: pytest.Pytester) -> None:
    native.uninstall()
    inner = run_inner(pytester, EARLIER, "--cudamem")
    assert not native.is_installed()
    assert grown(inner, "test_grows") == grown(inner, "test_writes_into_it") == (4 * MIB, 4 * MIB, 1)
    assert grown(inner, "test_control") == (4 * MIB, 0, 1)
    assert inner.outcomes == {"test_grows": "failed", "test_writes_into_it": "error", "test_control": "passed"}
    (leak,) = inner.test("test_writes_into_it").findings
    assert (leak.bytes, str(leak.verdict.value)) == (4 * MIB, "reachable")


def test_without_an_early_start_it_would_not_be_seen(
    native: NativeRecorder, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "accounts_early", lambda config: False)
    native.uninstall()
    inner = run_inner(pytester, EARLIER, "--cudamem")
    assert grown(inner, "test_grows") == (0, 0, 0)
    assert grown(inner, "test_control") == (4 * MIB, 0, 1)


@pytest.mark.parametrize(
    "arguments", ["--cudamem --cudamem-leaks=perhaps", "--cudamem --no-such-option", "--cudamem -x"]
)
def test_it_is_removed_after_failures_and_usage_errors(
    native: NativeRecorder, pytester: pytest.Pytester, arguments: str
) -> None:
    native.uninstall()
    before = [*sys.meta_path]
    inner = run_inner(pytester, "def test_fails(): raise ValueError", *arguments.split())
    assert inner.status == (1 if arguments.endswith("-x") else 4)
    assert not native.is_installed()
    assert sys.meta_path == before


def test_an_early_compilation_is_shown_in_the_header(
    native: NativeRecorder, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(say: Callable[[str], None] = print) -> NativeRecorder:
        say("compiling the CPU recorder")
        return native

    monkeypatch.setattr(NativeRecorder, "load", load)
    lines = run_inner(pytester, "def test_it(): pass", "--cudamem").lines
    assert lines[lines.index("cudamem: compiling the CPU recorder") - 1].startswith("cudamem: device auto, torch ")


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_storage_of_a_conftest_file_is_followed(pytester: pytest.Pytester) -> None:
    inner = run_outer(pytester, IN_CONFTEST, "--cudamem", new=True)
    assert grown(inner, "test_grows") == (4 * MIB, 4 * MIB, 1)
    assert inner.last == "2 passed, 1 error"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--cudamem", ["recorder"]),
        ("--cudamem-audit", ["recorder"]),
        ("", []),
        ("--cudamem --no-cudamem", []),
        ("--cudamem --collect-only", []),
        ("--cudamem --cudamem-device=cuda", ["whole import"]),
        ("--cudamem --cudamem-device=cuda:1", ["whole import"]),
        ("--cudamem --cudamem-device=all", ["recorder"]),
        ("--cudamem --cudamem-device=simulated", ["whole import", "simulated cards"]),
        ("--cudamem-device=simulated", ["simulated cards"]),
        ("--cudamem -n2", []),
    ],
)
def test_when_a_run_starts_early(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: str, expected: list[str]
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    seen = []

    def simulate(config: pytest.Config, cards: object) -> Callable[[], None]:
        seen.append("simulated cards")
        return lambda: None

    monkeypatch.setattr(EarlyRecorder, "start", lambda self: seen.append("recorder"))
    monkeypatch.setattr("cudamem_testing.plugin.simulation.simulate", simulate)
    monkeypatch.setattr(WholeImport, "start", lambda self: seen.append("whole import") or self.stop)
    monkeypatch.setattr("cudamem_testing.torch_api.cuda_device_count", lambda: 2)
    plugins = ["xdist.plugin"] if "-n2" in arguments else []
    with monkeypatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        loaded = [piece for name in ("cudamem", *plugins) for piece in ("-p", name)]
        config = pytester.parseconfig(*loaded, *arguments.split())
        config._ensure_unconfigure()
    assert seen == expected


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("false", False), ("perhaps", False)])
def test_the_ini_file_starts_early_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, value: str, expected: bool
) -> None:
    seen = []
    monkeypatch.setattr(EarlyRecorder, "start", lambda self: seen.append(True))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(f"[pytest]\ncudamem = {value}")
    pytester.parseconfig("-p", "cudamem")._ensure_unconfigure()
    assert seen == [True] * expected


def test_a_recorder_that_cannot_be_built_is_left_out(native: NativeRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(say: object = None) -> NativeRecorder:
        raise RecorderUnavailable("no C++ compiler found")

    native.uninstall()
    monkeypatch.setattr(NativeRecorder, "load", refuse)
    started = EarlyRecorder()
    started.start()
    assert not native.is_installed()
    started.close()


def test_a_recorder_that_is_in_place_stays(native: NativeRecorder) -> None:
    started = EarlyRecorder()
    started.start()
    started.close()
    assert native.is_installed()


def test_an_interrupted_start_leaves_nothing_in_place(native: NativeRecorder) -> None:
    native.uninstall()
    for place in count():
        started = EarlyRecorder()
        try:
            with traced(interrupting(place, early, native_module)):
                started.start()
        except Interrupt:
            started.close()
            assert not native.is_installed(), place
        else:
            break
    assert place > 50
    assert native.is_installed()
    started.close()
    assert not native.is_installed()


# -- waiting for an import --------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that was not imported, by the name `early_example`."""
    file = tmp_path / "early_example.py"
    file.write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "early_example", raising=False)
    return file


def test_a_function_is_called_once_right_after_the_import(module: Path) -> None:
    before = [*sys.meta_path]
    values = []
    after = WholeImport("early_example", lambda: values.append(sys.modules["early_example"].VALUE))
    after.start()
    assert sys.meta_path == [after, *before]
    import early_example

    assert values == [1]
    assert early_example.__spec__.origin == str(module)
    assert sys.meta_path == before
    del sys.modules["early_example"]
    import early_example

    assert values == [1]
    after.stop()


def test_a_module_that_fails_or_is_missing_calls_nothing(module: Path) -> None:
    module.write_text("raise ValueError('broken')")
    values: list[int] = []
    for name, error in (("early_example", ValueError), ("early_missing", ModuleNotFoundError)):
        after = WholeImport(name, lambda: values.append(1))
        after.start()
        with pytest.raises(error):
            __import__(name)
        assert after not in sys.meta_path
    assert values == []


@pytest.mark.parametrize("enabled", [True, False])
def test_an_import_runs_young_collections_only(module: Path, collections: list[int], enabled: bool) -> None:
    """And what it made is old afterwards, although no full collection has visited it."""
    module.write_text("KEPT = [[] for _ in range(300_000)]\nLAST = []\n")
    found: list[set[int]] = []
    WholeImport("early_example", lambda: found.append({*collections})).start()
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    if not enabled:
        gc.disable()
    try:
        imported = importlib.import_module("early_example")
        old = any(one is imported.LAST for one in gc.get_objects(generation=2))
        assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == (enabled, THRESHOLDS, 0)
    finally:
        gc.enable()
        gc.set_threshold(*before)
    assert found == [{0, 1} if enabled else set()]
    assert old


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ("1234, 5, 6", (1234, 5, 6)),
        ("1234", (1234, *THRESHOLDS[1:])),  # the others are not the module's
        ("*gc.get_threshold()", THRESHOLDS),
    ],
)
def test_thresholds_that_an_imported_module_sets_stay(module: Path, sets: str, expected: tuple[int, int, int]) -> None:
    module.write_text(f"import gc\n\ngc.set_threshold({sets})\n")
    WholeImport("early_example").start()
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        importlib.import_module("early_example")
        assert gc.get_threshold() == expected
    finally:
        gc.set_threshold(*before)


def test_what_a_user_has_frozen_stays_so(module: Path) -> None:
    module.write_text("KEPT = [[]]\n")
    WholeImport("early_example").start()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        imported = importlib.import_module("early_example")
        assert 0 < gc.get_freeze_count() <= frozen
        assert not any(one is imported.KEPT for one in gc.get_objects(generation=2))
    finally:
        gc.unfreeze()


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of the collections so far."""
    found: list[int] = []

    def collects(phase: str, info: dict[str, int]) -> None:
        found.append(info["generation"])

    gc.callbacks.append(collects)
    yield found
    gc.callbacks.remove(collects)


def test_it_does_not_wait_for_an_import_that_has_happened(module: Path) -> None:
    importlib.import_module("early_example")
    before = [*sys.meta_path]
    WholeImport("early_example").start()
    assert sys.meta_path == before


def test_after_stop_an_import_calls_nothing(module: Path) -> None:
    values: list[int] = []
    after = WholeImport("early_example", lambda: values.append(1))
    after.start()
    after.stop()
    __import__("early_example")
    assert values == []
