"""Flags, their ini twins, the header, and every usage error with its text."""

from __future__ import annotations

import errno
from importlib import metadata
from pathlib import Path

import pytest

from cudamem_testing.model.limits import budget
from cudamem_testing.model.options import OPTIONS, device
from cudamem_testing.model.rules import Rule
from cudamem_testing.model.settings import Settings

PASSES = "def test_passes(): pass"
TORCH = metadata.version("torch")
USAGE_ERROR = 4


DEFAULTS = {
    "device": "auto",
    "simulated": None,
    "budget": None,
    "leaks": "fail",
    "cycles": None,
    "ignore_below": None,
    "ignore": (),
    "stacks": True,
    "gpus": None,
    "dump": None,
    "top": 10,
    "json": None,
    "html": None,
    "first_use": "fail",
    "audit": False,
    "baseline": "compare",
    "update": frozenset(),
    "prune": False,
    "repeat": 1,
}
TEXTS = {
    "device": "cuda:1",
    "budget": "peak=2GiB, retained=0",
    "leaks": "warn",
    "cycles": "strict",
    "ignore_below": "3KiB",
    "stacks": "off",
    "gpus": "auto",
    "dump": "dumps",
    "top": "4",
    "json": "reports/memory.json",
    "html": "reports/memory.html",
    "known": "faults.jsonl",
    "baseline": "require",
}


def parsed(folder: Path) -> dict[str, object]:
    """What the texts mean; relative paths start at the folder."""
    return {
        "on": True,
        "enforce": True,
        "device": "cuda:1",
        "simulated": None,
        "budget": budget(peak="2GiB", retained=0, source="--cudamem-budget"),
        "leaks": "warn",
        "cycles": "strict",
        "ignore_below": 3072,
        "ignore": (),
        "stacks": False,
        "gpus": "auto",
        "dump": folder / "dumps",
        "top": 4,
        "json": folder / "reports/memory.json",
        "html": folder / "reports/memory.html",
        "first_use": "fail",
        "audit": True,
        "known": folder / "faults.jsonl",
        "baseline": "require",
        "update": frozenset(),
        "prune": False,
        "repeat": 1,
    }


def values(settings: Settings) -> dict[str, object]:
    """Every setting by its name, a device as text."""
    return vars(settings) | {"device": str(settings.device)}


def test_defaults(run_inner):
    assert values(run_inner(PASSES).settings) == {"on": False, "enforce": True, "known": None} | DEFAULTS


def test_what_only_the_command_line_asks_for(run_inner):
    found = run_inner(PASSES, "--cudamem-prune", "--cudamem-repeat=5").settings
    assert (found.prune, found.repeat) == (True, 5)


def test_flags(run_inner, pytester):
    flags = [f"--cudamem-{name.replace('_', '-')}= {text} " for name, text in TEXTS.items()]
    found = run_inner(PASSES, "--collect-only", "--cudamem", "--cudamem-audit", *flags).settings
    assert values(found) == parsed(pytester.path)


def test_a_path_may_begin_at_home_or_in_a_variable(run_inner, pytester, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("REPORTS", "/reports")
    found = run_inner(
        PASSES, "--collect-only", "--cudamem-json=~/a.json", "--cudamem-dump=$REPORTS/b", "--cudamem-known=c/$NONE~"
    ).settings
    assert (found.json, found.dump) == (Path("/home/me/a.json"), Path("/reports/b"))
    assert found.known == pytester.path / "c" / "$NONE~"


def test_the_flag_to_enforce_nothing_wins(run_inner):
    found = run_inner(PASSES, "--cudamem", "--no-cudamem").settings
    assert (found.on, found.enforce) == (False, False)


ON = ("cudamem = true", "cudamem_audit = true")
INI = "\n".join([*ON, *(f"cudamem_{name} = {text}" for name, text in TEXTS.items())])
NATIVE = "\n".join([*ON, *(f'cudamem_{name} = "{text}"' for name, text in TEXTS.items())])
KINDS = {
    "pytest.ini": f"[pytest]\n{INI}",
    "tox.ini": f"[pytest]\n{INI}",
    "setup.cfg": f"[tool:pytest]\n{INI}",
    "pyproject.toml": f"[tool.pytest.ini_options]\n{NATIVE}",
}
if hasattr(pytest, "version_tuple") and pytest.version_tuple >= (9, 0):
    KINDS["native/pyproject.toml"] = f"[tool.pytest]\n{NATIVE}"


@pytest.mark.parametrize("kind", KINDS)
def test_ini_files(run_inner, pytester, monkeypatch, kind):
    """Each says the same; a relative path starts at the folder of the file, not of the call; flags win."""
    below = pytester.mkdir("below")
    files = {Path(kind).name: KINDS[kind], "below/test_it.py": PASSES}
    monkeypatch.chdir(below)
    expected = parsed(pytester.path)
    assert values(run_inner(files, "--collect-only").settings) == expected
    found = run_inner({}, "--collect-only", "--cudamem-json=mine.json", "--cudamem-top=5").settings
    assert values(found) == expected | {"json": below / "mine.json", "top": 5}


def test_rules_of_the_ini_file(run_inner):
    ini = "[pytest]\ncudamem_ignore =\n holder: module legacy.cache > *  # goes in May\n function: warm*  # theirs\n"
    assert run_inner({"test_it.py": PASSES, "pytest.ini": ini}).settings.ignore == (
        Rule("holder", "module legacy.cache > *", "goes in May"),
        Rule("function", "warm*", "theirs"),
    )


@pytest.mark.parametrize(
    ("text", "status", "first_use"), [("warn", 0, "warn"), (" fail ", 0, "fail"), ("off", 4, None)]
)
def test_first_use_is_the_projects_decision(run_inner, text, status, first_use):
    inner = run_inner({"test_it.py": PASSES, "pytest.ini": f"[pytest]\ncudamem_first_use ={text}\n"})
    assert inner.status == status
    if first_use is None:
        assert inner.err.splitlines()[0] == (
            "ERROR: cudamem: ini cudamem_first_use: 'off' is not known: write fail or warn"
        )
    else:
        assert inner.settings.first_use == first_use


def test_an_audit_accounts_for_every_test(run_inner):
    found = run_inner(PASSES, "--cudamem-audit").settings
    assert (found.on, found.audit) == (True, True)
    assert not run_inner(PASSES, "--cudamem-audit", "--no-cudamem").settings.on


@pytest.mark.parametrize(
    ("arguments", "expecttest", "update"),
    [
        (["--cudamem-update"], "", {"baselines", "known", "expected"}),
        (["--cudamem", "--cudamem-update=known, expected"], "", {"known", "expected"}),
        ([], "1", {"expected"}),
        (["--cudamem", "--cudamem-update=known"], "1", {"known", "expected"}),
    ],
)
def test_what_is_to_be_rewritten(run_inner, monkeypatch, arguments, expecttest, update):
    monkeypatch.setenv("EXPECTTEST_ACCEPT", expecttest)
    assert run_inner(PASSES, *arguments).settings.update == update


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            ["--cudamem-device=gpu"],
            ["--cudamem-device: device 'gpu' is not known: write auto, all, cpu, cuda or cuda:N"],
        ),
        (
            ["--cudamem-device=host"],
            ["--cudamem-device: device 'host' is not known: write auto, all, cpu, cuda or cuda:N"],
        ),
        (
            ["--cudamem-budget=peak=12XB"],
            [
                (
                    "--cudamem-budget: peak: size '12XB' has the unknown unit 'XB': write bytes as an int, or a number "
                    "with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
                )
            ],
        ),
        (["--cudamem-budget=peak=1B,peak=2B"], ["--cudamem-budget: peak is given twice"]),
        (["--cudamem-budget=,"], ["--cudamem-budget: sets no limit: write for example peak='512MiB'"]),
        (
            ["--cudamem-budget=speed=1,peak"],
            [
                (
                    "--cudamem-budget: 'speed=1' is not METRIC=SIZE with a metric of peak, reserved, retained, "
                    "allocations, retries, fragmentation"
                ),
                (
                    "--cudamem-budget: 'peak' is not METRIC=SIZE with a metric of peak, reserved, retained, "
                    "allocations, retries, fragmentation"
                ),
            ],
        ),
        (
            ["--cudamem-budget=allocations=1MiB"],
            ["--cudamem-budget: allocations: '1MiB' is not a count: write an int of 0 or more"],
        ),
        (["--cudamem-update=known"], ["--cudamem-update=known requires --cudamem"]),
        (["--cudamem-top=-1"], ["--cudamem-top: '-1' is not a number of rows"]),
        (["--cudamem-top=many"], ["--cudamem-top: 'many' is not a number of rows"]),
        (["--cudamem-stacks=on"], ["--cudamem-stacks: 'on' is not known: write auto or off"]),
        (["--cudamem-gpus=2"], ["--cudamem-gpus: '2' is not known: write auto or fraction"]),
        (["--cudamem-leaks=yes"], ["--cudamem-leaks: 'yes' is not known: write fail, warn or off"]),
        (["--cudamem-cycles=yes"], ["--cudamem-cycles: 'yes' is not known: write fail, warn, off or strict"]),
        (
            ["--cudamem-ignore-below=-1"],
            [
                (
                    "--cudamem-ignore-below: size '-1' is not understood: write bytes as an int, or a number with a "
                    "unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
                )
            ],
        ),
        (
            ["--cudamem-baseline=on"],
            ["--cudamem-baseline: 'on' is not known: write compare, require, simulated or off"],
        ),
        (["--cudamem-repeat=0"], ["--cudamem-repeat: '0' is not a number of runs"]),
        (["--cudamem-known={path}"], ["--cudamem-known: {path} is a folder"]),
        (["--cudamem-json={path}"], ["--cudamem-json: {path} is a folder"]),
        (
            ["--cudamem-json=" + "x" * 256],
            [f"--cudamem-json: [Errno {errno.ENAMETOOLONG}] File name too long: '{{path}}/{'x' * 256}'"],
        ),
        (["--cudamem-dump=test_it.py"], ["--cudamem-dump: {path}/test_it.py is a file"]),
        (
            ["--cudamem-update=known,all,else,more"],
            ["--cudamem-update: else, more is not known: write baselines, known, expected, or nothing for all"],
        ),
        (["-o", "cudamem=perhaps"], ["ini cudamem: invalid truth value 'perhaps'"]),
        (["-o", "cudamem_top=x"], ["ini cudamem_top: 'x' is not a number of rows"]),
        (
            ["-o", "cudamem_ignore=holder: x"],
            ["ini cudamem_ignore: 'holder: x' is not FIELD: PATTERN  # REASON with a field of holder, file, function"],
        ),
    ],
)
def test_usage_errors(run_inner, pytester, arguments, problems):
    inner = run_inner(PASSES, *[argument.format(path=pytester.path) for argument in arguments])
    expected = [f"cudamem: {problem.format(path=pytester.path)}" for problem in problems]
    assert inner.err.strip().splitlines() == [f"ERROR: {expected[0]}", *expected[1:]]
    assert (inner.status, inner.record) == (USAGE_ERROR, None)
    assert "test_it.py" not in inner.out  # nothing ran


def test_all_usage_errors_are_named_together(run_inner):
    wrong = ("--cudamem-device=tpu", "--cudamem-budget=peak=1XB,retained=1B,retained=2B", "--cudamem-top=x")
    inner = run_inner(PASSES, "--cudamem", *wrong)
    assert inner.status == USAGE_ERROR
    assert inner.err.strip().splitlines() == [
        "ERROR: cudamem: --cudamem-device: device 'tpu' is not known: write auto, all, cpu, cuda or cuda:N",
        "cudamem: --cudamem-budget: retained is given twice",
        (
            "cudamem: --cudamem-budget: peak: size '1XB' has the unknown unit 'XB': write bytes as an int, or a number "
            "with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
        ),
        "cudamem: --cudamem-top: 'x' is not a number of rows",
    ]


SIZES = "write bytes as an int, or a number with a unit: 512MiB, 1.5GiB (binary), 7GB (decimal)"
EMPTY = {
    "device": "device '' is not known: write auto, all, cpu, cuda or cuda:N",
    "leaks": "'' is not known: write fail, warn or off",
    "cycles": "'' is not known: write fail, warn, off or strict",
    "ignore_below": f"size '' is not understood: {SIZES}",
    "first_use": "'' is not known: write fail or warn",
    "budget": "sets no limit: write for example peak='512MiB'",
    "stacks": "'' is not known: write auto or off",
    "gpus": "'' is not known: write auto or fraction",
    "top": "'' is not a number of rows",
    "dump": "no folder is given",
    "json": "no file is given",
    "html": "no file is given",
    "known": "no file is given",
    "baseline": "'' is not known: write compare, require, simulated or off",
    "update": "'' is not known: write baselines, known, expected, or nothing for all",
    "repeat": "'' is not a number of runs",
}


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_value_is_no_default(run_inner, value):
    """As from a variable that is not set, which would quietly write no report; in an ini file alike."""
    names = [one for one in EMPTY if one != "first_use"]
    flags = run_inner(PASSES, *[f"--cudamem-{name.replace('_', '-')}={value}" for name in names])
    assert flags.status == USAGE_ERROR
    assert "test_it.py" not in flags.out  # nothing ran
    assert flags.err.strip().removeprefix("ERROR: ").splitlines() == [
        f"cudamem: --cudamem-{name.replace('_', '-')}: {EMPTY[name]}" for name in names
    ]
    names = [one for one in EMPTY if one not in ("update", "repeat")]
    ini = run_inner({"pytest.ini": "\n".join(["[pytest]", *(f"cudamem_{name} ={value}" for name in names)])})
    assert ini.status == USAGE_ERROR
    assert ini.err.strip().removeprefix("ERROR: ").splitlines() == [
        f"cudamem: ini cudamem_{name}: {EMPTY[name]}" for name in names
    ]


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 8 has no native TOML tables")
def test_a_number_in_native_toml_is_a_usage_error(run_inner, pytester):
    files = {"test_it.py": PASSES, "pyproject.toml": "[tool.pytest]\ncudamem_top = 4\ncudamem = 'yes'\n"}
    inner = run_inner(files)
    path = pytester.path / "pyproject.toml"
    assert inner.status == USAGE_ERROR
    assert inner.err.strip().splitlines() == [
        f"ERROR: cudamem: ini cudamem: {path}: config option 'cudamem' expects a bool, got str: 'yes'",
        f"cudamem: ini cudamem_top: {path}: config option 'cudamem_top' expects a string, got int: 4",
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], f"cudamem: device auto, torch {TORCH}"),
        (["--cudamem-device=cpu"], f"cudamem: device cpu, torch {TORCH}"),
        (
            ["--cudamem-audit", "-o", "cudamem_first_use=warn"],
            f"cudamem: device auto, audit, first use warn, torch {TORCH}",
        ),
        (
            ["--cudamem-baseline=require", "--cudamem-repeat=5", "--cudamem-gpus=auto"],
            f"cudamem: device auto, baseline require, repeat 5, a card for each worker, torch {TORCH}",
        ),
        (
            ["--cudamem-device=all", "--cudamem-budget=peak=2GiB,retained=0", "--cudamem-stacks=off"],
            f"cudamem: device all, budget peak at most 2.0 GiB, retained at most 0 B, stacks off, torch {TORCH}",
        ),
        (
            [
                "--cudamem-leaks=warn",
                "--cudamem-cycles=off",
                "--cudamem-ignore-below=3KiB",
                "--cudamem-dump=dumps",
                "-o",
                "cudamem_ignore=file: vendor/*  # not ours",
            ],
            (
                "cudamem: device auto, leaks warn, cycles off, ignore below 3.0 KiB, ignore 1 rule, dump dumps, "
                f"torch {TORCH}"
            ),
        ),
    ],
)
def test_header(run_inner, monkeypatch, arguments, line):
    monkeypatch.setattr("cudamem_testing.report.header.visible_names", lambda: ())
    inner = run_inner(PASSES, "--cudamem", *arguments)
    assert [one for one in inner.lines if one.startswith("cudamem: ")] == [line]


def test_header_says_what_an_allocator_leaves_unchecked(run_inner, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    line = next(line for line in run_inner(PASSES, "--cudamem").lines if line.startswith("cudamem: device"))
    assert ", backend:cudaMallocAsync (leaks are looked for among objects), torch " in line
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "not checked" not in run_inner(PASSES, "--cudamem").out


def test_header_names_cards_that_nvml_knows_once(run_inner, monkeypatch):
    monkeypatch.setattr("cudamem_testing.report.header.visible_names", lambda: ("NVIDIA H100", "NVIDIA H100", "T4"))
    inner = run_inner(PASSES, "--cudamem")
    assert f"cudamem: device auto, torch {TORCH}, NVIDIA H100, T4" in inner.lines


def test_header_without_torch(run_inner, monkeypatch):
    monkeypatch.setattr("cudamem_testing.torch_api.version", lambda: None)
    monkeypatch.setattr("cudamem_testing.report.header.visible_names", lambda: ())
    assert "cudamem: device auto, torch is not installed" in run_inner(PASSES, "--cudamem").lines


def test_every_flag_stands_in_the_help(run_inner):
    inner = run_inner("", "--help")
    assert inner.status == 0
    words = inner.out.split()
    for option in OPTIONS:
        assert any(word.partition("=")[0] == option.flag for word in words), option.flag
        assert any(word == option.name for word in words) or not option.ini, option.name


def test_markers_stand_in_the_list_of_markers(run_inner):
    inner = run_inner("", "--markers")
    assert (
        "@pytest.mark.memory_budget(peak, reserved, retained, allocations, retries, at_least, device, absolute, "
        "warmup): limits on the test's memory; a size alone means at most (cudamem)"
    ) in inner.lines


def test_fixtures_stand_in_the_list_of_fixtures(run_inner):
    inner = run_inner("", "--fixtures", "--cudamem")
    place = next(number for number, line in enumerate(inner.lines) if line.startswith("cuda_memory -- "))
    assert inner.lines[place + 1].strip() == (
        'Windows, in-test budgets and hard limits: ``with cuda_memory.window("decode") as w``.'
    )
    assert not inner.has_section("cudamem summary")


def test_simulated_cards_are_measured_as_cards() -> None:
    assert [str(one) for one in device("simulated:2x24GiB")] == ["cuda", "simulated 24GiB x 2"]
    assert device("cpu")[1] is None
