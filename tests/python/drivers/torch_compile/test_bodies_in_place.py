"""What runs inside a higher-order operator of a compiled graph has the bits of the program without tools, also where it
writes in place, makes views, or keeps statistics. There, taps return what they were shown."""

import amanda
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def chain(x):
    y = x * 2
    y.neg_().add_(1)
    return y.sum() + y.mean()


def activation(x):
    return F.relu(x * 2, inplace=True).sum()


def written_view(x):
    y = x * 2
    y[0].mul_(3)
    y.t()[1].add_(1)
    return y.sum()


def base_written_later(x):
    y = x * 2
    row = y[0]
    y.add_(1)
    return row.sum() * y.sum()


def views(x):
    return x.t().reshape(2, -1).unsqueeze(0).expand(3, -1, -1).transpose(1, 2).sum(0)


def indexed(x):
    y = x * 2
    y[y > 1] = 0.5
    y[:, 1] += 1
    return y


def filled(x):
    y = torch.empty_like(x)
    y.copy_(x).clamp_(-1, 1)
    out = torch.zeros_like(x)
    torch.mul(y.detach(), 2, out=out)
    return out + y


def split(x):
    y = x * 2
    with torch.no_grad():
        a, b = y.chunk(2)
        a.add_(1)
        b.mul_(a)
    return y * 3


def exponential(x):
    y = x.exp()
    return (y * x.sigmoid()).exp_() + y.sub(1).sigmoid_()


def converted(x):
    """A tensor that is used before and after operators that return it as it is."""
    y = x.exp()
    z = y.to(torch.float32).float()
    return y * 0.1 + z * 0.3 + (z.sin() * y.cos()) / 7 + y.contiguous().sigmoid()


def sliced(x):
    y = torch.cat([x, x.sin(), x.cos()], 1)[:, 1:-2]
    return torch.nn.functional.silu(y).sum(1) + y.sum(0).sum() + y[..., :3].mean() + (y * y[:, :1].expand_as(y)).sum(1)


def made(x):
    """Operators without a tensor among their operands."""
    positions = torch.arange(6) + torch.ones(())
    return (x * positions + torch.full((6,), 0.5)).sum(1)


PROGRAMS = [
    chain,
    activation,
    written_view,
    base_written_later,
    views,
    indexed,
    filled,
    split,
    exponential,
    converted,
    sliced,
    made,
]

#: Operators that are shown, of those programs that do not multiply or do more.
INSIDE = {
    views: {"transpose"},
    filled: {"copy_"},
    made: {"arange", "full", "ones"},
    indexed: {"mul", "gt", "index_put_"},
    split: {"mul", "add_", "mul_"},
}


class Through(torch.autograd.Function):
    """Calls a program in its forward, and gives one gradient."""

    program = staticmethod(chain)

    @staticmethod
    def forward(ctx, x):
        return Through.program(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.sum() * torch.ones(4, 6)


def in_checkpoint(program):
    return lambda x: checkpoint(program, x, use_reentrant=False)


def in_cond(program):
    return lambda x: torch.cond(x.sum() < 1e6, lambda x: program(x).clone(), lambda x: program(x * 2).clone(), (x,))


def in_function(program):
    Through.program = staticmethod(program)
    return Through.apply


class Looks(amanda.Tool):
    def __init__(self, before, after):
        super().__init__()
        self.ran = set()  # the operators whose looks did
        self.before, self.after = before, after
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        if self.before:
            context.insert_before_op(self.look, name=context.op.__name__)
        if self.after:
            context.insert_after_op(self.look, name=context.op.__name__)

    def look(self, *operands, name):
        self.ran.add(name)


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(function, tensor):
    """The result, the gradient, and the input as it is left."""
    x = tensor.clone().requires_grad_()
    result = function(x)
    result.sum().backward()
    return result.detach(), x.grad, x.detach()


@pytest.mark.parametrize(
    ("inside", "dynamic"),  # PyTorch does not compile all of them in cond with dynamic shapes
    [(in_checkpoint, False), (in_checkpoint, True), (in_cond, False), (in_function, False), (in_function, True)],
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_looks_change_nothing(program, inside, backend, dynamic):
    tensor = torch.linspace(-1, 1, 24).reshape(4, 6)
    expected = run(torch.compile(inside(program), backend=backend, dynamic=dynamic), tensor)
    for before, after in [(True, True)] if inside is in_cond else [(True, False), (False, True), (True, True)]:
        torch._dynamo.reset()
        tool = Looks(before, after)
        with amanda.apply(tool, compiled="graph"):
            found = run(torch.compile(inside(program), backend=backend, dynamic=dynamic), tensor)
        assert tool.ran >= INSIDE.get(program, {"mul"})
        assert all(map(torch.equal, found, expected)), (before, after)


def test_running_statistics_are_kept():
    def trained(tool):
        torch._dynamo.reset()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5))
        compiled = torch.compile(lambda x: checkpoint(net, x, use_reentrant=False).sum(), backend="aot_eager")
        with amanda.apply(*tool, compiled="graph") if tool else torch.enable_grad():
            for _ in range(3):
                compiled(torch.rand(4, 6)).backward()
        return [*net.state_dict().values(), *(parameter.grad for parameter in net.parameters())]

    assert all(map(torch.equal, trained([Looks(True, True)]), trained([])))
