"""One run: whether texts are accepted, which test runs now, and what was collected.

Each run owns its session; nothing is global. pytest's plugin makes one for the process and passes it to what
it hands to tests. Elsewhere `accepting` and `Session.activate` make one the current session of the context.

PYTEST_DONT_REWRITE
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from cudamem_testing.model.callsite import CallSite
from cudamem_testing.model.checked import Checked
from cudamem_testing.show.places import side_folder

from .edits import Edits, Place, SideFile, Written
from .errors import NotLocatedError
from .side import side_file
from .source import Entry, Literal

NO_LITERAL = (
    "the argument is not a literal: change the value where it is defined, or omit the argument, and each test and "
    "parameter keeps its text in a separate file in __cudamem__/"
)
_current: ContextVar["Session | None"] = ContextVar("expected_text_session", default=None)


@dataclass(slots=True)
class Session:
    """The state of one run.

    Attributes:
        accept: collect texts that differ instead of raising.
        refusal: why texts cannot be accepted in this process, such as in an xdist worker; a differing text
            then raises with this reason.
        edits: what was collected.
        keep: note what checks see, for a report: of those that fail it is part of their error.
        right: the checks of literals whose text was right in the running test, each once; empty without `keep`.
    """

    accept: bool = False
    refusal: str | None = None
    edits: Edits = field(default_factory=Edits)
    keep: bool = False
    right: dict[Checked, None] = field(default_factory=dict)
    _test: str | None = None
    _module: Path | None = None
    _numbers: dict[tuple[Path, str], int] = field(default_factory=dict)
    _folders: dict[Path | str, bool] = field(default_factory=dict)

    @staticmethod
    def current() -> "Session | None":
        """Return the session made current by `activate` in this thread or task."""
        return _current.get()

    @contextmanager
    def activate(self) -> Iterator["Session"]:
        """Make this the session of every check in the block that is not given one."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def begin(self, test: str, module: Path | None = None) -> None:
        """Say which test runs from now on; a test that runs again begins again.

        Args:
            test: its id, ``suites/test_x.py::TestCase::test_name[parameters]``.
            module: the file the test is in; its content is watched from now on.
        """
        self._test, self._module = test, module
        self._numbers.clear()
        self.right.clear()
        if module is not None and self.accept:
            self.edits.watch(module)

    def end(self) -> None:
        """Say that no test runs any more."""
        self._test = self._module = None

    def write(self) -> Written:
        """Write all collected texts."""
        return self.edits.write()

    def test_name(self, at: CallSite) -> str:
        """Return the id of the running test, or the function that calls."""
        return self._test if self._test is not None else f"{at.file}::{at.function}"

    def may_have_side_files(self, at: CallSite) -> bool:
        """Whether the module has a folder for texts of calls without an argument; asked once per module."""
        module = self._module or at.file
        if module not in self._folders:
            self._folders[module] = side_folder(Path(module)).is_dir()
        return self._folders[module]

    def looks_at(self, at: CallSite) -> bool:
        """Whether a check has to know where its text is kept, and not only what it was given."""
        return self.accept or self.keep or self.may_have_side_files(at)

    def checked(
        self, at: CallSite, place: Place | None, key: str | None, expected: str | Mapping[str, str] | None, actual: str
    ) -> Checked:
        """Return what a report keeps of a check that failed; it may be that its place was not found (None)."""
        if isinstance(place, SideFile):
            return Checked(self.test_name(at), str(place.file), self._digest(place.file), None, key, expected, actual)
        return Checked(self.test_name(at), at.file, self._digest(Path(at.file)), at, key, expected, actual)

    def was_right(self, at: CallSite, place: Place | None, key: str | None) -> None:
        """Note a check whose literal was right. A side file belongs to one test; no other value can be written."""
        if self.keep and isinstance(place, Literal | Entry):
            self.right[Checked(self.test_name(at), at.file, None, at, key)] = None

    def find(self, at: CallSite, expected: str | Mapping[str, str] | None, key: str | None) -> tuple[Place, str | None]:
        """Return where the text of a call is kept, and the text there (None: none yet).

        An argument always counts; a call without one has a side file.

        Raises:
            NotLocatedError: the call or its file cannot be identified or read, or the argument is no literal.
        """
        if expected is not None:
            place = self.edits.source(Path(at.file)).locate(at, expected, key)
            if place is None:
                raise NotLocatedError(NO_LITERAL)
            return place, expected.get(key or "") if isinstance(expected, Mapping) else expected
        test = at.function if self._test is None else self._inner_test()
        module = self._test_module(at)
        number = self._numbers[module, test] = self._numbers.get((module, test), 0) + 1
        return self.edits.side(side_file(module, test, number=number))

    def _digest(self, path: Path) -> str | None:
        try:
            return self.edits.digest(path)
        except NotLocatedError:
            return None

    def _test_module(self, at: CallSite) -> Path:
        return self._module if self._module is not None else Path(at.file)

    def _inner_test(self) -> str:
        """Return the test's id without its file."""
        test = self._test or ""
        head, separator, inner = test.partition("::")
        return inner if separator and "[" not in head else test
