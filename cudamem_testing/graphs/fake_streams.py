"""Fake streams and events for running a function without a card: recorded, not executed.

A side stream takes part in a capture when it waits for the capturing stream (or for an event of it) before its work,
and the capturing stream must wait for it after its work. This is tracked here for each stream. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cudamem_testing.graphs.report import SourceLine
from cudamem_testing.graphs.rules import Rule

Report = Callable[..., None]
Attribute = tuple[object, str, object]
_SEEDS = ("manual_seed", "manual_seed_all", "set_rng_state", "get_rng_state")


class Streams:
    """The streams of one run. The first is the capturing one."""

    def __init__(self, report: Report, here: Callable[[], SourceLine]) -> None:
        self._report, self._here = report, here
        self._open: dict[int, tuple[Any, SourceLine]] = {}
        self.Stream, self.Event = self._classes()
        self.current: Any = self.Stream()
        self.current.captured = True

    def changes(self) -> list[Attribute]:
        """Replacements for torch's functions and classes."""
        wait = self._waiting
        names: dict[str, object] = {
            "Stream": self.Stream,
            "Event": self.Event,
            "stream": self.use,
            "StreamContext": self.use,
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.current,
            "set_stream": self._switch,
            "synchronize": wait("torch.cuda.synchronize()"),
            "is_current_stream_capturing": lambda: True,
            "current_device": lambda: 0,
            "device": lambda device: contextlib.nullcontext(),
            "device_of": lambda device: contextlib.nullcontext(),
        }
        changes: list[Attribute] = [(torch.cuda, name, value) for name, value in names.items()]
        changes += [(torch.cuda.nvtx, name, lambda *args: None) for name in ("range_push", "range_pop", "mark")]
        changes += self._seeds()
        accelerator = getattr(torch, "accelerator", None)  # 2.6
        if accelerator is not None:
            changes.append((accelerator, "synchronize", wait("torch.accelerator.synchronize()")))
            changes.append((accelerator, "current_stream", lambda device=None: self.current))
        return changes

    def end(self) -> None:
        """Report streams whose work is never waited for."""
        for _, place in self._open.values():
            self._report(Rule.STREAM, "work on a side stream that is not joined", place)
        self._open.clear()

    @contextlib.contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """``with torch.cuda.stream(...)``; ``None`` changes nothing."""
        before = self.current
        self._switch(before if stream is None else stream)
        try:
            yield
        finally:
            self.current = before

    def _switch(self, stream: Any) -> None:
        if stream is not self.current:
            if not stream.captured:
                self._report(Rule.STREAM, "a side stream that did not wait for the capturing stream", self._here())
            elif id(stream) not in self._open:
                self._open[id(stream)] = stream, self._here()
        self.current = stream

    def _joined(self, stream: Any) -> None:
        self._open.pop(id(stream), None)

    def _waiting(self, operation: str) -> Callable[..., bool]:
        def wait(*args: object, **kwargs: object) -> bool:
            self._report(Rule.SYNCHRONIZE, operation, self._here())
            return True

        return wait

    def _seeds(self) -> list[Attribute]:
        def refuse(operation: str) -> Callable[..., object]:
            def seed(*args: object, **kwargs: object) -> object:
                self._report(Rule.GENERATOR, operation, self._here())
                return torch.default_generator

            return seed

        changes: list[Attribute] = [(torch.cuda, name, refuse(f"torch.cuda.{name}()")) for name in _SEEDS]
        return [(torch, "manual_seed", refuse("torch.manual_seed()")), *changes]

    def _classes(self) -> tuple[type, type]:
        streams = self

        class Event:
            """Takes the place of ``torch.cuda.Event``."""

            def __init__(self, *args: object, **kwargs: object) -> None:
                self.stream: Any = None

            def record(self, stream: Any = None) -> None:
                self.stream = streams.current if stream is None else stream

            def wait(self, stream: Any = None) -> None:
                (streams.current if stream is None else stream).wait_event(self)

            synchronize = streams._waiting("Event.synchronize()")
            query = streams._waiting("Event.query()")

            def elapsed_time(self, other: object) -> float:
                streams._report(Rule.SYNCHRONIZE, "Event.elapsed_time()", streams._here())
                return 0.0

        class Stream:
            """Takes the place of ``torch.cuda.Stream``."""

            cuda_stream = 0
            device = torch.device("cpu", 0)

            def __init__(self, *args: object, **kwargs: object) -> None:
                self.captured = False

            def wait_stream(self, other: Any) -> None:
                self.captured = self.captured or other.captured
                if self.captured:
                    streams._joined(other)

            def wait_event(self, event: Any) -> None:
                if event.stream is not None:
                    self.wait_stream(event.stream)

            def record_event(self, event: Any = None) -> Any:
                event = Event() if event is None else event
                event.record(self)
                return event

            synchronize = streams._waiting("Stream.synchronize()")
            query = streams._waiting("Stream.query()")

            def __enter__(self) -> Any:
                self._context = streams.use(self)
                self._context.__enter__()
                return self

            def __exit__(self, *args: Any) -> None:
                self._context.__exit__(*args)

        return Stream, Event


def noted_calls(report: Report, here: Callable[[], SourceLine]) -> list[Attribute]:
    """On a card: record calls that wait or seed, and execute them."""
    inside: list[str] = []

    def noted(original: Callable[..., Any], rule: Rule, operation: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not inside:  # torch.manual_seed() calls torch.cuda.manual_seed_all()
                report(rule, operation, here())
            inside.append(operation)
            try:
                return original(*args, **kwargs)
            finally:
                inside.pop()

        return call

    wait, seed = Rule.SYNCHRONIZE, Rule.GENERATOR
    calls: list[tuple[object, str, Rule, str]] = [(torch.cuda, "synchronize", wait, "torch.cuda.synchronize()")]
    calls += [(torch.cuda.Stream, name, wait, f"Stream.{name}()") for name in ("synchronize", "query")]
    calls += [(torch.cuda.Event, name, wait, f"Event.{name}()") for name in ("synchronize", "query", "elapsed_time")]
    calls += [(torch, "manual_seed", seed, "torch.manual_seed()")]
    calls += [(torch.cuda, name, seed, f"torch.cuda.{name}()") for name in _SEEDS]
    return [(owner, name, noted(getattr(owner, name), rule, operation)) for owner, name, rule, operation in calls]
