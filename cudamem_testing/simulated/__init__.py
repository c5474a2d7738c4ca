"""CUDA tests on a machine without a card: a simulated one, with right values, its memory counted as torch counts it.

Inside ``with simulated_cuda():`` a torch that was built for the CPU has CUDA devices. Tensors on them are in memory of
the machine, operators are the CPU's, and autograd, modules and the program do what they do with a card. The
allocator is a model of torch's own (``card_memory.h``): rounding, pools, segments, splitting, limits and errors. Where
CUDA allocates otherwise than the CPU's kernels, rules say what (``card_rules.h``, ``kernels/``). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from cudamem_testing import torch_api
from cudamem_testing.guards import place
from cudamem_testing.model.allocator_settings import AllocatorSettings
from cudamem_testing.model.simulated_cards import CARDS, DEFAULT, CardModel, Cards
from cudamem_testing.recorders.build import RecorderUnavailable
from cudamem_testing.show.printable import say
from cudamem_testing.simulated.bindings import Bindings, SimulatedCardError, refuse
from cudamem_testing.simulated.native import NativeCard
from cudamem_testing.torch_api import cuda_build
from cudamem_testing.torch_api.backward import passes_in_this_thread

__all__ = ["CARDS", "CardModel", "Cards", "SimulatedCardError", "enter", "simulated_cuda", "without_values"]

Say = Callable[[str], None]
#: The versions of torch with which simulated cards are tested.
TRIED = ("2.7", "2.9", "2.11", "2.13", "2.14")


@contextmanager
def simulated_cuda(memory: int | str = DEFAULT, count: int = 1, values: bool = True) -> Iterator[Cards]:
    """A process in which torch has simulated CUDA devices.

    Args:
        memory: of each card, in bytes or as text (``"24GiB"``), or the card's model (``"h100"``).
        count: how many cards.
        values: without them tensors have shapes and are counted, but take no memory, and nothing is computed.

    Raises:
        ValueError: no such card.
        RecorderUnavailable: there is a card already, or this torch cannot simulate one; the message says why.
    """
    spec = f"{memory}B" if isinstance(memory, int) else memory
    leave = enter(Cards.parse(spec if count == 1 else f"{count}x{spec}"), values=values, say=_say)
    try:
        yield in_place()
    finally:
        leave()


def _say(text: str) -> None:
    say(f"cudamem: {text}", sys.stderr)


def enter(cards: Cards, *, values: bool = True, say: Say | None = None) -> Callable[[], None]:
    """Put simulated cards in place, for the whole process; what takes them out again.

    ``say`` is called with one line before a compilation, which takes seconds.

    Raises:
        RecorderUnavailable: there is a card already, or this torch cannot simulate one; the message says why.
    """
    from cudamem_testing.simulated.kernels import register  # it needs torch, and `doctor` does not

    reason = unavailable()
    if reason is not None:
        raise RecorderUnavailable(reason)
    with cuda_build.entering_simulation:
        settings = AllocatorSettings.read(os.environ)
        native = NativeCard.load(say)
        if not native.enter(cards, settings, values):
            raise RecorderUnavailable(
                "torch has CUDA devices in this process already: no card is simulated beside them"
            )
        stack = ExitStack()
        stack.callback(native.leave)
        try:
            model = cards.model
            properties = cuda_build.CardProperties(
                model.name, *model.capability, model.memory, model.processors, model.l2_cache, model.name
            )
            functions = Bindings(native, cards, settings).functions()
            stack.callback(place(cuda_build.cuda_build(functions, properties, refuse)))
            trap = torch_api.SimulatedTrap(native.set_trap, native.trapped, native.clear_trap)
            own = ((torch_api.SIMULATED, cards.titles), (torch_api.SIMULATED_TRAP, trap))
            stack.callback(place([(torch_api.bindings(), name, value) for name, value in own]))
            cuda_build.renew_threads()
            cuda_build.set_generators(cards.count, native.default_generator)
            if cuda_build.engine_lacks_cards(cards.count):
                native.add_to_engine(cards.count, say)
            stack.enter_context(passes_in_this_thread())
            native.renew()
            stack.callback(register(native, model))
            cuda_build.use_first()
            if settings.fraction is not None:
                for card in range(cards.count):
                    native.set_fraction(card, settings.fraction)
            if not values:
                cuda_build.load_shape_kernels()
        except BaseException:
            stack.close()
            raise
    entered = _Entered(cards, native)
    _entered.append(entered)

    def leave() -> None:
        with cuda_build.entering_simulation:
            _entered.remove(entered)
            stack.close()

    return leave


class _Entered(NamedTuple):
    cards: Cards
    native: NativeCard


_entered: list[_Entered] = []


@contextmanager
def without_values() -> Iterator[None]:
    """Shapes alone on the cards that are in place, until this ends.

    Raises:
        LookupError: no card is simulated.
    """
    in_place()
    native = _entered[-1].native
    had = native.values()
    cuda_build.load_shape_kernels()
    native.set_values(0)
    try:
        yield
    finally:
        native.set_values(had)


def in_place() -> Cards:
    """The cards that are simulated now.

    Raises:
        LookupError: none are.
    """
    if not _entered:
        raise LookupError("no card is simulated in this process")
    return _entered[-1].cards


def unavailable() -> str | None:
    """Why no card can be simulated in this process; ``None`` where one can."""
    if torch_api.simulated_cards():
        return "a card is simulated in this process already: simulated_cuda cannot be nested"
    if not cuda_build.has_cuda_build():
        absent = cuda_build.lacking()
        if absent:
            return f"the internals of this torch differ ({', '.join(absent)}): simulated cards need torch 2.7 or later"
        return None
    return (
        "this torch was built with CUDA, whose kernels a simulated card cannot replace: install the CPU build, in "
        "another environment if you have a card (pip install torch --index-url https://download.pytorch.org/whl/cpu)"
    )
