"""Operators that do something that a capture cannot record, by name.

What an operator does inside its kernel cannot be observed, so it is listed here: from torch's own CUDA
sources, and from captures of every operator on a card (``fixtures/recordings/host_reads.py``). PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from cudamem_testing.graphs.rules import Rule

#: Python functions that read values on the host, with a description.
HOST_READS = {
    "torch.Tensor.item": "Tensor.item()",
    "torch.Tensor.tolist": "Tensor.tolist()",
    "torch.Tensor.numpy": "Tensor.numpy()",
    "torch.Tensor.__array__": "conversion to a NumPy array",
    "torch.Tensor.__bool__": "truth of a tensor",
    "torch.Tensor.__nonzero__": "truth of a tensor",
    "torch.Tensor.__int__": "int() of a tensor",
    "torch.Tensor.__long__": "int() of a tensor",
    "torch.Tensor.__float__": "float() of a tensor",
    "torch.Tensor.__complex__": "complex() of a tensor",
    "torch.Tensor.__index__": "a tensor as an index",
    "torch.Tensor.__repr__": "print or repr() of a tensor",
    "torch.Tensor.__format__": "a tensor in a format string",
    "torch.Tensor.__contains__": "in, of a tensor",
    "torch.Tensor.is_nonzero": "Tensor.is_nonzero()",
    "torch.is_nonzero": "torch.is_nonzero()",
    "torch.equal": "torch.equal()",
    "torch.Tensor.equal": "Tensor.equal()",
    "torch.allclose": "torch.allclose()",
    "torch.Tensor.allclose": "Tensor.allclose()",
    "torch.cov": "torch.cov()",
    "torch.Tensor.cov": "Tensor.cov()",
    "torch.corrcoef": "torch.corrcoef()",
    "torch.Tensor.corrcoef": "Tensor.corrcoef()",
}
#: Operators that wait for the device internally.
OPERATORS = {
    "aten::_local_scalar_dense": Rule.HOST_READ,
    "aten::item": Rule.HOST_READ,
    "aten::is_nonzero": Rule.HOST_READ,
    "aten::equal": Rule.HOST_READ,
    "aten::allclose": Rule.HOST_READ,
    "aten::_linalg_check_errors": Rule.HOST_READ,
    "aten::linalg_eig": Rule.HOST_READ,
    "aten::_linalg_eigh": Rule.HOST_READ,
    "aten::_linalg_svd": Rule.HOST_READ,
    "aten::linalg_lstsq": Rule.HOST_READ,
    "aten::linalg_ldl_solve": Rule.HOST_READ,
    "aten::_ctc_loss": Rule.HOST_READ,
    "aten::linalg_matrix_exp": Rule.DATA_SHAPE,
    "aten::nonzero": Rule.DATA_SHAPE,
    "aten::nonzero_numpy": Rule.DATA_SHAPE,
    "aten::argwhere": Rule.DATA_SHAPE,
    "aten::masked_select": Rule.DATA_SHAPE,
    "aten::_unique": Rule.DATA_SHAPE,
    "aten::_unique2": Rule.DATA_SHAPE,
    "aten::unique_dim": Rule.DATA_SHAPE,
    "aten::unique_consecutive": Rule.DATA_SHAPE,
    "aten::unique_dim_consecutive": Rule.DATA_SHAPE,
    "aten::bincount": Rule.DATA_SHAPE,
    "aten::_to_sparse": Rule.DATA_SHAPE,
    "aten::_coalesce": Rule.DATA_SHAPE,
}
#: Operators that read one device tensor on the host: by overload, the position of that tensor.
READ_TENSORS = {
    "aten::masked_fill.Tensor": 2,
    "aten::masked_fill_.Tensor": 2,
    "aten::index_fill.int_Tensor": 2,
    "aten::index_fill_.int_Tensor": 2,
    "aten::linspace.Tensor_Scalar": 0,
    "aten::linspace.Scalar_Tensor": 0,
    "aten::logspace.Tensor_Scalar": 0,
    "aten::logspace.Scalar_Tensor": 0,
}
#: The same for two tensors, each of which may be read.
READ_BOTH = frozenset({"aten::linspace.Tensor_Tensor", "aten::logspace.Tensor_Tensor"})
#: Nodes of autograd whose formula counts zeros on the host, but not while a mode is active.
BACKWARD_NODES = {"ProdBackward0": Rule.HOST_READ, "ProdBackward1": Rule.HOST_READ, "CumprodBackward0": Rule.HOST_READ}
#: Functions that create a tensor from host data.
FROM_DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy", "torch.scalar_tensor"})
#: Operators whose tensors may be on different sides.
MIXING = frozenset(
    {
        "aten::copy_",
        "aten::_to_copy",
        "aten::index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::lift_fresh",
        "aten::set_",
        "aten::is_same_size",
    }
)


#: Operators that read on the host for some of their arguments.
CONDITIONAL = frozenset({"aten::histc", "aten::mode", "aten::isin", "aten::segment_reduce"})
#: All operators that read on the host, by name.
READING = frozenset(
    {name for name, rule in OPERATORS.items() if rule is Rule.HOST_READ}
    | {overload.partition(".")[0] for overload in (*READ_TENSORS, *READ_BOTH)}
    | CONDITIONAL
)
#: The longest row whose most frequent value one kernel finds.
LONGEST_FUSED = 2048


def rule_of_call(
    overload: str,
    on_device: Sequence[bool],
    shapes: Sequence[Sequence[int]],
    args: Sequence[object],
    options: Mapping[str, object],
) -> Rule | None:
    """The rule that a call of an operator breaks in a capture; ``None`` if it breaks none.

    ``on_device`` and ``shapes`` say for each of its tensors whether it is on the device, and its shape. ``args`` and
    ``options`` are its arguments.
    """
    name = overload.partition(".")[0]
    place = READ_TENSORS.get(overload)
    if place is not None and len(on_device) > place and on_device[place]:
        return Rule.HOST_READ
    if overload in READ_BOTH and any(on_device):
        return Rule.HOST_READ
    if on_device[:1] != [True]:
        return None
    if name in CONDITIONAL:
        return Rule.HOST_READ if _reads(name, shapes, args, options) else None
    return OPERATORS.get(name)


def _reads(name: str, shapes: Sequence[Sequence[int]], args: Sequence[object], options: Mapping[str, object]) -> bool:
    """Whether a call reads values: the range of ``histc``, a long row of ``mode``, many candidates, lengths."""
    if name == "aten::histc":
        low, high = (*args[2:4], 0, 0)[:2] if len(args) != 3 else (args[2], 0)
        return low == high
    if name == "aten::mode":
        dimension = args[1] if len(args) > 1 and type(args[1]) is int else -1
        return bool(shapes[0]) and shapes[0][dimension] > LONGEST_FUSED
    if name == "aten::isin":
        return len(shapes) == 2 and prod(shapes[1]) >= int(10 * prod(shapes[0]) ** 0.145)
    return not options.get("unsafe", False)


def shown(name: str) -> str:
    """``torch.Tensor.nonzero`` as ``Tensor.nonzero()``; an operator unchanged."""
    if name in HOST_READS:
        return HOST_READS[name]
    if "::" in name:
        return name
    return f"{name.removeprefix('torch.') if name.startswith('torch.Tensor.') else name}()"


#: The byte written to memory that must not be read: NaN in any floating type, and -1 in signed integers, which indexes
#: the last element.
POISON = 0xFF
