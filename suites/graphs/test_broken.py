"""Every kind of failed capture: how it is explained, by its text alone, and by a capture on a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cudamem_testing.graphs import reasons as all_reasons
from cudamem_testing.graphs.failure import CaptureError
from cudamem_testing.graphs.operators import HOST_READS
from cudamem_testing.graphs.reasons import Clues, reason
from cudamem_testing.graphs.rules import Meaning, Rule
from cudamem_testing.graphs.session import GraphCapture
from fixtures.zoo.graphs_broken import CASES, INVALID, MAYBE, REFUSED, BrokenCase

ROOT = str(Path(__file__).parents[2])
MEANINGS = {name: one for name, one in vars(all_reasons).items() if isinstance(one, Meaning)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_error_text_and_running_operator_explain_the_failure(case: BrokenCase) -> None:
    assert reason(case.said, case.clues) == (case.rule, case.meaning)


def test_every_rule_that_breaks_a_capture_has_cases() -> None:
    told = {case.rule for case in CASES.values()} - {None}
    assert told == {*Rule} - {Rule.OUTSIDE, Rule.SIDE_EFFECT, Rule.RAISED}
    assert len(CASES) >= 40


@pytest.mark.parametrize(
    ("said", "clues", "meaning"),
    [
        (REFUSED, Clues(operator="aten::conv2d"), "INSIDE"),
        (REFUSED, Clues(function="torch.stft"), "INSIDE"),
        (REFUSED, Clues(call="cupy.zeros()"), "OTHER_LIBRARY"),
        (
            "CudaAPIError: [900] Call to cuMemAlloc results in CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            Clues(),
            "OTHER_LIBRARY",
        ),
        ("OSError: the library is busy", Clues(), "OTHER_LIBRARY"),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            Clues(worked=True),
            "ONCE",
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", Clues(operator="aten::convolution"), "INSIDE"),
        ("RuntimeError: 1. No warmup iterations occurred before capture.", Clues(operator="aten::convolution"), "ONCE"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Clues(operator="aten::mm"), "MEMORY"),
        ("RuntimeError: CUDA graphs must be captured on a non-default stream.", Clues(), "DEFAULT_STREAM"),
        ("UserWarning: The CUDA Graph is empty.", Clues(), "EMPTY"),
        (INVALID, Clues(operator="aten::mul"), "SILENT"),
        (INVALID, Clues(operator="aten::nonzero"), "SILENT"),
    ],
)
def test_what_is_no_rule(said: str, clues: Clues, meaning: str) -> None:
    assert reason(said, clues) == (None, MEANINGS[meaning])


def test_mistakes_of_the_function_are_its_own() -> None:
    assert reason("KeyError: 'x'", Clues(operator="aten::mul"), mistake=True) == (None, MEANINGS["OWN"])
    assert reason("TypeError: can't convert cuda:0 device type tensor to numpy.", Clues(), mistake=True)[0] is (
        Rule.HOST_READ
    )


def test_a_copy_is_reported_with_its_direction() -> None:
    said = "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture"
    found = [
        reason(said, clues)[0]
        for clues in (
            Clues(operator="aten::copy_"),
            Clues(operator="aten::copy_", to_host=True),
            Clues(operator="aten::_to_copy", function="torch.Tensor.tolist"),
            Clues(function="torch.tensor"),
        )
    ]
    assert found == [Rule.HOST_COPY, Rule.HOST_READ, Rule.HOST_READ, Rule.HOST_COPY]


def test_what_was_running_in_words() -> None:
    told = [
        Clues(operator="aten::mul", function="torch.Tensor.mul", call="f()"),
        Clues(function="torch.Tensor.__repr__", call="f()"),
        Clues(function="torch.tensor"),
        Clues(call="otherlib.allocate()"),
        Clues(),
    ]
    assert [clues.at_work for clues in told] == [
        "aten::mul",
        HOST_READS["torch.Tensor.__repr__"],
        "torch.tensor()",
        "otherlib.allocate()",
        "",
    ]


class Inner(torch.nn.Module):
    """Calls a function, as a part of a model."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> Any:
        """Call it."""
        return self.body(x)


class Outer(torch.nn.Module):
    """A model of one part, whose path is ``parts.1``."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.parts = torch.nn.Sequential(torch.nn.Identity(), Inner(body))

    def forward(self, x: torch.Tensor) -> Any:
        """Call the part."""
        return self.parts(x)


@pytest.mark.gpu
class TestOnACard:
    """What only a card shows."""

    @pytest.fixture
    def graphs(self) -> Iterator[GraphCapture]:
        made = GraphCapture(root=ROOT, owner="this test")
        yield made
        made.close()

    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    def test_a_failed_capture_names_what_broke_it(
        self, graphs: GraphCapture, figure: Callable[[str], None], case: BrokenCase
    ) -> None:
        x = torch.linspace(-1.0, 1.0, 8, device="cuda")
        stream, before = torch.cuda.current_stream(), graphs.pools()
        with pytest.raises(CaptureError) as failure:
            graphs(Outer(case.body), x, warmup=case.warmup)
        told, text = failure.value.failure, str(failure.value)
        figure(f"failed capture: {case.key}: {told.operator or 'no operator'}, {told.error[:100]}")
        assert (told.operator, told.rule, told.meaning) == (case.clues.at_work, case.rule, case.meaning), text
        assert told.place.source.endswith("# breaks"), text
        assert told.place.module == "parts.1", text
        assert told.step == case.step, text
        assert told.unusable == "", text
        assert torch.cuda.current_stream() == stream
        left = {use.pool for use in graphs.pools().private} - {use.pool for use in before.private}
        assert left == {use.pool for use in told.orphans}, text
        assert all(f"left behind by this test: private pool {pool} keeps" in text for pool in left)
        assert torch.rand(3, device="cuda").sum().item() > 0
        graphs(lambda x: torch.nn.functional.dropout(x * 2), x).assert_matches_eager(replays=2)

    @pytest.mark.parametrize("key", MAYBE)
    def test_a_capture_works_or_is_explained(
        self, graphs: GraphCapture, figure: Callable[[str], None], key: str
    ) -> None:
        body, warmup = MAYBE[key]
        x = torch.linspace(-1.0, 1.0, 8, device="cuda")
        told = None
        try:
            graphs(Outer(body), x, warmup=warmup)
        except CaptureError as error:
            told = error.failure
        figure(f"capture may fail: {key}: {'it worked' if told is None else f'{told.operator}, {told.error[:100]}'}")
        if told is not None:
            assert told.operator, str(told)
            assert told.place.source.endswith("# breaks"), str(told)
            assert told.place.module == "parts.1", str(told)
        graphs(lambda x: x * 2, x).assert_matches_eager(replays=2)

    def test_callables_that_cannot_be_captured_are_explained(
        self, graphs: GraphCapture, figure: Callable[[str], None]
    ) -> None:
        x = torch.linspace(-1.0, 1.0, 8, device="cuda", requires_grad=True)
        stream, before = torch.cuda.current_stream(), graphs.pools()
        with pytest.raises(CaptureError) as failure:
            graphs.callables((torch.nn.Linear(8, 8).cuda(), Outer(CASES["item"].body)), ((x,), (x,)))
        told, text = failure.value.failure, str(failure.value)
        assert (told.function, told.operator) == ("callables[1] (Outer)", "aten::_local_scalar_dense"), text
        assert (told.rule, told.place.module) == (Rule.HOST_READ, "parts.1"), text
        assert told.place.source.endswith("# breaks"), text
        assert torch.cuda.current_stream() == stream
        left = {use.pool for use in graphs.pools().private} - {use.pool for use in before.private}
        figure(f"callables that cannot be captured leave {len(left)} pools")
        assert left == {use.pool for use in told.orphans}, text
        graphs.callables(torch.nn.Linear(8, 8).cuda(), (x,)).assert_matches_eager(steps=2)
