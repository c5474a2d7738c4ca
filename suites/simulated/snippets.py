"""Runs snippets of code as users write it on two simulated cards: ``python -m suites.simulated.snippets [NAME ...]``.

``snippets.txt`` holds them. A line ``# name`` begins one; a reason after ``|`` says why a simulated card refuses it.
Each checks its own values with ``close`` and ``assert``. Prints as JSON what is not as it says there.
"""

from __future__ import annotations

import copy
import io
import json
import linecache
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

FILE = Path(__file__).with_suffix(".txt")


class Snippet(NamedTuple):
    """Code, and the reason for which a simulated card refuses it; empty where it runs."""

    name: str
    refused: str
    code: str


def read() -> list[Snippet]:
    """All of them."""
    parts = re.split(r"^# (.*)$", FILE.read_text(), flags=re.MULTILINE)[1:]
    return [
        Snippet(*(word.strip() for word in (head + "|").split("|")[:2]), code=code)
        for head, code in zip(parts[::2], parts[1::2], strict=True)
    ]


def close(found: Any, expected: Any) -> None:
    """Assert that both have the same values but for rounding."""
    one, other = (torch.as_tensor(value).detach().cpu() for value in (found, expected))
    torch.testing.assert_close(one, other.to(one.dtype), atol=1e-5, rtol=1e-4)


def wrong(snippet: Snippet) -> str | None:
    """What is not as the snippet says."""
    from cudamem_testing.simulated.unsupported import unsupported

    linecache.cache[snippet.name] = (
        len(snippet.code),
        None,
        snippet.code.splitlines(True),
        snippet.name,
    )  # for torch.jit
    names = {
        "__name__": __name__,
        "torch": torch,
        "nn": nn,
        "F": functional,
        "copy": copy,
        "io": io,
        "threading": threading,
    }
    names["close"] = close
    try:
        exec(compile(snippet.code, snippet.name, "exec"), names)
    except Exception as error:
        reason = unsupported(error)
        if snippet.refused and reason and snippet.refused in reason:
            return None
        return f"{type(error).__name__}: {error}"[:300]
    return "not refused" if snippet.refused else None


def main(names: list[str]) -> None:
    """Run all, or some."""
    from cudamem_testing import simulated_cuda

    warnings.simplefilter("ignore")
    some = [one for one in read() if not names or one.name in names]
    with simulated_cuda("24GiB", count=2):
        found = {one.name: wrong(one) for one in some}
    print(json.dumps({"snippets": len(some), "wrong": {name: text for name, text in found.items() if text}}))


if __name__ == "__main__":
    main(sys.argv[1:])
