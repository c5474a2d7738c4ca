"""Hints: every kind of holder has a case in the zoo and a section for users; an unknown one has no hint."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cudamem_testing.model.edges import Kind, Reference
from cudamem_testing.model.facts import Allocation, Retained, RetainedBlock
from cudamem_testing.model.findings import Verdict
from cudamem_testing.model.references import Path as Chain
from cudamem_testing.model.references import Reach, RootKind, Step
from cudamem_testing.wording.hints import Holder, expression, hint_of
from fixtures.zoo import cases
from fixtures.zoo.hints import HINTS
from suites.made import path

PAGE = Path(__file__).parents[2] / "docs" / "hints.md"
ITEM = (Kind.ITEM, "[0]", "Tensor")


def kept(chain: Chain | None, reach: Reach = Reach.REACHABLE, **more: bool) -> Retained:
    return Retained((RetainedBlock(8, None, Allocation(), reach, chain),), 1, **more)


def said(chain: Chain | None, verdict: Verdict = Verdict.REACHABLE, **more: bool) -> str | None:
    found = hint_of(verdict, kept(chain, **more))
    return None if found is None else found.text


def test_every_kind_has_a_section_and_a_case() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
    assert headings == [holder.value for holder in Holder]
    assert {holder.value for holder in Holder} - {*HINTS} == {"graph state", "flat parameter"}  # of a card, and FSDP1
    assert {key for key, _ in HINTS.values()} <= {case.key for case in cases()}


def test_a_container_is_emptied_and_a_name_is_set_to_none() -> None:
    cache, model = (Kind.GLOBAL, "_CACHE", "dict"), (Kind.GLOBAL, "MODEL", "Model")
    assert said(path("module p.cache", cache, ITEM)) == "call p.cache._CACHE.clear() at the end of the test"
    table = path("module p", model, (Kind.ATTRIBUTE, ".table", "Tensor"))
    assert said(table) == "set p.MODEL.table to None at the end of the test"
    assert said(table, in_fixture=True) == "set p.MODEL.table to None after the fixture's yield"
    weight = path("module p", model, (Kind.SUBMODULE, ".layer", "Linear"), (Kind.SUBMODULE, ".weight", "Parameter"))
    assert said(weight) == "delete p.MODEL.layer at the end of the test"


def test_the_base_of_an_array_cannot_be_set() -> None:
    array, base = (Kind.GLOBAL, "ARRAY", "ndarray"), (Kind.ATTRIBUTE, ".base", "Tensor")
    assert said(path("module p", array, base)) == "set p.ARRAY to None at the end of the test"
    model, field = (Kind.GLOBAL, "MODEL", "Model"), (Kind.ATTRIBUTE, ".table", "ndarray")
    assert said(path("module p", model, field, base)) == "set p.MODEL.table to None at the end of the test"
    assert said(path("module p", model, base)) == "set p.MODEL.base to None at the end of the test"


def test_the_first_link_that_is_more_than_a_container_decides() -> None:
    kept_, error = (Kind.GLOBAL, "KEPT", "list"), (Kind.ITEM, "[0]", "ValueError")
    chain = path("module p", kept_, error, (Kind.ATTRIBUTE, ".__traceback__", "traceback"))
    assert said(chain) == "keep str(error) in p.KEPT[0], or call traceback.clear_frames(error.__traceback__)"
    hook = (Kind.HOOK, "hook 3", "function <lambda>")
    chain = path("module p", (Kind.GLOBAL, "MODEL", "Model"), hook, (Kind.CLOSURE, ".__closure__[0] 'x'", "Tensor"))
    assert (
        said(chain)
        == "call remove() at the end of the test on the handle that registering the hook on p.MODEL returned"
    )


@pytest.mark.parametrize(
    ("chain", "verdict"),
    [
        (None, Verdict.UNATTRIBUTED),
        (
            path("weakref.finalize with print", (Kind.ATTRIBUTE, ".args", "tuple"), kind=RootKind.FINALIZER),
            Verdict.REACHABLE,
        ),
        (path("frame f (a.py:1)", (Kind.LOCAL, "local 'x'", "Tensor")), Verdict.REACHABLE),
        (path("fixture 'model'", (Kind.ATTRIBUTE, ".cached_result", "tuple")), Verdict.FIXTURE),
    ],
)
def test_an_unknown_holder_has_no_hint(chain: Chain | None, verdict: Verdict) -> None:
    assert said(chain, verdict) is None


def test_a_pool_worker_counts_as_executor_others_as_thread() -> None:
    frame = path("thread 'pool_0' > frame _worker (a.py:1)", (Kind.LOCAL, "local 'x'", "Tensor"), kind=RootKind.FRAME)
    own = replace(frame, thread="pool_0")
    assert said(own) == "stop thread 'pool_0' at the end of the test: signal it, then join() it"
    job = Step(Reference(Kind.LOCAL, "local 'work_item'"), "_WorkItem")
    wanted = "shut down the executor of 'pool_0' at the end of the test, or use it in a with statement"
    assert said(replace(own, steps=(job, *own.steps))) == wanted


def test_a_local_variable_has_its_name() -> None:
    graph = (Kind.GRAD_FN, ".grad_fn[ExpBackward0]", "ExpBackward0")
    local = path(
        "frame test_step (a.py:7)", (Kind.LOCAL, "local 'epoch'", "Epoch"), (Kind.ATTRIBUTE, ".total", "Tensor"), graph
    )
    assert expression(replace(local, root_kind=RootKind.FRAME), 2) == "epoch.total"


def test_names_of_inner_attributes_are_left_out() -> None:
    future = path("module p", (Kind.GLOBAL, "F", "Future"), (Kind.ATTRIBUTE, "._result", "Tensor"))
    assert (expression(future, 1), expression(future, 2)) == ("p.F", "p.F")
