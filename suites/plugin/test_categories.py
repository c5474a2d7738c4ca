"""The fixture ``memory_profile`` in a run: accounted for by the recorders, and budgets that say what memory was for."""

from __future__ import annotations

import re

import pytest

FILES = """
    import pytest
    import torch

    def step(model, x):
        model(x).sin().sum().backward()

    def parts():
        return torch.nn.Linear(256, 512), torch.ones(1024, 256)

    def test_accounted(memory_profile):
        model, x = parts()
        other = torch.ones(1024, 256)
        with memory_profile() as profile:
            with profile.region("step"):
                step(model, x)
            del other
        peak = profile.peak()
        assert peak.total == peak.measured
        assert peak.differences == ()
        kinds = [part.name for part in peak.by_category]
        assert kinds == ["ACTIVATION", "TEMPORARY", "AUTOGRAD_DETAIL", "INPUT", "unknown", "PARAMETER"]
        assert {str(one.stack.project_frame) for one in peak.held if one.stack.frames} == {"test_it.py:5 in step"}
        profile.assert_peak({"ACTIVATION": "4.5MiB"}, at_least={"PARAMETER": "512KiB", "total": 2**20})
        profile.assert_timeline('''
            MiB on cpu  peak  PARAMETER  INPUT  TEMPORARY  ACTIVATION  AUTOGRAD_DETAIL
            everything     8          1      1          2           2                2
              step         8          1      1          2           2                2
            ''')

    @pytest.mark.memory_budget(peak="1MiB")
    def test_marked(memory_profile):
        memory_profile(step, *parts())

    def test_around(memory_profile, cuda_memory):
        model, x = parts()
        with cuda_memory.budget(peak="1MiB"), memory_profile():
            step(model, x)

    def test_inside(memory_profile, cuda_memory):
        model, x = parts()
        with memory_profile() as profile:
            with cuda_memory.budget(peak="1MiB"):
                step(model, x)

    def test_elsewhere(memory_profile, cuda_memory):
        model, x = parts()
        memory_profile(step, model, x)
        with cuda_memory.budget(peak="1MiB"):
            y = torch.ones(1024, 1024)

    def test_peak(memory_profile):
        memory_profile(step, *parts()).assert_peak({"ACTIVATION": "1MiB"})
    """


PURPOSES = """\
for what, at the peak of cpu, in SinBackward0, at test_it.py:5 in step:
    2.0 MiB  3 blocks  ACTIVATION
    2.0 MiB   1 block  TEMPORARY
    2.0 MiB   1 block  AUTOGRAD_DETAIL
    1.0 MiB   1 block  INPUT
  514.0 KiB  2 blocks  PARAMETER""".splitlines()
OVER = """\
cudamem: peak 2.0 MiB is over its budget of 1.0 MiB by 1.0 MiB (ACTIVATION, cpu)
start 0 B, peak 2.0 MiB
peak of cpu: 7.5 MiB in 8 blocks
  in SinBackward0, at test_it.py:5 in step
by category
    2.0 MiB  3 blocks  ACTIVATION
    2.0 MiB   1 block  TEMPORARY
    2.0 MiB   1 block  AUTOGRAD_DETAIL
    1.0 MiB   1 block  INPUT
  514.0 KiB  2 blocks  PARAMETER
by module
  4.0 MiB  4 blocks  (outside of modules)
  2.0 MiB   1 block  model
  1.5 MiB  3 blocks  (before the recording)
by line
  4.0 MiB  2 blocks  test_it.py:5 in step  torch/autograd/graph.py _engine_run_backward
  2.0 MiB   1 block  test_it.py:5 in step  torch/nn/modules/linear.py Linear.forward
  1.5 MiB  3 blocks  (before the recording)
      4 B   1 block  test_it.py:5 in step
      4 B   1 block  test_it.py:5 in step  torch/autograd/__init__.py _make_grads
measured: 7.5 MiB, the same to the byte""".splitlines()


def told(done, name):
    """What a failed test says, from its first line of ours on."""
    lines = [re.sub("^E +(cudamem_testing[.a-z]+OverBudget: )|^E       ?", "", line) for line in done.section(name)]
    indent = 4 if name == "test_inside" else 0
    lines = [line[indent:] if line[:indent].isspace() else line for line in lines]
    return lines[next(place for place, line in enumerate(lines) if "cudamem: " in line) :]


def test_a_budget_names_categories_when_a_profile_saw_the_peak(run_inner):
    done = run_inner(FILES, "--cudamem")
    assert done.last == "5 failed, 1 passed", done.out
    for name in ("test_marked", "test_around", "test_inside"):
        lines = told(done, name)
        assert lines[2].startswith("over "), name
        assert "live at the peak: 7.5 MiB in 8 blocks, start" in lines[3], name
        first = lines.index(PURPOSES[0])
        assert lines[first : first + len(PURPOSES)] == PURPOSES, name
        assert lines.count(PURPOSES[0]) == 1
    assert not any(line.startswith("for what") for line in told(done, "test_elsewhere"))
    assert told(done, "test_peak")[: len(OVER)] == OVER
    assert [finding.cause for finding in done.test("test_marked").findings] == ["budget peak at most"]


def test_without_recorders_there_is_nothing_to_compare_with(run_inner):
    done = run_inner(
        """
        import torch

        def test_it(memory_profile):
            profile = memory_profile(lambda x: x.sin().cos(), torch.ones(1024, 256))
            peak = profile.peak("cpu")
            assert peak.total == 2**20 + 2**21 and peak.measured is None or peak.measured == peak.total
            profile.assert_peak(total="3MiB", at_least={"total": "3MiB"})
        """
    )
    assert done.last == "1 passed", done.out


@pytest.mark.parametrize("on", [[], ["--cudamem"]], ids=["off", "on"])
def test_two_lines_of_one_function_are_two_rows(run_inner, on):
    done = run_inner(
        """
        import torch

        def double(x):
            a = x * 2
            b = a + 1
            return a, b

        def test_it(memory_profile):
            peak = memory_profile(double, x=torch.zeros(2**18)).peak()
            assert [(part.name, part.nbytes >> 20) for part in peak.by_line] == [
                ("test_it.py:5 in double", 1),
                ("(before the recording)", 1),
                ("test_it.py:4 in double", 1),
            ]
            assert peak.moment == "in aten::add, at test_it.py:5 in double"
            assert (peak.measured is None) == MEASURED
        """.replace("MEASURED", str(not on)),
        *on,
    )
    assert done.last == "1 passed", done.out
