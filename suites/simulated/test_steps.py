"""Recurrent layers of the simulated card against torch's own on the CPU, and dropout against differences."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cudamem_testing import simulated_cuda
from cudamem_testing.simulated.kernels.layers import GRU, LSTM, RELU, TANH, Layers
from cudamem_testing.simulated.kernels.steps import Pass

MODES = {"LSTM": LSTM, "GRU": GRU, "tanh": TANH, "relu": RELU}


@dataclass(frozen=True)
class Case:
    """One module and its input."""

    kind: str
    features: int
    hidden: int
    number: int
    lengths: tuple[int, ...]
    packed: bool
    biases: bool
    both_ways: bool
    projected: int
    double: bool
    batch_first: bool
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        """Only layers in float32 are computed by oneDNN."""
        return torch.float64 if self.double else torch.float32

    def module(self) -> nn.RNNBase:
        """Torch's own."""
        options = {"bias": self.biases, "bidirectional": self.both_ways, "dtype": self.dtype}
        torch.manual_seed(self.seed)
        sizes = self.features, self.hidden, self.number
        if self.kind == "LSTM":
            return nn.LSTM(*sizes, proj_size=self.projected, **options)
        return nn.GRU(*sizes, **options) if self.kind == "GRU" else nn.RNN(*sizes, nonlinearity=self.kind, **options)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small ones of every kind."""
    kind, hidden = draw(st.sampled_from(sorted(MODES))), draw(st.integers(2, 5))
    packed = draw(st.booleans())
    lengths = sorted(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)), reverse=True)
    return Case(
        kind,
        draw(st.integers(1, 4)),
        hidden,
        draw(st.integers(1, 3)),
        tuple(lengths if packed else [lengths[0]] * len(lengths)),
        packed,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, hidden - 1)) if kind == "LSTM" else 0,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@given(cases())
def test_results_and_gradients_are_those_of_the_cpu(case: Case) -> None:
    module = case.module()
    x = torch.randn(max(case.lengths), len(case.lengths), case.features, dtype=case.dtype)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(case.lengths))
    rows = packed.data if case.packed else x.flatten(0, 1)
    sizes = packed.batch_sizes.tolist()
    ways = 2 if case.both_ways else 1
    first = torch.randn(case.number * ways, len(case.lengths), case.projected or case.hidden, dtype=case.dtype)
    cell = torch.randn(case.number * ways, len(case.lengths), case.hidden, dtype=case.dtype)
    leaves = [one.requires_grad_() for one in (rows, first, *([cell] if case.kind == "LSTM" else []))]
    states = tuple(leaves[1:]) if case.kind == "LSTM" else first
    if case.packed:
        found, ends = module(nn.utils.rnn.PackedSequence(leaves[0], packed.batch_sizes), states)
        expected = [found.data]
    else:
        found, ends = module(leaves[0].view(x.shape), states)
        expected = [found.flatten(0, 1)]
    expected += list(ends) if case.kind == "LSTM" else [ends]
    above = [torch.randn_like(one) for one in expected]
    gradients = torch.autograd.grad(expected, [*leaves, *module.parameters()], above)

    layers = Layers(
        MODES[case.kind],
        case.hidden,
        case.projected,
        case.number,
        False,
        0.0,
        True,
        case.both_ways,
        sizes if case.packed else (),
    )
    weights = [one.detach() for one in module.parameters()]
    room = torch.full((layers.reserve(rows if case.packed else x) // rows.element_size(),), torch.nan, dtype=case.dtype)
    stride = (4 if case.biases else 2) + bool(case.projected)
    with torch.no_grad():
        for kept in (None, room):
            one = Pass(layers, leaves[0].detach(), sizes, weights, stride, kept, 0)
            given_states = [leaf.detach() for leaf in leaves[1:]]
            results = [torch.full_like(each, torch.nan) for each in expected]
            one.forward(given_states[0], results[0], results[1], *given_states[1:], *results[2:])
            torch.testing.assert_close(results, [each.detach() for each in expected])
        above_cell = above[2] if case.kind == "LSTM" else None
        of_x, of_state, of_cell, of_weights = one.backward(
            given_states[0], results[0], above[0], above[1], above_cell, *given_states[1:]
        )
        own = [of_x, of_state, *([] if of_cell is None else [of_cell]), *of_weights]
    torch.testing.assert_close(own, list(gradients))


def dropping(chance: float, seed: int) -> tuple[Pass, torch.Tensor]:
    """Two layers with dropout between them, and first states."""
    torch.manual_seed(4)
    module = nn.GRU(3, 4, 2, dtype=torch.float64)
    x = torch.randn(6, 3, dtype=torch.float64)
    layers = Layers(GRU, 4, 0, 2, False, chance, True, False)
    room = torch.zeros(layers.reserve(x.view(3, 2, 3)) // 8, dtype=torch.float64)
    return Pass(layers, x, [2] * 3, [one.detach() for one in module.parameters()], 4, room, seed), torch.zeros(
        2, 2, 4, dtype=torch.float64
    )


def output(one: Pass, hx: torch.Tensor) -> torch.Tensor:
    """Of a forward pass."""
    out, last = one.x.new_empty(6, 4), torch.empty_like(hx)
    one.forward(hx, out, last)
    return out


def test_dropout_is_the_same_in_backward() -> None:
    """The gradient of the first layer's weights is that of differences: with another mask it would be far off."""
    one, hx = dropping(0.5, 7)
    out = output(one, hx)
    *_, of_weights = one.backward(hx, out, torch.ones_like(out), None, None)
    for at, (weight, gradient) in enumerate(zip(one.weights, of_weights, strict=True)):
        direction, step = torch.ones_like(weight), 1e-6
        sides = []
        for sign in (1, -1):
            weight.add_(direction, alpha=sign * step)
            sides.append(float(output(one, hx).sum()))
            weight.sub_(direction, alpha=sign * step)
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(float(gradient.sum()), rel=1e-6), at


def test_seeds_draw_other_masks_and_all_or_nothing_drops_all() -> None:
    results = [output(*dropping(0.5, seed)) for seed in (1, 1, 2)]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    ones = torch.ones(6, 4)
    layers = [dropping(0.5, 1)[0].dropped(ones, layer).tolist() for layer in (1, 2)]
    assert layers[0] != layers[1]
    none, everything = (dropping(chance, 1) for chance in (0.0, 1.0))
    output(*everything)
    assert everything[0].dropped(torch.ones(6, 4, dtype=torch.float64), 1).tolist() == torch.zeros(6, 4).tolist()
    assert not torch.equal(output(*none), output(*everything))
    assert none[0].dropped(torch.ones(6, 4), 1).tolist() == torch.ones(6, 4).tolist()


@pytest.fixture(scope="module")
def card() -> Iterator[None]:
    """A simulated one."""
    with simulated_cuda("h100"):
        yield


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@given(case=cases())
def test_modules_on_a_card_are_those_on_the_cpu(card: None, case: Case) -> None:
    on_cpu = case.module()
    on_cpu.batch_first = case.batch_first
    on_card = copy.deepcopy(on_cpu).cuda()
    x = torch.randn(max(case.lengths), len(case.lengths), case.features, dtype=case.dtype)
    found = []
    for module in (on_cpu, on_card):
        given_x = (x.transpose(0, 1) if case.batch_first else x).to(next(module.parameters()).device).requires_grad_()
        rows = given_x
        if case.packed:
            rows = nn.utils.rnn.pack_padded_sequence(given_x, torch.tensor(case.lengths), case.batch_first)
        out, ends = module(rows)
        results = [out.data if case.packed else out, *(ends if case.kind == "LSTM" else [ends])]
        used = results[: 1 + case.seed % len(results)]  # what is not used has no gradient
        gradients = torch.autograd.grad(sum(one.sin().sum() for one in used), [given_x, *module.parameters()])
        with torch.no_grad():
            again, _ = module(rows)
        found.append([*results, again.data if case.packed else again, *gradients])
    torch.testing.assert_close([one.cpu() for one in found[1]], found[0])


def memory_of_host(profile: torch.profiler.profile) -> int:
    """Bytes that the CPU allocated and did not free."""
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    return sum(one.nbytes() for one in events if one.name() == "[memory]" and one.device_type().name == "CPU")


def test_what_a_library_keeps_lives_as_long_as_the_reserve(card: None) -> None:
    """Also where a reserve went another way, or gradients are taken twice, they are those of the CPU."""
    torch.manual_seed(0)
    module, x = nn.LSTM(3, 4, 2), torch.randn(5, 2, 3)
    on_cpu = torch.autograd.grad(module(x)[0].square().sum(), list(module.parameters()))
    module, x = module.cuda(), x.cuda()
    module(x)
    kept: list[torch.Tensor] = []
    record = {"activities": [torch.profiler.ProfilerActivity.CPU], "profile_memory": True}
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved)
    with torch.profiler.profile(**record) as made, hooks:  # type: ignore[arg-type]
        loss = module(x)[0].square().sum()
    outputs, ends = 2 * 4 * 5 * 2 * 4, 2 * 2 * 4 * 2 * 4  # of two layers, which are in what else it keeps as well
    assert memory_of_host(made) > outputs + ends
    storages = [weakref.ref(one.untyped_storage()) for one in kept if one.dtype == torch.uint8]
    assert len(storages) == 1
    kept.clear()
    parameters = list(module.parameters())
    with torch.profiler.profile(**record) as freed:  # type: ignore[arg-type]
        gradients = [torch.autograd.grad(loss, parameters, retain_graph=more) for more in (True, False)]
    assert memory_of_host(freed) == -memory_of_host(made)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.cpu(), lambda saved: saved.cuda()):
        moved = module(x)[0].square().sum()
    gradients.append(torch.autograd.grad(moved, parameters))
    assert [storage() for storage in storages] == [None]
    for one in gradients:
        torch.testing.assert_close([each.cpu() for each in one], list(on_cpu))
