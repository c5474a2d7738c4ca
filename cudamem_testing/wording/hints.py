"""Hints: what to do about a leak, by what holds it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from cudamem_testing.model.facts import FixtureGrew, Retained
from cudamem_testing.model.findings import Finding, Verdict
from cudamem_testing.wording.meanings import MEANINGS

GRAPH = (
    "a tensor is kept together with its autograd graph, and so all that the graph holds: keep value.detach(), or"
    " value.item() for a number"
)
GRAPH_STATE = "reset the graph, or delete it"
IN_FIXTURE = "drop the reference when the fixture ends, after its yield or in a finalizer"
GROWS = "bound what the fixture keeps, or take out at the end of each test what it put in"


def hint(finding: Finding, fact: Retained) -> list[str]:
    """The lines that say what to do."""
    if fact.keeps_graph:
        return [f"   hint: {GRAPH}"]
    if fact.graph_state:
        return [f"   hint: {GRAPH_STATE}"]
    in_fixture = fact.in_fixture and finding.verdict is Verdict.REACHABLE
    return [f"   hint: {IN_FIXTURE if in_fixture else MEANINGS[finding.verdict].hint}"]


def fixture_hint(fact: FixtureGrew) -> list[str]:
    """The same of a fixture that grows."""
    return [f"   hint: {GROWS}"]
