"""``python -m suites.mutation [MODULE ...]``: which small faults in the modules that decide verdicts no test notices.

Cosmic Ray (``pip install cosmic-ray``) makes the mutants; no file is changed. For each one a forked process gives the
imported functions their mutated code, or imports all again where the change is outside of functions, and runs the
module's own test files until one fails. ``docs/mutation.md`` holds the scores and says why the survivors survive.

A mutant that changes annotations alone is not made: no such line is ever evaluated.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import contextlib
import difflib
import gc
import importlib
import importlib.util
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest

PACKAGE = "cudamem_testing"
ROOT = Path(__file__).parent.parent
SECONDS = 60  # of processor time that one mutant's tests may take: a loop that does not end is a fault noticed
#: The test files that cover each module.
TESTS = {
    "model.limits": ("model/test_limits", "wording/test_limits", "windows/test_judge"),
    "model.changes": ("model/test_changes", "model/test_baselines", "verdicts/test_changed", "records/test_baselines"),
    "model.baselines": ("model/test_baselines", "records/test_baselines"),
    "model.growth": ("model/test_growth", "verdicts/test_grown"),
    "model.scaling": ("model/test_scaling", "windows/test_scale"),
    "model.promises": ("model/test_promises",),
    "model.sizes": ("model/test_sizes",),
    "verdicts.verdict": ("verdicts/test_verdict", "verdicts/test_leaks"),
    "verdicts.known": ("verdicts/test_policy",),
    "verdicts.policy": ("verdicts/test_policy",),
    "verdicts.changed": ("verdicts/test_changed",),
    "verdicts.lines": ("verdicts/test_changed",),
    "verdicts.leaks": ("verdicts/test_leaks", "verdicts/test_verdict"),
    "verdicts.grown": ("verdicts/test_grown",),
    "verdicts.first_use": ("verdicts/test_first_use",),
    "windows.judge": ("windows/test_judge",),
    "windows.tracker": ("windows/test_tracker",),
    "windows.scale": ("windows/test_scale",),
    "objects.graph": ("objects/test_graph",),
    "cycles.explain": ("cycles/test_explained_garbage", "cycles/test_explain", "cycles/test_draw"),
    "cycles.source": ("cycles/test_source",),
    "cycles.draw": ("cycles/test_draw",),
    "records.baselines": ("records/test_baselines",),
    "records.known": ("records/test_known", "records/test_known_file"),
    "records.renames": ("records/test_renames",),
}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module: ``operator`` names the kind of change, ``text`` is the whole mutated module."""

    line: int
    column: int
    operator: str
    text: str


def path_of(module: str) -> Path:
    """The file of ``module``, named without the package."""
    return ROOT / PACKAGE / (module.replace(".", "/") + ".py")


def without_annotations(text: str) -> str:
    """What of ``text`` is executed, in the form of :func:`ast.dump`."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of ``module``."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = path_of(module).read_text()
    executed = without_annotations(source)
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():
            continue
        operator = kind()
        places = (place for node in ast_nodes(get_ast(source)) for place in operator.mutation_positions(node))
        for number, ((line, column), _) in enumerate(places):
            text = mutate_code(source.encode(), operator, number)
            with contextlib.suppress(SyntaxError):
                if text is not None and without_annotations(text) != executed:
                    yield Mutant(line, column, name.removeprefix("core/"), text)


def sample(all_of_them: Sequence[Mutant], most: int) -> list[Mutant]:
    """At most ``most`` mutants, evenly spaced over the lines of the module."""
    ordered = sorted(all_of_them, key=lambda one: (one.line, one.column, one.operator))
    count = min(most, len(ordered))
    return [ordered[number * len(ordered) // count] for number in range(count)]


def survives(module: str, source: str, text: str) -> bool:
    """Whether the tests of ``module`` pass with ``text`` in the place of ``source``."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        warnings.simplefilter("ignore")  # such as "is" with a literal, in a mutant
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        if outside_functions(source) == outside_functions(text):
            _replace_functions(module, text)
        else:
            _import_mutated(module, text)
        status = _run(module)
    finally:
        os._exit(status)


def outside_functions(text: str) -> str:
    """What of ``text`` is executed on import, in the form of :func:`ast.dump`."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return ast.dump(tree)


def _replace_functions(module: str, text: str) -> None:
    """Give the functions of the imported module the code that they have in ``text``."""
    path = str(path_of(module))
    codes: dict[tuple[str, int], CodeType] = {}
    todo = [compile(text, path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)]
    while todo:
        code = todo.pop()
        codes[code.co_name, code.co_firstlineno] = code
        todo += [one for one in code.co_consts if isinstance(one, CodeType)]
    functions = [one for one in gc.get_objects() if type(one) is FunctionType and one.__code__.co_filename == path]
    if not functions:
        raise RuntimeError(f"{module} has no function.")
    for function in functions:
        function.__code__ = codes[function.__code__.co_name, function.__code__.co_firstlineno]


def _import_mutated(module: str, text: str) -> None:
    """Import the package again, ``module`` from ``text``."""
    for name in [one for one in sys.modules if one.partition(".")[0] in (PACKAGE, "suites", "conftest")]:
        if name not in ("suites", __name__):
            del sys.modules[name]
    name = f"{PACKAGE}.{module}"
    parent, _, last = name.rpartition(".")
    spec = importlib.util.spec_from_file_location(name, path_of(module))
    assert spec is not None
    mutated = importlib.util.module_from_spec(spec)
    importlib.import_module(parent)
    sys.modules[name] = mutated
    exec(compile(text, str(path_of(module)), "exec"), mutated.__dict__)
    setattr(sys.modules[parent], last, mutated)


def _run(module: str, *options: str) -> int:
    files = [f"suites/{name}.py" for name in TESTS[module]]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *options, *files]))


def measure(module: str, most: int) -> tuple[int, int, int]:
    """Run a sample of the mutants of ``module`` and print the survivors; how many exist, were run, and were noticed."""
    source = path_of(module).read_text()
    if (
        _run(module, "--collect-only")
        or not survives(module, source, source)
        or not survives(module, source, f"{source}\nHERE = 1\n")
    ):
        raise RuntimeError(f"The tests of {module} fail without a mutant.")
    existing = list(mutants(module))
    chosen = sample(existing, most)
    noticed = 0
    for mutant in chosen:
        if survives(module, source, mutant.text):
            changed = difflib.unified_diff(source.splitlines(), mutant.text.splitlines(), lineterm="", n=0)
            print(f"{module}:{mutant.line} {mutant.operator}", *list(changed)[3:], sep="\n    ", flush=True)
        else:
            noticed += 1
    return len(existing), len(chosen), noticed


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure, print a row a module."""
    parser = argparse.ArgumentParser(prog="python -m suites.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=tuple(TESTS), metavar="MODULE", help="such as model.limits")
    parser.add_argument("--most", type=int, default=10**6, help="run at most that many mutants of a module")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    for module in options.modules:
        started = time.process_time() + _children()
        existing, ran, noticed = measure(module, options.most)
        seconds = time.process_time() + _children() - started
        print(f"| {module} | {existing} | {ran} | {noticed} | {100 * noticed // ran} % | {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
