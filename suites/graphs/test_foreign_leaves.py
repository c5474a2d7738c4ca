"""Arguments and outputs that say they are tensors and are none: none of their code runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudamem_testing.graphs.differs import copied, differs, equal
from cudamem_testing.graphs.inputs import StaticInputs
from cudamem_testing.graphs.obstacles import obstacles
from cudamem_testing.graphs.outer import ExternalState, roots_of
from cudamem_testing.torch_api.modes import tensors


class Liar:
    """Says that it is a tensor, and refuses everything else."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return torch.Tensor

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} was asked for")


class Refusing(Liar):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("__class__ was asked for")

    def __repr__(self) -> str:
        raise RuntimeError("__repr__ ran")

    __len__ = __iter__ = __bool__ = __repr__  # type: ignore[assignment]


class Keyed(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("__iter__ ran")

    items = values = keys = get = __len__ = __iter__  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Liar, Refusing])
def test_a_leaf_that_lies_is_a_leaf(kind: type) -> None:
    leaf = kind()
    assert copied(leaf) is leaf
    assert equal(leaf, leaf)
    assert differs(leaf, leaf) == ""
    assert differs(1, leaf) == f"1 in the graph, a {kind.__name__} in eager"
    assert [*tensors([leaf, [leaf, torch.ones(1)]])] == [torch.ones(1)]
    assert StaticInputs((leaf,), {}, "cpu").tensors == []
    (found,) = obstacles([lambda x: x], [(leaf,)])
    assert found.text.startswith(f"argument [0] is a {kind.__name__}, and only tensors can be arguments")


@pytest.mark.parametrize("kind", [Liar, Refusing])
def test_outer_state_with_liars(kind: type) -> None:
    state = Keyed(one=kind(), two=torch.ones(2))
    roots, _ = roots_of(lambda: state, (kind(),), {}, lambda code: True)
    before = ExternalState(roots)
    assert before.changes(ExternalState(roots)) == []
    assert [path for path, _ in before.tensors] == [("state", "['two']")]
    dict.__setitem__(state, "three", 3)
    assert [str(change) for change in before.changes(ExternalState(roots))] == ["state went from 2 to 3 items"]
