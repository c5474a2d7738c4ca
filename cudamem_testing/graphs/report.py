"""Results of the lint, as objects and as text. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudamem_testing.graphs.rules import MEANINGS, Rule
from cudamem_testing.model.entered import Result
from cudamem_testing.model.sizes import count
from cudamem_testing.records.expected.check import assert_text
from cudamem_testing.records.expected.lines import compare_lines


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the project: ``file:12 in f``, its name without line numbers, its source, and the module's path.

    ``module`` is the dotted path of the ``nn.Module`` whose forward was running, empty outside any.
    """

    line: str
    stable: str
    source: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One rule that one line breaks. ``times`` is how often it did so in the run."""

    rule: Rule
    operation: str
    place: SourceLine
    times: int = 1

    @property
    def breaks(self) -> bool:
        """Whether a capture would fail there; otherwise replays differ from the function."""
        return MEANINGS[self.rule].breaks

    @property
    def text(self) -> str:
        """Without line numbers: ``host read: Tensor.item  decode.py in step: n = lengths.max().item()``."""
        place = self.place
        source = f": {place.source}" if place.source else ""
        module = f" ({place.module})" if place.module else ""
        return f"{self.rule.value}: {self.operation}  {place.stable}{module}{source}"

    def __str__(self) -> str:
        place, meaning = self.place, MEANINGS[self.rule]
        lines = [f"{place.line}{f': {place.source}' if place.source else ''}"]
        times = f", {self.times} times" if self.times > 1 else ""
        module = f", in module {place.module}" if place.module else ""
        lines.append(f"   {self.rule.value}: {self.operation}{times}{module}")
        lines.append(f"   {meaning.happens}")
        lines.append(f"   do: {meaning.advice}")
        return "\n".join(lines)


class LintError(AssertionError):
    """The lint found something that would break or freeze in a capture."""


@dataclass(frozen=True, slots=True)
class LintReport(Result):
    """Everything that the lint found in one run of the function, in order of first appearance.

    ``notes`` say what could not be checked. ``str()`` explains each finding; ``text`` has a line for each, without line
    numbers, for expected text.
    """

    function: str
    findings: tuple[LintFinding, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, rule: Rule) -> tuple[LintFinding, ...]:
        """The findings of one rule."""
        return tuple(finding for finding in self.findings if finding.rule is rule)

    @property
    def breaks(self) -> bool:
        """Whether a capture of the function would fail."""
        return any(finding.breaks for finding in self.findings)

    @property
    def text(self) -> str:
        """One line for each finding, or ``no findings``."""
        return "\n".join(finding.text for finding in self.findings) or "no findings"

    def assert_clean(self) -> None:
        """Fail if the lint found anything.

        Raises:
            LintError: an ``AssertionError`` that explains each finding.
        """
        __tracebackhide__ = True
        if self.findings:
            raise LintError(str(self))

    def assert_findings(self, expected: str | Mapping[str, str] | None = None) -> None:
        """Compare ``text`` with the text written at the call.

        Raises:
            TextMismatchError: an ``AssertionError`` with a diff.
        """
        __tracebackhide__ = True
        assert_text(self.text, expected, depth=2, compare=compare_lines)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        if not self.findings:
            head = f"{self.function}: nothing found that would break a capture"
        else:
            head = f"{self.function}: {count(len(self.findings), 'finding')} before a capture"
        return "\n".join((head, *map(str, self.findings), *(f"note: {note}" for note in self.notes)))
