"""``operator_memory`` in a run: texts, budgets, what is left open, and that nothing stays."""

from __future__ import annotations

import torch

BODY = """
    import pytest, torch
    from cudamem_testing import OverBudget

    @pytest.fixture
    def model():
        return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))

    def test_text(operator_memory, model):
        with operator_memory(model) as memory:
            model(torch.ones(64, 256)).sum().backward()
        memory.assert_by_module("", min_bytes="16KiB")
        memory.assert_summary("", top=2, min_bytes="16KiB")

    def test_over(operator_memory, model):
        with operator_memory(model) as memory:
            model(torch.ones(64, 256)).sum().backward()
        memory.assert_budget(phase="forward", peak="1MiB")
        memory.assert_budget(module="0", retained="64KiB")

    def test_left_open(operator_memory, model):
        operator_memory(model).__enter__()
        model(torch.ones(64, 256))

    def test_afterwards(model):
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
        assert _get_current_dispatch_mode_stack() == []

    def test_windows(operator_memory, cuda_memory):
        with cuda_memory.window("around") as around, operator_memory(device="cpu") as memory:
            torch.ones(1000)
            torch.ones(10)
        assert around.peak_growth == 4000
        assert [row.freed for row in memory.table.rows if row.freed] == [4000, 40]
        assert memory.table.notes == ()
"""
#: The number of the call. Before torch 2.11 backward detaches two gradients more.
FIRST_MM = 23 if torch.__version__ >= (2, 11) else 25
ACCEPTED = f'''\
    memory.assert_by_module("""
        module               allocated      freed  forward kept  backward kept       peak
        (model)                1.0 MiB          -     258.0 KiB      786.0 KiB  722.0 KiB
          0                  642.0 KiB          -     128.0 KiB      514.0 KiB  722.0 KiB
          1                  256.0 KiB          -     128.0 KiB      128.0 KiB  464.0 KiB
          2                  150.0 KiB          -             -      144.0 KiB  338.0 KiB
        (no module)           64.0 KiB          -             -              -  194.0 KiB
        (between operators)          -  578.0 KiB    -128.0 KiB     -448.0 KiB  722.0 KiB
        total                  1.1 MiB  582.0 KiB     130.0 KiB      338.0 KiB  722.0 KiB
        """, min_bytes="16KiB")
    memory.assert_summary("""
        call  operator             module  phase     allocated      freed  temporary       after
          {FIRST_MM}  aten::mm             0       backward  512.0 KiB          -          -   720.0 KiB
          11  aten::mm             2       backward  130.0 KiB          -          -   320.0 KiB
              (between operators)                            -  578.0 KiB          -  -578.0 KiB
              total                                    1.1 MiB  582.0 KiB          -   530.0 KiB
        """, top=2, min_bytes="16KiB")
'''


def test_texts_are_accepted_and_then_compared(run_inner, pytester):
    inner = run_inner(BODY, "-k", "text", "--cudamem-update=expected")
    assert inner.last == "1 passed, 4 deselected"
    assert inner.section("expected text")[0] == "2 expected texts written"
    text = (pytester.path / "test_it.py").read_text(encoding="utf-8")
    assert ACCEPTED in text, text
    for args in ([], ["--cudamem"]):
        inner = run_inner({}, *args)
        assert inner.last == "1 failed, 4 passed, 1 error", inner.out
        assert inner.outcomes["test_over"] == "failed"
        errors = [line[2:].strip() for line in inner.section("test_over") if line.startswith("E ")]
        assert errors[0].endswith(
            "OverBudget: cudamem: retained 642.0 KiB is over its budget of 64.0 KiB by 578.0 KiB (module 0, cpu)"
        )
        assert errors[2:5] == [
            "call  operator     module  phase     allocated  freed  temporary      after",
            f"{FIRST_MM}  aten::mm     0       backward  512.0 KiB      -          -  720.0 KiB",
            "2  aten::addmm  0       forward   128.0 KiB      -          -  192.0 KiB",
        ]
        assert not inner.retains
