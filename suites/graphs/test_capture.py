"""Capturing: static inputs, warm-up, notes, failures explained, liveness; on a backend without a card."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cudamem_testing.graphs.captured import GraphError
from cudamem_testing.graphs.description import describe
from cudamem_testing.graphs.failure import CaptureError
from cudamem_testing.graphs.inputs import InputError
from cudamem_testing.graphs.liveness import LEFT, UNTOLD, Read, dead
from cudamem_testing.graphs.nodes import LevelError
from cudamem_testing.graphs.reasons import NESTED
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.session import GraphCapture, UnavailableError
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.records.expected.errors import TextMismatchError
from cudamem_testing.torch_api.graphs import storages_tell_their_death
from fixtures import models
from suites.graphs.fake import FakeBackend
from suites.versions import qualified

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    for module in ("capture", "callables"):  # a collection takes longer than everything else here
        monkeypatch.setattr(f"cudamem_testing.graphs.{module}.collect_garbage", lambda: None)
    return FakeBackend()


@pytest.fixture
def graphs(backend: FakeBackend) -> Iterator[GraphCapture]:
    torch.manual_seed(0)
    made = GraphCapture(backend, root=ROOT, owner="test_decode")
    yield made
    made.close()


def double(x: torch.Tensor, *, bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    y = x * 2 if bias is None else x * 2 + bias
    return {"y": y, "sum": y.sum()}


def test_replays_with_new_inputs(graphs: GraphCapture) -> None:
    x, bias = torch.ones(3), torch.zeros(3)
    captured = graphs(double, x, bias=bias)
    assert captured.replay(torch.full((3,), 5.0), bias=torch.ones(3))["y"].tolist() == [11, 11, 11]
    assert captured()["sum"].item() == 33
    assert x.tolist() == [1, 1, 1]  # the static input is a copy
    first, second = captured.views(x, bias=bias), captured.views(torch.zeros(3), bias=bias)
    assert first["y"].data_ptr() == second["y"].data_ptr() == captured.outputs["y"].data_ptr()
    assert str(captured) == "graph of function double in pool (2, 0): 28 B added by its capture"


def test_a_report_describes_its_nodes_pool_and_replays(
    graphs: GraphCapture, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = graphs(double, torch.ones(3), operators=True)
    captured()
    captured()
    assert describe(captured).splitlines() == [
        "graph of function double in pool (2, 0): 16 B added by its capture",
        "2 replays",
        "nodes:",
        "   2 kernel",
        "   aten::mul  kernel",
        "   aten::sum  kernel",
        "pool:",
        "   private pool (2, 0): 16 B reserved in 2 segments, 16 B allocated, 0 B unused",
        "outputs:",
        "   output['y'] float32[3] on cpu",
        "   output['sum'] float32[] on cpu",
        "used from outside:",
        "   float32[3] on cpu (12 B), read by aten::mul",
    ]
    monkeypatch.setattr(backend, "nodes", lambda graph: 1 / 0)
    assert describe(captured).splitlines()[2:4] == ["nodes: unknown: ZeroDivisionError: division by zero", "pool:"]
    captured.reset()
    assert describe(captured).splitlines()[1:] == ["2 replays", "the graph was reset: its nodes and its pool are gone"]


def test_one_tensor_twice_stays_one(graphs: GraphCapture) -> None:
    x = torch.ones(3)
    captured = graphs(lambda a, b: a.add_(1) + b, x, x)
    assert captured.inputs.leaves[0][1] is captured.inputs.leaves[1][1]
    assert captured.replay(torch.zeros(3), torch.zeros(3)).tolist() == [2, 2, 2]


def test_what_the_warm_up_did_to_the_inputs_is_undone(graphs: GraphCapture) -> None:
    captured = graphs(lambda x: x.add_(1), torch.zeros(3), warmup=3)
    assert captured.inputs.leaves[0][1].tolist() == [1, 1, 1]  # this backend runs the capture too


def test_inputs_that_do_not_fit(graphs: GraphCapture) -> None:
    captured = graphs(lambda batch, scale: batch["x"] * scale + batch["y"], {"x": torch.ones(3), "y": torch.ones(3)}, 2)
    with pytest.raises(InputError) as failure:
        captured.replay({"x": torch.ones(4, dtype=torch.float64), "y": torch.ones(3, device="meta")}, 3)
    assert str(failure.value) == (
        "the inputs do not fit those of the capture:\n"
        "   args[0]['x']: shape [4], captured with [3]; dtype torch.float64, captured with torch.float32\n"
        "   args[0]['y']: device meta, captured with cpu\n"
        "   args[1]: 3, captured with 2, which every replay uses"
    )
    with pytest.raises(InputError) as failure:
        captured.replay({"x": torch.ones(3)}, 2)
    assert str(failure.value) == (
        "the inputs differ in structure from those of the capture: args[0]['x'], args[1]; "
        "captured: args[0]['x'], args[0]['y'], args[1]"
    )
    with pytest.raises(InputError, match=r"^the inputs differ in structure .*: nothing; captured: "):
        captured.inputs.copy_in((), {})


def test_the_order_of_things(graphs: GraphCapture, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudamem_testing.graphs.capture.collect_garbage", lambda: backend.events.append("collect"))

    def collecting(x: torch.Tensor) -> torch.Tensor:
        backend.events.append("call, collector on" if gc.isenabled() else "call, collector off")
        return x * 2

    assert gc.isenabled()
    graphs(collecting, torch.ones(2), warmup=2)
    on = "call, collector on"
    assert backend.events == ["warm up", on, on, "collect", "capture", "call, collector off"]
    assert gc.isenabled()


def test_generators_among_the_arguments_are_registered(graphs: GraphCapture, backend: FakeBackend) -> None:
    generator = torch.Generator()
    captured = graphs(lambda x, generator: x * 2, torch.ones(2), generator)
    assert captured.graph.generators == [generator]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"warmup": -1}, "warmup=-1 is not a number of calls"),
        ({"warmup": True}, "warmup=True is not a number of calls"),
        ({"capture_error_mode": "loose"}, "capture_error_mode='loose' is not one of global, thread_local, relaxed"),
    ],
)
def test_wrong_options(graphs: GraphCapture, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        graphs(double, torch.ones(2), **options)


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        return y * y.max().item()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.ReLU(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_failure_is_explained(graphs: GraphCapture, backend: FakeBackend) -> None:
    backend.leaves_orphans = True
    with pytest.raises(CaptureError) as failure:
        graphs(Model(), torch.ones(3), lint=True)
    line = Block.forward.__code__.co_firstlineno + 2
    assert str(failure.value) == (
        f"the capture of Model failed at suites/graphs/test_capture.py:{line} in {qualified('Block.forward')}: "
        "return y * y.max().item()\n"
        "   aten::_local_scalar_dense was running, in module blocks.1\n"
        "   RuntimeError: CUDA error: operation not permitted when stream is capturing\n"
        "   host read: the host reads a value while the work that makes it is only recorded: the capture fails\n"
        "   do: keep it on the device (torch.where, torch.clamp, index_select), or read it after the replay\n"
        "   left behind by test_decode: private pool (2, 0) keeps 2.0 MiB\n"
        "   left behind by test_decode: private pool (3, 0) keeps 2.0 MiB\n"
        "   the lint had found this line"
    )
    assert backend.events[-1] == "recover"
    assert failure.value.__cause__ is None
    graphs(double, torch.ones(3)).assert_matches_eager()


def test_the_function_can_ask_whether_it_is_captured(graphs: GraphCapture) -> None:
    seen: list[bool] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        seen.append(graphs.is_current_stream_capturing())
        return x * 2

    graphs(step, torch.ones(3), warmup=2)
    assert [*seen, graphs.is_current_stream_capturing()] == [False, False, True, False]


def test_a_capture_inside_of_a_capture_is_refused(graphs: GraphCapture) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        graphs(step, x, warmup=0)
        return x

    with pytest.raises(CaptureError) as failure:
        graphs(outer, torch.ones(3), warmup=0)
    told = failure.value.failure
    assert told.error == "RuntimeError: function step cannot be captured here: the current stream captures already"
    assert told.meaning == NESTED
    graphs(step, torch.ones(3)).assert_matches_eager()


def test_an_interrupt_is_passed_on(graphs: GraphCapture, backend: FakeBackend) -> None:
    def interrupted(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graphs(interrupted, torch.ones(3), warmup=0)
    assert backend.events[-1] == "recover"
    assert gc.isenabled()


def watched() -> bool:
    """Whether operators are being noted."""
    return any(type(mode).__name__ in ("_Noted", "_Operators") for mode in _get_current_dispatch_mode_stack())


def test_the_capture_itself_is_not_watched(graphs: GraphCapture) -> None:
    """Modes change what autograd's formulas do: the function sees one in the last call of the warm-up alone."""
    seen: list[bool] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        seen.append(watched())
        return x * 2

    graphs(step, torch.ones(3))
    graphs(step, torch.ones(3), checks=False)
    graphs(step, torch.ones(3), warmup=0)
    graphs(step, torch.ones(3), warmup=1, operators=True)
    assert seen == [False, False, True, False] + [False] * 4 + [True] + [True, True]


def test_a_formula_that_fails_unwatched_alone(graphs: GraphCapture, backend: FakeBackend) -> None:
    x = torch.linspace(1, 2, 4).requires_grad_()

    def step() -> torch.Tensor:
        (gradient,) = torch.autograd.grad(x.prod(), x)
        if not watched() and backend.events[-1] == "capture":
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return gradient

    with pytest.raises(CaptureError) as failure:
        graphs(step)
    told = failure.value.failure
    assert (told.operator, told.rule) == ("backward of ProdBackward0", Rule.HOST_READ)


def test_a_tensor_left_by_the_warm_up_is_an_input(graphs: GraphCapture) -> None:
    """The capture reads the tensor that the last call put there, and puts another one there."""
    state = {"last": torch.zeros(3)}

    def step(x: torch.Tensor) -> torch.Tensor:
        state["last"] = state["last"] + x
        return state["last"] * 2

    captured = graphs(step, torch.ones(3))
    assert [(read.operator, read.dead) for read in captured.reads()] == [("aten::add", False), ("the capture", True)]


def test_a_failed_capture_keeps_no_tensor(graphs: GraphCapture) -> None:
    import weakref

    made: list[weakref.ref[torch.Tensor]] = []

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        made.append(weakref.ref(y))
        return y * y.sum().item()

    with pytest.raises(CaptureError) as failure:
        graphs(broken, torch.ones(3), warmup=0)
    assert [reference() for reference in made] == [None, None]  # the capture, and the second look
    assert failure.value.failure.operator == "aten::_local_scalar_dense"


def test_the_lint_is_compared_with_the_capture(graphs: GraphCapture) -> None:
    captured = graphs(lambda x: torch.linalg.inv(x), torch.eye(3), lint=True)
    assert captured.lint is not None
    (finding,) = captured.lint.findings
    assert finding.operation == "torch.linalg.inv()"
    assert captured.notes == (f"the lint expected a failure that did not happen: {finding.text}",)
    assert str(captured).splitlines()[1] == f"note: {captured.notes[0]}"


def test_reads_and_writes(graphs: GraphCapture, backend: FakeBackend) -> None:
    weight, average = torch.ones(3), torch.zeros(3)
    backend.stack_of = {weight.data_ptr(): Stack((Frame("model.py", 3, "build"),))}

    def step(x: torch.Tensor) -> torch.Tensor:
        average.mul_(0.5).add_(x)
        return x * weight[1:2] + average

    captured = graphs(step, torch.ones(3))
    told = [(read.tensor, read.operator, read.written, read.size, read.dead) for read in captured.reads()]
    assert told == [
        ("float32[3] on cpu", "aten::mul_", True, 12, False),
        ("float32[3] on cpu", "aten::add_", False, 12, False),
        ("float32[3] on cpu", "aten::slice", False, 12, False),
    ]
    assert captured.reads()[2].created == Stack((Frame("model.py", 3, "build"),))
    assert len(captured.written()) == 1
    assert captured.dead_reads() == ()


def test_the_text_of_a_dead_input(graphs: GraphCapture, backend: FakeBackend) -> None:
    held = {"bias": torch.ones(3)}
    backend.stack_of = {held["bias"].data_ptr(): Stack((Frame("model.py", 3, "build"),))}
    captured = graphs(lambda x: x + held["bias"], torch.ones(3))
    here = test_the_text_of_a_dead_input.__code__.co_firstlineno
    del held["bias"]
    captured.replay()
    captured.replay()
    with pytest.raises(GraphError) as failure:
        captured.assert_inputs_alive()
    inner = f"{test_the_text_of_a_dead_input.__name__}.<lambda>"
    name = f"suites/graphs/test_capture.py:{{}} in {test_the_text_of_a_dead_input.__name__}"
    assert str(failure.value) == (
        f"1 freed tensor used by the graph, replayed since at {name.format(here + 6)}:\n"
        "float32[3] on cpu (12 B), read by aten::add\n"
        "   created   model.py:3 in build\n"
        f"   captured  suites/graphs/test_capture.py:{here + 3} in {qualified(inner)}\n"
        f"   freed     {name.format(here + 5) if storages_tell_their_death() else UNTOLD}"
    )


def test_what_lies_in_the_pool_is_not_dead() -> None:
    reads = (Read(100, 8, "a", "op", dead=True), Read(200, 8, "b", "op", dead=True), Read(300, 8, "c", "op"))
    assert dead(reads) == reads[:2]
    assert dead(reads, lambda address: address < 150) == reads[1:2]


def test_nodes_and_operators(graphs: GraphCapture, backend: FakeBackend) -> None:
    captured = graphs(lambda x: (x.t() @ x).relu().clone(), torch.ones(3, 3), operators=True)
    captured.assert_nodes(
        """
        kernel x2
        copy
        """
    )
    captured.assert_nodes(
        """
        aten::mm  kernel
        aten::relu  kernel
        aten::clone  copy
        """,
        level="operators",
    )
    with pytest.raises(TextMismatchError, match=r"^1 line more: copy\nthe text differs"):
        captured.assert_nodes("kernel x2")
    backend.tells_nodes = False
    for watched in (True, False):
        with pytest.raises(LevelError, match=r"capture with operators=True, and have NVIDIA's cuda-bindings installed"):
            graphs(double, torch.ones(3), operators=watched).assert_nodes("", level="operators")


def test_without_checks(graphs: GraphCapture) -> None:
    captured = graphs(double, torch.ones(3), checks=False)
    captured.assert_no_allocations()
    captured.assert_pool("1KiB")
    with pytest.raises(LevelError, match=r"^the capture noted no reads: capture with checks=True$"):
        captured.assert_inputs_alive()


def test_a_shared_pool(graphs: GraphCapture) -> None:
    pool = graphs.pool_handle()
    first, second = graphs(double, torch.ones(4), pool=pool), graphs(double, torch.ones(2), pool=pool)
    assert first.pool == second.pool == pool
    sharing = graphs.sharing(double, [("four", (torch.ones(4),)), ("two", (torch.ones(2),))])
    assert [step.name for step in sharing.steps] == ["four", "two"]
    assert sharing.separate == sharing.shared > 0
    assert [use.pool for use in graphs.pools().private] == [pool]
    graphs.close()
    assert graphs.pools().private == ()


def test_without_a_card() -> None:
    made = GraphCapture()
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UnavailableError, match=r"^CUDA graphs need a CUDA device, and torch sees none$"):
        made(double, torch.ones(3))
    assert made.check(double, torch.ones(3)).text == "no findings"


@pytest.mark.slow
def test_a_decode_step_of_gpt2(graphs: GraphCapture) -> None:
    """With a static cache replays equal eager steps; with a growing one the graph keeps reading what it was."""
    from transformers import DynamicCache, StaticCache

    model, ids = models.gpt2().eval(), models.tokens(2, 4)
    with torch.no_grad():
        caches = [StaticCache(model.config, max_cache_len=16) for _ in range(2)]
        for cache in caches:
            models.extend(model, ids, cache)
        captured = graphs(lambda token: models.extend(model, token, caches[0]), ids[:, :1], warmup=1)
        for cache in caches:
            cache.reset()
            models.extend(model, ids, cache)
        for _ in range(6):
            token = models.tokens(2, 1)
            torch.testing.assert_close(captured.replay(token), models.extend(model, token, caches[1]))
        captured.assert_inputs_alive()
        captured.assert_params_current()
        growing = DynamicCache()
        models.extend(model, ids, growing)
        captured = graphs(lambda token: models.extend(model, token, growing), ids[:, :1], warmup=1)
    with pytest.raises(GraphError, match=r"growing.layers\[0\].keys is another tensor now: float32\[2, 4, 6, 64\]"):
        captured.assert_params_current()
    assert [read.read_at for read in captured.reads() if read.dead] == [LEFT] * 8  # keys and values of four layers


def test_after_a_reset(graphs: GraphCapture) -> None:
    """What would look at nothing says so; that the memory is gone can still be asserted."""
    captured = graphs(double, torch.ones(3))
    captured.reset()
    captured.reset()
    uses: list[Callable[[], object]] = [
        captured.replay,
        captured.views,
        captured.assert_matches_eager,
        captured.assert_no_allocations,
        captured.assert_inputs_alive,
        captured.assert_params_current,
        captured.assert_outputs_not_overwritten,
        captured.assert_static_grads,
        captured.assert_nodes,
        captured.nodes,
    ]
    for use in uses:
        with pytest.raises(GraphError, match=r"^this graph was reset: capture the function again$"):
            use()
    captured.assert_pool(0)
    assert captured.pools().private == ()
