"""The CUDA backend: its order of calls against a stand-in for torch.cuda, and on a card what only a card shows."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cudamem_testing.graphs.cuda import CudaBackend
from cudamem_testing.graphs.description import describe
from cudamem_testing.graphs.failure import CaptureError
from cudamem_testing.graphs.lint import lint
from cudamem_testing.graphs.nodes import LevelError
from cudamem_testing.graphs.rules import Rule
from cudamem_testing.graphs.session import GraphCapture
from cudamem_testing.snapshots.fragmentation import fragmentation
from fixtures import models
from fixtures.zoo.graphs_lint import CASES, LintCase

ROOT = str(Path(__file__).parents[2])
Figure = Callable[[str], None]


class Graph:
    """Notes what is done to it."""

    def __init__(self, events: list[str], fails: str = "") -> None:
        self.events, self.fails = events, fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.events.append(f"{name}{args or ''}{kwargs or ''}")
            if name == self.fails:
                raise RuntimeError(f"{name} failed")
            return {"pool": (4, 1)}.get(name)

        return call


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda, whose calls are noted and not executed."""
    noted: list[str] = []

    class Stream:
        def __init__(self, device: Any = None) -> None:
            noted.append(f"new stream {device}")

        def wait_stream(self, other: Any) -> None:
            noted.append(f"{self} waits for {other}")

        def __repr__(self) -> str:
            return "side"

    outer = Stream()
    streams: list[Any] = [outer]
    monkeypatch.setattr(Stream, "__repr__", lambda self: "outer" if self is outer else "side")
    noted.clear()

    @contextlib.contextmanager
    def on(stream: Any) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    def set_stream(stream: Any) -> None:
        noted.append(f"current: {stream}")
        streams.append(stream)

    replacements: dict[str, Any] = {
        "Stream": Stream,
        "stream": on,
        "set_stream": set_stream,
        "current_stream": lambda device=None: streams[-1],
        "current_device": lambda: 0,
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": lambda device=None: noted.append("synchronize"),
        "empty_cache": lambda: noted.append("empty cache"),
        "is_available": lambda: True,
    }
    for name, value in replacements.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("cudamem_testing.torch_api.graphs.clear_host_cache", lambda: noted.append("empty host cache"))
    return noted


def test_a_capture_does_what_torch_does(events: list[str]) -> None:
    backend, graph = CudaBackend(), Graph(events)
    with backend.capturing(graph, (7, 0), None, "relaxed"):
        events.append("work")
    assert events == [
        "synchronize",
        "empty cache",
        "empty host cache",
        "new stream cuda:0",
        "current: side",
        "capture_begin((7, 0),){'capture_error_mode': 'relaxed'}",
        "work",
        "capture_end",
        "current: outer",
        "instantiate",
    ]


def test_a_failure_restores_the_stream(events: list[str]) -> None:
    backend, graph = CudaBackend(), Graph(events, fails="capture_end")
    with (
        pytest.raises(RuntimeError, match="capture_end failed") as failure,
        backend.capturing(graph, None, None, "global"),
    ):
        raise ValueError("in the work")
    assert isinstance(failure.value.__context__, ValueError)
    assert events[-2:] == ["capture_end", "current: outer"]


def test_a_capture_always_ends_on_its_own_stream(events: list[str]) -> None:
    """Torch refuses to end it on another one, and it would go on."""
    backend, graph = CudaBackend(), Graph(events, fails="capture_end")
    with (
        pytest.raises(RuntimeError, match="capture_end failed"),
        backend.capturing(graph, None, None, "global"),
    ):
        torch.cuda.set_stream("another")  # type: ignore[arg-type]
    assert events[-5:] == ["current: another", "capture_end", "current: side", "capture_end", "current: outer"]


def test_the_stream_that_is_in_use(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert CudaBackend().here() == (7, False)
    monkeypatch.setattr("cudamem_testing.torch_api.graphs.capture_intact", lambda stream: stream != 7)
    assert (CudaBackend().intact(7), CudaBackend().intact(8)) == (False, True)


def test_warm_up_runs_on_the_stream_that_captures(events: list[str]) -> None:
    backend = CudaBackend()
    with backend.warming(None):
        events.append(f"work on {torch.cuda.current_stream()}")
    with backend.capturing(Graph([]), None, None, "global"):
        events.append(f"capture on {torch.cuda.current_stream()}")
    assert events[:5] == [
        "new stream cuda:0",
        "side waits for outer",
        "work on side",
        "outer waits for side",
        "synchronize",
    ]
    assert "capture on side" in events
    assert len([event for event in events if event.startswith("new stream")]) == 1


def test_a_given_stream_is_used(events: list[str]) -> None:
    given: Any = SimpleNamespace()
    with CudaBackend().capturing(Graph(events), None, given, "global"):
        assert torch.cuda.current_stream() is given


def test_a_successful_capture_resets_generators_after_a_failure(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[Graph] = []

    def new() -> Graph:
        probes.append(Graph(events))
        return probes[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    real = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: real(*shape))
    CudaBackend().recover(Graph(events, fails="reset"))
    assert [event for event in events if "capture" in event or event == "reset"] == [
        "reset",
        "capture_begin",
        "capture_end",
        "reset",
    ]
    assert events[-1] == "empty cache"


def test_a_failed_graphing_restores_the_stream(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch leaves its own stream current."""

    def refuse(*args: Any, **options: Any) -> Any:
        torch.cuda.set_stream("torch's own")  # type: ignore[arg-type]
        raise RuntimeError("no")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    with pytest.raises(RuntimeError, match="no"):
        CudaBackend().make_graphed_callables((abs,), ((1,),), 3, False, None, lambda: None)
    assert events == ["current: outer", "current: torch's own", "current: outer"]


def test_the_pool_and_its_nodes(events: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend, graph = CudaBackend(), Graph(events)
    assert backend.pool(graph) == (4, 1)
    monkeypatch.setattr(
        "cudamem_testing.torch_api.graphs.raw_nodes", lambda graph: ([("kernel", "a"), ("copy", "")], [(0, 1)])
    )
    assert backend.nodes(graph).text(edges=True) == "0: kernel\n1: copy  after 0"
    monkeypatch.setattr("cudamem_testing.torch_api.graphs.raw_nodes", lambda graph: None)

    class Dumps:
        def debug_dump(self, path: str) -> None:
            Path(path).write_text('digraph dot {\n"a_node_0"[label="0\nMEMSET\n"];\n}', encoding="utf-8")

    assert backend.nodes(Dumps()).text() == "memset"
    with pytest.raises(LevelError, match=r"^the nodes of this graph cannot be read: .* \(debug_dump failed\)$"):
        backend.nodes(Graph(events, fails="debug_dump"))


def test_counters_and_stacks(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers(first: int) -> dict[str, dict[str, int]]:
        return {"all": {"allocated": first, "current": first + 1}}

    stats = {
        "allocation": numbers(1),
        "segment": numbers(2),
        "allocated_bytes": numbers(3),
        "reserved_bytes": numbers(4),
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    found = CudaBackend().allocations()
    assert (found.allocations, found.segments, found.allocated, found.reserved) == (1, 2, 4, 5)
    monkeypatch.setattr("cudamem_testing.torch_api.history_enabled", lambda: False)
    assert CudaBackend().stacks([1, 2]) == {}


def test_a_recording_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks for its compiler while it makes a snapshot, which would import it."""
    seen: list[set[str]] = []
    monkeypatch.setitem(vars(torch), "_lazy_modules", {"_inductor", "onnx"})
    monkeypatch.delitem(vars(torch), "_inductor", raising=False)

    def snapshot() -> list[dict[str, object]]:
        seen.append({*vars(torch)["_lazy_modules"]})
        return []

    monkeypatch.setattr("cudamem_testing.torch_api.graphs.fast_snapshot", snapshot)
    backend = CudaBackend(0)
    assert backend.recording().blocks == ()
    assert seen == [{"onnx"}]
    assert vars(torch)["_lazy_modules"] == {"_inductor", "onnx"}


def test_free_memory_of_the_pool_is_overwritten(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from cudamem_testing.snapshots.snapshot_files import read_file

    found = read_file(Path(ROOT) / "fixtures" / "recordings" / "captured_graph.pickle.gz")
    (private,) = fragmentation(found).private
    written: list[tuple[int, int]] = []
    monkeypatch.setattr(CudaBackend, "recording", lambda self: found)
    monkeypatch.setattr(
        "cudamem_testing.torch_api.graphs.overwrite", lambda at, size, device, value: written.append((at, size)) is None
    )
    assert CudaBackend().poison_free(private.pool) == private.free == sum(size for _, size in written)
    live = [(block.address, block.address + block.size) for block in found.blocks]
    assert all(end <= at or at + size <= start for at, size in written for start, end in live)


def debugged() -> torch.cuda.CUDAGraph:
    """A graph that can be dumped."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    return graph


class TestOnACard:
    """What only a card shows."""

    pytestmark = pytest.mark.gpu

    @pytest.fixture
    def graphs(self) -> Iterator[GraphCapture]:
        made = GraphCapture(root=ROOT)
        yield made
        made.close()

    def test_a_decode_step_of_gpt2_equals_eager_1000_times(self, graphs: GraphCapture, figure: Figure) -> None:
        from transformers import StaticCache

        torch.manual_seed(0)
        model = models.gpt2().cuda().eval()
        ids = models.tokens(2, 8, "cuda")
        with torch.no_grad():
            caches = [StaticCache(model.config, max_cache_len=64) for _ in range(2)]
            for cache in caches:
                models.extend(model, ids, cache)
            captured = graphs(lambda token: models.extend(model, token, caches[0]), ids[:, :1], warmup=3)
            for step in range(1000):
                if step % 40 == 0:  # to the prompt, before the cache is full
                    for cache in caches:
                        cache.reset()
                        models.extend(model, ids, cache)
                token = models.tokens(2, 1, "cuda")
                torch.testing.assert_close(captured.replay(token), models.extend(model, token, caches[1]))
            for _ in range(25):
                caches[0].reset()
                models.extend(model, ids, caches[0])
                captured.assert_no_allocations(replays=40)
        captured.assert_inputs_alive()
        captured.assert_params_current()
        figure("GPT-2 decode step: 1,000 replays equal to eager; 1,000 replays made 0 allocations")
        figure(f"GPT-2 decode step: {captured.nodes().count('kernel')} kernels, {captured.growth:,} bytes of pool")

    def test_the_fixture_costs_at_most_5_ms(self, graphs: GraphCapture, figure: Figure) -> None:
        x = torch.ones(64, 64, device="cuda")
        gc.collect()  # no graph of an earlier test is freed while one here is captured

        def step(x: torch.Tensor) -> torch.Tensor:
            return (x @ x).relu()

        def plain() -> float:
            for _ in range(3):
                step(x)
            torch.cuda.synchronize()
            graph, start = torch.cuda.CUDAGraph(), time.perf_counter()
            with torch.cuda.graph(graph):
                step(x)
            took = time.perf_counter() - start
            graph.reset()
            return took

        def ours() -> float:
            start = time.perf_counter()
            captured = graphs(step, x, warmup=0, checks=False)
            took = time.perf_counter() - start
            captured.reset()
            return took

        gc.freeze()  # torch collects garbage before a capture: by the size of the process, beside which 5 ms are noise
        try:
            pairs = [(plain(), ours()) for _ in range(20)]
            collected = [gc.get_stats()[2]["collections"]]
            for run in (plain, ours):
                run()
                collected.append(gc.get_stats()[2]["collections"])
        finally:
            gc.unfreeze()
        assert collected[2] - collected[1] == collected[1] - collected[0]
        overhead = statistics.median(mine - theirs for theirs, mine in pairs)
        bare = statistics.median(theirs for theirs, _ in pairs)
        figure(
            f"capture without checks: {overhead * 1e3:.2f} ms over torch.cuda.graph's {bare * 1e3:.2f} ms (20 pairs)"
        )
        assert overhead < 0.005, f"{overhead * 1e3:.2f} ms"

    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    def test_the_lint_and_a_capture_agree(self, graphs: GraphCapture, figure: Figure, case: LintCase) -> None:
        for function in (case.body, *case.controls):
            report = lint(function, case.arguments("cpu"), root=ROOT)
            failure = ""
            try:
                graphs(function, *case.arguments("cuda:0"), warmup=1)
            except CaptureError as error:
                failure, told = str(error), error.failure
                assert told.rule is not None, failure
                assert told.rule.value == case.expect.partition(":")[0], failure
                # The lint names where a side stream is entered, the capture the work on it.
                assert told.place.source.endswith("# found") is (told.rule is not Rule.STREAM), failure
                figure(f"failed capture names its line, {told.operator}, {told.rule.value}")
            if report.of(Rule.GENERATOR):
                continue  # fails or draws the same numbers, as torch's version decides
            assert bool(failure) is report.breaks, f"{function.__name__}: {failure or 'captured'}"
            figure(f"lint and capture agree: a function that {'fails' if failure else 'can be captured'}")

    @pytest.mark.parametrize("key", [key for key, case in CASES.items() if not case.expect.startswith("stream")])
    def test_the_lint_on_tensors_of_the_card(self, figure: Figure, key: str) -> None:
        case = CASES[key]
        assert f"{case.expect.partition(':')[0]}:" in lint(case.body, case.arguments("cuda:0"), root=ROOT).text
        figure("lint finds the fault with tensors of the card")

    @pytest.mark.parametrize("kind", ["mlp", "transformer"])
    def test_a_graphed_training_step_equals_eager(self, graphs: GraphCapture, figure: Figure, kind: str) -> None:
        torch.manual_seed(0)
        if kind == "mlp":
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).cuda()
            x = torch.randn(32, 64, device="cuda", requires_grad=True)
        else:
            model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
            x = torch.randn(4, 16, 64, device="cuda", requires_grad=True)
        made = graphs.callables(model, (x,))
        made.assert_matches_eager(steps=50)
        assert made.memory[0].pool > 0
        figure(f"graphed training step of {kind}: 50 steps equal to eager; {made.memory[0]}")

    def test_callables_on_one_pool(self, graphs: GraphCapture) -> None:
        torch.manual_seed(0)
        parts = tuple(torch.nn.Linear(64, 64, device="cuda") for _ in range(3))
        samples = tuple((torch.randn(8, 64, device="cuda", requires_grad=True),) for _ in parts)
        graphs.callables(parts, samples).assert_matches_eager(steps=5)

    def test_the_mode_of_the_module_decides(self, graphs: GraphCapture) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout()).cuda().eval()
        x = torch.randn(8, 64, device="cuda", requires_grad=True)
        made = graphs.callables(model, (x,))
        made.assert_matches_eager(steps=2)
        model.train()
        assert not torch.equal(made(x), made(x))

    def test_nodes_of_fused_and_unfused(self, graphs: GraphCapture, figure: Figure) -> None:
        x, one = torch.ones(1024, device="cuda"), torch.ones((), device="cuda")
        graphs(lambda x: x * 2 + 1, x).assert_nodes("kernel x2")
        graphs(lambda x: torch.add(one, x, alpha=2), x).assert_nodes("kernel")
        graphs(lambda x: (x * 2).clone(), x).assert_nodes(
            """
            kernel
            copy
            """
        )
        figure(
            "nodes of x * 2 + 1: kernel x2; fused as torch.add(one, x, alpha=2): kernel; "
            "of (x * 2).clone(): kernel, copy"
        )

    def test_a_report_describes_nodes_pool_and_replays(self, graphs: GraphCapture) -> None:
        captured = graphs(lambda x: (x * 2).relu().clone(), torch.ones(2**20, device="cuda"), operators=True)
        captured()
        lines = describe(captured).splitlines()
        assert lines[1:3] == ["1 replay", "nodes:"]
        start = lines.index("   aten::mul  kernel")
        assert lines[start : start + 2] == ["   aten::mul  kernel", "   aten::relu  kernel"]
        assert lines[lines.index("pool:") + 1].startswith("   private pool (")
        assert lines[lines.index("outputs:") + 1] == "   output float32[1048576] on cuda:0"
        assert any("float32[1048576] on cuda:0 (4.0 MiB), read by aten::mul" in line for line in lines)

    def test_nodes_by_operator_and_by_kernel(self, graphs: GraphCapture, figure: Figure) -> None:
        captured = graphs(lambda x: (x * 2).relu().clone(), torch.ones(1024, device="cuda"), operators=True)
        captured.assert_nodes(
            """
            aten::mul  kernel
            aten::relu  kernel
            aten::clone  copy
            """,
            level="operators",
        )
        kernels = captured.nodes().text("kernels")
        assert [line.partition(" ")[0] for line in kernels.splitlines()] in (
            ["kernel", "copy"],
            ["kernel"] * 2 + ["copy"],
        )
        figure(f"kernels of (x * 2).relu().clone(): {kernels}".replace("\n", ", "))

    def test_nodes_from_a_dump(self, graphs: GraphCapture, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where the driver's bindings are missing."""
        monkeypatch.setattr("cudamem_testing.torch_api.graphs.cuda_bindings", lambda: None)
        monkeypatch.setattr("cudamem_testing.torch_api.graphs.new_graph", debugged)
        graphs(lambda x: (x * 2 + 1).clone(), torch.ones(1024, device="cuda")).assert_nodes(
            """
            kernel x2
            copy
            """
        )

    def test_a_graph_can_be_dumped_and_the_capture_be_asked_for(self, graphs: GraphCapture, tmp_path: Path) -> None:
        seen: list[bool] = []

        def step(x: torch.Tensor) -> torch.Tensor:
            seen.append(graphs.is_current_stream_capturing())
            return x * 2

        captured = graphs(step, torch.ones(4, device="cuda"), warmup=1)
        assert [*seen, graphs.is_current_stream_capturing()] == [False, True, False]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it dumps
            captured.graph.debug_dump(str(tmp_path / "graph.dot"))
        assert (tmp_path / "graph.dot").read_text(encoding="utf-8", errors="replace").startswith("digraph")

    def test_garbage_with_an_old_graph_does_not_break_a_capture(self, graphs: GraphCapture) -> None:
        old: list[Any] = [torch.cuda.CUDAGraph()]
        with torch.cuda.graph(old[0]):
            old.append(torch.ones(4, device="cuda") + 1)
        old.append(old)
        del old
        seen: list[bool] = []

        def step(x: torch.Tensor) -> torch.Tensor:
            if torch.cuda.is_current_stream_capturing():
                seen.append(gc.isenabled())
                _ = [[] for _ in range(10_000)]  # enough for a collection
            return x * 2

        graphs(step, torch.ones(4, device="cuda")).assert_matches_eager()
        assert seen == [False]
        assert gc.isenabled()

    def test_a_failed_capture_leaves_the_process_usable(self, graphs: GraphCapture) -> None:
        x = torch.ones(64, device="cuda")
        before = graphs.pools()
        with pytest.raises(CaptureError) as failure:
            graphs(lambda x: x / torch.nn.functional.dropout(x).max().item(), x)
        assert failure.value.failure.operator == "aten::_local_scalar_dense"
        assert torch.rand(3, device="cuda").sum().item() > 0
        left = {use.pool for use in graphs.pools().private} - {use.pool for use in before.private}
        assert left == {use.pool for use in failure.value.failure.orphans}
        graphs(lambda x: torch.nn.functional.dropout(x), x).assert_matches_eager(replays=4)
