"""Wrong arguments: a few lines at the call, with the names that are valid, and none of ours."""

from __future__ import annotations

USES = """
    import torch

    def step(x):
        return x * 2

    def test_block(memory_profile):
        with memory_profile(model=torch.nn.Linear(2, 2)):
            pass

    def test_not_callable(memory_profile):
        memory_profile(3)

    def test_ids(memory_profile):
        memory_profile(step, torch.ones(3)).assert_data_flow("", ids="nope")

    def test_operators(operator_memory):
        operator_memory(modell=None)

    def test_phase(operator_memory):
        with operator_memory(device="cpu") as memory:
            step(torch.ones(3))
        memory.assert_budget(phase="backwards", peak="1MiB")

    def test_size(operator_memory):
        with operator_memory(device="cpu") as memory:
            step(torch.ones(3))
        memory.assert_budget(peak="1XB")

    def test_lint(graph_capture):
        graph_capture.check("step")

    def test_window(cuda_memory):
        cuda_memory.window("call")

    def test_limit(cuda_memory):
        cuda_memory.limit("1MiB", device="cuda")

    def test_snapshot(memory_snapshot):
        memory_snapshot.live("tpu")

    def test_decorator(cuda_memory):
        @cuda_memory.budget(peak="1MiB")
        def inner(): pass

    def test_unknown_limit(cuda_memory):
        cuda_memory.budget(peek="1MiB")

    def test_unknown_operator_limit(operator_memory):
        with operator_memory(device="cpu") as memory:
            step(torch.ones(3))
        memory.assert_budget(peek="1MiB")

    def test_other_device(cuda_memory):
        with cuda_memory.window("inside") as window:
            pass
        window["cuda"]

    def test_expected(memory_profile):
        memory_profile(step, torch.ones(3)).assert_data_flow(3)

    def test_compared(memory_snapshot):
        memory_snapshot.compare(1, 2)

    def test_no_file(memory_snapshot):
        memory_snapshot.read("nowhere.pickle")

    def test_twice(cuda_memory):
        window = cuda_memory.window("inside")
        with window:
            pass
        with window:
            pass

    def test_own_error(memory_profile):
        def fails():
            raise ValueError("mine")
        memory_profile(fails)
"""
SAID = {
    "test_block": (
        "TypeError: memory_profile() as a block has no argument model: it takes collect, dispatched; name tensors in "
        "the block with p.name(model=...), or give a function: memory_profile(step, ...)"
    ),
    "test_not_callable": "TypeError: memory_profile() records a function, or a block without one: int is not callable",
    "test_ids": "ValueError: ids='nope' is not known: write ids='first-use' or ids='profiler'",
    "test_operators": "TypeError: operator_memory() has no argument modell: it takes model, device",
    "test_phase": "ValueError: phase 'backwards' is not known: write forward, backward, optimizer, other",
    "test_size": (
        "cudamem_testing.model.limits.LimitError: peak: size '1XB' has the unknown unit 'XB': write bytes as an int, "
        "or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
    ),
    "test_lint": "TypeError: the lint needs a function, a method or a module, not str",
    "test_window": (
        "ValueError: a window cannot be called 'call': reports call a test's own setup, call, teardown, warm-up, test"
    ),
    "test_limit": "ValueError: cuda is not measured (measured: cpu)",
    "test_snapshot": "ValueError: device 'tpu' is not known: write cpu, cuda, cuda:N or host",
    "test_decorator": ("TypeError: this is not a decorator: write `with cuda_memory.budget(...):` inside the function"),
    "test_unknown_limit": (
        "TypeError: budget() has no argument peek: it takes absolute, allocations, at_least, device, fragmentation, "
        "name, peak, reserved, retained, retries"
    ),
    "test_unknown_operator_limit": (
        "TypeError: assert_budget() has no argument peek: it takes absolute, allocations, at_least, device, module, "
        "peak, phase, reserved, retained, retries"
    ),
    "test_other_device": "KeyError: 'cuda is not measured (measured: cpu)'",
    "test_expected": "TypeError: the expected text must be a str, got int",
    "test_compared": "TypeError: compare() takes two snapshots, as take() and read() return them, not int",
    "test_no_file": (
        "cudamem_testing.snapshots.record.SnapshotError: nowhere.pickle cannot be read: No such file or directory"
    ),
    "test_twice": "RuntimeError: window 'inside' was entered twice: make another one for each with block",
}


def test_they_are_short_and_say_what_is_valid(run_inner):
    inner = run_inner(USES, "--cudamem", "--cudamem-leaks=off")
    assert inner.last == "19 failed"
    for test, said in SAID.items():
        lines = inner.section(test)
        assert said in [line.removeprefix("E").strip() for line in lines]
        assert len(lines) <= 14, "\n".join(lines)
        assert not [line for line in lines if "cudamem_testing/" in line and ": " in line and test not in said][1:]


def test_errors_of_the_users_code_keep_their_frames(run_inner):
    lines = run_inner(USES, "-k", "own_error").section("test_own_error")
    assert any(line.split() == ["E", "ValueError:", "mine"] for line in lines)
    assert any("cudamem_testing/trace/profile.py" in line for line in lines)


def test_all_frames_are_there_when_asked_for(run_inner):
    for flags, shown in (((), False), (("--full-trace",), True)):
        out = run_inner(USES, "-k", "size", *flags).out
        assert ("cudamem_testing/operators/table.py" in out) is shown
