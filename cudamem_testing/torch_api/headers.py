"""What torch's C++ headers need of a compiler. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from cudamem_testing.torch_api.process import torch

_NAMED = re.compile(r"-std=(c\+\+\d\d)\b")


@cache
def cxx_standard() -> str:
    """The oldest C++ standard that torch compiles extensions with (``c++17``; ``c++20`` since 2.13).

    Read from the text of ``torch.utils.cpp_extension``, whose import takes long; ``c++17`` if that names none.
    """
    try:
        text = (Path(torch.__file__).parent / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    return min(_NAMED.findall(text), default="c++17")
