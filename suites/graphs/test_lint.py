"""The lint: every fault of the zoo with its control, exact texts, and a process that is left as it was."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.graphs.lint import check, lint
from cudamem_testing.graphs.report import LintError, LintReport, SourceLine
from cudamem_testing.graphs.rules import MEANINGS, Rule
from cudamem_testing.records.expected.errors import TextMismatchError
from fixtures import models
from fixtures.zoo.graphs_lint import CASES, LintCase
from suites.versions import qualified

ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fault_is_found_at_its_line(case: LintCase) -> None:
    (finding,) = lint(case.body, case.arguments("cpu"), root=ROOT).findings
    assert f"{finding.rule.value}: {finding.operation}" == case.expect
    assert finding.place.source.endswith("# found")
    assert finding.place.line.startswith("fixtures/zoo/graphs_lint.py:")
    assert finding.times == 1


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_its_control_is_clean(case: LintCase) -> None:
    assert case.controls
    for clean in case.controls:
        assert lint(clean, case.arguments("cpu"), root=ROOT).text == "no findings"


def test_the_zoo_is_large_and_has_every_rule() -> None:
    assert len(CASES) >= 30
    rules = {case.expect.partition(":")[0] for case in CASES.values()}
    assert rules == {rule.value for rule in Rule} - {"raised"}
    assert {*MEANINGS} == {*Rule}


def decode(tokens: torch.Tensor, seen: list[int]) -> torch.Tensor:
    last = tokens[-1]
    seen.append(int(last))
    if last == 0:
        return tokens
    return torch.cat([tokens, last[None]])


def test_the_report_explains_each_finding() -> None:
    report = lint(decode, (torch.tensor([3, 1]), []), root=ROOT)
    line = decode.__code__.co_firstlineno
    assert str(report) == (
        "function decode: 3 findings before a capture\n"
        f"suites/graphs/test_lint.py:{line + 2} in decode: seen.append(int(last))\n"
        "   host read: int() of a tensor\n"
        "   the host reads a value while the work that makes it is only recorded: the capture fails\n"
        "   do: keep it on the device (torch.where, torch.clamp, index_select), or read it after the replay\n"
        f"suites/graphs/test_lint.py:{line + 3} in decode: if last == 0:\n"
        "   host read: truth of a tensor\n"
        "   the host reads a value while the work that makes it is only recorded: the capture fails\n"
        "   do: keep it on the device (torch.where, torch.clamp, index_select), or read it after the replay\n"
        f"suites/graphs/test_lint.py:{line + 2} in decode: seen.append(int(last))\n"
        "   side effect: seen went from 0 to 1 item\n"
        "   Python runs during the capture only, so no replay repeats it\n"
        "   do: do it outside the function, or keep the state in a tensor that is changed in place"
    )
    assert len(report) == 3
    assert report.breaks
    assert [finding.operation for finding in report.of(Rule.SIDE_EFFECT)] == ["seen went from 0 to 1 item"]


def test_the_text_has_no_line_numbers_and_is_compared() -> None:
    report = lint(decode, (torch.tensor([3, 1]), []), root=ROOT)
    report.assert_findings(
        """
        host read: int() of a tensor  suites/graphs/test_lint.py in decode: seen.append(int(last))
        host read: truth of a tensor  suites/graphs/test_lint.py in decode: if last == 0:
        side effect: seen went from 0 to 1 item  suites/graphs/test_lint.py in decode: seen.append(int(last))
        """
    )
    with pytest.raises(TextMismatchError, match=r"^1 line more: "):
        report.assert_findings("no findings")
    with pytest.raises(LintError) as failure:
        report.assert_clean()
    assert str(failure.value) == str(report)


def test_a_clean_function() -> None:
    report = check(torch.nn.functional.gelu, torch.ones(3))
    report.assert_clean()
    report.assert_findings("no findings")
    assert not report.breaks
    assert str(report) == "built-in gelu: nothing found that would break a capture"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        y: torch.Tensor = self.linear(x)
        return y[y > 0] if self.steps < 0 else y * y.max().item()


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_findings_name_the_module() -> None:
    source, forward = "return y[y > 0] if self.steps < 0 else y * y.max().item()", qualified("Block.forward")
    assert lint(Stack(), (torch.ones(2, 4),), root=ROOT).text == (
        f"host read: Tensor.item()  suites/graphs/test_lint.py in {forward} (layers.0): {source}\n"
        f"host read: Tensor.item()  suites/graphs/test_lint.py in {forward} (layers.1): {source}\n"
        "side effect: self.layers.0.steps went from 0 to 1  "
        f"suites/graphs/test_lint.py in {forward}: self.steps += 1"
    )


def test_a_line_that_is_met_often_is_one_finding() -> None:
    def many(x: torch.Tensor) -> float:
        total = 0.0
        for part in x:
            total += part.item()
        return total

    (finding,) = check(many, torch.ones(5)).findings
    assert finding.times == 5
    assert str(finding).splitlines()[1] == "   host read: Tensor.item(), 5 times"


def test_what_a_function_raises_is_a_finding_too() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x.tolist()
        return x @ torch.ones(3, device=x.device)

    first, second = check(broken, torch.ones(2)).findings
    assert first.operation == "Tensor.tolist()"
    assert second.rule is Rule.RAISED
    assert second.operation.startswith("RuntimeError: inconsistent tensor size")
    assert second.place.source == "return x @ torch.ones(3, device=x.device)"


def test_interrupts_are_not_swallowed() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted)
    assert torch.zeros(1).device == torch.device("cpu")


def test_nothing_of_torch_stays_replaced() -> None:
    names = ("Stream", "Event", "stream", "current_stream", "synchronize", "manual_seed", "is_current_stream_capturing")
    before = [getattr(torch.cuda, name) for name in names] + [torch.manual_seed]

    def inside() -> None:
        assert torch.cuda.Stream is not before[0]
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        raise ValueError("in the middle")

    assert check(inside).text.startswith("raised: ValueError: in the middle")
    assert [getattr(torch.cuda, name) for name in names] + [torch.manual_seed] == before


def test_results_and_gradients_are_those_of_the_function() -> None:
    x = torch.ones(3, requires_grad=True)
    kept: list[torch.Tensor] = []

    def step() -> None:
        kept.append((x * 2).sum())
        kept[0].backward()

    check(step)
    assert kept[0].item() == 6
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_a_generator_among_the_arguments_is_registered() -> None:
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(3, device=x.device, generator=generator)

    assert check(draw, torch.ones(3), torch.Generator()).text == "no findings"


def test_tensors_of_the_host_may_be_read() -> None:
    def with_a_table(x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(4)
        if table.sum() > 0 and table[table > 1].tolist():
            return x * int(table.max())
        return x

    assert check(with_a_table, torch.ones(3)).text == "no findings"


def test_pinned_memory_needs_non_blocking_copies() -> None:
    def copies(x: torch.Tensor) -> torch.Tensor:
        pinned = torch.zeros(3).pin_memory()
        x.copy_(pinned)
        return x + pinned.to(x.device)

    assert [finding.operation for finding in check(copies, torch.ones(3)).findings] == [
        "Tensor.copy_()",
        "Tensor.to() to the device",
    ]


def test_a_number_written_to_one_place_is_passed_over() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x[0] = 1.0
        return x

    assert check(writes, torch.ones(3)).text == "no findings"


def test_a_default_device_counts() -> None:
    def makes(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cuda"):
            return x + torch.ones(3)

    assert check(makes, torch.ones(3)).text == "no findings"


def test_devices_that_were_noted_before() -> None:
    class Cache:
        def __init__(self, x: torch.Tensor) -> None:
            self.device = x.device

        def positions(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(3, device=self.device)

    x = torch.ones(3)
    assert check(Cache(x).positions, x).text == "no findings"


class Counted:
    """Callable objects, with a counter."""

    def __init__(self) -> None:
        self.calls = 0
        self.table: dict[str, Any] = {}

    def __call__(self, x: torch.Tensor, key: str = "a") -> torch.Tensor:
        self.calls += 1
        self.table[key] = x.shape
        return x * 2

    def reset(self, x: torch.Tensor) -> torch.Tensor:
        self.table = {}
        return x


def test_side_effects_of_every_kind_of_callable() -> None:
    counted = Counted()
    expected = ["self.calls went from 0 to 1", "self.table went from 0 to 1 item"]
    assert [finding.operation for finding in check(counted, torch.ones(2)).findings] == expected
    again = functools.partial(counted, key="b")
    sources = {finding.operation: finding.place.source for finding in check(again, torch.ones(2)).findings}
    assert sources == {
        "self.calls went from 1 to 2": "self.calls += 1",
        "self.table went from 1 to 2 items": "self.table[key] = x.shape",
    }
    (finding,) = check(counted.reset, torch.ones(2)).findings
    assert (finding.operation, finding.place.source) == ("self.table went from 2 to 0 items", "self.table = {}")


TOTAL = 0.0


def adds_to_a_global(x: torch.Tensor) -> torch.Tensor:
    return helper(x)


def helper(x: torch.Tensor) -> torch.Tensor:
    global TOTAL
    TOTAL += 1.5
    return x * TOTAL


def test_globals_are_followed_into_helpers() -> None:
    (finding,) = check(adds_to_a_global, torch.ones(2)).findings
    assert finding.operation == f"TOTAL went from {TOTAL - 1.5} to {TOTAL}"
    assert (finding.place.stable.rpartition(" ")[2], finding.place.source) == ("helper", "TOTAL += 1.5")


def test_pictures_end_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.graphs.outer.MOST_OBJECTS", 3)
    report = check(lambda parts: None, [[], [], [], []])
    assert report.notes == ("the function reaches more objects than are examined: a side effect may have been missed",)
    assert str(report).splitlines()[-1] == f"note: {report.notes[0]}"


def test_containers_that_hold_themselves() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert check(lambda x: None, loop).text == "no findings"


def test_draws_of_python_are_reported_and_kept() -> None:
    random.seed(3)
    wanted = [random.random(), random.random()]
    random.seed(3)
    got: list[float] = []

    def draws() -> None:
        value = random.random()
        assert value == wanted[0]

    (finding,) = check(draws).findings
    assert finding.place.source == "value = random.random()"
    got.append(random.random())
    assert got == wanted[1:]


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_models_of_transformers_are_clean(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(models, name)()
    inputs = models.images(2) if name == "vit" else models.tokens(2, 8)

    def train() -> None:
        model(inputs).logits.square().mean().backward()

    assert check(train).text == "no findings"
    assert check(train).text == "no findings"


def test_a_cache_that_grows_is_found_and_a_static_one_is_not() -> None:
    from transformers import DynamicCache, StaticCache

    model, ids = models.gpt2().eval(), models.tokens(2, 8)
    growing, fixed = DynamicCache(), StaticCache(model.config, max_cache_len=16)
    with torch.no_grad():
        for cache in (growing, fixed):
            models.extend(model, ids, cache)
        report = check(models.extend, model, ids[:, :1], growing)
        assert check(models.extend, model, ids[:, :1], fixed).text == "no findings"
    assert {finding.rule for finding in report.findings} == {Rule.OUTSIDE}
    assert report.findings[0].operation == "cache.layers[0].keys is another tensor now: float32[2, 4, 9, 64]"


@given(st.lists(st.sampled_from(["double", "read", "mask", "shift"]), max_size=8))
def test_any_mixture_counts_each_line(steps: list[str]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            if step == "double":
                x = x * 2
            elif step == "read":
                x.sum().item()
            elif step == "mask":
                x[x > 0].sum()
            else:
                x = x + 1
        return x

    found = {finding.operation: finding.times for finding in check(run, torch.ones(3)).findings}
    wanted = {"Tensor.item()": steps.count("read"), "x[mask]": steps.count("mask")}
    assert found == {name: times for name, times in wanted.items() if times}


def test_a_report_without_places() -> None:
    assert LintReport("f").text == "no findings"
    assert str(SourceLine("a.py:1 in f", "a.py in f").source) == ""
