"""The timeline's maximum of five models equals the recorder's peak, to the byte."""

from __future__ import annotations

import os
import warnings

import pytest

from suites.peaks import MODELS, MODES, profiled, tracking

ALL = [(name, mode) for name in MODELS for mode in MODES]
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
QUICK = [("MLP", "step"), pytest.param("convolutional", "autocast, checkpoints", marks=pytest.mark.slow)]


def check(name, mode, device):
    with tracking(device) as tracker, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if device == "cpu" and not tracker.recorders[0].tells_blocks:
            pytest.skip("only the compiled recorder records single blocks of the CPU")
        profile = profiled(tracker, name, mode, device)
    peak = profile.peak(device)
    assert (peak.total, peak.differences) == (peak.measured, ())
    kinds = {part.name for part in peak.by_category}
    assert {"PARAMETER", "OPTIMIZER_STATE"} <= kinds or mode == "forward"
    columns = profile.timeline().series(device)
    assert min(map(min, columns.sizes.values())) == 0
    assert [span.name for span in columns.spans if span.depth == 0][:2] == ["forward", "backward"][
        : 1 + (mode != "forward")
    ]


@pytest.mark.parametrize(("name", "mode"), ALL if FULL else QUICK)
def test_on_the_cpu(name, mode):
    check(name, mode, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mode"), ALL)
def test_on_a_card(name, mode):
    check(name, mode, "cuda:0")
