"""What a check of an expected text can raise.

PYTEST_DONT_REWRITE
"""

from collections.abc import Iterator

from cudamem_testing.model.checked import Checked
from cudamem_testing.model.errors import exception_chain
from cudamem_testing.safe_access import is_a


class TextMismatchError(AssertionError):
    """The actual text is not the expected one; the message holds the diff.

    Attributes:
        actual: the canonical actual text.
        expected: the canonical expected text, or None if there is none yet.
        checked: what a report keeps of the check, or None if none is written.
    """

    def __init__(self, message: str, *, actual: str, expected: str | None, checked: Checked | None = None) -> None:
        super().__init__(message)
        self.actual = actual
        self.expected = expected
        self.checked = checked


class NotAcceptedError(TextMismatchError):
    """The text should be accepted and cannot be; the message says why."""


class ConflictError(NotAcceptedError):
    """Two tests, or two parameters of one test, want different texts in one place."""


class NotLocatedError(Exception):
    """The literal of a call cannot be found in its file with certainty; the message says why."""


class NotWrittenError(Exception):
    """Some collected texts were not written; the message names the files and the texts."""


def failed_checks(error: BaseException) -> Iterator[Checked]:
    """What a report keeps of the checks whose errors belong to an error."""
    for one in exception_chain(error):
        if is_a(one, TextMismatchError) and one.checked is not None:
            yield one.checked
