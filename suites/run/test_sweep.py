"""Each allocation of a step fails once; what does not recover is said, with its line and holder."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from cudamem_testing import Memory
from cudamem_testing.model.facts import NotRecovered, NotTried
from cudamem_testing.model.findings import Finding, Severity
from cudamem_testing.windows.failing import DoesNotRecover
from suites.heap import set_aside
from suites.versions import qualified

KIB = 1 << 10


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    with set_aside(), Memory.on("cpu") as memory:
        yield memory


def bytes_of(number: int) -> torch.Tensor:
    return torch.empty(number, dtype=torch.uint8)


def faults(raised: pytest.ExceptionInfo[DoesNotRecover]) -> list[NotRecovered]:
    return [one.fact for one in raised.value.findings if isinstance(one.fact, NotRecovered)]


def test_every_allocation_fails_once(memory: Memory) -> None:
    sizes: list[int] = []

    def step() -> None:
        sizes.append(0)
        for size in (KIB, 2 * KIB, 3 * KIB):
            bytes_of(size)
            sizes[-1] += 1

    sweep = memory.fail_each_allocation(step)
    assert sizes == [3, 3, 3, 0, 3, 2, 3, 1, 3]  # two warm up, one is counted; each failure with a complete run
    assert (sweep.allocations, sweep.tried, sweep.places, sweep.places_tried) == (3, 3, 1, 1)
    assert (sweep.findings, sweep.notes) == ((), ())
    assert str(sweep) == f"all 3 allocations tried in {sweep.seconds:.1f} s (cpu): the step recovers from each"


def test_a_finding_reads_in_ten_seconds(memory: Memory) -> None:
    weights = [torch.zeros(256) for _ in range(2)]
    kept: list[BaseException] = []

    def step() -> None:
        scores = torch.exp(weights[0])
        try:
            weights[1].add_(torch.exp(scores))
        except torch.OutOfMemoryError as error:
            kept.append(error)
            torch.set_grad_enabled(False)
            weights[0].add_(1)
            raise

    try:
        with pytest.raises(DoesNotRecover) as raised:
            memory.fail_each_allocation(step, weights=weights, check=torch.is_grad_enabled)
    finally:
        torch.set_grad_enabled(True)
    first = step.__code__.co_firstlineno
    line = first + 12
    place = "suites/run/test_sweep.py:{} in " + qualified("test_a_finding_reads_in_ten_seconds.step")
    where = "aten::exp, 1.0 KiB, allocation 2 of 2, cpu"
    found = str(raised.value).splitlines()
    seconds = raised.value.sweep.seconds
    held = f"frame test_a_finding_reads_in_ten_seconds (test_sweep.py:{line}) local 'kept' (list)[0]"
    assert found == [
        f"cudamem: 1 place does not recover from a failed allocation (cpu; all 2 allocations tried in {seconds:.1f} s)",
        f"{place.format(first + 3)} does not recover if its allocation fails ({where})",
        "   left behind: 1.0 KiB in 1 block",
        "      1.0 KiB  float32[256] on cpu",
        f"         allocated  {place.format(first + 1)}",
        f"         held by    {held} > OutOfMemoryError.__traceback__ > frame step local 'scores'",
        "   half changed: 1 of 2 (weights[0]), not weights[1]",
        "   not restored: grad mode is False, was True",
    ]


def test_a_finding_is_a_fact(memory: Memory) -> None:
    kept: list[torch.Tensor] = []
    with pytest.raises(DoesNotRecover) as raised:
        memory.fail_each_allocation(lambda: leaves(KIB, kept))
    (finding,) = raised.value.findings
    assert isinstance(finding, Finding)
    assert (finding.kind.value, finding.verdict.value, finding.severity) == ("oom", "not recovered", Severity.FAIL)
    assert finding.bytes == KIB
    assert finding.holder is not None
    assert finding.holder.endswith("local 'kept' (list)[0]")
    assert finding.cause == "oom | not recovered | suites/run/test_sweep.py::bytes_of"


def leaves(size: int, kept: list[torch.Tensor]) -> None:
    first = bytes_of(size)
    try:
        bytes_of(2 * size)
    except torch.OutOfMemoryError:
        kept.append(first)
        raise


def test_failing_places_are_grouped_by_place(memory: Memory) -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        for _ in range(3):
            leaves(KIB, kept)

    with pytest.raises(DoesNotRecover) as raised:
        memory.fail_each_allocation(step)
    (fault,) = faults(raised)
    assert (fault.number, fault.of, fault.times) == (2, 6, 3)
    assert "allocation 2 of 6 and 2 more here" in str(raised.value)


def test_what_a_complete_run_leaves_is_no_fault(memory: Memory) -> None:
    kept: dict[str, torch.Tensor] = {}

    def step() -> None:
        kept["last"] = bytes_of(KIB)
        kept["scores"] = bytes_of(2 * KIB)

    assert memory.fail_each_allocation(step).tried == 2


def test_what_a_retry_makes_in_another_way_is_no_fault(memory: Memory) -> None:
    results: list[torch.Tensor] = []

    def step() -> None:
        try:
            results[:] = [bytes_of(2 * KIB)]
        except torch.OutOfMemoryError:
            results[:] = [bytes_of(KIB), bytes_of(KIB)]

    assert memory.fail_each_allocation(step).tried == 1


def test_gradients_may_be_gone_but_not_some_of_them(memory: Memory) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    inputs = torch.ones(2, 4)

    def step(restores: bool) -> None:
        model.zero_grad()
        try:
            model(inputs).sum().backward()
        except torch.OutOfMemoryError:
            if restores:
                model.zero_grad()
            raise

    assert memory.fail_each_allocation(lambda: step(False)).findings == ()  # not requested
    assert memory.fail_each_allocation(lambda: step(True), gradients=model).findings == ()
    with pytest.raises(DoesNotRecover) as raised:
        memory.fail_each_allocation(lambda: step(False), gradients=model)
    halves = {half for fault in faults(raised) for half in fault.half}
    assert all(half.missing and half.number + half.others == 4 for half in halves)
    assert "are gone (gradients.0.weight.grad" in str(raised.value)


def test_an_optimizer_has_the_names_of_its_model(memory: Memory) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
    model.weight.grad, model.bias.grad = torch.ones(8, 8), torch.ones(8)

    def step() -> None:
        optimizer.step()

    with pytest.raises(DoesNotRecover) as raised:
        memory.fail_each_allocation(step, model=model, optimizer=optimizer)
    assert "optimizer.state[model.weight].momentum_buffer" in str(raised.value)


def test_state_changed_everywhere_may_be_changed_in_part(memory: Memory) -> None:
    """A fused step writes all weights by one operator, then all by the next."""
    weights, decay = [torch.ones(4), torch.ones(4)], torch.full((4,), 0.9)

    def step() -> None:
        for weight in weights:
            weight.mul_(decay)
        updates = [torch.ones(4) for _ in weights]
        for weight, update in zip(weights, updates, strict=True):
            weight.add_(update)

    with pytest.raises(AssertionError) as raised:
        memory.fail_each_allocation(step, weights=weights)
    assert "   half changed: weights[0] was written 1 of 2 times, and 1 more in part" in str(raised.value).splitlines()

    def handled() -> None:
        for weight in weights:
            weight.mul_(decay)
        with contextlib.suppress(torch.OutOfMemoryError):
            updates = [torch.ones(4) for _ in weights]
            for weight, update in zip(weights, updates, strict=True):
                weight.add_(update)

    assert memory.fail_each_allocation(handled, weights=weights).findings == ()


def test_distinct_places_come_first_then_the_largest(memory: Memory) -> None:
    made: list[tuple[int, ...]] = []

    def step() -> None:
        made.append(())
        for size in (1, 3, 2):
            bytes_of(size)
            made[-1] += (size,)
        bytes_of(4)
        made[-1] += (4,)

    sweep = memory.fail_each_allocation(step, sample=3)
    failing = made[3::2]
    assert failing == [(), (1, 3, 2), (1,)]  # both places, then the largest of the others
    assert (sweep.tried, sweep.places, sweep.places_tried) == (3, 2, 2)
    assert sweep.notes == ("1 of 4 allocations were not tried: sample=3",)
    assert sweep.coverage.startswith("3 of 4 allocations at 2 of 2 places tried in ")
    made.clear()
    memory.fail_each_allocation(step, sample=3)
    assert made[3::2] == failing  # the same order in every run


def test_a_time_limit_ends_it_and_says_so(memory: Memory) -> None:
    sweep = memory.fail_each_allocation(lambda: leaves(KIB, []), seconds=0.0)
    assert sweep.tried == 0
    assert sweep.notes == ("2 of 2 allocations were not tried: the limit of 0 s was reached",)
    (finding,) = sweep.findings
    assert (finding.severity, finding.fact) == (Severity.WARN, NotTried(0, 2, "the limit of 0 s was reached"))


def test_progress_is_shown(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.run.sweep.PROGRESS_SECONDS", -1.0)
    said: list[str] = []
    memory.fail_each_allocation(lambda: bytes_of(KIB), progress=said.append)
    assert said == ["0 of 1 allocations tried, 0 s"]


def test_a_step_that_fails_by_itself(memory: Memory) -> None:
    def step() -> None:
        raise KeyError("batch")

    with pytest.raises(KeyError):
        memory.fail_each_allocation(step)


def test_a_check_that_never_holds(memory: Memory) -> None:
    with pytest.raises(ValueError, match=r"check\(\) is false after a run without a failure"):
        memory.fail_each_allocation(lambda: bytes_of(1), check=lambda: False)


def test_a_step_without_allocations(memory: Memory) -> None:
    with pytest.raises(ValueError, match="the step allocates nothing on cpu: no allocation can fail"):
        memory.fail_each_allocation(lambda: None)


def test_an_error_that_names_its_cause_is_right(memory: Memory) -> None:
    class FailedError(Exception):
        pass

    def step(hides: bool) -> None:
        try:
            bytes_of(KIB)
        except torch.OutOfMemoryError as error:
            if hides:
                raise FailedError from None
            raise FailedError from error

    assert memory.fail_each_allocation(lambda: step(False)).tried == 1
    with pytest.raises(DoesNotRecover, match="raised instead of OutOfMemoryError: FailedError"):
        memory.fail_each_allocation(lambda: step(True))


def test_the_collector_is_as_before(memory: Memory) -> None:
    assert gc.isenabled()
    memory.fail_each_allocation(lambda: bytes_of(1))
    assert gc.isenabled()
    gc.disable()
    try:
        memory.fail_each_allocation(lambda: bytes_of(1))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_runs_that_differ_are_noted(memory: Memory) -> None:
    runs: list[int] = []

    def step() -> None:
        runs.append(1)
        if len(runs) == 3:  # only the counted one
            bytes_of(KIB)

    sweep = memory.fail_each_allocation(step)
    assert sweep.notes == ("1 runs made fewer allocations than the counted one: nothing failed in them",)


def test_a_sweep_keeps_neither_the_step_nor_its_state(memory: Memory) -> None:
    state = torch.zeros(4)

    def step() -> None:
        bytes_of(KIB)

    there = weakref.ref(step), weakref.ref(state)
    gc.disable()
    try:
        memory.fail_each_allocation(step, state=state)
        del step, state
        assert [one() for one in there] == [None, None]
    finally:
        gc.enable()
