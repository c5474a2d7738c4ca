"""What programs make of their memory: the category of named tensors, for everything that people write."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cudamem_testing.trace.categories import Category, categories
from cudamem_testing.trace.graph import data_flow
from cudamem_testing.trace.profile import MemoryProfile
from suites.trace.synthetic import Module, alloc, call, op, read, tensor

PARAMETER, GRADIENT, INPUT, ACTIVATION = "PARAMETER", "GRADIENT", "INPUT", "ACTIVATION"
DETAIL, STATE, TEMPORARY, UNKNOWN = "AUTOGRAD_DETAIL", "OPTIMIZER_STATE", "TEMPORARY", None


def named(function, **inputs):
    """The categories of what went in, came out, and of gradients: of every version, without repeats."""
    found = MemoryProfile()(function, **inputs).categories()
    answer = {}
    for name in found.flow.names:
        kinds = []
        for version in range(found.last_version(name.storage) + 1 if name.storage else 0):
            category = found.of(name.storage, version)
            if kinds[-1:] != [category and category.name]:
                kinds.append(category and category.name)
        answer[name.text] = kinds[0] if len(kinds) == 1 else tuple(kinds)
    return answer


def layer(inputs=4, outputs=4, **options):
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs, bias=False, **options)


def test_a_forward_pass_without_a_model_claims_nothing():
    def run(x, w):
        return {"y": (x @ w).relu()}

    assert named(run, x=torch.ones(2, 4), w=torch.ones(4, 4, requires_grad=True)) == {"x": None, "w": None, "y": None}


def test_categories_of_a_modules_forward_pass():
    model = layer()
    x = torch.ones(2, 4)
    assert named(lambda x, w: {"y": model(x).relu()}, x=x, w=model.weight) == {
        "x": INPUT,
        "w": PARAMETER,
        "y": ACTIVATION,
    }


def test_inference_mode_and_no_grad_are_forward_passes():
    model = layer()

    @torch.inference_mode()
    def run(x, w):
        return {"y": model(x)}

    assert named(run, x=torch.ones(2, 4), w=model.weight) == {"x": INPUT, "w": PARAMETER, "y": ACTIVATION}
    assert named(torch.no_grad()(run), x=torch.ones(2, 4), w=model.weight)["y"] == ACTIVATION


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, foreach=False),
    "Adam foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, foreach=False),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_a_training_step_knows_everything(kind, set_to_none, warm):
    model = layer()
    optimizer = OPTIMIZERS[kind](model.parameters())

    def step(x, target, w):
        optimizer.zero_grad(set_to_none=set_to_none)
        y = model(x)
        loss = torch.nn.functional.mse_loss(y, target)
        loss.backward()
        optimizer.step()
        state = {key: one for key, one in optimizer.state[w].items() if torch.is_tensor(one) and one.ndim}
        return {"y": y, "loss": loss, **state}

    x, target = torch.ones(2, 4), torch.zeros(2, 4)
    if warm:
        step(x, target, model.weight)
    found = named(step, x=x, target=target, w=model.weight)
    expected = {"x": INPUT, "target": INPUT, "w": PARAMETER, "w.grad": GRADIENT, "y": ACTIVATION, "loss": ACTIVATION}
    state = found.keys() - expected.keys()
    assert found == {**expected, **dict.fromkeys(state, STATE)}
    assert len(state) == {"SGD": 0, "momentum": 1, "Adam amsgrad": 3}.get(kind, 2)


def of_step(count):
    """The categories of some steps of Adam, which takes one parameter after the other."""
    model = torch.nn.Sequential(layer(), torch.nn.ReLU(), layer())
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def steps(x, target):
        for _ in range(count):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), target).backward()
            optimizer.step()

    return MemoryProfile()(steps, x=torch.ones(2, 4), target=torch.zeros(2, 4)).categories()


def test_one_step_of_adam_has_every_category():
    kinds = {category and category.name for category in of_step(1).snapshot().values()}
    assert kinds == {PARAMETER, GRADIENT, STATE, INPUT, ACTIVATION, DETAIL, TEMPORARY, UNKNOWN}


def test_optimizer_buffers_may_be_parameters_as_with_torch():
    """A root of the second moments meets an input (the scalar that corrects it) and leads to the next gradients."""
    found = of_step(2)
    roots = [node for node in found.flow.nodes if node.name == "aten::sqrt"]
    assert [found.of(use.storage) for node in roots for use in node.outputs] == [Category.PARAMETER] * 2 + [None] * 2


def test_an_optimizer_by_hand():
    def step(x, w, momentum):
        loss = (x @ w).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            momentum.mul_(0.9).add_(w.grad)
            w.sub_(momentum, alpha=0.1)
        return {"loss": loss}

    found = named(step, x=torch.ones(2, 4), w=torch.ones(4, 4, requires_grad=True), momentum=torch.zeros(4, 4))
    # The buffer is unknown: no optimizer was seen.
    assert found == {"x": INPUT, "w": PARAMETER, "w.grad": GRADIENT, "momentum": None, "loss": ACTIVATION}


def test_gradients_accumulate():
    model = layer()

    def steps(x, w):
        for _ in range(3):
            model(x).sum().backward()

    assert named(steps, x=torch.ones(2, 4), w=model.weight) == {"x": INPUT, "w": PARAMETER, "w.grad": GRADIENT}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputed_activations_belong_to_the_backward_pass(use_reentrant):
    model, first = layer(), layer()

    def step(x, w):
        hidden = first(x)
        y = checkpoint(model, hidden, use_reentrant=use_reentrant)
        y.sum().backward()
        return {"hidden": hidden, "y": y}

    assert named(step, x=torch.ones(2, 4), w=model.weight) == {
        "x": INPUT,
        "w": PARAMETER,
        "w.grad": GRADIENT,
        "hidden": ACTIVATION,
        "y": ACTIVATION,
    }


def test_copies_of_autocast_are_activations():
    model = layer()

    def step(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.sum().backward()
        return {"y": y}

    profile = MemoryProfile()(step, x=torch.ones(2, 4), w=model.weight)
    found = profile.categories()
    assert [str(found[name]) for name in ("x", "w", "w.grad", "y")] == [INPUT, PARAMETER, GRADIENT, ACTIVATION]
    linear = next(node for node in profile.data_flow().nodes if node.name == "aten::linear")
    assert [(use.storage.nbytes, str(found.of(use.storage))) for use in linear.outputs] == [
        (32, ACTIVATION),  # the copy of w
        (16, ACTIVATION),  # the copy of x
        (16, ACTIVATION),
    ]


def test_tied_and_frozen_weights():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.frozen = layer(), layer(), layer()
            self.second.weight = self.first.weight
            self.frozen.weight.requires_grad_(False)

        def forward(self, x):
            return self.second(self.frozen(self.first(x)))

    model = Tied()

    def step(x, tied, frozen):
        y = model(x)
        y.sum().backward()
        return {"y": y}

    found = named(step, x=torch.ones(2, 4), tied=model.first.weight, frozen=model.frozen.weight)
    assert found == {"x": INPUT, "tied": PARAMETER, "tied.grad": GRADIENT, "frozen": PARAMETER, "y": ACTIVATION}


def test_a_custom_autograd_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 + x * 0

    model = layer()

    def step(x, w):
        y = Scale.apply(model(x))
        y.sum().backward()
        return {"y": y}

    profile = MemoryProfile()(step, x=torch.ones(2, 4), w=model.weight)
    found = profile.categories()
    assert [str(found[name]) for name in ("x", "w", "w.grad", "y")] == [INPUT, PARAMETER, GRADIENT, ACTIVATION]
    (backward,) = [node for node in profile.data_flow().nodes if node.name == "ScaleBackward"]
    assert [str(found.of(use.storage)) for use in backward.outputs] == [DETAIL]


def test_functional_transforms_show_no_gradients():
    def run(x, w):
        return {"g": torch.func.grad(lambda w: (x @ w).sin().sum())(w)}

    found = named(run, x=torch.ones(2, 4), w=torch.ones(4, 4))
    assert (found["x"], found["w"]) == (None, None)
    assert found["g"] in (None, DETAIL)


def test_parameters_of_lazy_modules_are_seen_by_an_optimizer():
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU())

    def step(x):
        y = model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y.sum().backward()
        optimizer.step()
        return {"y": y, "w": model[0].weight}

    assert named(step, x=torch.ones(2, 3)) == {"x": INPUT, "y": ACTIVATION, "w": PARAMETER, "w.grad": GRADIENT}


def test_compiled_code_is_not_guessed_at():
    model = layer()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 4))

    def step(x, w):
        y = compiled(x)
        y.sum().backward()
        return {"y": y}

    profile = MemoryProfile()(step, x=torch.ones(2, 4), w=model.weight)
    found = profile.categories()
    assert [found[name] for name in ("x", "w", "y")] == [None, None, None]
    assert found["w.grad"] is Category.GRADIENT
    (note,) = found.notes
    assert note.startswith("compiled code ran (Torch-Compiled Region: ")
    assert note in profile.timeline().notes
    assert note in str(profile.peak())
    torch._dynamo.reset()


def test_a_storage_that_followed_a_gradient_unseen_is_none():
    """The profiler gave both one number; memory that was given out after a gradient was seen cannot be it."""
    x, w, grad = tensor(1), tensor(2), tensor(3)
    trace = read(
        call("f", op("aten::mul", x, w), module=Module(5, "Linear", [("weight", w, grad)])),
        op("aten::ones", children=[alloc(grad, 16)]),
        op("aten::sin", grad),
    )
    found = categories(data_flow(trace))
    stale, fresh = (storage for storage in trace.storages if storage.number == 3)
    assert (found.of(stale), found.of(fresh)) == (Category.GRADIENT, None)


def test_what_is_asked_for_by_name():
    model = layer()
    profile = MemoryProfile()(lambda x: model(x).relu(), x=torch.ones(2, 4))
    found = profile.categories()
    assert found["x"] is Category.INPUT
    assert found["T0"] is Category.INPUT
    assert found["T0(v0)"] is Category.INPUT
    with pytest.raises(KeyError, match="no tensor is called 'T99'"):
        found["T99"]
    assert str(Category.INPUT) == "INPUT"
