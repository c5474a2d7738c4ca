"""Whether torch is there."""

from __future__ import annotations

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from cudamem_testing import torch_api


def test_whether_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_api.imported()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=None))  # halfway through its import
    assert not torch_api.imported()
    monkeypatch.delitem(sys.modules, "torch")
    assert not torch_api.imported()


def test_the_version_comes_from_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version("torch")
    assert torch_api.version() == installed

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert torch_api.version() == installed  # it is read once
    assert torch_api.version.__wrapped__() is None


@pytest.mark.parametrize("text", [None, "", "Name: torch\n\nthe Version: is given below\n"])
def test_metadata_without_such_a_line_is_read_as_a_whole(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    torch = SimpleNamespace(read_text={"METADATA": text}.get, version="2.14.0a0")
    monkeypatch.setattr(metadata, "distribution", {"torch": torch}.__getitem__)
    assert torch_api.version.__wrapped__() == "2.14.0a0"


def test_the_first_line_with_a_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130 \n\nVersion: of the description\n"
    torch = SimpleNamespace(read_text={"METADATA": text}.get)
    monkeypatch.setattr(metadata, "distribution", {"torch": torch}.__getitem__)
    assert torch_api.version.__wrapped__() == "2.11.0+cu130"
