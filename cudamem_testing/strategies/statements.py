"""Writes the statements of a random program. PYTEST_DONT_REWRITE"""

from __future__ import annotations

import random

SHAPES = ((3, 4), (3, 4), (3, 4), (4, 4), (4,), (3, 1), (1,), ())


class Writer:
    """Writes statements and remembers which variables exist, and of what shape."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.count = 0

    def fresh(self, shape: tuple[int, ...] | None = None) -> str:
        """A new variable; one of unknown shape is never used again, and so dies at the end or when it is deleted."""
        name = f"v{self.count}"
        self.count += 1
        if shape is not None:
            self.shapes[name] = shape
        return name

    def any(self, shape: tuple[int, ...] | None = None) -> str:
        """Some variable, of a shape if asked for; made on the spot where there is none."""
        found = [name for name, known in self.shapes.items() if shape is None or known == shape]
        return self.rng.choice(found) if found else self.create(shape)

    def safely(self, *lines: str) -> None:
        """Statements that may fail."""
        self.lines.append("with suppress(RuntimeError, NameError, ValueError):")
        self.lines += [f"    {line}" for line in lines]

    def create(self, shape: tuple[int, ...] | None = None) -> str:
        """A new tensor."""
        shape = self.rng.choice(SHAPES) if shape is None else shape
        name = self.fresh(shape)
        maker = self.rng.choice(
            [
                f"torch.ones({shape})",
                f"torch.randn({shape})",
                f"torch.randn({shape}, requires_grad=True)",
                f"torch.full({shape}, 0.5)",
                f"torch.empty({shape}).fill_(2)",
                f"torch.zeros({shape}, dtype=torch.float64).float()",
            ]
        )
        self.lines.append(f"{name} = {maker}")
        return name

    def statement(self) -> None:
        """One of the kinds below."""
        self.rng.choice(_STATEMENTS)(self)

    def unary(self) -> None:
        """A new tensor from one."""
        x = self.any()
        y = self.fresh(self.shapes[x])
        operator = self.rng.choice(
            [
                "sin()",
                "relu()",
                "sigmoid()",
                "neg()",
                "clone()",
                "detach()",
                "mul(2)",
                "add(1.5)",
                "double().float()",
                "exp()",
            ]
        )
        self.safely(f"{y} = {x}.{operator}")

    def binary(self) -> None:
        """Two operands that broadcast to ``(3, 4)``."""
        x = self.any((3, 4))
        y = self.any(self.rng.choice([(3, 4), (4,), (3, 1), (1,)]))
        z = self.fresh((3, 4))
        forms = (f"{x} * {y}", f"{x} + {y}", f"torch.sub({y}, {x})", f"torch.where({x} > 0, {x}, {y})")
        self.safely(f"{z} = {self.rng.choice(forms)}")

    def matmul(self) -> None:
        """Matrix products and layers written as functions."""
        x, w, b = self.any((3, 4)), self.any((4, 4)), self.any((4,))
        y = self.fresh((3, 4))
        self.safely(
            f"{y} = "
            + self.rng.choice(
                [
                    f"{x} @ {w}",
                    f"torch.addmm({b}, {x}, {w})",
                    f"torch.nn.functional.linear({x}, {w})",
                    f"torch.nn.functional.layer_norm({x}, (4,), {b}, None)",
                    f"torch.nn.functional.dropout({x}, 0.5)",
                    f"torch.einsum('ij,jk->ik', {x}, {w})",
                    f"torch.softmax({x}, 1)",
                ]
            )
        )

    def inplace(self) -> None:
        """A write into a tensor or a view of one."""
        x, y = self.any((3, 4)), self.any((3, 4))
        self.safely(
            self.rng.choice(
                [
                    f"{x}.add_({y})",
                    f"{x}.mul_(2)",
                    f"{x}.zero_()",
                    f"{x}.copy_({y})",
                    f"{x}[0] = 1",
                    f"{x}[:, 1:] += 1",
                    f"{x}.t().mul_(3)",
                    f"{x}.masked_fill_({y} > 0, 0.0)",
                    f"{x}.detach().add_(1)",
                    f"{x}.data.mul_(2)",
                    f"{x}.clamp_(min=0)",
                    f"torch.relu_({x}.detach())",
                ]
            )
        )

    def out(self) -> None:
        """An operator that writes where it is told."""
        x, y = self.any((3, 4)), self.any((3, 4))
        z = self.fresh((3, 4))
        self.safely(
            f"{z} = torch.empty_like({x}.detach())",
            self.rng.choice(
                [
                    f"torch.sin({x}.detach(), out={z})",
                    f"torch.add({x}.detach(), {y}.detach(), out={z})",
                    f"torch.cat([{x}.detach()[:1], {y}.detach()[1:]], out={z})",
                    f"torch.mul({x}.detach(), 2, out={z}.view(3, 4))",
                ]
            ),
        )

    def view(self) -> None:
        """A view, kept in a variable of its own."""
        x = self.any((3, 4))
        text, shape = self.rng.choice(
            [
                (f"{x}.view(-1)", None),
                (f"{x}[0]", (4,)),
                (f"{x}[:, :1]", (3, 1)),
                (f"{x}.t()", None),
                (f"{x}.unsqueeze(0).expand(2, 3, 4)", None),
                (f"{x}.reshape(4, 3)", None),
                (f"{x}.t().contiguous().t()", (3, 4)),
                (f"{x}.as_strided((4,), (1,))", (4,)),
                (f"{x}.real", (3, 4)),
            ]
        )
        self.safely(f"{self.fresh(shape)} = {text}")

    def lists(self) -> None:
        """Operators that take or give lists of tensors."""
        x, y = self.any((3, 4)), self.any((3, 4))
        z = self.fresh()
        self.safely(
            self.rng.choice(
                [
                    f"{z} = torch.cat([{x}, {y}], 1)",
                    f"{z} = torch.stack([{x}, {y}, {x}]).sum()",
                    f"{z} = torch._foreach_add([{x}, {y}], 1.0)",
                    f"torch._foreach_mul_([{x}.detach(), {y}.detach()], 2.0)",
                    f"{z} = [part.sin() for part in {x}.split(1)]",
                    f"{z} = sum({x}.unbind(0))",
                    f"{z} = torch.cat([])",
                    f"{z} = torch.meshgrid({x}[0], {y}[0], indexing='ij')",
                ]
            )
        )

    def optional(self) -> None:
        """Operators with optional tensors or lists of them."""
        x, y = self.any((3, 4)), self.any((4,))
        self.safely(
            f"{self.fresh()} = "
            + self.rng.choice(
                [
                    f"{x}[torch.tensor([0, 2])]",
                    f"{x}[{x} > 0]",
                    f"torch.clamp({x}, min={y})",
                    f"torch.nn.functional.batch_norm({x}, None, None, training=True)",
                    f"torch.nn.functional.batch_norm({x}, torch.zeros(4), torch.ones(4), {y}, None, True)",
                    f"torch.searchsorted({y}.detach().sort()[0], {x}.detach())",
                    f"torch.nn.functional.embedding(torch.tensor([1, 0]), {x})",
                ]
            )
        )

    def strange(self) -> None:
        """Tensors without memory, storages that change, sizes that change."""
        x = self.any((3, 4))
        z = self.fresh()
        self.safely(
            *self.rng.choice(
                [
                    [f"{z} = torch.empty(0)", f"{z}.resize_(5).fill_(1)"],
                    [f"{z} = torch.empty(0) + torch.ones(0)"],
                    [f"{z} = torch.ones(3, device='meta') * 2"],
                    [f"{z} = {x}.detach().clone()", f"{z}.set_({x}.detach())"],
                    [f"{z} = torch.ones(3, 4)", f"{z}.data = {x}.detach().sin()", f"{z}.add_(1)"],
                    [f"{z} = torch.ones(8).resize_(2).resize_(8)"],
                    [f"{z} = {x}.detach().to_sparse().to_dense()"],
                    [f"{z} = torch.complex({x}.detach(), {x}.detach()).abs()"],
                    [f"{z} = {x}.detach().to(torch.int32) + 1"],
                ]
            )
        )

    def delete(self) -> None:
        """A variable goes."""
        if len(self.shapes) > 2:
            name = self.any()
            del self.shapes[name]
            self.safely(f"del {name}")

    def backward(self) -> None:
        """A loss and its gradients."""
        w = self.fresh((3, 4))
        x = self.any((3, 4))
        loss = self.fresh()
        self.safely(
            f"{w} = torch.randn(3, 4, requires_grad=True)",
            self.rng.choice(
                [
                    f"{loss} = ({w} * {x}).sin().sum()",
                    f"{loss} = Scale.apply({w}, {x}.detach()).relu().sum()",
                    f"{loss} = Cut.apply({w} * 2).mean()",
                    f"{loss} = checkpoint(lambda t: (t * {x}).sin(), {w}, use_reentrant=False).sum()",
                    f"{loss} = checkpoint(lambda t: t.sin().cos(), {w}, use_reentrant=True).sum()",
                    f"{loss} = torch.stack([{w}, {w} * {x}]).logsumexp(0).sum()",
                    f"{loss} = ({w}.expand(2, 3, 4) * {x}).pow(2).mean()",
                ]
            ),
            self.rng.choice(
                [
                    f"{loss}.backward()",
                    f"{loss}.backward(retain_graph=True)",
                    f"{loss}.backward(retain_graph=True); {loss}.backward()",
                    f"{self.fresh()} = torch.autograd.grad({loss}, {w}, create_graph=True)",
                ]
            ),
        )

    def without_grad(self) -> None:
        """A block without autograd."""
        x = self.any((3, 4))
        guard = self.rng.choice(["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"])
        self.safely(f"with {guard}:", f"    {self.fresh()} = ({x} * 2).sin_().sum()")

    def annotated(self) -> None:
        """A block with a name, with a namespace and without."""
        x = self.any((3, 4))
        name = self.rng.choice(["My annotation", "Namespaced::Annotation", "aten::mul", "a::b::c d"])
        self.safely(f"with record_function({name!r}):", f"    {self.fresh()} = ({x} + 1).relu_()")

    def failing(self) -> None:
        """An error in the middle of something."""
        x = self.any((3, 4))
        self.safely(
            self.rng.choice(
                [
                    f"call(torch.mm, {x} * 2, {x} * 3)",
                    f"call(lambda t: (t.sin(), t @ torch.ones(7)), {x})",
                    f"torch.cat([{x} + 1, torch.ones(2, 2, 2)])",
                    f"({x}.detach().sin().requires_grad_() * 2).backward()",
                ]
            )
        )

    def threaded(self) -> None:
        """Work and frees in another thread."""
        x = self.any((3, 4))
        box = self.fresh()
        self.safely(
            f"{box} = [{x}.detach() * 2]",
            f"in_thread(lambda: {box}.append({box}.pop() + 1))",
            f"{self.fresh()} = {box}[0] * 3",
        )

    def transformed(self) -> None:
        """Transforms of functions."""
        x = self.any((3, 4))
        self.safely(
            f"{self.fresh()} = "
            + self.rng.choice(
                [
                    f"torch.func.vmap(lambda t: t.sin() * 2)({x}.detach())",
                    f"torch.func.grad(lambda t: t.sin().sum())({x}.detach())",
                    f"torch.func.jvp(torch.sin, ({x}.detach(),), ({x}.detach(),))",
                ]
            )
        )

    def module(self) -> None:
        """A module and perhaps a step of an optimizer."""
        x = self.any((3, 4))
        net, optimizer = self.fresh(), self.fresh()
        self.safely(
            f"{net} = {self.rng.choice(_MODELS)}",
            f"{optimizer} = {self.rng.choice(_OPTIMIZERS).format(net=net)}",
            f"{net}({x}.detach()).sum().backward()",
            *self.rng.choice(
                [
                    [],
                    [f"{optimizer}.step()"],
                    [f"{optimizer}.step()", f"{optimizer}.zero_grad(set_to_none={self.rng.random() < 0.5})"],
                ]
            ),
        )

    def training(self) -> None:
        """A model, an optimizer, a few steps."""
        rng = self.rng
        steps = rng.randint(1, 3)
        self.lines += [
            f"net = {rng.choice(_MODELS)}",
            f"optimizer = {rng.choice(_OPTIMIZERS).format(net='net')}",
            f"for _ in range({steps}):",
            "    x, target = torch.randn(3, 4), torch.randn(3, 4)",
            *rng.choice([["    optimizer.zero_grad()"], ["    optimizer.zero_grad(set_to_none=False)"], []]),
            f"    y = {rng.choice(_FORWARDS)}",
            f"    loss = torch.nn.functional.{rng.choice(['mse_loss', 'l1_loss', 'smooth_l1_loss'])}(y, target)",
            "    loss.backward()",
            *rng.choice([[], [], ["    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"]]),
            "    optimizer.step()",
        ]


_MODELS = (
    "torch.nn.Linear(4, 4)",
    "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4, bias=False))",
    "torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), torch.nn.GELU())",
    "torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 4), torch.nn.Softmax(dim=1))",
    "torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Tanh())",
)
_OPTIMIZERS = (
    "torch.optim.SGD({net}.parameters(), lr=0.1)",
    "torch.optim.SGD({net}.parameters(), lr=0.1, momentum=0.9, foreach=False)",
    "torch.optim.SGD({net}.parameters(), lr=0.1, momentum=0.9, foreach=True)",
    "torch.optim.Adam({net}.parameters(), foreach=False)",
    "torch.optim.Adam({net}.parameters(), foreach=True)",
    "torch.optim.AdamW({net}.parameters(), fused=True)",
)
_FORWARDS = ("net(x)", "checkpoint(net, x, use_reentrant=False)", "net(x) + net(x * 2)", "net(x).relu()")
_STATEMENTS = (
    Writer.create,
    Writer.unary,
    Writer.binary,
    Writer.matmul,
    Writer.inplace,
    Writer.out,
    Writer.view,
    Writer.lists,
    Writer.optional,
    Writer.strange,
    Writer.delete,
    Writer.backward,
    Writer.without_grad,
    Writer.annotated,
    Writer.failing,
    Writer.threaded,
    Writer.transformed,
    Writer.module,
)
