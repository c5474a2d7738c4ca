"""Which line a test over its baseline names first: five regressions of one small network, and the version recorded."""

from __future__ import annotations

import pytest

from suites.plugin.recorded import UPDATE

pytestmark = pytest.mark.usefixtures("one_thread")

NET = """
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.up = torch.nn.Linear(width, 4 * width)
            self.down = torch.nn.Linear(4 * width, width)

        def forward(self, x):
            h = self.up(x)
            h = F.gelu(h)
            return x + self.down(h)

    class Net(torch.nn.Module):
        def __init__(self, width=64, depth=4):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def embed(net, x):
        with torch.no_grad():
            return net(x)

    def train(net, x):
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x.sum().backward()

    def scaled(x):
        y = x * 2
        y.relu_()
        return y

    def scores(x):
        q = x * 1
        k = x + 1
        s = q @ k.T
        return torch.softmax(s, -1)

    @torch.no_grad()
    def probe(w, x):
        h = x @ w
        h = F.gelu(h)
        return h + 1

    def evaluate(net, xs):
        losses = []
        for x in xs:
            loss = net(x).square().mean()
            losses.append(loss.detach())
        return torch.stack(losses)

    def distill(student, teacher, x):
        target = teacher(x).detach()
        F.mse_loss(student(x), target).backward()

    def collect(net, xs):
        kept = []
        for x in xs:
            kept = kept[-1:] + [net(x).detach()]
        return kept
"""
TESTS = """
    import pytest, torch
    from net import Net, collect, distill, embed, evaluate, probe, scaled, scores, train

    pytestmark = pytest.mark.memory_baseline(tolerance="2%|16KiB")

    @pytest.fixture
    def net(): return Net()

    @pytest.fixture
    def x(): return torch.zeros(1024, 64)

    def test_embed(net, x): assert embed(net, x) is not None
    def test_train(net, x): train(net, x)
    def test_scaled(x): scaled(x)
    def test_scores(x): scores(x)
    def test_probe(x): assert probe(torch.ones(64, 1024, requires_grad=True), x) is not None
    def test_evaluate(x): evaluate(Net(depth=1), [x[:512]] * 6)
    def test_distill(x): distill(Net(depth=1), Net(depth=1), x)
    def test_collect(x): collect(Net(depth=1), [x[:512]] * 6)
"""
FILES = {"net.py": NET, "test_it.py": TESTS}


@pytest.fixture(autouse=True)
def fresh_modules(monkeypatch):
    """Each inner run imports the network as it is on disk."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)


@pytest.mark.parametrize(
    ("test", "old", "new", "first"),
    [
        (
            "test_embed",
            "with torch.no_grad():",
            "if True:",
            [
                "saved for backward: +3.0 MiB by net.py:12 in Block.forward (Linear.forward) <- net.py:23",
                "   | h = self.up(x)",
                "saved for backward: +3.0 MiB by net.py:13 in Block.forward (gelu) <- net.py:23",
                "saved for backward: +1.0 MiB by net.py:14 in Block.forward <- net.py:23",
                "   hint: grad mode was off there when the baseline was recorded: is a torch.no_grad() missing?",
            ],
        ),
        (
            "test_probe",
            "@torch.no_grad()",
            "# lost",
            [
                "saved for backward: +4.0 MiB by net.py:48 in probe <- test_it.py:16, 0 B -> 4.0 MiB",
                "   | h = x @ w",
                "   hint: grad mode was off there when the baseline was recorded: is a torch.no_grad() missing?",
            ],
        ),
        (
            "test_scaled",
            "y.relu_()",
            "y = y.relu()",
            ["new: +256.0 KiB by net.py:37 in scaled (relu) <- test_it.py:14", "   | y = y.relu()"],
        ),
        (
            "test_scores",
            "s = q @ k.T",
            "s = q @ k.T\n        t = s.clone()",
            ["new: +4.0 MiB by net.py:44 in scores (clone) <- test_it.py:15", "   | t = s.clone()"],
        ),
        (
            "test_scores",
            "s = q @ k.T",
            "s = (q @ k.T).double()",
            [
                "grew: +4.0 MiB by net.py:43 in scores (double) <- test_it.py:15, 4.0 MiB -> 8.0 MiB",
                "   - s = q @ k.T",
                "   + s = (q @ k.T).double()",
            ],
        ),
        (
            "test_scores",
            "q = x * 1",
            "x = x.double(); q = x * 1",
            [
                "new: +1.0 MiB by net.py:41 in scores <- test_it.py:15",
                "   | x = x.double(); q = x * 1",
                "grew: +4.0 MiB by net.py:43 in scores <- test_it.py:15, 4.0 MiB -> 8.0 MiB",
            ],
        ),
        (
            "test_train",
            "checkpoint(block, x, use_reentrant=False)",
            "block(x)",
            [
                "saved for backward: +3.0 MiB by net.py:12 in Block.forward (Linear.forward) <- net.py:32",
                "   | h = self.up(x)",
                "saved for backward: +3.0 MiB by net.py:13 in Block.forward (gelu) <- net.py:32",
            ],
        ),
        (
            "test_evaluate",
            "losses.append(loss.detach())",
            "losses.append(loss)",
            [
                "grew: +2.0 MiB by net.py:12 in Block.forward (Linear.forward) <- net.py:23, 1.0 MiB -> 3.0 MiB",
                "   | h = self.up(x)",
                "grew: +2.0 MiB by net.py:13 in Block.forward (gelu) <- net.py:23, 1.0 MiB -> 3.0 MiB in 2 -> 6 blocks",
                "grew: +512.0 KiB by net.py:14 in Block.forward <- net.py:23, 256.0 KiB -> 768.0 KiB in 2 -> 6 blocks",
                "   hint: results of net.py:55 in evaluate keep their autograd graph: is a .detach() missing",
            ],
        ),
        (
            "test_distill",
            "teacher(x).detach()",
            "teacher(x)",
            [
                "saved for backward: +1.0 MiB by net.py:12 in Block.forward (Linear.forward) <- net.py:23, 1.0 MiB",
                "   | h = self.up(x)",
                "saved for backward: +1.0 MiB by net.py:13 in Block.forward (gelu) <- net.py:23, 1.0 MiB -> 2.0 MiB",
            ],
        ),
        (
            "test_collect",
            "kept[-1:]",
            "kept[:]",
            [
                "grew: +384.0 KiB by net.py:14 in Block.forward <- net.py:23, 512.0 KiB -> 896.0 KiB in 4 -> 7 blocks",
                "   | return x + self.down(h)",
            ],
        ),
    ],
    ids=[
        "no_grad",
        "no_grad decorator",
        "in place",
        "copy",
        "dtype",
        "dtype before",
        "checkpoint",
        "detach of a loss",
        "detach before a loss",
        "detached and kept",
    ],
)
def test_the_first_line_names_the_cause(run_inner, pytester, test, old, new, first):
    assert run_inner(FILES, UPDATE).last == "8 passed"
    assert run_inner({}).last == "8 passed"  # the control: what was recorded
    assert NET.count(old) == 1
    inner = run_inner({"net.py": NET.replace(old, new)})
    assert [name for name, outcome in inner.outcomes.items() if outcome == "failed"] == [test]
    told = inner.section(test)[1:]
    assert [line[: len(wanted)] for line, wanted in zip(told, first, strict=False)] == first, "\n".join(told)
    assert any(".detach()" in line for line in told) == (".detach()" in old and test == "test_evaluate")


INLINE = """
    import pytest, torch

    def loss(w, x):
        h = torch.tanh(x @ w)
        return h.sum()

    @pytest.mark.memory_baseline
    def test_loss():
        w = torch.ones(64, 1024, requires_grad=True)
        loss(w, torch.ones(1024, 64)).backward()
"""


def test_one_tensor_more_that_a_line_has_autograd_keep(run_inner):
    assert run_inner(INLINE, UPDATE).last == "1 passed"
    inner = run_inner({"test_it.py": INLINE.replace("tanh(x @ w)", "tanh((x @ w).exp())")})
    assert inner.section("test_loss")[1:4] == [
        "saved for backward: +4.0 MiB by test_it.py:4 in loss <- test_it.py:10, 4.0 MiB -> 8.0 MiB in 1 -> 2 blocks",
        "   - h = torch.tanh(x @ w)",
        "   + h = torch.tanh((x @ w).exp())",
    ]
