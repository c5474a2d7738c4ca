"""Objects that the collector has cleared but that are still held: they have no attributes and stop no search."""

from __future__ import annotations

import ctypes

import torch

from cudamem_testing import safe_access
from cudamem_testing.cycles.draft import Question
from cudamem_testing.cycles.explain import explain
from cudamem_testing.model.stacks import Locator
from cudamem_testing.objects.names import name_of
from cudamem_testing.objects.references import references
from cudamem_testing.objects.tensors import storages_of

slot_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))


def clear(obj: object) -> None:
    """What the collector alone does: Py_tp_clear."""
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(slot_of(type(obj), 51))(obj)


def test_an_instance_of_a_class_that_was_cleared() -> None:
    class Model:
        pass

    model = Model()
    model.weight = torch.ones(4)
    clear(Model)
    assert safe_access.mro(Model) == (Model,)
    assert not safe_access.derives(Model, torch.Tensor)
    assert safe_access.instance_dict(model) is None
    assert name_of(model) == "Model"
    assert [*safe_access.slots(model)] == []
    assert Model in [referent for _, referent in references(model)]
    assert storages_of(model) == ()


def test_a_cycle_beside_what_was_cleared_is_explained() -> None:
    class Gone:
        pass

    class Node:
        pass

    node, gone, undefined = Node(), Gone(), torch.ones(3)
    node.me, node.big = node, torch.ones(1000)
    clear(Gone)
    clear(undefined)
    garbage = [gone, Gone, undefined, node, node.__dict__, node.big]
    (cycle,) = explain(garbage, Question(Locator("/"))).settled(freed=False)
    assert (cycle.bytes, len(cycle.tensors)) == (4000, 1)
