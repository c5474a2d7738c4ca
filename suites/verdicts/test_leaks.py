"""Findings of leaks: grouping, texts to the letter, causes that stay the same."""

from __future__ import annotations

from dataclasses import replace

from cudamem_testing.model.blocks import Block
from cudamem_testing.model.devices import Device
from cudamem_testing.model.edges import Kind, View
from cudamem_testing.model.facts import FLAT_PARAMETER, GRAPH_STATE, REDUCER
from cudamem_testing.model.findings import Severity, Verdict
from cudamem_testing.model.references import Reach, RootKind
from cudamem_testing.model.stacks import Frame, Stack
from cudamem_testing.objects.search import HolderResult
from cudamem_testing.verdicts.leaks import NOT_SEARCHED, freed_finding, leak_findings, small_leaks, workspace_findings
from cudamem_testing.wording.findings import details, text, title
from suites.made import path

CPU = Device("cpu")
KIB = 1024
TEST = Frame("test_it.py", 9, "test_it")


def stack(line: int = 5, function: str = "helper") -> Stack:
    return Stack((Frame("torch/functional.py", 1, "einsum", "library"), Frame("cache.py", line, function), TEST))


def block(address: int | None, size: int = 64 * KIB, **more: object) -> Block:
    return Block(size, size, CPU, address=address, **{"stack": stack(), **more})  # type: ignore[arg-type]


def reachable(*steps: tuple[Kind, str, str], names: tuple[str, ...] = ("float32[16384] on cpu",)) -> HolderResult:
    return HolderResult(Reach.REACHABLE, path("module project.cache", *steps), names)


CACHE = (Kind.GLOBAL, "_CACHE", "list")


def item(place: int) -> tuple[Kind, str, str]:
    return Kind.ITEM, f"[{place}]", "Tensor"


def test_the_text() -> None:
    (found,) = leak_findings([block(1)], {1: reachable(CACHE, item(0))})
    assert text(found) == (
        "cudamem: 64.0 KiB leaked (1 block, cpu)\n"
        "   64.0 KiB  float32[16384] on cpu  reachable\n"
        "      allocated  cache.py:5 in helper (torch/functional.py einsum) <- test_it.py:9 in test_it\n"
        "      held by    module project.cache > _CACHE (list)[0]\n"
        "   hint: call project.cache._CACHE.clear() at the end of the test\n"
        "   more: python -m cudamem_testing explain reachable, docs/hints.md#module-global"
    )
    assert (found.bytes, found.device, found.severity, found.fact.tests) == (64 * KIB, CPU, Severity.FAIL, 1)
    assert found.allocated == "cache.py:5 in helper"
    assert found.holder == "module project.cache > _CACHE (list)[0]"
    assert found.cause == "leak | reachable | cache.py::helper | module project.cache > _CACHE (list)[*]"


def test_severity_is_of_leaks_only() -> None:
    holders = {1: reachable(CACHE, item(0)), 2: HolderResult(Reach.UNKNOWN, None)}
    found = {one.verdict: one.severity for one in leak_findings([block(1), block(2)], holders, Severity.WARN)}
    assert found == {Verdict.REACHABLE: Severity.WARN, Verdict.UNATTRIBUTED: Severity.NOTE}


def test_items_of_one_list_are_one_finding() -> None:
    blocks = [block(place, 1000 + place) for place in range(1, 6)]
    (found,) = leak_findings(blocks, {one: reachable(CACHE, item(one)) for one in range(1, 6)})
    assert found.bytes == sum(range(1001, 1006))
    assert details(found)[2] == "      held by    module project.cache > _CACHE (list)[5]"  # of the largest
    assert details(found)[3] == "   ... 4 more blocks: 3.9 KiB"


def test_keys_of_one_dictionary_are_one_finding() -> None:
    def key(text: str) -> tuple[Kind, str, str]:
        return Kind.ITEM, text, "Tensor"

    cache, keys = (Kind.GLOBAL, "_CACHE", "dict"), ("['layer0']", "['last']", "[(3, 4)]", "[0.5]", "[<Path>]")
    blocks = [block(one) for one in range(5)]
    (found,) = leak_findings(blocks, {one: reachable(cache, key(keys[one])) for one in range(5)})
    assert found.cause == "leak | reachable | cache.py::helper | module project.cache > _CACHE (dict)[*]"
    assert found.holder == "module project.cache > _CACHE (dict)['layer0']"
    assert (len(details(found)), found.bytes) == (6, 320 * KIB)


def test_equal_blocks_give_one_cause_in_any_order() -> None:
    """The first of the largest names where the memory came from."""
    blocks = [block(place, stack=stack(5, name)) for place, name in enumerate(("there", "here"))]
    holders = {place: reachable(CACHE, item(place)) for place in range(2)}
    causes = {leak_findings(order, holders)[0].cause for order in (blocks, blocks[::-1])}
    assert causes == {"leak | reachable | cache.py::here | module project.cache > _CACHE (list)[*]"}


def test_a_tensor_kept_with_its_graph_has_a_hint_of_its_own() -> None:
    weight = (Kind.SAVED, ".saved self", "Tensor")
    node = (Kind.GRAD_FN, ".grad_fn[MulBackward0]", "MulBackward0")
    holders = {1: reachable(CACHE, item(0)), 2: reachable(CACHE, item(0), node, weight)}
    (found,) = leak_findings([block(1), block(2)], holders)
    assert [line for line in details(found) if "hint:" in line] == [
        "   hint: keep project.cache._CACHE[0].detach(), or .item() for a number: it keeps its autograd graph",
    ]


def test_different_lines_of_one_holder_are_shown_up_to_three() -> None:
    blocks = [block(one, 1000 * one, stack=stack(one)) for one in range(1, 6)]
    (found,) = leak_findings(blocks, {one: reachable(CACHE, item(one)) for one in range(1, 6)})
    lines = [line for line in details(found) if "allocated" in line]
    assert [line.split()[1] for line in lines] == ["cache.py:5", "cache.py:4", "cache.py:3"]
    assert "   ... 2 more blocks: 2.9 KiB" in details(found)


def test_a_module_with_its_parameters_is_one_finding() -> None:
    model = (Kind.GLOBAL, "MODEL", "Model")
    weight, bias = (Kind.SUBMODULE, ".layer.weight", "Parameter"), (Kind.SUBMODULE, ".layer.bias", "Parameter")
    (found,) = leak_findings([block(1), block(2, 8)], {1: reachable(model, weight), 2: reachable(model, bias)})
    assert found.cause is not None
    assert found.cause.endswith("| module project.cache > MODEL")


def test_an_optimizer_with_its_state_is_one_finding() -> None:
    optimizer = (Kind.GLOBAL, "OPT", "Adam")
    state, groups = (Kind.ATTRIBUTE, ".state", "defaultdict"), (Kind.ATTRIBUTE, ".param_groups", "list")
    holders = {
        1: reachable(optimizer, state, (Kind.ITEM, "[<Parameter>]", "dict"), (Kind.ITEM, "['exp_avg']", "Tensor")),
        2: reachable(optimizer, groups, (Kind.ITEM, "[0]", "dict"), (Kind.ITEM, "['params']", "list"), item(0)),
    }
    assert len(leak_findings([block(1), block(2)], holders)) == 1


def test_an_attribute_named_state_is_no_optimizer() -> None:
    trainer = (Kind.GLOBAL, "TRAINER", "Trainer")
    holders = {
        1: reachable(trainer, (Kind.ATTRIBUTE, ".state", "Tensor")),
        2: reachable(trainer, (Kind.ATTRIBUTE, ".other", "Tensor")),
    }
    assert len(leak_findings([block(1), block(2)], holders)) == 2


def test_a_tensor_with_its_graph_is_one_finding() -> None:
    loss = (Kind.GLOBAL, "LOSS", "Tensor")
    graph = (Kind.GRAD_FN, ".grad_fn[MulBackward0]", "MulBackward0"), (Kind.SAVED, ".saved self", "Tensor")
    holders = {1: reachable(loss), 2: reachable(loss, *graph), 3: reachable(loss, (Kind.GRAD, ".grad", "Tensor"))}
    (found,) = leak_findings([block(1, 4), block(2, 4000), block(3, 40)], holders)
    assert found.bytes == 4044
    assert found.holder == "module project.cache > LOSS.grad_fn[MulBackward0].saved self"


def test_numbers_of_the_compiler_do_not_change_the_cause() -> None:
    causes = set()
    for name in ("__compiled_fn_7_08e39e21_dd1e", "__compiled_fn_12_aa"):
        (found,) = leak_findings([block(1)], {1: reachable((Kind.GLOBAL, name, "function run"), item(0))})
        assert (found.verdict, found.severity) == (Verdict.COMPILER_CACHE, Severity.NOTE)
        causes.add(found.cause)
    assert len(causes) == 1


def test_the_largest_finding_is_first() -> None:
    other = (Kind.GLOBAL, "_OTHER", "list")
    found = leak_findings([block(1, 10), block(2, 20)], {1: reachable(CACHE), 2: reachable(other)})
    assert [one.bytes for one in found] == [20, 10]


def test_blocks_that_the_search_did_not_reach() -> None:
    assert not NOT_SEARCHED.complete  # such a test counts as not judged
    found = leak_findings([block(1), block(None)], {})
    assert [(one.verdict, one.bytes) for one in found] == [(Verdict.UNATTRIBUTED, 128 * KIB)]
    assert details(found[0])[-1] == "   note: the search did not reach it"
    assert "   64.0 KiB  memory without a Python tensor (65536 bytes)  unattributed" in details(found[0])


def test_held_by_cpp_is_explained() -> None:
    holder = HolderResult(
        Reach.UNREACHABLE, path("Tensor", (Kind.GRAD, ".grad", "Tensor"), kind=RootKind.UNHELD), ("float32[4] on cpu",)
    )
    (found,) = leak_findings([block(1)], {1: holder})
    assert found.holder == "Tensor.grad"
    assert details(found)[2] == "      from       Tensor.grad"
    assert details(found)[3].startswith("   held by C++: still allocated after a garbage collection, and no chain")
    assert "set .grad to None after backward(create_graph=True), or use torch.autograd.grad" in details(found)[4]
    assert details(found)[5] == "   more: python -m cudamem_testing explain held-by-c, docs/hints.md#create_graph"
    assert found.cause == "leak | held by C++ | cache.py::helper"


def test_what_pytest_keeps_is_a_note() -> None:
    kept = HolderResult(
        Reach.HARNESS,
        path("Function", (Kind.ATTRIBUTE, "._instance", "TestX"), (Kind.ATTRIBUTE, ".x", "Tensor")),
        ("float32[4] on cpu",),
    )
    (found,) = leak_findings([block(1)], {1: kept})
    assert (found.verdict, found.severity) == (Verdict.TEST_INSTANCE, Severity.NOTE)
    assert title(found) == "cudamem: 64.0 KiB retained (1 block, cpu)"
    assert details(found)[2] == "      kept by    Function._instance (TestX).x"
    assert details(found)[-2:] == (
        "   hint: set self.x to None in teardown_method, or use a fixture",
        "   more: docs/hints.md#test-instance",
    )


def test_a_frame_of_pytest_is_no_holder() -> None:
    frame = path("frame _multicall (_execution.py:167)", (Kind.LOCAL, "local 'exception'", "ValueError"))
    running = HolderResult(Reach.HARNESS, frame, ("float32[4] on cpu",))
    (found,) = leak_findings([block(1)], {1: running})
    assert (found.verdict, found.holder) == (Verdict.UNATTRIBUTED, None)
    assert details(found) == (
        "   64.0 KiB  float32[4] on cpu  unattributed",
        "      allocated  cache.py:5 in helper (torch/functional.py einsum) <- test_it.py:9 in test_it",
        "   unattributed: holder unknown",
    )
    assert found.cause == "leak | unattributed | cache.py::helper"


def test_a_view_of_a_part() -> None:
    view = View("float32[16] on cpu", (64, 64))
    holder = replace(reachable(CACHE, item(0), names=("float32[16] on cpu, view of [64, 64]",)), view=view)
    (found,) = leak_findings([block(1, 4 * KIB)], {1: holder})
    assert details(found)[3] == (
        "      float32[16] on cpu is a view of a 4.0 KiB storage of shape [64, 64]; clone() would release it"
    )


def test_what_a_step_freed() -> None:
    gone = [block(1, 100), block(2, 200, stack=stack(7)), block(3, 50, stack=stack(9))]
    found = freed_finding(Verdict.TRACEBACK, CPU, 350, 3, "clearing the test's traceback", gone)
    assert found.severity is Severity.NOTE
    assert title(found) == "cudamem: 350 B retained, then freed by: clearing the test's traceback (3 blocks, cpu)"
    assert [line.split()[3] for line in details(found) if "allocated" in line] == [
        "cache.py:7",
        "cache.py:5",
        "cache.py:9",
    ]
    assert found.allocated == "cache.py:5 in helper"


def test_what_a_step_freed_where_blocks_are_not_known() -> None:
    found = freed_finding(Verdict.CYCLE, CPU, 350, 3, "garbage collection", [])
    assert title(found) == "cudamem: 350 B kept by a reference cycle (3 blocks, cpu)"
    assert (found.allocated, found.cause) == (None, "cycle | cycle | (no Python stack)")


CAPTURE = Stack((Frame("torch/cuda/graphs.py", 118, "capture_begin", "library"), TEST))


def test_the_state_of_captured_graphs() -> None:
    not_held = HolderResult(Reach.NOT_HELD, None)
    blocks = [block(1, 512, stack=CAPTURE), block(2, 512, stack=CAPTURE), block(3, 4 * KIB)]
    other, state = leak_findings(blocks, dict.fromkeys((1, 2, 3), not_held))
    assert text(state) == (
        "cudamem: 1.0 KiB leaked (2 blocks, cpu)\n"
        "   512 B  memory without a Python tensor (512 bytes)  held by C++\n"
        "      allocated  test_it.py:9 in test_it (torch/cuda/graphs.py capture_begin)\n"
        "      held by    random-number state of a live CUDA graph\n"
        "   ... 1 more block: 512 B\n"
        "   held by C++: still allocated after a garbage collection, and no chain of Python references leads to it\n"
        "   hint: reset the graph, or delete it\n"
        "   more: python -m cudamem_testing explain held-by-c, docs/hints.md#graph-state"
    )
    assert (state.holder, state.cause) == (GRAPH_STATE, f"leak | held by C++ | test_it.py::test_it | {GRAPH_STATE}")
    assert (other.bytes, other.holder, other.verdict) == (4 * KIB, None, Verdict.HELD_BY_CPP)


def test_a_block_of_a_thread_of_torchs_own() -> None:
    (found,) = leak_findings([block(1, stack=Stack(), after=TEST)], {1: reachable(CACHE, item(0))})
    assert details(found)[1] == (
        "      allocated  by one of torch's threads, as in backward (no Python stack), after test_it.py:9 in test_it"
    )
    assert (found.allocated, found.cause.split(" | ")[2]) == ("(no Python stack)", "(no Python stack)")


REDUCED = Stack((Frame("torch/nn/parallel/distributed.py", 1240, "DistributedDataParallel.__init__", "library"), TEST))


def test_buckets_of_a_reducer_are_its() -> None:
    """And a block that another holds is that one's, whoever allocated it."""
    blocks = [block(1, stack=REDUCED), block(2), block(3, stack=REDUCED)]
    held = HolderResult(
        Reach.REACHABLE, path("module project.cache", (Kind.GLOBAL, "KEPT", "list")), ("float32[4] on cpu",)
    )
    not_held = HolderResult(Reach.NOT_HELD, None)
    found = {one.holder: one for one in leak_findings(blocks, {1: not_held, 2: not_held, 3: held})}
    assert {*found} == {REDUCER, None, held.path.text}
    reducer = found[REDUCER]
    assert (reducer.verdict, reducer.bytes) == (Verdict.HELD_BY_CPP, 64 * KIB)
    assert f"      held by    {REDUCER}" in details(reducer)
    hint = "   hint: drop the DistributedDataParallel, its module and all losses before destroy_process_group()"
    assert hint in details(reducer)
    assert "DLPack capsules" in next(line for line in details(found[None]) if "hint" in line)


def test_a_flat_parameter_and_its_gradient_are_one() -> None:
    """The control: a block that another line made is not its, nor is a gradient without a flat parameter."""
    made = Frame("torch/distributed/fsdp/_flat_param.py", 9, "FlatParamHandle.flatten_tensors", "library")
    engine = Frame("torch/autograd/graph.py", 9, "_engine_run_backward", "library")
    blocks = [block(1, stack=Stack((made, TEST))), block(2, stack=Stack((engine, TEST))), block(3, stack=Stack())]
    not_held = dict.fromkeys((1, 2, 3, 4), HolderResult(Reach.NOT_HELD, None))
    found = {one.holder: one for one in leak_findings([*blocks, block(4, 32 * KIB)], not_held)}
    assert {*found} == {FLAT_PARAMETER, None}
    assert (found[FLAT_PARAMETER].bytes, found[None].bytes) == (3 * 64 * KIB, 32 * KIB)
    assert details(found[FLAT_PARAMETER]).count(f"      held by    {FLAT_PARAMETER}") == 3
    call = "for part in FSDP.fsdp_modules(model): vars(part._handle.flat_param).clear()"
    assert f"   hint: use fully_shard, or end the test with: {call}" in details(found[FLAT_PARAMETER])
    assert {one.holder for one in leak_findings(blocks[1:], not_held)} == {None}


def test_a_storage_is_shown_with_its_bytes() -> None:
    holder = HolderResult(
        Reach.REACHABLE, path("module project.cache", (Kind.GLOBAL, "KEPT", "list")), ("UntypedStorage",)
    )
    (found,) = leak_findings([block(1)], {1: holder})
    assert details(found)[0] == "   64.0 KiB  UntypedStorage (65536 bytes)  reachable"


def test_what_something_else_holds_is_no_flat_parameter() -> None:
    """Only what C++ holds is named by the line that allocated it, beside a flat parameter as well."""
    made = Frame("torch/distributed/fsdp/_flat_param.py", 9, "FlatParamHandle.flatten_tensors", "library")
    raw = Frame("torch/cuda/memory.py", 9, "caching_allocator_alloc", "library")
    stacks = {1: (made, TEST), 2: (made, TEST), 3: (raw, made, TEST), 4: (made, TEST)}
    compiled = path("module torch._dynamo.utils", (Kind.GLOBAL, "_CACHE", "list"))
    holders = {
        1: HolderResult(Reach.NOT_HELD, None),
        2: HolderResult(Reach.REACHABLE, compiled),
        3: HolderResult(Reach.NOT_HELD, None),
        4: HolderResult(Reach.UNKNOWN, None),
    }
    blocks = [block(address, 2**address, stack=Stack(frames)) for address, frames in stacks.items()]
    found = leak_findings(blocks, holders)
    assert [(one.verdict, one.bytes, one.holder) for one in found] == [
        (Verdict.UNATTRIBUTED, 16, None),
        (Verdict.RAW, 8, None),
        (Verdict.COMPILER_CACHE, 4, compiled.text),
        (Verdict.HELD_BY_CPP, 2, FLAT_PARAMETER),
    ]


def test_what_pytest_keeps_has_the_same_cause_whatever_holds_it() -> None:
    """A running frame of pytest names no holder; a variable of one does in no other place either."""
    frame = path("frame runtest (python.py:1)", (Kind.LOCAL, "local 'self'", "Function"))
    fixture = path("fixture 'model'", (Kind.ATTRIBUTE, ".weight", "Parameter"))
    holders = {1: HolderResult(Reach.HARNESS, frame), 2: HolderResult(Reach.HARNESS, fixture)}
    found = {one.verdict: one for one in leak_findings([block(1), block(2)], holders)}
    assert {verdict: one.holder for verdict, one in found.items()} == {
        Verdict.UNATTRIBUTED: None,
        Verdict.FIXTURE: fixture.text,
    }
    assert found[Verdict.FIXTURE].cause == "leak | fixture | cache.py::helper | fixture 'model'.weight"


def test_examples_are_counted_in_the_order_of_their_allocation() -> None:
    blocks = [block(place, 100 - place, order=9 - place) for place in range(4)]
    names = {9: "f(3)", 8: "f(2)", 7: None, 6: "f(2)"}
    holders = {place: reachable(CACHE, item(place)) for place in range(4)}
    (found,) = leak_findings(blocks, holders, example_of=lambda one: names[one.order or 0])
    assert (found.fact.example, found.fact.examples) == ("f(2)", 2)
    (found,) = leak_findings(blocks, holders)
    assert (found.fact.example, found.fact.examples) == ("", 0)


LEAST = 100 * KIB
OTHER = (Kind.GLOBAL, "_OTHER", "list")
MODEL = (Kind.GLOBAL, "MODEL", "Linear")


def test_a_parameter_is_shown_before_its_gradient() -> None:
    """Both are as large, and the gradient's line comes first by name."""
    weight, grad = (Kind.ATTRIBUTE, ".weight", "Parameter"), (Kind.GRAD, ".grad", "Tensor")
    blocks = [block(1, stack=stack(5, "a")), block(2, stack=stack(5, "b"))]
    holders = {1: reachable(MODEL, weight, grad), 2: reachable(MODEL, weight)}
    (found,) = leak_findings(blocks, holders)
    assert found.holder == "module project.cache > MODEL (Linear).weight"


def test_small_leaks_of_several_tests_with_one_holder() -> None:
    """What reaches the limit together is found, the largest first, with the number of tests that left it."""
    blocks = [block(1, 60 * KIB, owner="a"), block(2, 40 * KIB, owner="b"), block(3, 99 * KIB, owner="a")]
    blocks += [block(4, 80 * KIB, owner="a"), block(5, 81 * KIB, owner="b"), block(6, 1, owner="b")]
    holders = {1: reachable(CACHE, item(0)), 2: reachable(CACHE, item(1)), 3: HolderResult(Reach.NOT_HELD, None)}
    holders |= {4: reachable(OTHER, item(0)), 5: reachable(OTHER, item(1)), 6: reachable(OTHER, item(2))}
    found = small_leaks(blocks, holders, LEAST, Severity.WARN)
    assert [(one.holder, one.bytes, one.severity, one.fact.tests, one.fact.each) for one in found] == [
        ("module project.cache > _OTHER (list)[1]", 161 * KIB + 1, Severity.WARN, 2, LEAST),
        ("module project.cache > _CACHE (list)[0]", 100 * KIB, Severity.WARN, 2, LEAST),
    ]
    assert small_leaks(blocks[:2], holders, LEAST + 1) == []


def test_small_leaks_that_cpp_holds_belong_together_by_function() -> None:
    not_held = dict.fromkeys(range(4), HolderResult(Reach.NOT_HELD, None))
    blocks = [block(place, 50 * KIB, stack=stack(place, f"helper{place % 2}"), owner=str(place)) for place in range(4)]
    found = small_leaks(blocks, not_held, LEAST)
    assert [(one.cause, one.bytes, one.fact.tests) for one in found] == [
        ("leak | held by C++ | cache.py::helper0", LEAST, 2),
        ("leak | held by C++ | cache.py::helper1", LEAST, 2),
    ]
    assert small_leaks(blocks[:3], not_held, LEAST + 1) == []


def test_small_leaks_under_many_names_of_one_object() -> None:
    """One function, one module or object, as many names as tests; what was enough for one name is not counted twice."""

    def under(place: int, owner: str = "module project.cache") -> HolderResult:
        kind = Kind.GLOBAL if place % 2 else Kind.ATTRIBUTE
        return HolderResult(Reach.REACHABLE, path(owner, (kind, f"name{place}", "Tensor")), ("float32[4] on cpu",))

    blocks = [block(place, 30 * KIB, owner=str(place)) for place in range(4)]
    (found,) = small_leaks(blocks, {place: under(place) for place in range(4)}, LEAST)
    assert (found.verdict, found.bytes, found.fact.tests) == (Verdict.REACHABLE, 120 * KIB, 4)
    large = block(9, LEAST, owner="9")
    found_too = small_leaks([*blocks, large], {place: under(place) for place in (0, 1, 2, 3, 9)}, LEAST)
    assert [one.bytes for one in found_too] == [120 * KIB, LEAST]
    apart = {place: under(place, f"module project.part{place}") for place in range(4)}
    assert small_leaks(blocks, apart, LEAST) == []
    owner, name = (Kind.GLOBAL, "OWNER{}", "Owner"), (Kind.ATTRIBUTE, ".kept{}", "Tensor")
    for owners, expected in ((1, [120 * KIB]), (4, [])):
        holders = {
            place: reachable(
                *(
                    (kind, text.format(number), word)
                    for (kind, text, word), number in zip((owner, name), (place % owners, place), strict=True)
                )
            )
            for place in range(4)
        }
        assert [one.bytes for one in small_leaks(blocks, holders, LEAST)] == expected
    elsewhere = [block(place, 30 * KIB, stack=stack(5, f"f{place}")) for place in range(4)]
    assert small_leaks(elsewhere, {place: under(place) for place in range(4)}, LEAST) == []


def test_small_leaks_that_no_object_names_stay_apart() -> None:
    """Two variables of a frame, and two functions' caches: nothing holds both."""
    blocks = [block(place, 60 * KIB, owner=str(place)) for place in range(2)]
    variables = [path("frame run (a.py:5)", (Kind.LOCAL, f"local 'x{place}'", "Tensor")) for place in range(2)]
    caches = [path(f"lru_cache of a.f{place}") for place in range(2)]
    for holders in (variables, caches):
        held = {place: HolderResult(Reach.REACHABLE, holder) for place, holder in enumerate(holders)}
        assert small_leaks(blocks, held, LEAST) == []
        same = dict.fromkeys(range(2), held[0])
        assert [one.bytes for one in small_leaks(blocks, same, LEAST)] == [120 * KIB]


def test_small_memory_that_is_no_leak_is_not_collected() -> None:
    blocks = [block(place, 60 * KIB, owner=str(place)) for place in range(2)]
    assert small_leaks(blocks, {}, LEAST) == []
    assert small_leaks([block(None, LEAST)], {}, LEAST) == []


def test_workspaces_are_one_remark() -> None:
    assert workspace_findings([]) == []
    (found,) = workspace_findings([block(1, 100), block(2, 50)])
    assert (found.verdict, found.severity, found.bytes, found.device) == (Verdict.WORKSPACE, Severity.NOTE, 150, CPU)
    assert (found.fact.count, found.cause) == (2, "leak | library workspace | cache.py::helper")
