"""Evidence: what a failing budget, an out-of-memory error and a snapshot say, to the letter."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch.cuda import _memory_viz

from cudamem_testing.recorders import native
from cudamem_testing.wording.findings import details
from suites.plugin.inner import MIB, Inner

Run = Callable[..., Inner]

PEAK = """
    import pytest, torch

    def work(parts):
        return [torch.ones(2**18) for _ in range(parts)]

    @pytest.fixture(scope="module")
    def weights():
        return torch.ones(2**20)

    @pytest.mark.memory_budget(peak="1MiB")
    def test_peak(weights):
        kept = work(3)
        kept.append(torch.nn.functional.relu(kept[0]))
        del kept
        torch.ones(2**17)

    @pytest.mark.memory_budget(retained=0)
    def test_retained():
        test_retained.kept = torch.ones(2**16)

    @pytest.mark.memory_budget(allocations=1)
    def test_allocations():
        work(2)

    @pytest.mark.memory_budget(at_least={"peak": "9MiB"})
    def test_too_little():
        work(2)

    def test_region(cuda_memory):
        before = work(1)
        with cuda_memory.budget(peak="1MiB", name="inner"):
            inside = work(2)
"""


def told(inner: Inner, test: str) -> list[str]:
    """The lines that stand below a failed test's own failure."""
    lines = inner.section(test)
    return lines[lines.index("----------------------------------- cudamem ------------------------------------") + 1 :]


def test_quiet_runs_draw_no_bars(run_inner: Run) -> None:
    inner = run_inner(PEAK, "--cudamem", "-q", "-k", "peak")
    assert inner.section("test_peak")[2] == "live at the peak: 8.0 MiB in 5 blocks, start 4.0 MiB"


def test_live_at_the_peak(run_inner: Run) -> None:
    inner = run_inner(PEAK, "--cudamem", "--cudamem-leaks=off")
    assert inner.section("test_peak") == [
        "cudamem: peak 4.0 MiB above start is over its budget of 1.0 MiB by 3.0 MiB (cpu)",
        "start 4.0 MiB, peak 8.0 MiB, end 4.0 MiB",
        "over 10 events  \u2581\u2582\u2584\u2586\u2588\u2586\u2584\u2582\u2581\u2581\u2581  4.0 MiB to 8.0 MiB",
        "live at the peak: 8.0 MiB in 5 blocks, start 4.0 MiB",
        "   3.0 MiB   3 blocks  test_it.py:4 in work           <- test_it.py:12",
        "                       | return [torch.ones(2**18) for _ in range(parts)]",
        "   1.0 MiB   1 block   test_it.py:13 in test_peak     torch/nn/functional.py relu",
        "   4.0 MiB   1 block   (left by fixture 'weights')",
    ]
    assert inner.section("ERROR at teardown of test_retained") == [
        "cudamem: retained 256.0 KiB is over its budget of 0 B by 256.0 KiB (test, cpu)",
        "start 4.0 MiB, end 4.3 MiB",
        "still live: 256.0 KiB in 1 block",
        "   256.0 KiB   1 block  test_it.py:19 in test_retained",
        "                        | test_retained.kept = torch.ones(2**16)",
    ]
    assert inner.section("test_allocations") == [
        "cudamem: allocations 2 is over its budget of 1 by 1 (cpu)",
        "allocations, by line",
        "   2 blocks  2.0 MiB  test_it.py:4 in work",
    ]
    assert inner.section("test_too_little") == [
        "cudamem: peak 2.0 MiB above start is under its lower bound of 9.0 MiB by 7.0 MiB (cpu)",
        "start 4.3 MiB, peak 6.3 MiB, end 4.3 MiB",
    ]
    region = [line for line in inner.section("test_region") if line.startswith("E ")]
    assert [line[8:] for line in region[2:]] == [
        "live at the peak: 7.3 MiB in 5 blocks, start 5.3 MiB",
        "     2.0 MiB   2 blocks  test_it.py:4 in work     <- test_it.py:32",
        "                         | return [torch.ones(2**18) for _ in range(parts)]",
        "     4.0 MiB   1 block   (left by fixture 'weights')",
        "     1.0 MiB   1 block   (left by this test, before the window)",
        "   256.0 KiB   1 block   (left by test_it.py::test_retained)",
    ]


def test_the_rows_add_up_to_the_measured_peak(run_inner: Run) -> None:
    inner = run_inner(
        """
        import pytest, torch

        @pytest.mark.memory_budget(peak=0)
        @pytest.mark.parametrize("seed", range(4))
        def test_step(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(64, 96 + seed), torch.nn.GELU(), torch.nn.Linear(96 + seed, 32))
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.randn(31, 64)).square().mean().backward()
            optimizer.step()
        """,
        "--cudamem",
    )
    for seed in range(4):
        record = inner.test(f"test_step[{seed}]")
        (finding,) = record.findings
        header = next(line for line in details(finding) if line.startswith("live at the peak"))
        assert re.search(r"in \d+ blocks", header)
        assert not any("counted by the allocator beyond" in line for line in details(finding))
        assert not any("less than the blocks" in line or "more than the blocks" in line for line in details(finding))


def test_without_stacks_the_section_says_so(run_inner: Run) -> None:
    inner = run_inner(PEAK, "--cudamem", "--cudamem-leaks=off", "--cudamem-stacks=off", "-k", "test_peak")
    assert inner.section("test_peak")[2:] == [
        "live at the peak: unknown, no events were recorded (--cudamem-stacks=off, or the test has its own history)"
    ]


def test_without_events_no_moment_is_called_the_peak(run_inner: Run) -> None:
    inner = run_inner(
        """
        import pytest, torch
        from cudamem_testing import SnapshotError

        def test_it(memory_snapshot):
            before = memory_snapshot.live().total
            torch.ones(2**22)
            with pytest.raises(SnapshotError, match="^the peak is unknown: no stacks and no events: none were rec"):
                memory_snapshot.peak()
            assert memory_snapshot.live().total == before

        @pytest.mark.memory_budget(retained=0)
        def test_kept():
            test_kept.it = torch.ones(2**18)
        """,
        "--cudamem",
        "--cudamem-leaks=off",
        "--cudamem-stacks=off",
    )
    assert inner.outcomes == {"test_it": "passed", "test_kept": "error"}
    assert inner.section("ERROR at teardown of test_kept")[2:] == [
        "still live: unknown, no events were recorded (--cudamem-stacks=off, or the test has its own history)"
    ]


LEAK_AND_LIMIT = """
    import torch

    KEPT = []

    def test_leaves():
        KEPT.append(torch.ones(2**20))

    def grow(parts):
        return [torch.ones(2**18) for _ in range(parts)]

    def test_runs_out(cuda_memory):
        first = grow(1)
        with cuda_memory.limit("2MiB"):
            second = grow(9)

    def test_handles_it(cuda_memory):
        try:
            with cuda_memory.limit("2MiB"):
                grow(9)
        except torch.OutOfMemoryError:
            pass
"""


def test_out_of_memory_names_who_left_what(run_inner: Run) -> None:
    inner = run_inner(LEAK_AND_LIMIT, "--cudamem", "--cudamem-leaks=off")
    assert inner.outcomes == {"test_leaves": "passed", "test_runs_out": "failed", "test_handles_it": "passed"}
    assert told(inner, "test_runs_out") == [
        "cudamem: out of memory on cpu: 1.0 MiB requested by test_it.py:9 in grow",
        "   allowed                          7.0 MiB  2.0 MiB above the 5.0 MiB at the start of the limit",
        "   allocated                        7.0 MiB",
        "   left by test_it.py::test_leaves  4.0 MiB  allocated by test_it.py:6 in test_leaves",
        (
            "hint: the code exceeds its limit of 2.0 MiB: 2.0 MiB are in use, 1.0 MiB more were requested. "
            "The largest line is test_it.py:9 in grow."
        ),
        "live when it ran out: 7.0 MiB in 4 blocks",
        "   3.0 MiB   3 blocks  test_it.py:9 in grow     <- test_it.py:14 and 1 more",
        "                       | return [torch.ones(2**18) for _ in range(parts)]",
        "   4.0 MiB   1 block   (left by test_it.py::test_leaves)",
    ]
    (finding,) = inner.test("test_runs_out").findings
    assert (finding.kind.value, finding.severity.value, finding.bytes) == ("oom", "fail", MIB)
    assert finding.allocated == "test_it.py:9 in grow"
    assert inner.test("test_handles_it").findings == ()
    assert "oom: 1 finding (out of memory) in 1 test" in inner.summary


def test_out_of_memory_without_a_record_says_what_is_missing(run_inner: Run) -> None:
    inner = run_inner(LEAK_AND_LIMIT, "--cudamem", "--cudamem-leaks=off", "--cudamem-stacks=off")
    assert inner.outcomes == {"test_leaves": "passed", "test_runs_out": "failed", "test_handles_it": "passed"}
    assert told(inner, "test_runs_out") == [
        "cudamem: out of memory; it is unknown what was live, because nothing was recorded (--cudamem-stacks=off)"
    ]
    (finding,) = inner.test("test_runs_out").findings
    assert (finding.kind.value, finding.bytes, finding.device) == ("oom", None, None)


def test_a_snapshot_of_each_failed_test(run_inner: Run) -> None:
    inner = run_inner(LEAK_AND_LIMIT, "--cudamem", "--cudamem-leaks=off", "--cudamem-dump=dumps")
    (path,) = (inner.folder / "dumps").iterdir()
    assert path.name == "test_it.test_runs_out.cpu.pickle"
    snapshot = pickle.loads(path.read_bytes())
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)  # torch's own viewer takes it
    frames = [frame["filename"] for trace in snapshot["device_traces"] for event in trace for frame in event["frames"]]
    assert {name for name in frames if "test_it" in name} == {"test_it.py"}


FAILURES = """
    import pytest, torch

    KEPT = []

    def test_leaks():
        KEPT.append(torch.ones(2**18))

    @pytest.mark.memory_budget(retained=0)
    def test_retains():
        KEPT.append(torch.ones(2**18))

    @pytest.fixture
    def broken():
        yield torch.ones(2**18)
        raise OSError("teardown")

    def test_twice(broken):
        raise OSError("call")

    @pytest.fixture
    def unmade():
        raise OSError("setup")

    def test_never(unmade):
        pass

    @pytest.mark.xfail
    def test_expected():
        raise OSError("call")

    def test_passes():
        torch.ones(2**18)
"""


@pytest.mark.parametrize("options", [("--cudamem",), ()])
def test_every_measured_test_that_fails_has_one_snapshot(run_inner: Run, options: tuple[str, ...]) -> None:
    inner = run_inner(FAILURES, *options, "--cudamem-dump=dumps")
    names = ["leaks", "never", "retains", "twice"] if options else ["retains"]
    found = sorted((inner.folder / "dumps").iterdir())
    assert [path.name for path in found] == [f"test_it.test_{name}.cpu.pickle" for name in names]
    for name, path in zip(names, found, strict=True):
        assert inner.test(f"test_{name}").notes == (str(path),)
        assert inner.out.count(f"{path.name}\n") == 1
    sizes = [
        block["size"] for segment in pickle.loads(found[-1].read_bytes())["segments"] for block in segment["blocks"]
    ]
    assert 2**20 in sizes  # what lived when the call failed, not after the teardown


def test_a_snapshot_that_cannot_be_written_is_a_note(run_inner: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: object, recording: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cudamem_testing.snapshots.export.write", full)
    inner = run_inner(FAILURES, "--cudamem-dump=dumps")
    path = inner.folder / "dumps" / "test_it.test_retains.cpu.pickle"
    line = f"{path} was not written: OSError: [Errno 28] No space left on device"
    assert inner.test("test_retains").notes == (line,)
    assert [one.strip() for one in inner.lines if "No space" in one] == [line]
    assert inner.last == "1 failed, 3 passed, 1 xfailed, 3 errors"


def test_a_dump_that_cannot_be_written_is_reported(run_inner: Run) -> None:
    inner = run_inner({"test_it.py": LEAK_AND_LIMIT, "taken": ""}, "--cudamem", "--cudamem-dump=taken")
    assert inner.status == 4
    assert f"cudamem: --cudamem-dump: {inner.folder / 'taken'} is a file" in inner.err


def test_the_snapshot_fixture(run_inner: Run) -> None:
    inner = run_inner(
        """
        import pytest, torch

        def make(parts):
            return [torch.ones(2**18) for _ in range(parts)]

        def test_moments(memory_snapshot, tmp_path):
            start = memory_snapshot.live().total
            first = make(1)
            before = memory_snapshot.take()
            second = make(3)
            first.clear()
            difference = memory_snapshot.compare(before, memory_snapshot.take())
            assert str(difference) == '''+2.0 MiB on cpu: 3.0 MiB in 3 blocks new, 1.0 MiB in 1 block gone
        grown
           +2.0 MiB  1.0 MiB -> 3.0 MiB  1 -> 3 blocks  test_it.py:4 in make
        new: 3.0 MiB in 3 blocks
           3.0 MiB   3 blocks  test_it.py:4 in make     <- test_it.py:10
        gone: 1.0 MiB in 1 block
           1.0 MiB   1 block  test_it.py:4 in make     <- test_it.py:8'''
            assert memory_snapshot.live().total - start == 3 * 2**20
            assert memory_snapshot.peak().total - start == 4 * 2**20
            assert str(memory_snapshot.peak()).splitlines()[1] == "  4.0 MiB  4 blocks  test_it.py:4 in make"
            memory_snapshot.write(tmp_path / "now.pickle")
            again = memory_snapshot.read(tmp_path / "now.pickle")
            assert sorted(block.size for block in again.blocks) == sorted(one.size for one in memory_snapshot.live())
            assert {again.stacks[block.stack].line for block in again.blocks} >= {"test_it.py:4 in make"}

        def test_device(memory_snapshot):
            from cudamem_testing import SnapshotError
            with pytest.raises(SnapshotError, match=r"cuda:5 is not measured \\(measured: cpu\\)"):
                memory_snapshot.take("cuda:5")
            with pytest.raises(SnapshotError, match="none.pickle cannot be read: No such file or directory"):
                memory_snapshot.read("none.pickle")
        """
    )
    assert inner.last == "2 passed", inner.out


WITHOUT_BLOCKS = """
    import pytest, torch

    @pytest.mark.memory_budget(peak="1KiB")
    def test_peak():
        torch.empty(2**10)

    def test_snapshot(memory_snapshot):
        memory_snapshot.take()
"""


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing was compiled before, and nothing can be."""
    monkeypatch.setattr("suites.plugin.inner.CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native, "_of_this_process", cache(native._of_this_process.__wrapped__))


WITHOUT_COMPILER = """
    import pytest, torch

    KEPT = []
    budget = pytest.mark.memory_budget

    @budget(peak="1KiB")
    def test_over():
        torch.ones(512)

    def test_keeps():
        KEPT.append(torch.ones(2**18))

    @budget(peak="1KiB", warmup=1)
    def test_warm():
        if not KEPT[1:]:
            KEPT.append(torch.ones(512))
        torch.ones(256)

    @budget(peak="1KiB")
    def test_with_a_profiler():
        with torch.autograd.profiler.profile(profile_memory=True):
            torch.ones(512)

    def test_window(cuda_memory):
        with cuda_memory.window("decode") as window:
            torch.ones(512)
        assert window.peak_growth == 2048

    def test_limit(cuda_memory):
        with cuda_memory.limit("1KiB"):
            pass
"""


@pytest.mark.parametrize("flags", [("--cudamem",), ()], ids=["on", "off"])
def test_a_run_without_a_compiler(run_inner: Run, no_compiler: None, flags: tuple[str, ...]) -> None:
    """Budgets and windows are measured in part, nothing else is, and no test fails for that."""
    inner = run_inner(WITHOUT_COMPILER, *flags, "--tb=short")
    assert inner.last == "2 failed, 4 passed"
    assert inner.section("test_over")[0] == (
        "cudamem: peak 2.0 KiB above start is over its budget of 1.0 KiB by 1.0 KiB (cpu)"
    )
    without_carets = [
        line for line in inner.section("test_limit") if line.strip(" ^")
    ]  # they follow from Python 3.13 on
    assert without_carets[-3:] == [
        "test_it.py:30: in test_limit",
        '    with cuda_memory.limit("1KiB"):',
        "E   RuntimeError: a hard limit on cpu needs the CPU recorder: install a C++ compiler",
    ]
    unmeasured = "; 1 test not measured" if flags else ""
    place = inner.summary.index(f"measured 5 tests on cpu{unmeasured}; 5 measured in part")
    unchecked = [
        "NOT CHECKED: 6 tests: leaks and cycles: cpu records no single blocks: measured",
        "  by torch's profiler: other threads and older blocks are not seen",
    ]
    assert inner.summary[place + 1 : place + (8 if flags else 6)] == [
        "NOT CHECKED: 1 budget: peak is unknown on cpu: measured until another profiler",
        "  started, and unknown from there on",
        *(unchecked if flags else []),
        "note: no C++ compiler found (looked for c++, g++, clang++); install one, such as",
        "  the package g++ or clang, or set CXX to it; on cpu only tests with a limit or",
        "  a window are measured, and incompletely",
    ]


def test_devices_that_record_no_single_blocks(run_inner: Run, no_compiler: None) -> None:
    """Every place that would show lines says why it cannot, not that nothing was recorded."""
    inner = run_inner(WITHOUT_BLOCKS, "--tb=short")
    reason = "cpu records no single blocks: measured by torch's profiler: other threads and older blocks are not seen"
    assert inner.section("test_peak")[-1] == f"live at the peak: unknown, {reason}"
    assert inner.section("test_snapshot")[-1] == f"E   cudamem_testing.snapshots.record.SnapshotError: {reason}"
