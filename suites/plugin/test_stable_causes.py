"""Causes are the same in every run: for any keys of containers, under any hash seed, in any order, in any worker."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings

from cudamem_testing.wording.findings import text
from suites.plugin.inner import run_inner, run_outer

KEYS = {
    "uuid": "uuid.uuid4()",
    "hex": "uuid.uuid4().hex",
    "long_text": "'a' * 60 + uuid.uuid4().hex",
    "number": "uuid.uuid4().int",
    "small_number": "id(object())",
    "floating": "random.SystemRandom().random()",
    "pair": "(3, uuid.uuid4().hex)",
    "nested": "((uuid.uuid4().hex, 2.5), 'x')",
    "bytes": "uuid.uuid4().bytes",
    "tmp_path": "tmp_path",
    "text_of_tmp_path": "str(tmp_path)",
    "brackets": "'][' + uuid.uuid4().hex + '\"'",
    "time": "datetime.datetime.now()",
}
ONE_KEY = """
CACHE_{name} = {{}}

def test_{name}(tmp_path):
    key = {key}
    CACHE_{name}[key] = torch.zeros(32 << 10)
    CACHE_{name}[key, 2] = [torch.zeros(32 << 10)]
"""
KEYED = "import datetime, random, uuid, torch\n" + "".join(
    ONE_KEY.format(name=name, key=key) for name, key in KEYS.items()
)
FILE = "__cudamem__/known.jsonl"


def lines(content: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.slow
def test_no_key_enters_a_cause(pytester: pytest.Pytester) -> None:
    """The run right after the recording is green, for 13 kinds of keys of which most are others in each run."""
    assert len(KEYS) == 13
    first = run_inner(pytester, KEYED, "--cudamem", "--cudamem-device=cpu", "--cudamem-update=known")
    assert first.status == 0
    found = lines((pytester.path / FILE).read_text())
    assert {str(one["cause"]).rpartition(" | ")[2] for one in found} == {
        f"module test_it > CACHE_{name} (dict)[*]{inner}" for name in KEYS for inner in ("", " > list[*]")
    }
    again = run_inner(pytester, {}, "--cudamem", "--cudamem-device=cpu")
    assert (again.status, again.last) == (0, "13 passed")
    assert "known: 26 findings of 26 causes" in again.summary
    (plain, _) = again.test("test_hex").findings
    assert "CACHE_hex (dict)['" in text(plain)  # the message shows the key


@pytest.mark.slow
def test_another_container_is_another_cause(pytester: pytest.Pytester) -> None:
    """The control: what is not known fails."""
    run_inner(pytester, KEYED, "--cudamem", "--cudamem-device=cpu", "--cudamem-update=known")
    changed = {"test_it.py": KEYED.replace("CACHE_hex", "OTHER")}
    again = run_inner(pytester, changed, "--cudamem", "--cudamem-device=cpu")
    assert again.last == "13 passed, 1 error"


UNORDERED = """
    import pytest, torch

    NAMES = {f"{name}SUFFIX" for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")}
    KEPT, HELD, ALIKE = [], set(), []

    class Filled: pass
    class Mixed: pass
    class Deep: pass
    class One: pass
    class Two: pass
    class Three: pass
    class Box: pass
    OBJECT, VIEWS = Box(), Box()

    def tensor():
        return torch.zeros(32 << 10)

    def test_a_class_filled_from_a_set():
        x = tensor()
        for name in NAMES:
            setattr(Filled, name, x)

    def test_a_class_filled_with_lists():
        x = tensor()
        for name in NAMES:
            setattr(Mixed, name, [x] if name < "c" else {name: x} if name < "e" else (x,))

    def test_objects_filled_from_sets():
        x = tensor()
        for name in NAMES:
            box = Box()
            for inner in NAMES:
                setattr(box, inner, [x])
            setattr(Deep, name, box)

    def test_an_object_filled_from_a_set():
        x = tensor()
        for name in NAMES:
            setattr(OBJECT, name, x)

    def test_a_module_filled_from_a_set():
        x = tensor()
        for name in NAMES:
            globals()[name] = x

    def test_a_set_of_objects():
        x = tensor()
        for kind in {One, Two, Three}:
            one = kind()
            one.x = x
            HELD.add(one)

    def test_keys_before_names():
        x = tensor()
        KEPT.append({name: Box() for name in NAMES})
        for name, box in KEPT[0].items():
            setattr(box, "first" if name < "c" else "last", [x])

    def test_views():
        x = tensor()
        for name in NAMES:
            setattr(VIEWS, name, x[:10])

    @pytest.mark.parametrize("number", range(2))
    def test_places(number):
        made = {"a": here, "b": there, "c": elsewhere}
        for name in {f"{name}SUFFIX" for name in made}:
            ALIKE.append(made[name[0]]())

    def here(): return torch.zeros(32 << 10)
    def there(): return torch.zeros(32 << 10)
    def elsewhere(): return torch.zeros(32 << 10)
"""
CONFTEST = """
    import os

    def pytest_collection_modifyitems(items):
        if "REVERSED" in os.environ:
            items.reverse()
"""
#: Names of different hashes are in different orders under one seed: each file has its own.
SUFFIXES = {"test_it.py": "", "test_more.py": "_of_more", "test_others.py": "_2"}
FILES = {name: UNORDERED.replace("SUFFIX", suffix) for name, suffix in SUFFIXES.items()}
CAUSES = [
    "leak | reachable | {name}.py::elsewhere | module {name} > ALIKE (list)[*]",
    "leak | reachable | {name}.py::tensor | class {name}.Deep.alpha{suffix} (Box).alpha{suffix} (list)[*]",
    "leak | reachable | {name}.py::tensor | class {name}.Filled.alpha{suffix}",
    "leak | reachable | {name}.py::tensor | class {name}.Mixed.alpha{suffix} (list)[*]",
    "leak | reachable | {name}.py::tensor | module {name} > HELD (set) element > One.x",
    "leak | reachable | {name}.py::tensor | module {name} > KEPT (list)[*] > dict[*] > Box.first (list)[*]",
    "leak | reachable | {name}.py::tensor | module {name} > OBJECT (Box).alpha{suffix}",
    "leak | reachable | {name}.py::tensor | module {name} > VIEWS (Box).alpha{suffix}",
    "leak | reachable | {name}.py::tensor | module {name} > alpha{suffix}",
]
#: Hash seeds: one, ten in a full run; two workers have that of the process that they are forked from.
SEEDS = range(max(1, min(10, settings.default.max_examples // 20)))


@pytest.mark.slow
@pytest.mark.subprocess
def test_causes_under_many_orders_and_two_workers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and objects come in the order of a set; the cause is the same all the same."""
    files = {**FILES, "conftest.py": CONFTEST}
    record = ("--cudamem", "--cudamem-device=cpu", "--cudamem-update=known")

    def known(*arguments: str, plugins: tuple[str, ...] = ()) -> str:
        (pytester.path / FILE).unlink(missing_ok=True)
        assert run_outer(pytester, files, *record, *arguments, plugins=plugins, report=False).status == 0
        return (pytester.path / FILE).read_text()

    recorded = set()
    for seed in SEEDS:
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        recorded.add(known())
    monkeypatch.delenv("PYTHONHASHSEED")
    monkeypatch.setenv("REVERSED", "1")
    recorded.add(known("-n2", plugins=("xdist",)))
    wanted = [
        cause.format(name=file.removesuffix(".py"), suffix=suffix)
        for file, suffix in SUFFIXES.items()
        for cause in CAUSES
    ]
    assert [sorted(one["cause"] for one in lines(content)) for content in recorded] == [sorted(wanted)], recorded
