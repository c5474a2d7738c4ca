"""What each verdict means, where it usually comes from, and what to do about it. PYTEST_DONT_REWRITE"""

from __future__ import annotations

from dataclasses import dataclass

from cudamem_testing.model.findings import Finding, Kind, Verdict

#: The kind of findings that is explained like a verdict; its own verdicts are those of limits.
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a verdict means in one line and what it does, the usual causes, what to do, and the page with more."""

    text: str
    hint: str
    outcome: str
    causes: tuple[str, ...]
    fixes: tuple[str, ...]
    page: str = "verdicts.md"


def more(verdict: Verdict) -> str:
    """Where a verdict is explained."""
    return f"python -m cudamem_testing explain {verdict.anchor}"


FAILS, NOTE = "Fails the test.", "A note: it never fails a test."
MEANINGS: dict[Verdict, Meaning] = {
    Verdict.OVER: Meaning(
        "a number is above its limit: that of a budget, or a baseline plus its tolerance",
        "see the lines below: they hold most of the memory at the peak",
        FAILS,
        (
            "an extra copy: .float(), .repeat() instead of .expand(), an operation that is no longer in place",
            "activations kept longer: checkpointing is off, a result is not detached",
            "a larger batch, sequence or model than the budget was written for",
        ),
        (
            "read `live at the peak`: the largest lines come first, each with its call",
            "free what is not needed before the peak (del, a smaller scope), or compute it in pieces",
            "wrap regions in cuda_memory.window(...) to see where the peak is reached",
            "if the new number is right, raise the budget",
            "a baseline says what grew: `python -m cudamem_testing explain baseline`",
        ),
        "budgets.md",
    ),
    Verdict.UNDER: Meaning(
        "a number is below the lower bound set by at_least=",
        "check that the test still does the work it should measure",
        FAILS,
        (
            "the test no longer runs the code it should measure: an early return, an empty batch, a filled cache",
            "the work moved to another device, or to another process",
        ),
        (
            "check the test's inputs, and that the measured call runs",
            "if less memory is right, lower the bound",
        ),
        "budgets.md",
    ),
    Verdict.IMPROVED: Meaning(
        "a number is below its baseline by more than the tolerance",
        "record it with --cudamem-update=baselines",
        NOTE,
        ("a change that saves memory", "a test that does less work than before"),
        (
            "check that the test still does its work",
            "record it with `pytest --cudamem-update=baselines`, so that the next increase fails",
        ),
        "baselines.md",
    ),
    Verdict.NO_BASELINE: Meaning(
        "no baseline is recorded for this test, device and environment",
        "record one with --cudamem-update=baselines",
        "Fails the test, and only with `--cudamem-baseline=require`.",
        (
            "a new test, or a test that was renamed",
            "another device, torch version, number of threads or allocator setting than recorded",
        ),
        (
            "record it here: `pytest --cudamem-update=baselines`, and commit the file",
            "without the card: `python -m cudamem_testing accept report.json` records what CI has measured",
        ),
        "baselines.md",
    ),
    Verdict.OUT_OF_MEMORY: Meaning(
        "an allocation failed: the finding shows what was live, by line, and what would have made room",
        "follow the hint: it names what would have made room",
        "The test has failed already.",
        (
            "the test needs more memory than the device has, or than its cuda_memory.limit(...) allows",
            "an earlier test or fixture left memory: the finding names it",
            "fragmentation: enough memory is free, but no range is large enough",
            "pools of CUDA graphs, or other processes, hold the rest of the card",
        ),
        (
            "if the finding names an earlier test, fix its leak",
            "run the test alone to see how much it needs itself",
            "for fragmentation set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        "evidence.md",
    ),
    Verdict.NOT_RECOVERED: Meaning(
        "an allocation was made to fail, and afterwards something was neither restored nor completely changed",
        "restore state in a finally block, and change it only when all memory is allocated",
        FAILS,
        (
            "state that is set before the work and reset after it, without try and finally",
            "a loop of updates that ended half done: only some parameters, cache entries or results have changed",
            "an error that is kept for later: its traceback keeps the tensors of the failed work",
        ),
        (
            "use a context manager, or reset state in a finally block",
            "allocate first, then change state: build an entry before storing it, clear results before a retry",
            "keep the text of an error instead of the error, and try again after the except block",
        ),
        "failing-allocations.md",
    ),
    Verdict.REACHABLE: Meaning(
        "a chain of Python references keeps it alive",
        "drop the reference at the end of the test, or keep the object in a wider fixture",
        FAILS,
        (
            "a list, dictionary or cache of a module or class that nothing empties",
            "functools.lru_cache: it keeps arguments, such as self, and results",
            "a loss that is kept with its autograd graph",
            "a hook, callback, thread or handler that was registered and not removed",
        ),
        (
            "read `held by`: the chain starts at the object that outlives the test and ends at the tensor",
            "break it at the first link that should not outlive the test, as the hint says",
            "put what several tests share into a fixture with a wider scope",
            "to keep it by design, add a rule to cudamem_ignore, or record it with --cudamem-update=known",
        ),
    ),
    Verdict.HELD_BY_CPP: Meaning(
        "still allocated after a garbage collection, and no chain of Python references leads to it",
        "break what C++ holds: set .grad to None after backward(create_graph=True) or use torch.autograd.grad,"
        " remove the hook's handle, keep losses with .item() or .detach(), unregister callbacks of atexit",
        FAILS,
        (
            "backward(create_graph=True): a gradient and its graph hold each other",
            "a C++ object or an extension that stores a tensor",
            "a scripted or traced module, an unconsumed DLPack capsule",
            "callbacks of atexit, which Python cannot list",
        ),
        (
            "read `from`, if shown: the chain starts at an object that nothing in Python holds",
            "set .grad to None after backward(create_graph=True), or use torch.autograd.grad",
            "remove hooks by their handles, and unregister callbacks of atexit",
        ),
    ),
    Verdict.RAW: Meaning(
        "it was allocated directly with caching_allocator_alloc and never freed",
        "call torch.cuda.caching_allocator_delete with its address",
        FAILS,
        ("torch.cuda.caching_allocator_alloc without a matching delete", "an extension that allocates this way"),
        (
            "call torch.cuda.caching_allocator_delete(address), in a finally block",
            "or allocate a torch.empty(..., dtype=torch.uint8) and keep that instead",
        ),
    ),
    Verdict.CYCLE: Meaning(
        "only the garbage collector freed it: its objects refer to each other in a cycle",
        "break the cycle, or use a weak reference for the way back",
        "Fails the test on CUDA, warns on CPU (--cudamem-cycles). A cycle made by a library only warns.",
        (
            "self.hook = lambda: self..., a bound method stored on its own object",
            "a child that refers to its parent, an exception kept in a local variable of its frame",
            "backward(create_graph=True), a custom autograd.Function that stores a tensor on ctx",
        ),
        (
            "read the chain: it ends with the object it starts with; `closed by` is the line that closes it",
            "use weakref.ref or weakref.WeakMethod for one of the references, or set it to None when done",
            "inside a test: `with reference_cycles() as cycles: ...; cycles.assert_none()`",
        ),
        "cycles.md",
    ),
    Verdict.TRACEBACK: Meaning(
        "the traceback of the failed or skipped test held it; it was released before the next test",
        "no action needed: released with the failure",
        NOTE,
        ("the frames of a failed or skipped test keep its local variables until pytest has reported it",),
        (
            "no action is needed: fix the failure itself",
            "an exception that the test keeps itself is a leak",
        ),
    ),
    Verdict.TEST_INSTANCE: Meaning(
        "an attribute of the test instance (self) holds it; pytest keeps the instance until the session ends",
        "set the attribute to None in teardown_method, or use a fixture",
        NOTE,
        ("self.model = ... in a test of a plain class", "setup_method that stores tensors on self"),
        (
            "use a fixture that returns the value instead of self.model",
            "or delete the attribute in teardown_method; unittest.TestCase instances are dropped after each test",
        ),
    ),
    Verdict.WORKSPACE: Meaning(
        "a library (cuBLAS, cuDNN, cuFFT) used it as a workspace and released it on request",
        "no action needed",
        NOTE,
        ("the first matrix product on a stream: cuBLAS allocates a workspace for each handle and stream",),
        (
            "no action is needed: it is not counted for the test",
            "CUBLAS_WORKSPACE_CONFIG=:16:8 makes it smaller",
        ),
        "how-it-measures.md",
    ),
    Verdict.COMPILER_CACHE: Meaning(
        "a cache of torch.compile holds it until torch.compiler.reset()",
        "no action needed, or torch.compiler.reset() at the end of the test",
        NOTE,
        ("torch.compile keeps compiled functions and the constants in them", "guards keep what they compare with"),
        (
            "no action is needed, unless it adds up over the run",
            "call torch.compiler.reset() at the end of the test, or in an autouse fixture",
        ),
    ),
    Verdict.FIXTURE: Meaning(
        "a fixture or a parameter that outlives the test holds it",
        "no action needed, unless every use makes it grow",
        "A note. If one fixture grows in three uses in a row, the third fails.",
        (
            "a model in a wider fixture has gradients after its first backward",
            "a cache in a fixture that every test fills, a parameter that a test modifies",
        ),
        (
            "no action is needed if it stays the same from test to test",
            "if it grows, limit what the fixture keeps, or remove at the end of each test what the test added",
            "for gradients, call optimizer.zero_grad(set_to_none=True) in the fixture's cleanup",
        ),
    ),
    Verdict.HARNESS: Meaning(
        "pytest, doctest or a plugin keeps it, for its report or until the session ends",
        "no action needed, or pass text and numbers to pytest instead of tensors",
        NOTE,
        (
            "record_property, subtests or hypothesis keep a value for their report",
            "doctest keeps the value of the last expression in the name _",
            "a warning with a tensor as its argument: pytest records it for its summary",
        ),
        (
            "no action is needed: it is freed with the report, or when the session ends",
            "pass str(value) or value.item() to record_property and warnings instead of tensors",
        ),
    ),
    Verdict.UNATTRIBUTED: Meaning(
        "holder unknown",
        "run the test alone",
        NOTE,
        (
            "the search for holders reached its limit of time or objects",
            "a running frame of pytest holds it until it is reported",
            "a stream was capturing a CUDA graph, so garbage could not be collected",
        ),
        (
            "run the test alone, so that fewer objects are searched",
            "look at `allocated`: the line is known even if the holder is not",
        ),
    ),
    Verdict.NOT_REPEATABLE: Meaning(
        "the body of a test with warmup= did not pass when it was repeated",
        "create what the body changes inside the body, or drop warmup=",
        NOTE,
        (
            "the first run changed what the second needs: a consumed generator, a closed file, a trained model",
            "a used-up fixture: fixtures are set up once for all runs",
        ),
        (
            "create such state inside the test's body",
            "or drop warmup= from the marker, and warm up by hand",
        ),
        "budgets.md",
    ),
}
#: The meaning of all findings about baselines.
BASELINES = Meaning(
    "a number differs from the one recorded in __cudamem__/<test module>.json for this device and environment",
    "see what grew, then fix it or record it",
    "Fails the test if the number is higher by more than the tolerance; a lower one is a note.",
    (
        "a change in the code under test: start with the first line below the number",
        "a change of torch: each minor version of torch has its own entries, which are not compared with each other",
        "noise: --cudamem-repeat=N records the spread of several runs",
    ),
    (
        "fix what grew, or accept it: `pytest --cudamem-update=baselines`, and commit the file",
        "widen the tolerance of one test: @pytest.mark.memory_baseline(tolerance='5%|10MiB')",
        "`python -m cudamem_testing compare before.json after.json` shows all tests that changed",
    ),
    "baselines.md",
)


def explained(word: str) -> str:
    """The text of ``explain``: what a verdict means, the usual causes, what to do.

    ``word`` is the verdict or its anchor.

    Raises:
        ValueError: if there is no such verdict.
    """
    if word == BASELINE:
        return _page(BASELINE, BASELINES)
    found = next((verdict for verdict in Verdict if word in (verdict.value, verdict.anchor)), None)
    if found is None:
        words = (*(verdict.anchor for verdict in Verdict), BASELINE)
        raise ValueError(f"{word!r} is not a verdict: write {', '.join(words)}")
    return _page(found.value, MEANINGS[found])


def _page(name: str, meaning: Meaning) -> str:
    lines = [name, "", f"{sentence(meaning.text)} {meaning.outcome}", "", "Usual causes"]
    lines += [f"  - {cause}" for cause in meaning.causes]
    lines += ["", "What to do", *(f"  - {fix}" for fix in meaning.fixes)]
    return "\n".join((*lines, "", f"More: docs/{meaning.page}"))


def reason(finding: Finding) -> str:
    """The reason of a finding in a word or two; a baseline is no budget."""
    above = finding.kind is Kind.BASELINE and finding.verdict is Verdict.OVER
    return "above the baseline" if above else finding.verdict.value


def sentence(text: str) -> str:
    """A meaning as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
