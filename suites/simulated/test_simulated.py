"""The simulated card, in processes of its own: it is there for a whole process."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from fixtures.simulated.record import SETTINGS
from suites import forked
from suites.simulated.values import MODULES


def run(module: str, *arguments: str) -> dict[str, Any]:
    """What a module of these suites prints as JSON."""
    command = [forked.python(compiler=True), "-m", f"suites.simulated.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.subprocess
def test_values_are_the_cpus_and_errors_are_torchs() -> None:
    found = run("values")
    assert found["differences"].keys() == MODULES.keys()
    assert {name: off for name, off in found["differences"].items() if off > 1e-4} == {}
    assert found["facts"] == {
        "name": "Simulated 24GiB",
        "count": 2,
        "capability": [9, 0],
        "cudnn": True,
        "sum": 21.0,
        "printed": "tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='cuda:0')",
        "loaded": "cuda:0",
        "pinned": [True, True],
        "drawn as on the CPU": True,
        "state": True,
        "autocast": "torch.bfloat16",
        "other card": "cuda:1",
        "selected": [3.0, 4.0, 5.0],
    }
    errors = found["errors"]
    assert errors["no such card"] == "AcceleratorError: CUDA error: invalid device ordinal"
    mixed = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    assert errors["mixed"] == f"RuntimeError: {mixed}"
    start = "OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of "
    assert errors["too large"].startswith(start + "24.00 GiB of which ")
    assert errors["graph"].startswith("SimulatedCardError: a simulated card captures no CUDA graphs")
    assert errors["generator"] == "RuntimeError: Expected a 'cuda' device type for generator but found 'cpu'"
    nested = "RecorderUnavailable: a card is simulated in this process already: simulated_cuda cannot be nested"
    assert errors["nested"] == nested
    shapes = found["without values"]
    assert (shapes["taken"], shapes["shape"]) == (2**34, [3, 5])
    assert shapes["message"].startswith("item() needs the values of a tensor on a simulated card without values")
    weights, result = 4_000_256, 2_000_384
    device, peak, blocks = shapes["estimate"]
    sums = [512] * 3  # the sum, and its two steps
    assert (device, peak) == ("simulated 24GiB", weights + 2 * result + sum(sums))
    assert sorted(blocks) == sorted([weights, result, result, 32 * 2**20, *sums])
    assert found["left as it was"] is True


@pytest.fixture(scope="module")
def streams() -> dict[str, Any]:
    """All settings in one process."""
    return run("streams", *SETTINGS)


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_stream_of_requests_is_served_as_on_a_card(setting: str, streams: dict[str, Any]) -> None:
    """Every event of 1,500 random steps on three streams, and every counter every fifty steps."""
    found = streams[setting]
    assert found["found"] == found["events"] == found["same"]
    assert found["different"] == []
    assert found["addresses"] is True


@pytest.mark.slow
@pytest.mark.subprocess
def test_random_programs_have_the_cpus_values_and_events() -> None:
    found = run("programs", "0", "25")
    assert (found["programs"], found["values"], found["counters"]) == (50, [], [])
    assert found["tensors"] > 200


@pytest.mark.slow
@pytest.mark.subprocess
def test_code_of_users_runs_or_is_refused() -> None:
    found = run("snippets")
    assert found["wrong"] == {}
    assert found["snippets"] >= 90
