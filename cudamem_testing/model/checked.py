"""The result of a check of an expected text, kept so that the text can be accepted later, and on another machine.

PYTEST_DONT_REWRITE
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cudamem_testing.model.callsite import CallSite


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of an expected text.

    Attributes:
        test: id of the test.
        file: the file for the expected text: a source file or a side file.
        digest: identifies the content that the file had; None if there was no file.
        call: the call whose argument is the text; None for a side file.
        device: the kind of device, if the text is one of a mapping; None otherwise.
        expected: the expected text or texts; None for none, and if the text matches.
        actual: the actual text; None if it is the expected one.
    """

    test: str
    file: str
    digest: str | None
    call: CallSite | None
    device: str | None
    expected: str | Mapping[str, str] | None = None
    actual: str | None = None

    @property
    def place(self) -> tuple[str, CallSite | None, str | None]:
        """What two checks of one literal have in common; for a matching text the device is its key, or None."""
        is_keyed = self.actual is None or isinstance(self.expected, Mapping)
        return self.file, self.call, self.device if is_keyed else None

    def below(self, root: Path) -> "Checked":
        """The same with its file relative to `root`, if it is below, and with forward slashes."""
        path, top = Path(os.path.realpath(self.file)), Path(os.path.realpath(root))
        file = path.relative_to(top).as_posix() if path.is_relative_to(top) else self.file
        return replace(self, file=file, call=None if self.call is None else replace(self.call, file=file))

    def __str__(self) -> str:
        line = "" if self.call is None else f":{self.call.line}"
        return f"{self.test}: {self.file}{line} {'is right' if self.actual is None else 'has another text'}"
