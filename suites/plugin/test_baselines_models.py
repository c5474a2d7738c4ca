"""Real models, each broken in five ways: the first line of explanation names the line to look at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures import models  # imported before any run in this process
from suites.plugin.recorded import UPDATE
from suites.plugin.test_on_card import run_on_card  # noqa: F401 - a fixture

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

MODELS = ("gpt2", "llama", "vit", "resnet")
PROJECT = """
    import torch
    from torch.utils.checkpoint import checkpoint

    class Adapter(torch.nn.Module):
        def __init__(self, layer, width, hidden):
            super().__init__()
            self.down, self.up = layer(width, hidden), layer(hidden, width)

        def forward(self, x):
            h = self.down(x)
            h = torch.nn.functional.relu(h, inplace=True)
            return x + self.up(h)

    class Adapted(torch.nn.Module):
        def __init__(self, model, blocks, adapters):
            super().__init__()
            self.model, self.adapters = model, torch.nn.ModuleList(adapters)
            for block, adapter in zip(blocks, self.adapters):
                block.register_forward_hook(lambda module, inputs, output, adapter=adapter: adapt(adapter, output))

        def forward(self, batch):
            return self.model(batch)

    def adapt(adapter, output):
        x = output[0] if isinstance(output, tuple) else output
        if torch.is_grad_enabled():
            x = checkpoint(adapter, x, use_reentrant=False)
        else:
            x = adapter(x)
        return (x, *output[1:]) if isinstance(output, tuple) else x

    def features(model, batch):
        with torch.no_grad():
            return model(batch)

    def train(model, batch):
        output = model(batch)
        (output if isinstance(output, torch.Tensor) else output.logits).sum().backward()
"""
TESTS = """
    import pytest, torch
    from fixtures import models
    from project import Adapted, Adapter, features, train

    DEVICE = "{device}"
    BLOCKS = {{"gpt2": "transformer.h", "llama": "model.layers", "resnet": "1"}}

    @pytest.fixture(params={models})
    def name(request): return request.param

    @pytest.fixture
    def model(name):
        torch.manual_seed(0)
        model = getattr(models, name)()
        blocks = next(part for path, part in model.named_modules() if isinstance(part, torch.nn.ModuleList)
                      or path == BLOCKS.get(name))
        layer = (lambda i, o: torch.nn.Conv2d(i, o, 1)) if name == "resnet" else torch.nn.Linear
        width = 64 if name == "resnet" else 256
        model = Adapted(model, blocks, [Adapter(layer, width, 16 * width) for _ in blocks]).to(DEVICE)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.dim() == 1)  # biases: their gradients are small
        return model

    @pytest.fixture
    def batch(name):
        return models.tokens(4, 64, DEVICE) if name in ("gpt2", "llama") else models.images(4, DEVICE)

    @pytest.fixture(autouse=True)
    def warm(model, batch):
        features(model, batch)

    @pytest.mark.memory_baseline(tolerance="1%|64KiB")
    def test_features(model, batch): assert features(model, batch) is not None

    @pytest.mark.memory_baseline(tolerance="1%|64KiB")
    def test_train(model, batch): train(model, batch)
"""
BREAKS = {
    "no_grad": ("with torch.no_grad():", "if True:", "test_features", "h = self.down(x)"),
    "copy": (
        "return x + self.up(h)",
        "k = h.clone()\n            return x + self.up(h)",
        "test_features",
        "k = h.clone()",
    ),
    "dtype": ("h = self.down(x)", "h = self.down(x).double().float()", "test_features", None),
    "in place": ("inplace=True", "inplace=False", "test_features", "inplace=False"),
    "checkpoint": ("checkpoint(adapter, x, use_reentrant=False)", "adapter(x)", "test_train", "h = self.down(x)"),
}
ROOT = Path(__file__).parents[2]
assert models.gpt2


def broken_source(broken: str) -> str:
    old, new, *_ = BREAKS[broken]
    assert PROJECT.count(old) == 1
    return PROJECT.replace(old, new)


def wanted(broken: str) -> str:
    """The first line of explanation, as a pattern; on cards functions have no class in their names."""
    _, new, _, marker = BREAKS[broken]
    lines = broken_source(broken).splitlines()[1:]
    line = next(number for number, text in enumerate(lines, 1) if (marker or new) in text)
    place = rf"by project\.py:{line} in (Adapter\.)?forward"
    if broken == "no_grad":  # most is kept of what the models themselves make
        kept = r"by project\.py:22 in (Adapted\.)?forward \((activations|modeling_\w+)\.py:\d+ in [\w.]+\)"
        place = rf"({place}|{kept}|by fixtures/models\.py:113 in (Residual\.)?forward \(batch_norm\))"
    keeps = broken in ("checkpoint", "no_grad")
    return rf"{'saved for backward' if keeps else '(grew|new)'}: \+\d.* {place}"


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    """The file of baselines of the models as they are, by device: recorded once."""
    return {}


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.subprocess])])
def test_the_first_line(request, pytester, recorded, device, broken):
    run = request.getfixturevalue("run_inner" if device == "cpu" else "run_on_card")
    options = ("-vv", "--import-mode=importlib", "-o", f"pythonpath=. {ROOT}", "--cudamem-leaks=off")
    if device == "cpu":
        options += ("--cudamem", "--cudamem-device=cpu")
    tests, baselines = TESTS.format(device=device, models=MODELS), "__cudamem__/test_it.json"
    if device not in recorded:
        before = run({"project.py": PROJECT, "test_it.py": tests}, UPDATE, *options)
        assert before.last == "8 passed", before.out
        recorded[device] = (pytester.path / baselines).read_text(encoding="utf-8")
    test = BREAKS[broken][2]
    files = {"project.py": broken_source(broken), "test_it.py": tests, baselines: recorded[device]}
    inner = run(files, *options, "-k", test)
    for name in MODELS:
        first = inner.section(f"{test}[{name}]")[1]
        assert re.match(wanted(broken), first), inner.out
