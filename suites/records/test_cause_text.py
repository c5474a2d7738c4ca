"""Causes in lines of known findings: patterns, and what version 0.1.0 wrote."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.references import Path, RootKind, Step
from cudamem_testing.objects.names import key_text
from cudamem_testing.records.cause_text import current, pattern_of

HEAD = "leak | reachable | a.py::f | "


@pytest.mark.parametrize(
    ("pattern", "cause", "matches"),
    [
        ("leak | reachable | a.py::* | module a > *", f"{HEAD}module a > KEPT (list)[*]", True),
        ("leak | reachable | b.py::* | module a > *", f"{HEAD}module a > KEPT (list)[*]", False),
        ("leak | * | module a > KEPT (list)[*]", f"{HEAD}module a > KEPT (list)[*]", True),
        ("leak | * | module a > KEPT (list)[*]", f"{HEAD}module a > KEPT (list)[*] > X.y (dict)[*]", False),
        ("*", "cycle | cycle | torch.fx.Node", True),
        ("leak | *a?py*", f"{HEAD}x", False),
    ],
)
def test_patterns(pattern: str, cause: str, matches: bool) -> None:
    found = pattern_of(pattern)
    assert found is not None
    assert (found.fullmatch(cause) is not None) is matches


def test_a_recorded_cause_is_no_pattern() -> None:
    assert pattern_of(f"{HEAD}module a > KEPT (dict)[*] > list[*].x hook [*]") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("module a > KEPT (list)[*]", "module a > KEPT (list)[*]"),
        ("module a > C (dict)['layer*']", "module a > C (dict)[*]"),
        ("module a > C (dict)[\"it's ']'\"] > list[*]", "module a > C (dict)[*] > list[*]"),
        ("module a > C (dict)['" + "x" * 43 + "...]", "module a > C (dict)[*]"),
        ("module a > C (dict)[(3, (...), 'a')].x", "module a > C (dict)[*].x"),
        ("module a > C (dict)[<Path>]", "module a > C (dict)[*]"),
        ("module a > C (dict)[Color.RED] > dict['n']", "module a > C (dict)[*] > dict[*]"),
        ("module a > M (Net).__dict__ (dict)['layer']", "module a > M (Net).__dict__ (dict)['layer']"),
        ("module a > M (Net)._modules (OrderedDict)['layer']", "module a > M (Net)._modules (OrderedDict)['layer']"),
        ("module a > C (dict) key <Tensor>.x", "module a > C (dict) key [*].x"),
        ("module a > W (Parameter) hook * > function f", "module a > W (Parameter) hook [*] > function f"),
        ("thread 'Thread-* (run)' > frame f (a.py).x", "thread 'Thread-[*] (run)' > frame f (a.py).x"),
        ("thread 'worker-17'.x", "thread 'worker-[*]'.x"),
        ("module a > N (Node).next > ... 31 more ... > Node.x", "module a > N (Node).next > ... > Node.x"),
    ],
)
def test_what_version_0_1_0_wrote_is_read(old: str, new: str) -> None:
    assert current(HEAD + old) == HEAD + new
    assert current(HEAD + new) == HEAD + new


@pytest.mark.parametrize("cause", ["cycle | cycle | a.A['x'] | b", "leak | reachable | a['x'].py::f", "*", "leak | *"])
def test_what_has_no_holder_stays(cause: str) -> None:
    assert current(cause) == cause


def old_form(text: str) -> str:
    """How version 0.1.0 made a cause of a path."""
    text = re.sub(r"\['[^']*\d[^']*'\]", lambda key: re.sub(r"\d+", "*", key.group()), text)
    text = re.sub(r"(hook |(?:Thread|Task|Executor)-)[\d_]+", r"\1*", re.sub(r"\[\d+\]", "[*]", text))
    return re.sub(r"(\([^()\s]+):\d+\)", r"\1)", text)


KEYS = st.one_of(st.text("ab'\"\\[]( ,09", max_size=60), st.integers(), st.floats(), st.binary(max_size=9)) | st.tuples(
    st.text("a'[]1", max_size=8), st.integers()
)
STEPS = st.one_of(
    KEYS.map(lambda key: (Kind.ITEM, f"[{key_text(key)}]")),
    st.sampled_from([(Kind.ATTRIBUTE, ".x1"), (Kind.ATTRIBUTE, ".args[2]"), (Kind.HOOK, "hook 12")]),
    st.sampled_from([(Kind.CLOSURE, ".__closure__[1] 'x'"), (Kind.LOCAL, "local 'y'"), (Kind.CACHED, "cached result")]),
)


@given(st.lists(st.tuples(STEPS, st.sampled_from(["dict", "list", "Node"])), max_size=20))
def test_what_was_written_is_read_as_what_is_written_now(steps: list[tuple[tuple[Kind, str], str]]) -> None:
    """For any chain and any keys."""
    first = Step(Reference(Kind.GLOBAL, "C"), "dict")
    path = Path("module a", RootKind.MODULE, (first, *(Step(Reference(*edge), word) for edge, word in steps)))
    assert current(HEAD + old_form(path.text)) == HEAD + path.stable
