"""The stable text of a path: what of it is the same in every run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.references import Path, RootKind, Step
from cudamem_testing.objects.names import key_text

ITEM, ATTRIBUTE, INTERNAL = Kind.ITEM, Kind.ATTRIBUTE, Kind.INTERNAL


def path(*steps: tuple[Kind, str, str], root: str = "module cache", kind: RootKind = RootKind.MODULE) -> Path:
    return Path(root, kind, tuple(Step(Reference(kind, text), word) for kind, text, word in steps))


TABLE = (Kind.GLOBAL, "TABLE", "dict")
FOLDED = "module cache > TABLE (dict)[*]"
WEIGHT = (Kind.GLOBAL, "W", "Parameter")


@pytest.mark.parametrize(
    ("steps", "stable"),
    [
        ([TABLE, (ITEM, "['a']", "Tensor")], FOLDED),
        ([TABLE, (ITEM, "[(1, ']', 2.5)]", "list"), (ITEM, "[3]", "Tensor")], f"{FOLDED} > list[*]"),
        ([TABLE, (ITEM, "['" + "x" * 43 + "...", "Tensor")], FOLDED),
        ([TABLE, (Kind.KEY, "key <Tensor>", "Tensor")], "module cache > TABLE (dict) key [*]"),
        ([WEIGHT, (Kind.HOOK, "hook 17", "function f")], "module cache > W (Parameter) hook [*]"),
        ([(ATTRIBUTE, ".__dict__[3]", "Tensor")], "module cache.__dict__[*]"),
        ([(ATTRIBUTE, ".args[1]", "Tensor")], "module cache.args[*]"),
        ([(ATTRIBUTE, ".keywords['x']", "Tensor")], "module cache.keywords[*]"),
        ([(Kind.CLOSURE, ".__closure__[0] 'x'", "Tensor")], "module cache.__closure__[*] 'x'"),
        ([(Kind.GLOBAL, "__compiled_fn_7_08e3", "function __compiled_fn_7_08e3"), (ATTRIBUTE, ".x", "Tensor")],
         "module cache > __compiled_fn (function __compiled_fn).x"),
    ],
)  # fmt: skip
def test_keys_and_positions_fold(steps: list[tuple[Kind, str, str]], stable: str) -> None:
    assert path(*steps).stable == stable


@pytest.mark.parametrize(
    "steps",
    [
        [(ATTRIBUTE, ".x1", "Tensor")],
        [(Kind.GLOBAL, "M", "Net"), (Kind.GRAD_FN, ".grad_fn[MulBackward0]", "MulBackward0")],
        [(Kind.GLOBAL, "M", "Net"), (INTERNAL, ".__dict__", "dict"), (ITEM, "['layer']", "Tensor")],
        [(Kind.GLOBAL, "M", "Net"), (ATTRIBUTE, "._modules", "dict"), (ITEM, "['layer']", "Tensor")],
        [(Kind.GLOBAL, "M", "Net"), (ATTRIBUTE, "._parameters", "dict"), (ITEM, "['w']", "Tensor")],
        [(Kind.GLOBAL, "M", "Net"), (ATTRIBUTE, "._buffers", "dict"), (ITEM, "['w']", "Tensor")],
        [(Kind.CACHED, "cached argument 0", "Tensor")],
        [(Kind.LOCAL, "local 'x2'", "Tensor")],
    ],
)
def test_names_stay(steps: list[tuple[Kind, str, str]]) -> None:
    assert path(*steps).stable == path(*steps).text


@pytest.mark.parametrize(
    ("root", "stable"),
    [
        ("thread 'Thread-12 (run)'", "thread 'Thread-[*] (run)'"),
        ("thread 'ThreadPoolExecutor-0_3'", "thread 'ThreadPoolExecutor-[*]'"),
        ("thread 'job 3f2b8c1e-aaaa-bbbb-cccc-0123456789ab'", "thread 'job [*]'"),
        ("thread 'w-deadbeef' > frame step2 (loop.py:48)", "thread 'w-[*]' > frame step2 (loop.py)"),
        ("frame step (tests/test_a.py:48)", "frame step (tests/test_a.py)"),
        ("class a.B2", "class a.B2"),
    ],
)
def test_roots(root: str, stable: str) -> None:
    assert path((ATTRIBUTE, ".x", "Tensor"), root=root).stable == f"{stable}.x"


def test_how_much_a_long_chain_leaves_out_is_no_part_of_it() -> None:
    texts = {path(*[(ATTRIBUTE, ".next", "Node")] * number).stable for number in (15, 16, 400)}
    assert len(texts) == 1
    assert path(*[(ATTRIBUTE, ".next", "Node")] * 14).stable not in texts
    leap = [*[(ATTRIBUTE, ".next", "Node")] * 2, (Kind.OTHER, "... 3 more ...", "Node"), (ATTRIBUTE, ".x", "Tensor")]
    assert path(*leap).stable == "module cache.next (Node).next > ... > Node.x"


KEYS = st.recursive(
    st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.booleans(), st.none(), st.uuids(), st.datetimes()),
    lambda keys: st.lists(keys, max_size=3).map(tuple),
)


@given(st.lists(KEYS, min_size=2, max_size=2))
def test_no_key_is_in_it(keys: list[object]) -> None:
    """For all keys the stable text is that of a list's positions."""
    texts = {path(TABLE, (ITEM, f"[{key_text(key)}]", "list"), (ITEM, "[0]", "Tensor")).stable for key in (*keys, 0)}
    assert texts == {"module cache > TABLE (dict)[*] > list[*]"}
