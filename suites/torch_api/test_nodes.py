"""Nodes of autograd graphs."""

from __future__ import annotations

import pytest
import torch

from cudamem_testing.torch_api import nodes

needs_saved = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"),
    reason=f"torch {torch.__version__} reads no saved tensor without running its unpack hooks",
)


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_which_classes_are_nodes() -> None:
    leaf = torch.ones(2, requires_grad=True)
    found = [(leaf * 2).grad_fn, Custom.apply(leaf).grad_fn, leaf, torch.nn.Linear(1, 1), "text"]
    assert [nodes.is_node_type(type(one)) for one in found] == [True, True, False, False, False]


@needs_saved
def test_what_a_node_saved_is_read_without_unpacking() -> None:
    leaf = torch.ones(2, requires_grad=True)

    def unpack(packed):
        raise AssertionError("this runs the user's hook")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: "packed", unpack):
        node = leaf.exp().grad_fn
    assert nodes.saved_names(type(node)) == ("_raw_saved_result",)
    assert [*nodes.saved(node)] == [("result", "packed")]
    (accumulate,) = nodes.next_nodes(node)
    assert nodes.node_variable(accumulate) is leaf
