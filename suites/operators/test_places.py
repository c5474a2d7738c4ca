"""Where operators run: modules and phases, through everything that autograd and modules can do."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cudamem_testing import OperatorMemory, find_cycles
from cudamem_testing.operators.places import AMBIGUOUS, OperatorPlaces, _Made
from cudamem_testing.operators.recording import REFUSED
from cudamem_testing.operators.rows import BETWEEN, OperatorRow, Phase

Calls = list[tuple[str, str | None, str]]
VIEWS = {"aten::t", "aten::detach", "aten::view", "aten::expand", "aten::transpose", "aten::unsqueeze", "aten::alias"}


def calls(memory: OperatorMemory) -> Calls:
    """Operators with module and phase, without views, neighbours of one kind once."""
    found: Calls = []
    for row in memory.table.rows:
        if row.operator != BETWEEN and row.operator not in VIEWS:
            one = (row.operator.removeprefix("aten::"), row.module, row.phase.value)
            if not found or found[-1] != one:
                found.append(one)
    return found


def modules(memory: OperatorMemory, phase: str, operator: str) -> list[str | None]:
    """The modules of an operator's calls in a phase."""
    return [row.module for row in memory.table.rows if row.phase.value == phase and row.operator == f"aten::{operator}"]


def test_a_training_step() -> None:
    gc.collect()  # nothing of other tests goes meanwhile
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = torch.ones(3, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert calls(memory) == [
        ("addmm", "0", "forward"),
        ("tanh", "1", "forward"),
        ("mm", "2", "forward"),
        ("sum", None, "other"),
        ("ones_like", None, "other"),
        ("mm", "2", "backward"),
        ("tanh_backward", "1", "backward"),
        ("mm", "0", "backward"),
        ("sum", "0", "backward"),
        ("profiler::_record_function_enter_new", None, "optimizer"),
        ("add_", None, "optimizer"),
        ("profiler::_record_function_exit", None, "optimizer"),
        ("profiler::_record_function_enter_new", None, "other"),
        ("profiler::_record_function_exit", None, "other"),
    ]
    assert [(marker.name, memory.table.rows[marker.call].call) for marker in memory.table.markers][:2] == [
        ("fw_start", 0),
        ("fw_bw_boundary", 5),
    ]


class Twice(nn.Module):
    """A block under two names, and called again."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Module()
        self.two = nn.Module()
        self.one.core = self.two.core = nn.Linear(4, 4, bias=False)
        self.one.forward = lambda x: self.one.core(x)  # type: ignore[method-assign, operator]
        self.two.forward = lambda x: self.two.core(x)  # type: ignore[method-assign, operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one.core(self.two(self.one(self.one(x)).tanh())).tanh()  # type: ignore[operator]


def test_reused_and_repeatedly_called_modules() -> None:
    model = Twice()
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    assert modules(memory, "forward", "mm") == ["one.core", "one.core", "two.core", "one.core"]
    assert modules(memory, "forward", "tanh") == ["", ""]
    # The gradient of the weight, and of the input but for the first call, in reverse.
    assert modules(memory, "backward", "mm") == [
        "one.core",
        "one.core",
        "two.core",
        "two.core",
        "one.core",
        "one.core",
        "one.core",
    ]
    assert modules(memory, "backward", "add") == ["two.core", "one.core", "one.core"]


@pytest.mark.parametrize("way", ["reentrant", "saved tensors", "selective"])
def test_checkpointing_runs_forward_again_in_backward(way: str) -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.last = nn.Linear(4, 4), inner, nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            options: dict[str, Any] = {"use_reentrant": way == "reentrant"}
            if way == "selective":
                options["context_fn"] = lambda: create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])
            return self.last(checkpoint(self.block, self.first(x), **options))

    model = Model()
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    again = {"reentrant": ["block.0", "block.2"], "saved tensors": ["block.0"], "selective": []}[way]
    assert modules(memory, "forward", "addmm") == ["first", "block.0", "block.2", "last"]
    assert modules(memory, "forward", "tanh") == ["block.1"]
    assert modules(memory, "backward", "addmm") == again
    assert modules(memory, "backward", "tanh") == ["block.1"]
    assert modules(memory, "backward", "tanh_backward") == ["block.1"]
    assert modules(memory, "backward", "mm") == [
        "last",
        "last",
        "block.2",
        "block.2",
        "block.0",
        "block.0",
        "first",
    ]
    assert {row.module for row in memory.table.rows if row.phase is Phase.BACKWARD} <= {
        None,
        "first",
        "last",
        "block.0",
        "block.1",
        "block.2",
    }


def test_hooks_count_for_their_module() -> None:
    def sign(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.sign_()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    handles = [
        model[0].register_forward_pre_hook(lambda module, args: (args[0].exp(),)),
        model[0].register_forward_hook(lambda module, args, out: out.sin()),
        model[1].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0].tan(),)),
        model[1].weight.register_hook(lambda grad: grad.sqrt()),
        model[0].weight.register_post_accumulate_grad_hook(sign),
    ]
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    assert modules(memory, "forward", "exp") == ["0"]
    assert modules(memory, "forward", "sin") == ["0"]
    assert modules(memory, "backward", "tan") == ["1"]
    assert modules(memory, "backward", "cos") == ["0"]  # of the hook with the sine
    assert modules(memory, "backward", "sqrt") == ["1"]
    assert modules(memory, "backward", "sign_") == ["0"]
    assert len(handles) == 5


def test_frozen_parts() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    model[2].weight.requires_grad_(True)
    model[2].weight.requires_grad_(False)
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    assert modules(memory, "forward", "addmm") == ["0", "2", "3"]
    assert modules(memory, "backward", "mm") == ["3"]
    assert modules(memory, "backward", "tanh_backward") == []


def test_torch_func() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    x = torch.ones(3, 4)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    with OperatorMemory(model) as memory:
        torch.func.grad(loss)(parameters, x)
    assert modules(memory, "forward", "addmm") == ["0"]
    assert modules(memory, "backward", "mm") == ["2", "2", "0"]
    assert modules(memory, "backward", "tanh_backward") + modules(memory, "backward", "sub") != []
    with OperatorMemory(model) as memory:
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    assert {row.module for row in memory.table.rows if row.phase is Phase.FORWARD} >= {"0", "1", "2"}
    assert {row.module for row in memory.table.rows if row.phase is Phase.BACKWARD} >= {"0", "1", "2"}


def test_nested_tensors() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    batch = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(5, 4)], layout=torch.jagged)
    with OperatorMemory(model) as memory:
        model(batch).values().sum().backward()
    forward = [row for row in memory.table.rows if row.phase is Phase.FORWARD and row.allocated]
    assert [(row.module, row.allocated) for row in forward][:3] == [
        ("0", 7 * 8 * 4),
        ("1", 7 * 8 * 4),
        ("2", 7 * 2 * 4),
    ]
    backward = {row.module for row in memory.table.rows if row.phase is Phase.BACKWARD and row.allocated}
    assert backward >= {"0", "1", "2"}


class Square(torch.autograd.Function):
    """A custom function with operators in both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (grad * x).mul_(2)


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Square.apply(x)


def test_functions_of_ones_own() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Squared(), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    assert modules(memory, "forward", "mul") == ["1"]
    assert modules(memory, "backward", "mul") == ["1"]
    assert modules(memory, "backward", "mul_") == ["1"]


class Writes(nn.Module):
    """Ends with a write into a view, whose node is made after the operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 0] = x[:, 1] * 2
        return x


def test_writes_into_views() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Writes(), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x).sum().backward()
    backward = [row for row in memory.table.rows if row.phase is Phase.BACKWARD and row.operator not in VIEWS]
    assert {row.module for row in backward if "between" not in row.operator} == {"0", "1", "2"}
    assert modules(memory, "backward", "mm") == ["2", "2", "0"]
    assert set(modules(memory, "backward", "mul")) == {"1"}


def test_backward_inside_forward_and_second_derivatives() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            out = self.inner(x).exp()
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return grad.square().sum()

    model = Penalty()
    with OperatorMemory(model) as memory:
        model(torch.ones(3, 4)).backward()
    assert modules(memory, "forward", "exp") == [""]
    assert modules(memory, "backward", "mm")[:1] == ["inner"]
    assert {row.module for row in memory.table.rows if row.phase is Phase.BACKWARD} >= {"", "inner"}
    assert memory.table.notes == () or AMBIGUOUS not in memory.table.notes


def test_modules_outside_the_model() -> None:
    model, loss = nn.Linear(4, 4), nn.MSELoss()
    outside = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.ones(2, 4)

    class Inside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Softplus()(model(x))  # made on the spot

    with OperatorMemory(model) as memory:
        loss(outside(Inside()(x)), x).backward()
    assert modules(memory, "forward", "addmm") == ["", "Sequential().0"]
    assert modules(memory, "forward", "softplus") == ["Inside()"]
    assert modules(memory, "forward", "mse_loss") == ["MSELoss()"]
    assert modules(memory, "backward", "mse_loss_backward") == ["MSELoss()"]
    assert modules(memory, "backward", "tanh_backward") == ["Sequential().1"]
    with OperatorMemory() as without:
        outside(x)
    assert modules(without, "forward", "addmm") == ["Sequential().0"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_modules_that_cannot_be_seen_are_named() -> None:
    class Own(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.forward(x)

    script = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model = nn.Sequential(Own(4, 4), script, nn.Linear(4, 4))
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        model(x)
    assert modules(memory, "forward", "addmm") == ["", "1", "1", "2"]
    assert [note for note in memory.table.notes if "on cpu, blocks" not in note] == [
        "calls that a class replaced are not seen; their operators count for the module around: 0",
        "scripts run without Python; the operators of their parts count for them: 1",
    ]
    with OperatorMemory(script) as memory:
        script(x)
    assert modules(memory, "forward", "addmm") == ["", ""]
    assert REFUSED in memory.table.notes
    assert memory.table.markers == ()


def test_optimizers_in_odd_places() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x = torch.ones(2, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    class Broken(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            super().step()
            raise ZeroDivisionError

    broken = Broken(model.parameters(), lr=0.1, foreach=False)
    with OperatorMemory(model) as memory:
        optimizer.step(closure)
        with pytest.raises(ZeroDivisionError):
            broken.step()
        x.exp()
    assert modules(memory, "forward", "addmm") == [""]
    assert modules(memory, "backward", "mm") == [""]
    assert modules(memory, "optimizer", "sum") == [None]  # the loss, inside the step
    assert modules(memory, "optimizer", "add_") == [None] * 4
    assert modules(memory, "other", "exp") == [None]
    assert [marker.name for marker in memory.table.markers] == [
        "optimizer_step",
        "fw_start",
        "fw_bw_boundary",
        "optimizer_step",
        "optimizer_step",
    ]


def test_an_optimizer_in_backward() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    hook = model.weight.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    with OperatorMemory(model) as memory:
        model(torch.ones(2, 4)).sum().backward()
    hook.remove()  # it holds the optimizer, and so its own tensor, where the collector does not see it
    assert modules(memory, "optimizer", "add_") == [None]
    assert modules(memory, "backward", "mm") == [""]


def test_errors_leave_nothing_wrong_behind() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp().reshape(7, 7)

    model = nn.Sequential(nn.Linear(4, 4), Fails())
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        with pytest.raises(RuntimeError, match="invalid for input of size 8"):
            model(x)
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.ops.aten.mm(x, x)
        x.sin()
    assert calls(memory) == [
        ("addmm", "0", "forward"),
        ("exp", "1", "forward"),
        ("mm", None, "other"),
        ("sin", None, "other"),
    ]
    assert [marker.name for marker in memory.table.markers] == ["fw_start", "fw_bw_boundary"]


def test_other_threads_are_not_recorded_but_counted() -> None:
    model = nn.Linear(4, 4)
    kept: list[torch.Tensor] = []
    with OperatorMemory(model) as memory:
        thread = threading.Thread(target=lambda: kept.append(torch.ones(1000)))
        thread.start()
        thread.join()
        torch.ones(3)
    assert calls(memory) == [("ones", None, "other")]
    assert [row.allocated for row in memory.table.rows if row.operator == BETWEEN][:1] == [4000]


def test_which_module_made_which_node() -> None:
    made = _Made(10)
    made.add(11, "a")  # node 10
    made.add(13, "b")  # node 11 was made after the operator of "a", node 12 is the operator's own
    made.add(14, "b")
    made.add(15, None)
    assert [made.find(number) for number in range(8, 17)] == [None, None, "a", "a", "b", "b", None, None, None]
    assert [number in made for number in (9, 10, 14, 15)] == [False, True, True, False]


class Node:
    """What tells of an autograd node."""

    def __init__(self, number: int) -> None:
        self._number = number

    def _sequence_nr(self) -> int:
        return self._number


def test_nodes_of_a_card_that_have_the_numbers_of_others() -> None:
    """A card's backward runs on a separate thread, which numbers its own nodes."""
    places = OperatorPlaces(nn.Linear(2, 2))
    forward = _Made(100)
    forward.add(104, "layer")
    own = _Made(0)
    own.add(103, "again")
    places._made = {places._thread: forward}
    assert places._made_by(Node(103), nested=False) == "layer"
    places._thread = -1
    places._made = {-1: forward, threading.get_ident(): own}
    assert places._made_by(Node(103), nested=False) == "layer"  # its own are below 103
    assert places._made_by(Node(102), nested=True) == "again"
    assert places._made_by(Node(2), nested=False) is None
    own.add(105, "again")
    assert places.remarks == []
    assert places._made_by(Node(103), nested=False) is None
    assert places.remarks == [AMBIGUOUS]


# -- nothing is left behind -------------------------------------------------------------------------------


def carried(model: nn.Module) -> list[Any]:
    """Everything that a module and its parameters carry."""
    found: list[Any] = []
    for name, module in model.named_modules():
        found.append(
            (name, type(module), {key: repr(value) for key, value in vars(module).items() if "Linear" not in key})
        )
    for name, parameter in model.named_parameters():
        found.append((name, dict(vars(parameter)), parameter._backward_hooks, parameter.grad is None))
    return found


def test_the_model_carries_nothing_afterwards() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 1)))
    optimizers = sys.modules["torch.optim.optimizer"]
    hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    before = carried(model), [dict(one) for one in hooks], dict(vars(nn.Module)), dict(vars(torch.optim.SGD))
    x = torch.ones(2, 4)
    with OperatorMemory(model) as memory:
        with torch.no_grad():
            model(x)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 3))
    assert (carried(model), [dict(one) for one in hooks], dict(vars(nn.Module)), dict(vars(torch.optim.SGD))) == before
    rows = memory.table.rows
    model(x)
    assert memory.table.rows is rows


def test_what_is_recorded_lives_no_longer() -> None:
    def program() -> tuple[OperatorMemory, list[weakref.ref[Any]]]:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.ones(2, 4)
        with OperatorMemory(model) as memory:
            out = model(x)
            out.sum().backward()
        return memory, [weakref.ref(one) for one in (model, *model.parameters(), x, out, model[0].weight.grad)]

    gc.collect()
    gc.disable()
    try:
        memory, references = program()
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()
    assert find_cycles() == ()
    assert isinstance(memory.table.rows[0], OperatorRow)


def test_activations_die_as_early_as_without_it() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dead: list[bool] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = x + 1
            reference = weakref.ref(first)
            second = first * 2
            del first
            self.dead.append(reference() is None)
            return second

    model = nn.Sequential(Drops())
    with OperatorMemory(model, device="cpu"):
        model(torch.ones(10))
    assert model[0].dead == [True]
