"""Shared by all suites: torch and every module of the package are imported before an inner pytest runs.

An in-process inner run drops modules that it was first to import; torch, its compiler (which checkpointing and the
profiler import, and which cannot be imported twice) and the package must not be among them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

import hypothesis
import pytest
import torch
import torch._inductor

import cudamem_testing

pytest_plugins = ["pytester"]

torch.set_num_threads(1)
for module in pkgutil.walk_packages(cudamem_testing.__path__, "cudamem_testing."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

hypothesis.settings.register_profile("ci", max_examples=50, deadline=None)
hypothesis.settings.register_profile("full", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more cards than there are; with ``CUDAMEM_REQUIRE_GPU``, fail where there is none at all."""
    mark = item.get_closest_marker("gpu")
    if mark is None:
        return
    needed = mark.kwargs.get("count", mark.args[0] if mark.args else 1)
    found = torch.cuda.device_count()
    if found < needed:
        reason = f"needs {needed} CUDA device(s), found {found}"
        if os.environ.get("CUDAMEM_REQUIRE_GPU") and needed <= 1:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
