"""The forward of a `torch.autograd.Function` in compiled code: its operators are the program's."""

import amanda
import pytest
import torch
from autograd_functions import Split
from torch import nn
from torch.utils.checkpoint import checkpoint


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, scale):
        y = (x * w).sigmoid()
        ctx.save_for_backward(x, w, y)
        ctx.scale = scale
        return y * scale

    @staticmethod
    def backward(ctx, grad):
        x, w, y = ctx.saved_tensors
        slope = grad * y * (1 - y) * ctx.scale
        return slope * w, (slope * x).sum(0), None


class Outer(torch.autograd.Function):
    """Calls another one."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return Gate.apply(x, w, 2.0) + x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * w, grad.sum(0)


class Doubled(torch.autograd.Function):
    """Writes to its operand."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Written(torch.autograd.Function):
    """Saves what it has read before it writes, and what it has written."""

    @staticmethod
    def forward(ctx, x, w):
        z = x.sin()
        x.add_(w).tanh_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(z, x)
        return z * 2, x

    @staticmethod
    def backward(ctx, one, other):
        z, x = ctx.saved_tensors
        return one * z + other * (1 - x * x), other.sum(0)


def gated(x, w):
    return Gate.apply(x + 1, w, 3.0).tanh()


def split(x, w):
    y, index = Split.apply(x * w)
    return y.sum() + index.sum()


def outer(x, w):
    return Outer.apply(x, w).cos()


def twice(x, w):
    return Gate.apply(Gate.apply(x, w, 1.0), w, 2.0)


def recomputed(x, w):
    return checkpoint(lambda x: Gate.apply(x, w, 2.0).sin(), x, use_reentrant=False)


def without_gradients(x, w):
    with torch.no_grad():
        return Gate.apply(x, w, 2.0) * w


def doubled(x, w):
    y = x * w
    return Doubled.apply(y).sin() + y


def doubled_base(x, w):
    y = x * w
    row = y[1:]
    Doubled.apply(y)
    return row.sin()


def doubled_constant(x, w):
    z = x.detach().clone()
    Doubled.apply(z)
    return z * w * x


def written(x, w):
    y = x * 2
    one, other = Written.apply(y, w)
    return one.cos() + other * y


def written_in_checkpoint(x, w):
    return checkpoint(written, x, w, use_reentrant=False)


FUNCTIONS = [gated, split, outer, twice, recomputed, without_gradients]
WRITING = [doubled, doubled_base, doubled_constant, written, written_in_checkpoint]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 3))

    def forward(self, x):
        return Gate.apply(x, self.w, 2.0)


class Looks(amanda.Tool):
    """The operators of forward passes, with ids, modules and lines, and the values of their results when they run."""

    def __init__(self):
        super().__init__()
        self.places, self.values = [], []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        self.places.append((context.op_id, context.op.__name__, context.module_path, context.source))
        context.insert_after_op(self.look, outputs=[0], op_id=context.op_id)

    def look(self, output, op_id):
        self.values.append((op_id, output.detach().clone()))

    def without(self, name):
        out = {op_id for op_id, each, *_ in self.places if each == name}
        self.places = [place for place in self.places if place[0] not in out]
        self.values = [value for value in self.values if value[0] not in out]
        return self


# Dynamo looks at the gradients of all inputs.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    torch.manual_seed(0)


def inputs():
    x = torch.linspace(-2, 2, 12).reshape(4, 3).clone().requires_grad_()
    return x, torch.linspace(-1, 1, 3).requires_grad_()


def run(function, tensors):
    """The result and the gradients."""
    result = function(*tensors)
    if result.requires_grad:
        result.sum().backward()
    return [result.detach(), *(each.grad for each in tensors)]


def same(ours, theirs):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [*FUNCTIONS, *WRITING])
def test_its_operators_are_those_of_eager_mode(function, backend):
    seen, tensors = {}, inputs()
    for how, called in {"eager": function, "graph": torch.compile(function, backend=backend)}.items():
        with amanda.apply(tool := Looks(), compiled=how):
            called(*tensors)
        seen[how] = tool.without("empty")  # PyTorch 2.11 makes such a tensor around a checkpoint
    assert seen["graph"].places == seen["eager"].places
    assert [op_id for op_id, _ in seen["graph"].values] == [op_id for op_id, _ in seen["eager"].values]
    values = zip(seen["graph"].values, seen["eager"].values, strict=True)
    assert all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in values)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [*FUNCTIONS, *WRITING])
def test_a_look_changes_no_result_and_no_gradient(function, backend):
    plain = run(torch.compile(function, backend=backend), inputs())
    torch._dynamo.reset()
    with amanda.apply(tool := Looks(), compiled="graph"):
        looked = run(torch.compile(function, backend=backend), inputs())
    assert tool.values
    if backend == "inductor":  # taps split fusions
        assert all(a is b is None or torch.allclose(a, b) for a, b in zip(looked, plain, strict=True))
    else:
        assert same(looked, plain)


def test_an_edit_inside_is_what_the_backward_gets():
    class Doubles(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="sigmoid")

        def analyze(self, context):
            context.insert_after_op(lambda output: output * 2)

    def by_hand(x, w):
        y = (x * w).sigmoid() * 2
        slope = torch.ones_like(y) * y * (1 - y) * 3.0
        return [y * 3.0, slope * w, (slope * x).sum(0)]

    with amanda.apply(Doubles(), compiled="graph"):
        ours = run(torch.compile(lambda x, w: Gate.apply(x, w, 3.0), backend="aot_eager"), inputs())
    with torch.no_grad():
        assert same(ours, by_hand(*inputs()))


def test_layers_of_one_compiled_class_have_places_of_their_own():
    net = nn.Sequential(Layer(), Layer())
    for layer in net:
        layer.compile(backend="aot_eager")
    with amanda.apply(tool := Looks(), compiled="graph"):
        net(inputs()[0]).sum().backward()
    assert {module for _, name, module, _ in tool.places if name == "sigmoid"} == {"0", "1"}
    assert len({op_id for op_id, *_ in tool.places}) == len(tool.places)


def test_a_recomputation_shows_no_tap_as_an_operator():
    """Under this backend, a backward pass runs the graph of a checkpoint node by node."""
    tensors = inputs()
    with amanda.apply(tool := Looks(), compiled="graph"):
        torch.compile(recomputed, backend="eager")(*tensors).sum().backward()
    names = {name for _, name, *_ in tool.places}
    assert names == {"mul", "sigmoid", "sin", "sum", "ones_like"}


def test_the_backward_is_named():
    with amanda.apply(Looks(), compiled="graph", coverage=True) as scope:
        torch.compile(gated, backend="aot_eager")(*inputs())
    assert scope.coverage().row("aten::sigmoid").seen == 1
    assert scope.coverage().row("aten::rsub").skipped == {"compiled": 1}


def test_an_edit_of_what_it_writes_is_seen_outside():
    class Edits(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="mul_")

        def analyze(self, context):
            context.insert_before_op(lambda self_: self_ + 1, inputs=["self"])
            context.insert_after_op(lambda output: output * 3)

    found = []
    for how in "eager", "graph":
        with amanda.apply(Edits(), compiled=how):
            found.append(run(torch.compile(doubled, backend="aot_eager"), inputs()))
    assert same(*found)


def test_the_backward_of_one_that_writes_to_its_operand_is_named():
    with amanda.apply(Looks(), compiled="graph", coverage=True) as scope:
        torch.compile(doubled, backend="aot_eager")(*inputs())
    if torch.__version__ >= (2, 13):  # graphs of 2.11 do not say that it writes
        assert scope.coverage().row("autograd::DoubledBackward").skipped == {"compiled": 1}
