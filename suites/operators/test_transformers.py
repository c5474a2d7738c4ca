"""Three models of transformers as expected text, which `--cudamem-update=expected` writes.

How many operators a model calls changes with transformers, what they allocate hardly ever does: the texts are those of
one version, the bytes hold for every one. Up to torch 2.7 other operators run: attention of groups is made of single
ones, and slices of everything are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import pytest
import torch

from cudamem_testing import OperatorMemory
from fixtures import models
from suites.versions import OLDER_TORCH

INSTALLED = metadata.version("transformers")
needs_version = pytest.mark.skipif(
    not INSTALLED.startswith("5.24."), reason=f"operators are counted in transformers 5.24, not in {INSTALLED}"
)
pytestmark = pytest.mark.skipif(OLDER_TORCH, reason=f"torch {torch.__version__} runs other operators for these models")


def step(make: Callable[[], torch.nn.Module], batch: Callable[[], torch.Tensor], **more: object) -> OperatorMemory:
    """A training step of a model, recorded."""
    torch.manual_seed(0)
    model, inputs = make().train(), batch()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with OperatorMemory(model) as memory:
        model(inputs, **more).logits.float().square().mean().backward()
        optimizer.step()
    return memory


@pytest.fixture(scope="module")
def gpt2() -> OperatorMemory:
    return step(models.gpt2, lambda: models.tokens(4, 64), use_cache=False)


@pytest.fixture(scope="module")
def llama() -> OperatorMemory:
    return step(models.llama, lambda: models.tokens(4, 64), use_cache=False)


@pytest.fixture(scope="module")
def vit() -> OperatorMemory:
    return step(models.vit, lambda: models.images(4))


@needs_version
def test_gpt2(gpt2: OperatorMemory) -> None:
    gpt2.assert_by_module(
        """
        module               operators  allocated      freed  forward kept  backward kept  temporary      peak
        (model)                    481  124.9 MiB          -      47.9 MiB       76.9 MiB          -  32.3 MiB
          transformer              468  122.6 MiB          -      46.9 MiB       75.6 MiB          -  32.3 MiB
            wte                      4    2.3 MiB          -             -        2.0 MiB          -  15.3 MiB
            h                      436  119.2 MiB          -      46.0 MiB       73.1 MiB          -  32.3 MiB
          lm_head                   12    2.3 MiB          -       1.0 MiB        1.3 MiB          -  30.8 MiB
        (no module)                686   58.2 MiB          -             -        4.0 MiB          -  41.9 MiB
        (between operators)          0          -  143.0 MiB     -18.3 MiB      -97.1 MiB          -  41.9 MiB
        total                     1167  183.1 MiB  143.2 MiB      29.5 MiB      -16.2 MiB          -  41.9 MiB
        """,
        depth=2,
        min_bytes="1MiB",
    )


@needs_version
def test_gpt2_summary(gpt2: OperatorMemory) -> None:
    gpt2.assert_summary(
        """
        call  operator             module                   phase    allocated      freed  temporary       after
          44  aten::mul            transformer.h.0.mlp.act  forward    1.0 MiB          -          -     4.6 MiB
          46  aten::mul            transformer.h.0.mlp.act  forward    1.0 MiB          -          -     6.6 MiB
          48  aten::mul            transformer.h.0.mlp.act  forward    1.0 MiB          -          -     6.6 MiB
          51  aten::add            transformer.h.0.mlp.act  forward    1.0 MiB          -          -     6.6 MiB
          81  aten::mul            transformer.h.1.mlp.act  forward    1.0 MiB          -          -    11.6 MiB
          83  aten::mul            transformer.h.1.mlp.act  forward    1.0 MiB          -          -    13.6 MiB
          85  aten::mul            transformer.h.1.mlp.act  forward    1.0 MiB          -          -    13.6 MiB
          88  aten::add            transformer.h.1.mlp.act  forward    1.0 MiB          -          -    13.6 MiB
              (between operators)                                            -  143.0 MiB          -  -143.0 MiB
              total                                                  183.1 MiB  143.2 MiB          -    39.9 MiB
        """,
        top=8,
        min_bytes="1MiB",
    )


@needs_version
def test_llama(llama: OperatorMemory) -> None:
    llama.assert_by_module(
        """
        module               operators  allocated      freed  forward kept  backward kept  temporary      peak
        (model)                    910  101.4 MiB          -      32.6 MiB       68.6 MiB          -  23.1 MiB
          model                    896   99.1 MiB          -      31.6 MiB       67.4 MiB          -  23.1 MiB
            embed_tokens             3    1.3 MiB          -             -        1.0 MiB          -  13.3 MiB
            layers                 844   94.8 MiB          -      30.5 MiB       64.1 MiB          -  23.1 MiB
            norm                    25    3.0 MiB          -             -        2.3 MiB          -  22.3 MiB
          lm_head                   13    2.3 MiB          -       1.0 MiB        1.3 MiB          -  22.8 MiB
        (no module)                517   57.3 MiB          -             -        4.0 MiB          -  41.2 MiB
        (between operators)          0          -  119.3 MiB     -11.1 MiB      -81.1 MiB          -  41.2 MiB
        total                     1427  158.7 MiB  119.4 MiB      21.6 MiB       -8.5 MiB          -  41.2 MiB
        """,
        depth=2,
        min_bytes="1MiB",
    )


@needs_version
def test_vit(vit: OperatorMemory) -> None:
    vit.assert_by_module(
        """
        module                  operators  allocated     freed  forward kept  backward kept  temporary      peak
        (model)                       571   55.8 MiB   1.3 MiB      19.3 MiB       35.2 MiB          -  18.6 MiB
          vit                         557   55.5 MiB   1.3 MiB      19.3 MiB       34.9 MiB          -  18.6 MiB
            embeddings                 17    2.1 MiB   1.1 MiB             -              -          -  13.1 MiB
              patch_embeddings          8    1.6 MiB   1.1 MiB             -              -          -  13.1 MiB
            layers                    536   52.9 MiB         -      18.3 MiB       34.4 MiB          -  18.6 MiB
              0                       134   13.2 MiB         -       4.6 MiB        8.6 MiB          -  15.4 MiB
              1                       134   13.2 MiB         -       4.6 MiB        8.6 MiB          -  16.4 MiB
              2                       134   13.2 MiB         -       4.6 MiB        8.6 MiB          -  17.5 MiB
              3                       134   13.2 MiB         -       4.6 MiB        8.6 MiB          -  18.6 MiB
        (no module)                   946   49.2 MiB         -             -              -          -  38.9 MiB
        (between operators)             0          -  66.8 MiB      -2.5 MiB      -39.6 MiB          -  38.9 MiB
        total                        1517  105.0 MiB  68.1 MiB      16.8 MiB       -4.5 MiB          -  38.9 MiB
        """,
        depth=3,
        min_bytes="1MiB",
    )


@pytest.mark.parametrize(
    ("model", "cells"),
    [
        ("gpt2", ("183.1 MiB", "143.2 MiB", "29.5 MiB", "-16.2 MiB", "-", "41.9 MiB")),
        ("llama", ("158.7 MiB", "119.4 MiB", "21.6 MiB", "-8.5 MiB", "-", "41.2 MiB")),
        ("vit", ("105.0 MiB", "68.1 MiB", "16.8 MiB", "-4.5 MiB", "-", "38.9 MiB")),
    ],
)
def test_bytes_of_every_version(model: str, cells: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    name, _, *found = request.getfixturevalue(model).by_module(depth=0, min_bytes="1MiB").rows[-1]
    assert (name, *found) == ("total", *cells)
