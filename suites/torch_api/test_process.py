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

    monkeypatch.setattr(metadata, "version", missing)
    assert torch_api.version() == installed  # it is read once
    assert torch_api.version.__wrapped__() is None
