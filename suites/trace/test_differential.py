"""Random programs: nodes, versions and frees equal those of torch's own ``_memory_profiler``.

With ``HYPOTHESIS_PROFILE=full`` 2,000 programs and 500 training runs. About one program in a hundred makes torch's
validation give up, always for one fault: the profiler missed a free (of another thread, or of a tensor from before the
recording), the next tensor at the address got the same number, and torch takes both for one that is created twice. Our
reader distinguishes them, so that there is nothing to contradict, and notes the missed free; pinned below.
"""

from __future__ import annotations

import gc
import os
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cudamem_testing.strategies import random_programs as programs
from cudamem_testing.trace.profile import from_profile
from suites.trace.oracle import differences, graph_of, rows

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
PARTS = 20 if FULL else 2
PROGRAMS_PER_PART = 100 if FULL else 4
SO_LARGE = 10_000_000
"""Elements of a tensor that is mapped by itself, and so lies where the one before it was unmapped."""
TRIES = 20
"""For an address that is given twice: the system takes the highest gap that fits, so that is where a tensor just was,
if nothing else went there meanwhile. All are of one size, so that what a test takes does not depend on their number.
"""


def recorded(seed, kind):
    """A finished profile of a program, with what the collector frees."""
    run = programs.make(seed, kind).compile()
    flags = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    with warnings.catch_warnings(), profile(activities=[ProfilerActivity.CPU], **flags) as prof:
        warnings.simplefilter("ignore")
        run()
        gc.collect()
    return prof


def missed_frees(flow):
    """Whether the trace notes frees that the profiler did not record."""
    return any("frees were not recorded" in note for note in flow.notes)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
@pytest.mark.parametrize("kind", ["any", "training"])
def test_graph_versions_and_frees_equal_the_oracle(kind, part):
    count = PROGRAMS_PER_PART if kind == "any" else max(1, PROGRAMS_PER_PART // 4)
    for seed in range(part * count, (part + 1) * count):
        prof = recorded(seed, kind)
        flow = from_profile(prof).data_flow()
        try:
            graph = graph_of(prof)
        except AssertionError:
            assert missed_frees(flow), programs.make(seed, kind).source
            assert flow.diagnostics == ()
            continue
        assert differences(flow, graph) == [], programs.make(seed, kind).source
        assert flow.text(ids="profiler") == rows(graph), programs.make(seed, kind).source
        assert flow.diagnostics == ()


def test_a_missed_free_makes_the_oracle_give_up_and_not_us():
    def run():
        for _ in range(3):
            box = [torch.ones(SO_LARGE)]
            box[0].sin_()
            programs.in_thread(box.clear)

    for _ in range(TRIES):  # whether an address is used again is the operating system's choice
        flags = {"record_shapes": True, "profile_memory": True, "with_stack": True}
        with profile(activities=[ProfilerActivity.CPU], **flags) as prof:
            run()
        flow = from_profile(prof).data_flow()
        if missed_frees(flow):
            break
    with pytest.raises(AssertionError, match=r"version mismatch|input_version=None"):
        graph_of(prof)
    assert flow.diagnostics == ()
    assert flow.notes[0].endswith(" frees were not recorded: of other threads, or of memory from before the recording")
    assert flow.text(include=("aten::ones", "aten::sin_")).splitlines() == [
        "aten::ones                                 ->  T0(v0)",
        "aten::sin_                T0(v0)           ->  T0(v1)",
        "aten::ones                                 ->  T1(v0)",
        "aten::sin_                T1(v0)           ->  T1(v1)",
        "aten::ones                                 ->  T2(v0)",
        "aten::sin_                T2(v0)           ->  T2(v1)",
    ]


def test_the_generator_is_reproducible_and_covers_what_it_names():
    assert programs.make(7).source == programs.make(7).source
    text = "".join(programs.make(seed).source for seed in range(200))
    for feature in (
        "out=",
        "torch.cat",
        "_foreach_",
        "no_grad",
        "checkpoint",
        "Scale.apply",
        "in_thread",
        "record_function",
        ".t()",
        "requires_grad",
        "optim.Adam",
        "vmap",
        "torch.ones(7)",
        "del v",
    ):
        assert feature in text
    with pytest.raises(ValueError, match="kind 'none' is not known: any, training"):
        programs.make(1, "none")


def test_most_statements_of_generated_programs_run():
    failed = []

    class Suppress:
        def __init__(self, *kinds):
            self.kinds = kinds

        def __enter__(self):
            return self

        def __exit__(self, kind, error, traceback):
            failed.append(error is not None)
            return kind is not None and issubclass(kind, self.kinds)

    for seed in range(8):
        run = programs.make(seed).compile()
        run.__globals__["suppress"] = Suppress
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
    assert len(failed) > 80
    assert sum(failed) / len(failed) < 0.3
