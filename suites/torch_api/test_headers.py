"""The C++ standard that torch's headers need, which later versions raise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cudamem_testing.recorders import build
from cudamem_testing.torch_api.headers import cxx_standard


@pytest.mark.parametrize(
    ("text", "standard"),
    [
        ("flags = ['-std=c++17']; sycl = '-std=c++20'", "c++17"),  # as torch 2.11
        ("flags = ['-std=c++20']", "c++20"),  # as torch 2.14, whose headers do not compile as C++17
        ("no flags", "c++17"),
        (None, "c++17"),
    ],
)
def test_the_standard_is_the_oldest_that_torch_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, standard: str
) -> None:
    if text is not None:
        (tmp_path / "utils").mkdir()
        (tmp_path / "utils" / "cpp_extension.py").write_text(text)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    cxx_standard.cache_clear()
    try:
        assert cxx_standard() == standard
        assert build._flags(build.CPU_RECORDER)[1] == f"-std={standard}"
        assert build._flags(build.CARD_RECORDER)[1] == "-std=c++20"
    finally:
        cxx_standard.cache_clear()


def test_the_installed_torch_names_one() -> None:
    assert cxx_standard() in ("c++17", "c++20", "c++23")
