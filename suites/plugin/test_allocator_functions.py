"""The allocator's functions in tests, on a card and on a simulated one: docs/allocator.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cudamem_testing.model.devices import Device
from cudamem_testing.report.report_files import read_json
from suites import forked
from suites.plugin.inner import CACHE

PAGE = Path(__file__).parents[2] / "docs/allocator.md"
TESTS = """
import os, pytest, torch

MIB = 2**20
KEPT = []
on_card = pytest.mark.skipif("SIMULATED" in os.environ, reason="needs a card")

def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

def test_statistics():
    kept = take(8 * MIB)
    flat, nested = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()
    assert flat["allocated_bytes.all.current"] == nested["allocated_bytes"]["all"]["current"]
    assert torch.cuda.memory_allocated() == flat["allocated_bytes.all.current"] >= 8 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved() >= 8 * MIB

def test_statistics_of_pinned_memory():
    pinned = torch.empty(MIB, dtype=torch.uint8).pin_memory()
    flat, nested = torch.cuda.host_memory_stats(), torch.cuda.memory.host_memory_stats_as_nested_dict()
    assert flat["active_bytes.current"] == nested["active_bytes"]["current"] >= MIB
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()

@pytest.mark.memory_budget(peak="64MiB")
def test_a_peak_cannot_be_reset_away():
    take(96 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()

@pytest.mark.memory_budget(allocations=2)
def test_counts_cannot_be_reset_away():
    take(MIB), take(MIB)
    torch.cuda.reset_accumulated_memory_stats()
    take(MIB)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1

@pytest.mark.filterwarnings("ignore")
def test_deprecated():
    kept = take(4 * MIB)
    torch.cuda.reset_max_memory_allocated()
    torch.cuda.reset_max_memory_cached()
    assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
    assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()

def test_texts():
    kept = take(4 * MIB)
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert torch.cuda.memory_snapshot()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    assert torch.cuda.get_allocator_backend() == "native"

@on_card
def test_processes():
    assert isinstance(torch.cuda.list_gpu_processes(), str)

def test_fraction():
    torch.cuda.set_per_process_memory_fraction(0.25)

def test_fraction_is_as_before():
    assert torch.cuda.get_per_process_memory_fraction() == 1.0

def test_settings():
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")

@pytest.mark.skipif(not hasattr(torch._C, "_accelerator_getAllocatorSettings"), reason="torch 2.11 cannot tell them")
def test_settings_are_as_before():
    assert "expandable_segments:True" not in torch._C._accelerator_getAllocatorSettings()

def test_raw():
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MIB))

def test_raw_leak():
    torch.cuda.caching_allocator_alloc(MIB)

def test_empty_cache(cuda_memory):
    take(64 * MIB)
    before = torch.cuda.memory_reserved()
    with cuda_memory.window("emptied") as window:
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before - 64 * MIB

@on_card
def test_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = take(4 * MIB)
    del kept, pool

@on_card
def test_pool_leak():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        KEPT.append(take(4 * MIB))
    KEPT.append(pool)

@pytest.mark.memory_budget(fragmentation="20%")
def test_fragments():
    kept = [take(30 * MIB) for _ in range(4)]
    kept = [one[: 16 * MIB].clone() for one in kept]
    kept += [take(40 * MIB) for _ in range(2)]
"""
FAILS = {
    "test_a_peak_cannot_be_reset_away": "failed",
    "test_counts_cannot_be_reset_away": "failed",
    "test_raw_leak": "error",
    "test_pool_leak": "error",
}
NOTES = {
    "test_fraction": ["the test left set_per_process_memory_fraction(0.25) on cuda:0: set to 1 again"],
    "test_settings": [
        "the test changed the allocator's settings to 'expandable_segments:True': the defaults are set again"
    ],
}


def check(tmp_path: Path, device: str) -> None:
    """Run the tests under the plugin: only those that must fail do, for the reason that they are there for."""
    file, report = tmp_path / "test_it.py", tmp_path / "report.json"
    file.write_text(TESTS)
    command = [
        forked.python(),
        "-m",
        "pytest",
        "-p",
        "cudamem",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        str(file),
    ]
    command += ["--cudamem", f"--cudamem-device={device}", f"--cudamem-json={report}", "--rootdir", str(tmp_path)]
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": paths, "CUDAMEM_CACHE": CACHE}
    environment = {key: value for key, value in environment.items() if "ALLOC_CONF" not in key}
    if device != "cuda":
        environment["SIMULATED"] = "1"
    done = subprocess.run(
        [*command], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=300
    )
    run = read_json(report)
    found = {test.nodeid.rpartition("::")[2]: test for test in run.tests}
    assert len(found) == TESTS.count("def test_"), done.stdout
    wanted = dict.fromkeys(found, "passed") | FAILS
    if device != "cuda":
        wanted |= dict.fromkeys(("test_processes", "test_pool", "test_pool_leak"), "skipped")
    notes_of = dict(NOTES)
    if not hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        wanted["test_settings_are_as_before"], notes_of["test_settings"] = "skipped", []
    outcomes = {name: test.outcome for name, test in found.items()}
    del wanted["test_fragments"], outcomes["test_fragments"]
    assert outcomes == wanted, done.stdout
    for name, notes in notes_of.items():
        assert [note for note in found[name].notes if note.startswith("the test ")] == notes, done.stdout
    (raw,) = found["test_raw_leak"].findings
    assert raw.verdict.value == "raw allocation"
    (call,) = [one for one in found["test_fragments"].windows if one.name == "call" and one.device == Device("cuda", 0)]
    assert call.fragmentation is not None
    assert (found["test_fragments"].outcome == "failed") == (call.fragmentation > 2000)


@pytest.mark.gpu(count=1)
@pytest.mark.subprocess
def test_functions_on_a_card(tmp_path: Path) -> None:
    check(tmp_path, "cuda")


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.simulated_card
def test_functions_on_a_simulated_card(tmp_path: Path) -> None:
    check(tmp_path, "simulated:24GiB")


def test_every_function_has_a_row() -> None:
    rows = "".join(
        line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    )
    assert [name for name in torch.cuda.memory.__all__ if f"`{name}`" not in rows] == []


PLUGGABLE = r"""
#include <dlfcn.h>
#include <stddef.h>
static void* find(const char* name) {
  const char* files[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
  for (int at = 0; at < 3; ++at) {
    void* library = dlopen(files[at], RTLD_LAZY | RTLD_NOLOAD);
    if (library) return dlsym(library, name);
  }
  return NULL;
}
void* take(ptrdiff_t size, int device, void* stream) {
  void* at = NULL;
  int (*const allocate)(void**, size_t) = (int (*)(void**, size_t))find("cudaMalloc");
  return allocate && allocate(&at, (size_t)size) == 0 ? at : NULL;
}
void give(void* at, ptrdiff_t size, int device, void* stream) {
  int (*const release)(void*) = (int (*)(void*))find("cudaFree");
  if (release) release(at);
}
"""


@pytest.mark.gpu(count=1)
@pytest.mark.subprocess
def test_a_pluggable_allocator_in_a_pool_is_seen(tmp_path: Path) -> None:
    from cudamem_testing.recorders.build import find_compiler

    source, library = tmp_path / "own.c", tmp_path / "own.so"
    source.write_text(PLUGGABLE)
    subprocess.run(
        [*find_compiler(os.environ), "-x", "c", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True
    )
    script = f"""
import torch
from cudamem_testing import Memory
torch.cuda.init()
allocator = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "take", "give")
with Memory.on("cuda:0") as memory:
    pool = torch.cuda.MemPool(allocator.allocator())
    with memory.window("own") as window, torch.cuda.use_mem_pool(pool):
        kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    print(window.peak_growth)
    del kept, pool
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout.split() == [str(64 * 2**20)], done.stderr
