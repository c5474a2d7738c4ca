"""Which arguments are written: every overload that fits, against torch's own matcher for every type there is."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import _memory_profiler as oracle

from cudamem_testing.torch_api.operators import operator_schemas
from cudamem_testing.trace.records import Signature, Storage
from cudamem_testing.trace.schemas import READ, UNKNOWN, WRITTEN, Effect, Effects, _takes, effect_of

NOTHING = type(None)


def signature(name, *types):
    places = tuple(place for place, kind in enumerate(types) if kind in (Storage, list, object))
    return Signature(name, types, places, "FUNCTION")


@pytest.mark.parametrize(
    ("name", "types", "effect"),
    [
        ("aten::mul", (Storage, Storage), Effect(True, (READ, READ), ("Tensor",))),
        ("aten::mul_", (Storage, Storage), Effect(True, (WRITTEN, READ), ("Tensor",))),
        ("aten::fill_", (Storage, float), Effect(True, (WRITTEN,), ("Scalar",))),
        ("aten::sin", (Storage, Storage), Effect(True, (READ, WRITTEN), ("out",))),
        ("aten::cat", (list, int), Effect(True, (READ,), ("",))),
        ("aten::cat", (list, int, Storage), Effect(True, (READ, WRITTEN), ("out",))),
        ("aten::_foreach_mul_", (list, float), Effect(True, (WRITTEN,), ("Scalar",))),
        ("aten::clamp", (Storage, NOTHING, NOTHING), Effect(True, (READ,), ("", "Tensor"))),
        ("aten::clamp", (Storage, Storage, NOTHING), Effect(True, (READ, READ), ("Tensor",))),
        ("aten::index", (Storage, NOTHING), Effect(True, (READ,), ("Tensor",))),
        ("aten::index_put_", (Storage, NOTHING, Storage, bool), Effect(True, (WRITTEN, READ), ("",))),
        ("aten::sum", (Storage, float), Effect(False, (UNKNOWN,))),
        ("aten::mul", (Storage,), Effect(False, (UNKNOWN,))),
        ("aten::cat", (object, int), Effect(False, (UNKNOWN,))),
        ("My annotation", (), Effect(False, ())),
        ("Namespaced::Annotation", (), Effect(False, ())),
        ("a::b::c d", (Storage,), Effect(False, (UNKNOWN,))),
        ("torch::autograd::AccumulateGrad", (Storage,), Effect(False, (UNKNOWN,))),
    ],
)
def test_effects(name, types, effect):
    assert effect_of(signature(name, *types)) == effect


def test_an_argument_is_written_if_any_overload_writes_it(monkeypatch):
    schemas = (
        torch._C.parse_schema("ours::f.read(Tensor a, Tensor b) -> Tensor"),
        torch._C.parse_schema("ours::f.write(Tensor a, Tensor(a!) b) -> Tensor(a!)"),
        torch._C.parse_schema("ours::f.other(Tensor(a!) a, int b) -> Tensor(a!)"),
    )
    monkeypatch.setattr("cudamem_testing.trace.schemas.operator_schemas", lambda name: schemas)
    assert effect_of(signature("ours::f", Storage, Storage)) == Effect(True, (READ, WRITTEN), ("read", "write"))


def test_an_effect_is_looked_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr("cudamem_testing.trace.schemas.operator_schemas", lambda name: asked.append(name) or ())
    effects = Effects()
    mul = signature("aten::mul", Storage)
    assert effects[mul] is effects[mul]
    assert asked == ["aten::mul"]


def test_names_that_are_no_operators_have_no_schemas():
    assert operator_schemas("MulBackward0") == ()
    assert operator_schemas("Namespaced::Annotation") == ()
    assert operator_schemas("a::b::c d") == ()
    assert operator_schemas("aten::mul") != ()


def test_every_declared_type_takes_what_torch_says_it_takes():
    key = oracle.TensorKey._make(1, 2, 3, torch.device("cpu"))
    samples = [
        (key, Storage),
        ([key], list),
        ([key, None], object),
        (None, NOTHING),
        (True, bool),
        (1, int),
        (1.5, float),
        (1j, complex),
    ]
    declared = {
        str(argument.type): argument.type for schema in torch._C._jit_get_all_schemas() for argument in schema.arguments
    }
    assert len(declared) > 60
    for text, kind in declared.items():
        for value, seen in samples:
            assert _takes(kind, seen) == oracle.SchemaMatcher._types_match(value, kind), (text, value)
