"""Texts of categories, of the timeline and of the peak, and limits on it: to the letter."""

from __future__ import annotations

import gc
import textwrap

import pytest
import torch

from cudamem_testing.model.limits import LimitError
from cudamem_testing.model.sizes import _HINT
from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.trace.places import region_name
from cudamem_testing.trace.profile import MemoryProfile, memory_profile
from cudamem_testing.trace.series import NAMES
from cudamem_testing.trace.timeline_text import unit_of
from cudamem_testing.windows.regions import OverBudget
from cudamem_testing.wording.findings import text


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 128, bias=False)
        self.second = torch.nn.Linear(128, 8, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.fixture(scope="module")
def profile():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step(x, target):
        optimizer.zero_grad()
        with torch.profiler.record_function("forward"):
            loss = torch.nn.functional.mse_loss(net(x), target)
        with torch.profiler.record_function("backward"):
            loss.backward()
        optimizer.step()
        return {"loss": loss}

    x, target = torch.ones(256, 64), torch.zeros(256, 8)
    step(x, target)
    # Where an earlier profile knew their addresses, frees of older blocks would show: none may happen meanwhile.
    optimizer.zero_grad()
    gc.collect()
    return MemoryProfile()(step, x=x, target=target)


def same(text, expected):
    assert text.strip("\n") == textwrap.dedent(expected).strip("\n")


def test_categories(profile):
    same(
        profile.categories().text(exclude="MmBackward0"),
        """
        x:       T0 (INPUT)
        target:  T1 (INPUT)
        loss:    T7 (ACTIVATION)

        -- forward ---------------------------------------------------------------------
        aten::linear              T0 (INPUT), T2 (PARAMETER)                    ->  T3 (ACTIVATION)
        aten::relu                T3 (ACTIVATION)                               ->  T4 (ACTIVATION)
        aten::linear              T4 (ACTIVATION), T5 (PARAMETER)               ->  T6 (ACTIVATION)
        aten::broadcast_tensors   T6 (ACTIVATION), T1 (INPUT)                   ->
        aten::mse_loss            T6 (ACTIVATION), T1 (INPUT)                   ->  T7 (ACTIVATION)
        -- backward --------------------------------------------------------------------
        aten::ones_like           T7 (ACTIVATION)                               ->  T8 (ACTIVATION)
        MseLossBackward0          T8 (ACTIVATION), T6 (ACTIVATION), T1 (INPUT)  ->  T9 (AUTOGRAD_DETAIL)
        TBackward0                T10 (GRADIENT)                                ->
        AccumulateGrad            T10 (GRADIENT)                                ->
        ReluBackward0             T11 (AUTOGRAD_DETAIL), T4 (ACTIVATION)        ->  T12 (AUTOGRAD_DETAIL)
        TBackward0                T13 (GRADIENT)                                ->
        AccumulateGrad            T13 (GRADIENT)                                ->
        -- SGD.step --------------------------------------------------------------------
        aten::mul_                T14 (OPTIMIZER_STATE), T15 (INPUT)            ->  T14 (OPTIMIZER_STATE)
        aten::add_                T14 (OPTIMIZER_STATE), T13 (GRADIENT)         ->  T14 (OPTIMIZER_STATE)
        aten::add_                T2 (PARAMETER), T14 (OPTIMIZER_STATE)         ->  T2 (PARAMETER)
        aten::mul_                T16 (OPTIMIZER_STATE), T17 (INPUT)            ->  T16 (OPTIMIZER_STATE)
        aten::add_                T16 (OPTIMIZER_STATE), T10 (GRADIENT)         ->  T16 (OPTIMIZER_STATE)
        aten::add_                T5 (PARAMETER), T16 (OPTIMIZER_STATE)         ->  T5 (PARAMETER)
        """,
    )


def test_filters(profile):
    same(
        profile.categories().text(include=["aten::linear", "aten::relu"], min_bytes="16KiB", regions=False),
        """
        x:       T0 (INPUT)
        target:  T1 (INPUT)
        loss:    T5 (ACTIVATION)

        aten::linear              T0 (INPUT), T2 (PARAMETER)  ->  T3 (ACTIVATION)
        aten::relu                T3 (ACTIVATION)             ->  T4 (ACTIVATION)
        aten::linear              T4 (ACTIVATION)             ->
        """,
    )


def test_the_dialect_of_torch(profile):
    same(
        profile.categories().text(ids="profiler", include=["aten::linear", "AddmmBackward0", "SGD*", "ReluBackward0"]),
        """
        -- forward ----------------------------------------------------------------------------------------------
        aten::linear                             2 (INPUT), 1 (PARAMETER)                      -> 3 (ACTIVATION)
        aten::linear                             4 (ACTIVATION), 5 (PARAMETER)                 -> 6 (ACTIVATION)

        -- backward ---------------------------------------------------------------------------------------------
        ReluBackward0                            15 (AUTOGRAD_DETAIL), 4 (ACTIVATION)          -> 16 (AUTOGRAD_DETAIL)
        """,
    )
    with pytest.raises(ValueError, match="ids='allocation' is not known"):
        profile.categories().text(ids="allocation")


def test_the_timeline_is_coarse(profile):
    same(
        profile.timeline().text(unit="KiB"),
        """
        KiB on cpu       peak  PARAMETER  OPTIMIZER_STATE  INPUT  ACTIVATION  GRADIENT  AUTOGRAD_DETAIL
        everything        540         36               36     72         136         4              256
          SGD.zero_grad   144         36               36     72
          forward         400         36               36     72         256
          backward        540         36               36     72         136         4              256
          SGD.step        188         36               36     72           8        36
        """,
    )
    same(
        profile.timeline().text(unit="MiB"),
        """
        MiB on cpu       peak
        everything          1
          SGD.zero_grad     0
          forward           0
          backward          1
          SGD.step          0
        """,
    )
    same(
        profile.timeline().text(by="module", unit="KiB", depth=2, min_bytes="1KiB"),
        """
        KiB on cpu  peak  PARAMETER  OPTIMIZER_STATE  INPUT  ACTIVATION  GRADIENT  AUTOGRAD_DETAIL
        everything   540         36               36     72         136         4              256
          Net        400         36               36     72         256
            Linear   272         36               36     72         128
            Linear   280         36               36     72         136
        """,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "line"}, "by='line' is not known: write by='region' or by='module'"),
        ({"unit": "pages"}, "unit='pages' is not known: write one of B, KiB, MiB, GiB, kB, MB, GB"),
        ({"device": "cuda"}, "no memory of cuda is in the trace (devices: cpu)"),
    ],
)
def test_wrong_options(profile, options, message):
    with pytest.raises(ValueError) as caught:
        profile.timeline().text(**options)
    assert str(caught.value) == message


PEAK = """
peak of cpu: 540.0 KiB in 12 blocks
  in ReluBackward0, Net, region backward, at suites/trace/test_category_text.py:43 in step
by category
  256.0 KiB  2 blocks  AUTOGRAD_DETAIL
  136.0 KiB  3 blocks  ACTIVATION
   72.0 KiB  2 blocks  INPUT
   36.0 KiB  2 blocks  PARAMETER
   36.0 KiB  2 blocks  OPTIMIZER_STATE
    4.0 KiB   1 block  GRADIENT
by module
  256.0 KiB  2 blocks  Net
  144.0 KiB  6 blocks  (before the recording)
  132.0 KiB  2 blocks  Net > Linear
    8.0 KiB  2 blocks  (outside of modules)
by line
  260.0 KiB  3 blocks  suites/trace/test_category_text.py:43 in step  torch/autograd/graph.py _engine_run_backward
  144.0 KiB  6 blocks  (before the recording)
  128.0 KiB   1 block  suites/trace/test_category_text.py:29 in forward
    8.0 KiB   1 block  suites/trace/test_category_text.py:41 in step  torch/nn/functional.py mse_loss
        4 B   1 block  suites/trace/test_category_text.py:43 in step  torch/autograd/__init__.py _make_grads
"""


def test_the_peak(profile):
    assert str(profile.peak("cpu")) == PEAK.strip("\n")


def test_the_peak_as_blocks(profile):
    peak = profile.peak()
    live = peak.live
    assert live.total == peak.total == sum(part.nbytes for part in peak.by_category)
    assert sum(part.nbytes for part in peak.by_module) == sum(part.nbytes for part in peak.by_line) == peak.total
    assert len(live) == len(peak.held) == sum(part.pieces for part in peak.by_line)
    assert {str(block.device) for block in live} == {"cpu"}
    assert peak.measured is None
    assert peak.differences == ()


def test_limits_on_the_peak(profile):
    profile.assert_peak({"ACTIVATION": "400KiB", "unknown": 0}, total={"cpu": "600KiB"}, at_least={"GRADIENT": 1})
    with pytest.raises(OverBudget) as caught:
        profile.assert_peak({"ACTIVATION": "1KiB"}, at_least={"PARAMETER": "1MiB"})
    assert [text(finding).splitlines()[0] for finding in caught.value.findings] == [
        "cudamem: peak 136.0 KiB is over its budget of 1.0 KiB by 135.0 KiB (ACTIVATION, cpu)",
        "cudamem: peak 36.0 KiB is under its lower bound of 1.0 MiB by 988.0 KiB (PARAMETER, cpu)",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"categories": {"WEIGHT": 1}},
            f"there is no category 'WEIGHT': write {', '.join(NAMES)}",
        ),
        ({}, "sets no limit: write for example {'ACTIVATION': '40MiB'}"),
        (
            {"categories": {"INPUT": "much"}},
            f"INPUT: peak: size 'much' is not understood: {_HINT}",
        ),
    ],
)
def test_limits_that_cannot_be_read(profile, arguments, message):
    with pytest.raises(LimitError) as caught:
        profile.assert_peak(**arguments)
    assert str(caught.value) == message


def test_names_of_regions():
    assert [
        region_name(name) for name in ("forward", "Optimizer.step#Adam.step", "Optimizer.zero_grad#A.zero_grad")
    ] == [
        "forward",
        "Adam.step",
        "A.zero_grad",
    ]


def test_a_picture(profile, tmp_path):
    path = profile.timeline().plot(tmp_path / "step.svg", title="a step")
    assert path == tmp_path / "step.svg"
    from cudamem_testing.trace.picture import picture

    drawn = picture(profile.timeline().series())
    assert (drawn.title, drawn.peak_text) == ("Memory of cpu by category", "peak 540.0 KiB")
    assert [band.name for band in drawn.bands] == ["SGD.zero_grad", "forward", "backward", "SGD.step"]


@pytest.mark.parametrize(("elements", "unit"), [(4 << 20, "MiB"), (1 << 20, "KiB"), (64, "B")])
def test_a_new_table_has_the_largest_unit_that_shows_something(elements, unit):
    profile = memory_profile(lambda: torch.ones(elements).sin())
    text = profile.timeline().text()
    assert text.startswith(f"{unit} on cpu ")
    assert unit_of(text) == unit


def test_a_table_of_zeros_is_refused():
    profile = memory_profile(lambda: torch.ones(64).sin())
    message = "every number would be 0 in MiB, for the peak is 512 B: write a smaller unit="
    with pytest.raises(ValueError, match=f"^{message}$"):
        profile.timeline().text(unit="MiB")


def test_a_table_follows_the_unit_of_the_text_at_the_call():
    profile = memory_profile(lambda: torch.ones(1 << 20).sin())
    with pytest.raises(TextMismatchError, match=r"(?s)-MiB on cpu +peak.*MiB on cpu  peak.*everything +8"):
        profile.assert_timeline("MiB on cpu  peak\n  everything   9")
    assert unit_of("nonsense") is None
