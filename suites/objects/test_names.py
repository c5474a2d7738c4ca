"""``name_of``: short names in an engineer's words."""

from __future__ import annotations

import collections
import functools
import sys
import threading
import types
import weakref
from typing import Any

import pytest
import torch

from cudamem_testing.objects.names import LONGEST_NAME, name_of, type_word


class Encoder(torch.nn.Module):
    @functools.lru_cache  # noqa: B019
    def forward(self, x: object) -> object:
        return x


def step() -> None: ...


def generate() -> Any:
    yield


LINE = step.__code__.co_firstlineno
target = Encoder()

NAMES = [
    (types.ModuleType("project.cache"), "module project.cache"),
    (Encoder, "class Encoder"),
    (Encoder(), "Encoder"),
    (step, f"function step (test_names.py:{LINE})"),
    (lambda: 0, f"function <lambda> (test_names.py:{LINE + 15})"),
    (len, "built-in len"),
    (target.train, "method Encoder.train"),
    (Encoder.forward, "lru_cache of Encoder.forward"),
    (functools.partial(step), "partial of function step"),
    (generate(), f"generator generate (test_names.py:{LINE + 3})"),
    ({}, "dict (0 items)"),
    ([1], "list (1 item)"),
    ((1, 2), "tuple (2 items)"),
    ({1}, "set (1 item)"),
    (collections.OrderedDict(a=1), "OrderedDict (1 item)"),
    (collections.deque([1]), "deque (1 item)"),
    ("text", "str 'text'"),
    ("\x1b[31m\n", r"str '\x1b[31m\n'"),
    (7, "int 7"),
    (1 << 5000, "int <int>"),
    (True, "True"),
    (None, "None"),
    (weakref.ref(target), "weakref to Encoder"),
    (threading.Thread(name="loader"), "thread 'loader'"),
    (step.__code__, f"code step (test_names.py:{LINE})"),
    (torch.ones(2, 3), "float32[2, 3] on cpu"),
    (torch.ones(()), "float32[] on cpu"),
    (torch.nn.Parameter(torch.ones(2)), "Parameter float32[2] on cpu"),
    (torch.ones(4, 4)[1:, :2], "float32[3, 2] on cpu, view of [4, 4]"),
    (torch.ones(2, device="meta"), "float32[2] on meta"),
    (torch.eye(2).to_sparse(), "sparse_coo float32[2, 2] on cpu"),
    ((torch.ones(2, requires_grad=True) * 2).grad_fn, "autograd MulBackward0"),
    (type("Long" * 100, (), {})(), "Long" * 24 + "L..."),
    (type("Bad\nname", (), {})(), r"Bad\nname"),
]


@pytest.mark.parametrize(("obj", "name"), NAMES, ids=[str(index) for index in range(len(NAMES))])
def test_names(obj: object, name: str) -> None:
    assert name_of(obj) == name
    assert len(name) <= LONGEST_NAME


def test_frames() -> None:
    frame = sys._getframe()
    assert name_of(frame) == f"frame test_frames (test_names.py:{frame.f_lineno})"


def test_fake_tensors_are_named_by_class() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    assert name_of(fake) == "FakeTensor float32"


@pytest.mark.parametrize(
    ("obj", "word"),
    [(step, "function step"), ({}, "dict"), (Encoder(), "Encoder"), (Encoder, "class Encoder"), (sys, "module sys")],
)
def test_type_words(obj: object, word: str) -> None:
    assert type_word(obj) == word
