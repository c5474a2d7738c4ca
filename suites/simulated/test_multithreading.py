"""Autograd's multithreading is off in the thread that enters a simulation, until that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cudamem_testing import simulated_cuda

multithreading: Any = torch.autograd.set_multithreading_enabled
is_multithreading: Callable[[], bool] = torch.autograd.is_multithreading_enabled


def test_it_is_off_inside_and_on_again_afterwards() -> None:
    assert is_multithreading()
    with simulated_cuda("h100"):
        assert not is_multithreading()
    assert is_multithreading()


def test_what_was_off_stays_off() -> None:
    with multithreading(False):
        with simulated_cuda("h100"):
            assert not is_multithreading()
        assert not is_multithreading()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(LookupError), simulated_cuda("h100"):
        raise LookupError
    assert is_multithreading()


def test_it_stays_on_in_other_threads() -> None:
    found: list[bool] = []
    with simulated_cuda("h100"):
        thread = threading.Thread(target=lambda: found.append(is_multithreading()))
        thread.start()
        thread.join()
    assert found == [True]


def test_a_refused_simulation_changes_nothing() -> None:
    with simulated_cuda("h100"), multithreading(True):
        with pytest.raises(RuntimeError, match="cannot be nested"), simulated_cuda("h100"):
            pass
        assert is_multithreading()
