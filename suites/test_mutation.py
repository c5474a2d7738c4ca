"""Mutation testing knows where modules and their tests are."""

from __future__ import annotations

from suites import mutation


def test_every_module_and_its_tests_exist() -> None:
    files = [mutation.ROOT / "suites" / f"{name}.py" for names in mutation.TESTS.values() for name in names]
    assert [str(path) for path in (*map(mutation.path_of, mutation.TESTS), *files) if not path.is_file()] == []


def test_a_sample_is_evenly_spaced_over_the_lines() -> None:
    every = [mutation.Mutant(line, 0, "op", "") for line in range(10, 0, -1)]
    assert [one.line for one in mutation.sample(every, 5)] == [1, 3, 5, 7, 9]
    assert len(mutation.sample(every, 28)) == 10
