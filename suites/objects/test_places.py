"""Known places: they answer as a search of the whole heap would, and leave to it what they cannot prove."""

from __future__ import annotations

import functools
import gc
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudamem_testing.model.references import Reach
from cudamem_testing.objects.places import KnownPlaces
from cudamem_testing.objects.search import HolderResult, find_holders
from cudamem_testing.torch_api import tensors

HERE = f"module {__name__}"
CACHE: list[Any] = []
TABLE: dict[str, Any] = {}
LAST: Any = None
FRESH: Any = None
OTHER: list[Any] = []


class Registry:
    shared: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.items: list[Any] = []


REGISTRY, REPLACED = Registry(), Registry()


def _closure() -> Callable[[Any], None]:
    kept: list[Any] = []

    def keep(made: object) -> None:
        kept.append(made)

    return keep


keep_in_closure = _closure()


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    _empty_all()


def _empty_all() -> None:
    for kept in (CACHE, TABLE, OTHER, REGISTRY.items, REPLACED.items, Registry.shared):
        kept.clear()  # type: ignore[attr-defined]
    globals()["LAST"] = globals()["FRESH"] = None


def address(tensor: torch.Tensor) -> int:
    found = tensors.storage(tensor)
    assert found is not None
    return found[1]


def _named(made: torch.Tensor) -> None:
    globals()["LAST"] = made


def _model(made: torch.Tensor) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model[0].weight.data = made
    CACHE.append({"model": model})


def _grad(made: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(torch.empty(made.shape))
    parameter.grad = made
    CACHE.append(parameter)


def _instance(made: torch.Tensor) -> None:
    registry = Registry()
    registry.items.append(made)
    CACHE.append(registry)


def _new_list(made: torch.Tensor) -> None:
    REPLACED.items = [made]


#: What keeps a new tensor, and the chain that is found, where ``*`` is the number of the time.
ANSWERED: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "list": (lambda made: CACHE.append(made), " > CACHE (list)[*]"),
    "dict": (lambda made: TABLE.__setitem__(f"layer{len(TABLE)}", made), " > TABLE (dict)['layer*']"),
    "nested": (lambda made: CACHE.append({"a": (1, made)}), " > CACHE (list)[*] > dict['a'] > tuple[1]"),
    "global": (_named, " > LAST"),
    "attribute": (lambda made: REGISTRY.items.append(made), " > REGISTRY (Registry).items (list)[*]"),
    "replaced attribute": (_new_list, " > REPLACED (Registry).items (list)[0]"),
    "class attribute": (lambda made: Registry.shared.append(made), "Registry.shared (list)[*]"),
    "closure": (
        lambda made: keep_in_closure(made),
        " > keep_in_closure (function keep).__closure__[0] 'kept' (list)[*]",
    ),
    "instance": (_instance, " > CACHE (list)[*] > Registry.items (list)[0]"),
    "model": (_model, " > CACHE (list)[*] > dict['model'][0].weight"),
    "gradient": (_grad, " > CACHE (list)[*].grad"),
    "view": (lambda made: CACHE.append(made[1:]), " > CACHE (list)[*]"),
    "several": (lambda made: CACHE.append([made, made]), " > CACHE (list)[*] > list[0]"),
}


@pytest.mark.slow
def test_the_second_time_is_answered_as_a_search_would() -> None:
    """All kinds side by side: a search of the whole heap takes its time for one block and for many."""
    places = KnownPlaces()
    answers: list[dict[int, HolderResult] | None] = []
    for time in range(2):
        blocks = {}
        for kind, (keep, _) in ANSWERED.items():
            made = torch.ones(64)
            keep(made)
            blocks[kind] = address(made)
            del made
        answers = [places.find([where]) for where in blocks.values()]
        if time == 0:
            assert answers == [None] * len(ANSWERED), "nothing is known at first"
            places.search(blocks.values())
    whole = find_holders(blocks.values(), budget_seconds=60)
    for found, (kind, where) in zip(answers, blocks.items(), strict=True):
        assert found == {where: whole[where]}, kind
        assert whole[where].reach is Reach.REACHABLE
        path = whole[where].path
        assert path is not None
        wanted = (f"class {__name__}." if kind == "class attribute" else HERE) + ANSWERED[kind][1]
        assert re.fullmatch(re.escape(wanted).replace(r"\*", r"\d+"), path.text), path.text


def _in_a_local(made: torch.Tensor) -> object:
    CACHE.append(made)
    return made


def _in_another_list(made: torch.Tensor) -> object:
    CACHE.append([made])
    return CACHE[-1]


def _array(made: torch.Tensor) -> object:
    CACHE.append(made)
    return made.numpy()


def _view_elsewhere(made: torch.Tensor) -> object:
    CACHE.append(made)
    return made[2:]


def _alias_elsewhere(made: torch.Tensor) -> object:
    CACHE.append(made)
    return made.detach()


def _capsule(made: torch.Tensor) -> object:
    CACHE.append(made)
    return torch.utils.dlpack.to_dlpack(made)  # type: ignore[attr-defined]


def _storage(made: torch.Tensor) -> object:
    CACHE.append(made)
    return made.untyped_storage()


def _shared_gradient(made: torch.Tensor) -> object:
    _grad(made)
    other = torch.nn.Parameter(torch.empty(made.shape))
    other.grad = made
    return other


def _saved(made: torch.Tensor) -> object:
    CACHE.append(made)
    return torch.ones(64, requires_grad=True) * made


HELD_TWICE = (
    *(_in_a_local, _in_another_list, _array, _view_elsewhere, _alias_elsewhere, _capsule, _storage),
    *(_shared_gradient, _saved),
)


@pytest.mark.slow
def test_what_something_else_holds_too_is_searched_for() -> None:
    """It may be held by a shorter chain there; without the other holder it is answered."""
    places = KnownPlaces()

    def step(keep: Callable[[torch.Tensor], object]) -> tuple[int, object]:
        made = torch.ones(64)
        return address(made), keep(made)

    places.search([step(keep)[0] for keep in HELD_TWICE])
    answers: dict[int, HolderResult] = {}
    for keep in HELD_TWICE:
        where, held = step(keep)
        assert places.find([where]) is None, keep.__name__
        assert held is not None
        del held
        found = places.find([where])
        assert found is not None, keep.__name__
        answers |= found
    assert answers == find_holders(answers, budget_seconds=60)


@pytest.mark.slow
def test_one_unknown_block_leaves_all_to_the_search() -> None:
    places = KnownPlaces()
    CACHE.append(torch.ones(64))
    places.search([address(CACHE[0])])
    CACHE.append(torch.ones(64))
    elsewhere = sys.modules["elsewhere"] = types.ModuleType("elsewhere")
    elsewhere.__dict__["kept"] = torch.ones(64)
    try:
        assert places.find([address(CACHE[1])]) is not None
        assert places.find([address(CACHE[1]), address(elsewhere.__dict__["kept"])]) is None
        assert places.find([address(CACHE[1]), 12345]) is None
        assert places.find([]) is None
    finally:
        del sys.modules["elsewhere"]


def _in_the_other_list(made: torch.Tensor) -> None:
    OTHER.append([made])


def _in_an_object(made: torch.Tensor) -> None:
    REGISTRY.items.append({"x": made})


def _in_a_class(made: torch.Tensor) -> None:
    Registry.shared.append(made)


def _in_a_new_class(made: torch.Tensor) -> None:
    globals()["FRESH"] = type("Fresh", (), {"__module__": __name__, "__qualname__": "FRESH", "kept": [made]})


@functools.lru_cache
def cached(made: torch.Tensor) -> torch.Tensor:
    return made


@pytest.mark.slow
def test_another_name_in_a_known_module_needs_no_search() -> None:
    """Also where it was looked at before, and empty then."""
    places = KnownPlaces()
    CACHE.append(torch.ones(64))
    places.search([address(CACHE[0])])
    for _ in range(2):
        CACHE.append(torch.ones(64))
        where = address(CACHE[-1])
        assert places.find([where]) == find_holders([where], budget_seconds=60)
    answers: dict[int, HolderResult] = {}
    try:
        for keep in (_named, _in_the_other_list, _in_an_object, _in_a_class, _in_a_new_class, cached):
            made = torch.ones(64)
            where = address(made)
            keep(made)
            del made
            passed_over = {*places._looked_at}
            found = places.find([where])
            assert found is not None, keep
            assert passed_over <= places._looked_at | places._known, keep  # nothing had to be looked at once more
            answers |= found
        assert answers == find_holders(answers, budget_seconds=60)
    finally:
        cached.cache_clear()


def test_a_large_container_is_not_read_unless_it_must_be() -> None:
    """The control has the same list with fewer items."""
    for size, found in ((100_001, False), (200, True)):
        places = KnownPlaces()
        CACHE.append(torch.ones(64))
        places.search([address(CACHE[0])])
        OTHER.append([object()] * (size - 1) + [torch.ones(64)])
        where = address(OTHER[-1][-1])
        assert (places.find([where]) is not None) is found
        _empty_all()


def test_an_old_entry_that_is_filled_later_is_found() -> None:
    """What was looked at once is passed over, until something is missing."""
    places = KnownPlaces()
    for number in range(3):
        CACHE.append({"tensor": torch.ones(64)})
        where = address(CACHE[number]["tensor"])
        assert places.find([where]) is not None or places.search([where])
    CACHE[1]["more"] = torch.ones(64)
    where = address(CACHE[1]["more"])
    assert places.find([where]) == find_holders([where], budget_seconds=60)


def test_a_holder_that_is_gone_is_not_named() -> None:
    places = KnownPlaces()

    def keep() -> int:
        made = torch.ones(64)
        sys.modules["passing"].__dict__["cache"].append(made)
        return address(made)

    sys.modules["passing"] = types.ModuleType("passing")
    try:
        sys.modules["passing"].__dict__["cache"] = []
        where = keep()
        assert str(places.search([where])[where].path) == "module passing > cache (list)[0]"
        where = keep()
        assert str((places.find([where]) or {})[where].path) == "module passing > cache (list)[1]"
        OTHER.append(sys.modules.pop("passing"))
        found = (places.find([where]) or places.search([where]))[where]
        assert str(found.path) == f"{HERE} > OTHER (list)[0] > module passing > cache (list)[1]"
    finally:
        sys.modules.pop("passing", None)


@pytest.mark.slow
def test_objects_behind_a_given_object_are_examined() -> None:
    """As on the test that pytest has just run: a root of the harness that no earlier search can have met."""
    item = type("Item", (), {"__module__": "_pytest.python"})()
    item.instance = Registry()
    item.instance.items.append(torch.ones(64))
    OTHER.append(item)
    where = address(item.instance.items[0])
    places, beside = KnownPlaces(), [item]
    del item
    assert places.find([where]) is None
    found = places.find([where], beside=beside)
    assert found is not None
    assert found[where].reach is Reach.HARNESS
    assert found == find_holders([where], budget_seconds=60)


@pytest.mark.slow
def test_nothing_is_kept_alive() -> None:
    places = KnownPlaces()
    for _ in range(2):
        CACHE.append(Registry())
        CACHE[-1].items.append(torch.ones(64))
        where = address(CACHE[-1].items[0])
        assert places.find([where]) or places.search([where])
    gone = [weakref.ref(one) for one in (*CACHE, *(one.items[0] for one in CACHE))]
    CACHE.clear()
    assert [one() for one in gone] == [None] * 4
    assert not [one for one in gc.get_objects() if type(one) is types.FrameType and one.f_code.co_name == "find"]


def _taught() -> KnownPlaces:
    """Places that have found ``CACHE`` known."""
    places = KnownPlaces()
    CACHE.append(torch.ones(64))
    places.search([address(CACHE[0])])
    CACHE.clear()
    return places


def _is_searched_for(places: KnownPlaces, where: int, chain: str) -> None:
    """Nothing is answered where a shorter or other chain is found by a search, which is given."""
    assert places.find([where]) is None
    assert str(find_holders([where], budget_seconds=60)[where].path) == chain


def test_a_lazy_clone_is_searched_for() -> None:
    """It shares the memory until one of them is modified, in a separate storage that no count includes."""
    places = _taught()
    CACHE.append(torch.ones(64))
    OTHER.append(torch._lazy_clone(CACHE[0]))  # type: ignore[attr-defined]
    where = torch._C._data_address(CACHE[0])  # type: ignore[attr-defined] # without making the copy
    assert places.find([where]) is None
    assert find_holders([where], budget_seconds=60)[where].reach is Reach.REACHABLE


@pytest.mark.slow
def test_a_thread_that_has_ended_is_no_root_any_more() -> None:
    places, ended = _taught(), threading.Event()
    module = types.ModuleType("holding")
    namespace: Any = module.__dict__
    sys.modules["holding"] = module
    try:
        thread: Any = threading.Thread(target=ended.wait, name="ending")
        thread.start()
        thread.box = [torch.ones(64)]
        where = address(thread.box[0])
        alive = weakref.ref(thread)
        del thread
        assert str(places.search([where])[where].path) == "thread 'ending'.box (list)[0]"
        namespace["kept"] = alive()
        ended.set()
        namespace["kept"].join()
        namespace["kept"].box[0] = torch.ones(64)
        CACHE.append([[[namespace["kept"].box[0]]]])
        _is_searched_for(places, address(CACHE[0][0][0][0]), "module holding > kept (Thread).box (list)[0]")
    finally:
        ended.set()
        del sys.modules["holding"]


@pytest.mark.slow
def test_a_cache_under_another_name_is_no_root_any_more() -> None:
    places, module = _taught(), types.ModuleType("renaming")
    namespace: Any = module.__dict__
    sys.modules["renaming"] = module
    try:
        exec("import functools, torch\nmake = functools.lru_cache(lambda number: torch.ones(64))", namespace)
        namespace["make"].__module__, namespace["make"].__name__ = "renaming", "make"
        namespace["make"].__qualname__ = "make"
        where = address(namespace["make"](1))
        assert str(places.search([where])[where].path).startswith("lru_cache of renaming.make")
        namespace["make"].cache_clear()
        namespace["kept"] = namespace.pop("make")
        where = address(namespace["kept"](2))
        found = places.find([where])
        assert found is None or found == find_holders([where], budget_seconds=60)
        assert str(find_holders([where], budget_seconds=60)[where].path).startswith("module renaming > kept")
    finally:
        del sys.modules["renaming"]


def test_what_holds_a_given_object_is_searched_for() -> None:
    """A given object that is no root may have any holder; an instance of a user's class is none."""
    places, item = _taught(), Registry()
    item.items.append(torch.ones(64))
    where = address(item.items[0])
    REGISTRY.items.append(item)
    beside = [item]
    del item
    assert places.find([where], beside=beside) is None
    beside.clear()
    found = str(find_holders([where], budget_seconds=60)[where].path)
    assert found == f"{HERE} > REGISTRY (Registry).items (list)[0] > Registry.items (list)[0]"
    REGISTRY.items.clear()


@pytest.mark.slow
def test_an_untracked_result_is_not_mistaken_for_another() -> None:
    """The results of ``torch.max`` are tuples of a kind that the collector never sees: no count tells their holders."""
    places, x = _taught(), torch.randn(8, 8)
    for _ in range(2):  # the second time with an id that is known from the first
        OTHER.append(torch.max(x, 0))
        where = address(OTHER[0].values)
        places.search([where])
        number = id(OTHER[0])
        OTHER.clear()
        OTHER.append(torch.max(x, 0))
        CACHE.append(OTHER[0].values)
        where = address(CACHE[0])
        found = places.find([where])
        assert found is None, f"the same id again: {id(OTHER[0]) == number}"
        OTHER.clear()
        CACHE.clear()


def test_looking_runs_no_collection() -> None:
    """Garbage that is there stays there: whether a collection frees something is asked for afterwards."""
    places = _taught()
    CACHE.extend([number] for number in range(3000))
    CACHE.append(torch.ones(64))
    where = address(CACHE[-1])
    gc.collect()
    garbage = Registry()
    garbage.items.append(garbage)
    dead = weakref.ref(garbage)
    del garbage
    threshold = gc.get_threshold()
    try:
        gc.set_threshold(100, 1, 1)  # a hundred objects start a collection, unless it is paused
        found = places.find([where])
        still_there = dead() is not None
    finally:
        gc.set_threshold(*threshold)
    assert still_there
    assert found is not None
    gc.collect()
    assert dead() is None


@pytest.mark.slow
def test_a_variable_listed_by_several_frames_is_counted_once() -> None:
    """A cell shared by a hook and a function in it: what else holds its value is searched for all the same."""
    places = _taught()

    def pytest_runtestloop() -> None:
        kept = Registry()
        kept.items.append(torch.ones(64))
        where = address(kept.items[0])
        OTHER.append(kept)
        chain = f"{HERE} > OTHER (list)[0] > Registry.items (list)[0]"

        def inner() -> object:
            _is_searched_for(places, where, chain)
            return kept

        inner()

    pytest_runtestloop()


def test_without_use_counts_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    places = KnownPlaces()
    CACHE.append(torch.ones(64))
    places.search([address(CACHE[0])])
    CACHE.append(torch.ones(64))
    assert places.find([address(CACHE[1])]) is not None
    monkeypatch.setattr(tensors, "counts_uses", lambda: False)
    assert places.find([address(CACHE[1])]) is None


def _containers() -> list[list[Any]]:
    """Reached by a name, a table in a table, an attribute and a class."""
    return [CACHE, TABLE.setdefault("deep", {"er": ([],)})["er"][0], REGISTRY.items, Registry.shared]


def _keep(random: Random, made: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(torch.empty(made.shape))
    parameter.grad = made
    wrapped = random.choice(
        [made, made, [made], {"key": made}, (0, (made,)), {made}, parameter, {"parameter": parameter}]
    )
    if random.random() < 0.1:
        globals()["LAST"] = wrapped
    else:
        random.choice(_containers()).append(wrapped)


def _step(random: Random, kept: list[object]) -> list[int]:
    """Keep one to three new tensors somewhere, some of them also in a local or in a second place; their addresses."""
    kept.clear()
    wheres = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        made = torch.ones(random.randrange(1, 2000))
        wheres.append(address(made))
        _keep(random, made)
        if random.random() < 0.15:
            kept.append(random.choice([made, made[:0], made.detach(), made.numpy(), [made]]))
        if random.random() < 0.2:
            _keep(random, random.choice([made, made.detach()]))
        del made
    if random.random() < 0.2:  # another way to a container, or one way less
        source, target = random.sample(range(4), 2)
        if random.random() < 0.7:
            _containers()[source].append(_containers()[target])
        else:
            TABLE["alias"] = _containers()[target]
    return wheres


def _answered_of(seed: int, steps: int) -> int:
    """Run a random program; how many of its steps known places explained, each as a search does."""
    random, places, kept = Random(seed), KnownPlaces(), []  # type: ignore[var-annotated]
    answered = 0
    try:
        for _ in range(steps):
            wheres = _step(random, kept)
            found = places.find(wheres)
            if found is None:
                places.search(wheres)
            else:
                answered += 1
                assert found == find_holders(wheres, budget_seconds=60)
    finally:
        kept.clear()
        _empty_all()
    return answered


@settings(max_examples=1)
@given(seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_random_programs_both_ways(seed: int) -> None:
    _answered_of(seed, steps=5)


@pytest.mark.slow
def test_many_random_programs_both_ways() -> None:
    """They are answered often, so that the comparison says something; the whole heap is searched each time."""
    seeds = range(max(2, settings.default.max_examples // 10))
    assert sum(_answered_of(seed, steps=8) for seed in seeds) >= 7 * len(seeds) / 3
