"""Garbage on a card is read within the bounds of the CPU: natively, each kind once in a test, not everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suites import forked

TESTS = """
import gc
import pytest, torch
from cudamem_testing.cycles import explain
from cudamem_testing.cycles.native import library
from cudamem_testing.recorders import history

OLD, LOOKS, READ = [], [], []
library().cudamem_collector_pace(0.02)  # what is read does not depend on the load of the machine
snapshot = history.snapshot
history.snapshot = lambda: READ.append(None) or snapshot()
look = explain.explain
explain.explain = lambda garbage, *rest: LOOKS.append(len(garbage)) or look(garbage, *rest)

class Node:
    pass

def ring(cls=Node):
    one = cls()
    one.me, one.big = one, torch.zeros(65536, device="cuda")
    return one

@pytest.fixture(scope="module")
def old():
    OLD.extend(ring() for _ in range(3))

@pytest.fixture(autouse=True)
def looks(record_property):
    gc.collect()
    gc.disable()
    LOOKS.clear()
    READ.clear()
    yield
    record_property("looks", len(LOOKS))
    assert not READ, "no collection reads the record of the card"
    gc.enable()

def test_known():
    for _ in range(5):
        for _ in range(4):
            ring()
        gc.collect()

def test_of_a_fixture(old):
    OLD.clear()
    gc.collect()

@pytest.fixture(scope="module")
def older():
    OLD.extend(ring() for _ in range(3))

def test_with_its_own(older):
    OLD.append(ring())
    OLD[:] = [ring(), *OLD]
    OLD.clear()
    gc.collect()
    ring()
    gc.collect()

def test_gradients():
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8, device="cuda") for _ in range(100)))
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    net.me = [net]
    del net
    gc.collect()

def test_kinds():
    for number in range(10):
        ring(type(f"Kind{number}", (Node,), {}))
    gc.collect()

def chain(count):
    first = last = Node()
    for _ in range(count):
        last.after = [Node()]
        last.after[0].back, last = last, last.after[0]
    return first

def test_many():
    one = chain(13_000)
    one.big = torch.zeros(65536, device="cuda")
    del one
    gc.collect()

def test_many_without_memory():
    chain(13_000)
    gc.collect()
"""
NOT_EXPLAINED = "cudamem: garbage with tensors was not explained: "
WHOLE = "; the fixture reference_cycles reads all of it"
UNREAD = "(objects not examined)"
RING = "Node.__dict__['me'] -> Node"
#: Findings, and how often garbage was read.
EXPECTED = {
    "test_known": ([(20 * 262144, RING)], 1),
    "test_of_a_fixture": ([], 1),  # whose the blocks were is found at the end of the test
    "test_with_its_own": ([(3 * 262144, RING)], 1),
    "test_gradients": ([(100 * 2 * (256 + 32), "Sequential.__dict__['me'] -> list[0] -> Sequential")], 1),
    "test_kinds": (
        [
            (None, f"{NOT_EXPLAINED}2 more kinds in a collection of many new ones not examined{WHOLE}"),
            (2 * 262144, UNREAD),
            *((262144, f"Kind{number}.__dict__['me'] -> Kind{number}") for number in range(8)),
        ],
        1,
    ),
    "test_many": (
        [(None, f"{NOT_EXPLAINED}1 collection of more than 25,000 objects not examined, 256.0 KiB freed{WHOLE}")],
        0,
    ),
    "test_many_without_memory": ([], 0),
}


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("device", ["simulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bounds_hold_on_a_card(tmp_path: Path, device: str) -> None:
    file, report = tmp_path / "test_it.py", tmp_path / "report.json"
    file.write_text(TESTS, encoding="utf-8")
    python = sys.executable if device == "cuda" else forked.python()
    command = [python, "-m", "pytest", "-p", "cudamem", "-p", "no:cacheprovider", str(file)]
    options = ["--cudamem", f"--cudamem-device={device}", f"--cudamem-json={report}", "--cudamem-cycles=warn"]
    environment = {
        **os.environ,
        "PYTEST_ADDOPTS": f"-p no:randomly --rootdir={tmp_path} --junitxml={tmp_path}/junit.xml",
    }
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)
    document = json.loads(report.read_text(encoding="utf-8"))
    junit = (tmp_path / "junit.xml").read_text(encoding="utf-8")
    found = {}
    for test in document["tests"]:
        name = test["nodeid"].partition("::")[2]
        findings = [
            (one["bytes"], one["holder"] or one["message"].partition("\n")[0])
            for one in test["findings"]
            if one["kind"] == "cycle"
        ]
        case = junit.partition(f'name="{name}"')[2].partition("</testcase>")[0]
        looks = int(case.partition('name="looks" value="')[2].partition('"')[0])
        found[name] = sorted(findings, key=lambda one: (one[0] or 0, one[1])), looks
    expected = {
        name: (sorted(findings, key=lambda one: (one[0] or 0, one[1])), looks)
        for name, (findings, looks) in EXPECTED.items()
    }
    assert found == expected, done.stdout
