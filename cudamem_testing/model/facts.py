"""The content of findings, as numbers, lines of code and references.

Judges create them, policy adds remarks, and every report reads them. They hold no sentences: ``wording`` creates all
text on demand. Sizes are bytes. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cudamem_testing.model.changes import Change, ChangedPlace
from cudamem_testing.model.devices import Device
from cudamem_testing.model.evidence import Evidence, NoEvidence
from cudamem_testing.model.limits import Breach
from cudamem_testing.model.live_tables import LiveTable
from cudamem_testing.model.outside import OutsideGrew as OutsideGrew
from cudamem_testing.model.pools import Pool, PoolUse
from cudamem_testing.model.recovery import NotRecovered as NotRecovered
from cudamem_testing.model.recovery import NotTried as NotTried
from cudamem_testing.model.references import Doubt, Path
from cudamem_testing.model.remarks import Remark, Tied
from cudamem_testing.model.retained import Allocation as Allocation
from cudamem_testing.model.retained import RetainedBlock as RetainedBlock
from cudamem_testing.model.stacks import Frame

# -- limits and baselines ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A broken limit, and what the memory consisted of."""

    breach: Breach
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Outgrew:
    """A peak that grows faster with a parameter than promised: bytes at each size, and by line of the project."""

    promise: str
    over: str
    sizes: tuple[int, ...]
    bytes: tuple[int, ...]
    lines: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        numbers = {len(one) for one in (self.sizes, self.bytes, *(line for _, line in self.lines))}
        if len(numbers) > 1 or len(self.sizes) < 2:
            raise ValueError("a peak that outgrew its promise needs bytes at two sizes or more, and by line at each")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one line has allocated: ``number`` segments or blocks, with their ``bytes`` if these count."""

    line: Frame | None
    number: int
    bytes: int | None = None
    side_stream: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """A number off its baseline, and lines that grew, are new or gone; ``recorded`` and ``now`` name two environments.

    ``more`` counts further lines that grew or are gone.
    """

    change: Change
    places: tuple[ChangedPlace, ...] = ()
    taken: tuple[Taken, ...] = ()
    missing: NoEvidence | None = None
    recorded: str = ""
    now: str = ""
    more: int = 0


@dataclass(frozen=True, slots=True)
class NoBaseline:
    """No baseline is recorded in this environment, or none of the metrics that are ``lacking``."""

    environment: str
    lacking: tuple[str, ...] = ()


# -- leaks ------------------------------------------------------------------------------------------------


#: The holder of memory that ``capture_begin`` allocates, which lives as long as any graph that began a capture.
GRAPH_STATE = "random-number state of a live CUDA graph"
#: The holder of memory that ``DistributedDataParallel.__init__`` allocates.
REDUCER = "the reducer of a DistributedDataParallel, in C++"
#: The holder of the flat parameter of ``FullyShardedDataParallel``, and of its gradient: modules inside hold views of
#: it, a view holds it in C++, and it holds the modules.
FLAT_PARAMETER = "the flat parameter of a FullyShardedDataParallel and its views, in C++"


@dataclass(frozen=True, slots=True)
class Retained:
    """Blocks that one object holds; ``shown`` are the largest.

    ``count`` are all. ``keeps_graph`` is whether a tensor is kept with its autograd graph, ``graph_state`` whether they
    are the random numbers of captured CUDA graphs, ``reducer`` whether they are its buckets, ``flat_parameter`` whether
    they are one with its gradient, ``in_fixture`` whether a wider fixture allocated them. ``doubts`` say what the
    search for holders could not find out. ``tests`` is how many tests left them if each left less than ``each`` bytes.
    ``examples`` is how many generated examples of the test allocated them, ``example`` the first of these.
    """

    shown: tuple[RetainedBlock, ...]
    count: int
    keeps_graph: bool = False
    graph_state: bool = False
    in_fixture: bool = False
    doubts: tuple[Doubt, ...] = ()
    reducer: bool = False
    tests: int = 1
    each: int | None = None
    flat_parameter: bool = False
    example: str = ""
    examples: int = 0

    @property
    def in_cpp(self) -> str | None:
        """What holds them in C++, where that is known."""
        flags = ((self.graph_state, GRAPH_STATE), (self.reducer, REDUCER), (self.flat_parameter, FLAT_PARAMETER))
        return next((name for is_it, name in flags if is_it), None)

    @property
    def path(self) -> Path | None:
        """The chain of references to the largest block."""
        return self.shown[0].path if self.shown else None

    @property
    def line(self) -> Frame | None:
        """The line that allocated the largest block."""
        return self.shown[0].allocated.line if self.shown else None


@dataclass(frozen=True, slots=True)
class FreedBy:
    """Memory that a step of settling freed, and the lines that allocated most of it."""

    step: str
    count: int
    lines: tuple[tuple[int, Allocation], ...] = ()


@dataclass(frozen=True, slots=True)
class FixtureGrew:
    """A fixture that grew in several uses in a row; ``uses`` are the bytes of each."""

    fixture: str
    uses: tuple[int, ...]
    left: Retained


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Blocks of a file that are still live and not visible in the counters of any of its tests."""

    place: str
    live: LiveTable


# -- cycles -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptBy:
    """A line that allocated memory that a cycle kept, with the known names of its tensors."""

    line: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CycleKept:
    """A reference cycle and what it kept: ``tensors`` are the largest storages of ``count``, ``lines`` allocated them.

    ``chain`` has its objects and references and ends with the first object; ``hanging`` is the number of other cycles
    connected to it. It was found ``times`` times, or about as often where that is ``estimated``; such cycles kept
    ``at_once`` bytes together, and ``small`` bytes of other garbage were not examined. ``library`` made the cycle, if
    not the project; a rule that ignores it matches ``pattern``. ``tied`` is what no weak reference breaks.
    """

    chain: tuple[str, ...]
    tensors: tuple[str, ...]
    count: int
    lines: tuple[KeptBy, ...] = ()
    closed_by: str | None = None
    hanging: int = 0
    times: int = 1
    at_once: int = 0
    remark: Remark | None = None
    library: str = ""
    pattern: str = ""
    small: int = 0
    estimated: bool = False
    tied: Tied | None = None


@dataclass(frozen=True, slots=True)
class NotExplained:
    """Unexplained garbage: an ``error``, ``later`` collections after ``seconds`` were used up, ``unseen`` ones.

    ``large`` collections had too many objects, and freed ``freed`` bytes; ``left`` kinds of garbage were too many at
    once; the history of autograd in ``cut`` collections was too long; there was no time to read ``stopped`` ones to the
    end, which freed ``freed`` bytes.
    """

    error: str | None = None
    seconds: float | None = None
    later: int = 0
    unseen: int = 0
    large: int = 0
    freed: int = 0
    left: int = 0
    cut: int = 0
    stopped: int = 0


# -- out of memory, pools, the rest -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """What an earlier test or fixture left, and the line that allocated most of it."""

    owner: str
    bytes: int
    line: Frame | None = None


class Blame(str, Enum):
    """What alone would have made room for a request; the test's own need if nothing would."""

    NEED = "need"
    EARLIER_TESTS = "earlier tests"
    PRIVATE_POOLS = "private pools"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESSES = "other processes"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One failed allocation.

    ``shortage`` is by how much the request exceeded the available memory, ``None`` if no bound is known.
    ``allowed`` is the current limit. ``base`` is the level at which ``cuda_memory.limit`` set it, which does not count
    towards it; ``None`` for other limits. ``free`` is what the driver had, ``others`` what other processes hold on
    the device; each is ``None`` if unknown. ``held`` counts towards ``allowed``. ``left`` are earlier
    owners; ``before`` was live before the test and has no known owner, or, if events of the test were
    ``dropped``, may have been allocated in these. ``main`` and ``private`` say how segments are used, ``main`` is
    ``None`` if the device has none (the CPU). ``largest`` is the line of the test that holds most.
    """

    device: Device
    requested: int
    live: LiveTable
    blame: Blame
    shortage: int | None = None
    held: int = 0
    where: Frame | None = None
    allowed: int | None = None
    base: int | None = None
    free: int | None = None
    others: int | None = None
    left: tuple[Left, ...] = ()
    before: int = 0
    dropped: bool = False
    main: PoolUse | None = None
    private: tuple[PoolUse, ...] = ()
    largest: Frame | None = None

    @property
    def private_unused(self) -> int:
        """Unused bytes in private pools."""
        return sum(pool.free for pool in self.private)


@dataclass(frozen=True, slots=True)
class Refused:
    """An allocation was refused, and it is unknown what was live: nothing was recorded, or reading it failed."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class EmptyPool:
    """A private pool of a CUDA graph that holds memory without a live block; ``beside`` is the state of its graph."""

    pool: Pool
    test: str
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompilerPool:
    """The pool of the CUDA graphs that torch.compile captures, without a live block."""


@dataclass(frozen=True, slots=True)
class NotRepeatable:
    """A run of a test's body failed after others: warm-up run ``run`` of ``runs``, or the measured one (``None``)."""

    run: int | None
    runs: int


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Memory that a test retains could not be judged."""

    error: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The text of a finding from a report whose facts this version does not know."""

    message: str
    details: tuple[str, ...] = ()


Fact = (
    OverLimit
    | Outgrew
    | Changed
    | NoBaseline
    | Retained
    | FreedBy
    | FixtureGrew
    | LeftOver
    | CycleKept
    | NotExplained
    | OutOfMemory
    | Refused
    | NotRecovered
    | NotTried
    | EmptyPool
    | CompilerPool
    | OutsideGrew
    | NotRepeatable
    | NotJudged
    | Reported
)

# -- policy -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnRecord:
    """The line of the known findings with a finding's cause: the file, the line's number, and its reason.

    ``larger_than`` is the recorded size if the finding is larger, ``tolerance`` what is allowed beyond it.
    """

    file: str
    number: int
    reason: str = ""
    larger_than: int | None = None
    tolerance: str = ""


Note = Remark | OnRecord
