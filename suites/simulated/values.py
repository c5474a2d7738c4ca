"""Runs operators on a simulated card and on the CPU: ``python -m suites.simulated.values``. Prints facts as JSON."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from cudamem_testing import SimulatedCardError, estimate, simulated_cuda


def differences() -> dict[str, float]:
    """By how much results and gradients of modules on the card are off those on the CPU."""
    found = {}
    for name, (make, shape) in MODULES.items():
        torch.manual_seed(3)
        module = make()
        other = copy.deepcopy(module).cuda()
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().cuda().requires_grad_()
        results = [part(given) for part, given in ((module, x), (other, y))]
        results = [one[0] if isinstance(one, tuple) else one for one in results]
        for result in results:
            result.square().sum().backward()
        pairs = [(results[0], results[1]), (x.grad, y.grad)]
        pairs += [(a.grad, b.grad) for a, b in zip(module.parameters(), other.parameters(), strict=True)]
        found[name] = max(float((a - b.cpu()).abs().max()) for a, b in pairs)  # type: ignore[union-attr, operator]
    return found


class Attention(torch.nn.Module):
    """Scaled dot product attention of a tensor with itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As torch computes it."""
        return functional.scaled_dot_product_attention(x, x, x, **self.options)


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.LayerNorm(16)), (5, 8)),
    "convolution": (lambda: torch.nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 9)),
    "transposed convolution": (lambda: torch.nn.ConvTranspose2d(4, 6, 2, 2), (2, 4, 5, 5)),
    "batch norm": (lambda: torch.nn.BatchNorm2d(4), (3, 4, 5, 5)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    "rms norm": (lambda: torch.nn.RMSNorm(16), (3, 16)),
    "attention": (lambda: Attention(), (2, 4, 10, 16)),
    "causal attention": (lambda: Attention(is_causal=True), (2, 4, 10, 16)),
    "lstm": (lambda: torch.nn.LSTM(6, 7, 2, batch_first=True), (2, 5, 6)),
    "gru": (lambda: torch.nn.GRU(6, 7, bidirectional=True), (5, 2, 6)),
    "lstm with projections": (lambda: torch.nn.LSTM(6, 7, 2, proj_size=3, bidirectional=True), (5, 2, 6)),
    "rnn": (lambda: torch.nn.RNN(6, 7, nonlinearity="relu", batch_first=True), (2, 5, 6)),
    "pooling": (lambda: torch.nn.MaxPool2d(2), (2, 3, 6, 6)),
}


def facts() -> dict[str, Any]:
    """What torch says of the card, and what works on it."""
    x = torch.arange(6.0, device="cuda").view(2, 3)
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        y = x + 1
    event.record()
    event.synchronize()
    saved = io.BytesIO()
    torch.save({"x": x}, saved)
    saved.seek(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), 2, pin_memory=True)
    torch.manual_seed(5)
    drawn, on_host = torch.randn(4, device="cuda"), torch.randn(4)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    second = torch.rand(3, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        product = x @ x.t()
    return {
        "name": torch.cuda.get_device_name(),
        "count": torch.cuda.device_count(),
        "capability": torch.cuda.get_device_capability(),
        "cudnn": torch.backends.cudnn.is_available(),
        "sum": float(y.sum()),
        "printed": str(x),
        "loaded": str(torch.load(saved)["x"].device),
        "pinned": [bool(batch[0].is_pinned()) for batch in loader],
        "drawn as on the CPU": bool(torch.equal(drawn.cpu(), on_host)),
        "state": bool(torch.equal(first, second)),
        "autocast": str(product.dtype),
        "other card": str((x.to("cuda:1") * 2).device),
        "selected": x[x > 2].tolist(),
    }


def errors() -> dict[str, str]:
    """The first line of each error."""
    found = {}

    def note(name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"

    note("no such card", lambda: torch.empty(1, device="cuda:7"))
    note("mixed", lambda: torch.ones(3, device="cuda") + torch.ones(3))
    note("too large", lambda: torch.empty(2**36, device="cuda"))
    note("graph", lambda: torch.cuda.CUDAGraph())
    note("generator", lambda: torch.randn(2, device="cuda", generator=torch.Generator()))
    note("nested", lambda: simulated_cuda().__enter__())
    return found


def without_values() -> dict[str, Any]:
    """Shapes alone."""
    with simulated_cuda("h100", values=False):
        x = torch.empty(2**33, device="cuda", dtype=torch.bfloat16)
        taken = torch.cuda.memory_allocated()
        try:
            x.sum().item()
        except NotImplementedError as error:
            message = str(error)
        layer = torch.nn.Linear(4, 5, device="cuda")
        shape = list(layer(torch.empty(3, 4, device="cuda")).shape)
    model = torch.nn.Linear(1000, 1000, bias=False)
    found = estimate(lambda layer, given: layer(given).sum(), model, torch.ones(500, 1000), device="24GiB")
    blas = 32 * 2**20
    return {
        "taken": taken,
        "message": message,
        "shape": shape,
        "estimate": [found.device, found.peak - blas, [block.size for block in found.live.blocks]],
    }


def main() -> None:
    """Everything in one process, so that cards come and go in it."""
    torch.ones(2, requires_grad=True).sum().backward()  # autograd's engine has run before there is a card
    torch.manual_seed(1)  # which waits for cards to come
    before = torch.cuda.is_available(), torch.cuda.Stream, torch.version.cuda
    with simulated_cuda("24GiB", count=2):
        found = {"differences": differences(), "facts": facts(), "errors": errors()}
    found["without values"] = without_values()
    found["left as it was"] = before == (torch.cuda.is_available(), torch.cuda.Stream, torch.version.cuda)
    found["refusal"] = issubclass(SimulatedCardError, NotImplementedError)
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main()
