"""The backward operator of a `torch.autograd.Function` in compiled code: the one that eager mode shows."""

import logging

import amanda
import pytest
import torch
from autograd_functions import Split
from torch import nn
from torch.utils.checkpoint import checkpoint


class Gate(torch.autograd.Function):
    """An operand in another order than in `apply`, a number among them, and one that needs no gradient."""

    @staticmethod
    def forward(ctx, scale, w, mask, x):
        y = (x * w).sigmoid() * mask
        ctx.save_for_backward(x, w, y)
        ctx.scale = scale
        return y * scale

    @staticmethod
    def backward(ctx, grad):
        x, w, y = ctx.saved_tensors
        slope = grad * y * (1 - y) * ctx.scale
        return None, (slope * x).sum(0), None, slope * w


class Pair(torch.autograd.Function):
    """Two results with gradients, of which the program may use one."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, product, total):
        x, w = ctx.saved_tensors
        return product * w + total, (product * x + total).sum(0)


class Outer(torch.autograd.Function):
    """Calls another one, which autograd does not record."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return Gate.apply(2.0, w, torch.ones_like(w), x) + x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * w, grad.sum(0)


class Held(torch.autograd.Function):
    """Uses a tensor that is no argument."""

    scale = torch.linspace(1, 2, 3)

    @staticmethod
    def forward(ctx, x):
        return x * Held.scale

    @staticmethod
    def backward(ctx, grad):
        return grad * Held.scale


class Same(torch.autograd.Function):
    """Returns its operand."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


def gated(x, w):
    return Gate.apply(3.0, w, torch.ones_like(w), x + 1).tanh()


def split(x, w):
    y, index = Split.apply(x * w)
    return y.sum() + index.sum()


def pair(x, w):
    product, total = Pair.apply(x, w)
    return product.sin() + total


def half_used(x, w):
    return Pair.apply(x, w)[0].sin() + x


def outer(x, w):
    return Outer.apply(x, w).cos()


def twice(x, w):
    mask = torch.ones_like(w)
    return Gate.apply(2.0, w, mask, Gate.apply(1.0, w, mask, x))


def held(x, w):
    return Held.apply(x * w) + x


def same(x, w):
    y = x * w
    return Same.apply(y) * y


def written_later(x, w):
    y = Pair.apply(x, w)[0]
    y.mul_(2)
    return y.sin()


def recomputed(x, w):
    return checkpoint(lambda x: Gate.apply(2.0, w, torch.ones_like(w), x).sin(), x, use_reentrant=False)


def without_gradients(x, w):
    with torch.no_grad():
        return Pair.apply(x, w)[0] * w


# Arguments of these functions are constants, or need no gradient. Graphs of PyTorch 2.11 do not tell which the others are;
# evidence names such a backward operator then.
needs_operands = pytest.mark.skipif(
    torch.__version__ < (2, 12), reason="PyTorch 2.11: it is not known which operands are its"
)
FUNCTIONS = [split, pair, half_used, held, same, written_later]
FUNCTIONS += [pytest.param(function, marks=needs_operands) for function in (gated, outer, twice, recomputed)]
NAMES = {"Gate", "Split", "Pair", "Outer", "Held", "Same"}


class Gradients(amanda.Tool):
    """The backward operators of autograd functions, with ids, modules, lines, and the gradients before and after."""

    def __init__(self):
        super().__init__()
        self.places, self.values, self.forward = set(), [], []
        self.add_inst_for_op(lambda context: self.forward.append(context.op.__name__))
        self.add_inst_for_op(self.analyze, ops=sorted(NAMES), backward=True)

    def analyze(self, context):
        if context.backward_op.__name__ == "AccumulateGrad":  # compiled code has none
            return
        op = context.op.__name__, context.op_id
        self.places.add(
            (*op, context.backward_op.__name__, context.backward_op_id, context.module_path, context.source)
        )
        context.insert_before_backward_op(self.look, where="out", op=op)
        context.insert_after_backward_op(self.look, where="in", op=op)

    def look(self, *gradients, where, op):
        self.values.append((op, where, [None if each is None else each.clone() for each in gradients]))

    def by_operator(self):
        return {(op, where): gradients for op, where, gradients in self.values}


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
    for each in tensors:
        each.grad = None
    result = function(*tensors)
    result.sum().backward()
    return [result.detach(), *(each.grad for each in tensors)]


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(
        one is other is None or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_is_that_of_eager_mode(function, backend):
    tensors, tools = inputs(), {"eager": Gradients(), "graph": Gradients()}
    for how, called in {"eager": function, "graph": torch.compile(function, backend=backend)}.items():
        with amanda.apply(tools[how], compiled=how):
            run(called, tensors)
    eager, graph = (tools[how].by_operator() for how in ("eager", "graph"))
    assert tools["graph"].places == tools["eager"].places
    assert graph.keys() == eager.keys()
    assert len(graph) >= 2
    assert all(equal(graph[each], eager[each]) for each in eager)
    assert not NAMES & set(tools["graph"].forward)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_look_changes_no_result_and_no_gradient(function, backend, dynamic):
    plain = run(torch.compile(function, backend=backend, dynamic=dynamic), inputs())
    torch._dynamo.reset()
    with amanda.apply(tool := Gradients(), compiled="graph"):
        looked = run(torch.compile(function, backend=backend, dynamic=dynamic), inputs())
    assert tool.values
    if backend == "inductor":  # taps split fusions
        assert all(map(torch.allclose, looked, plain))
    else:
        assert equal(looked, plain)


@needs_operands
@pytest.mark.parametrize("point", ["before", "after"])
def test_its_gradients_can_be_edited(point):
    class Doubles(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="Gate", backward=True)

        def analyze(self, context):
            if context.backward_op.__name__ == "AccumulateGrad":
                return
            if point == "before":
                context.insert_before_backward_op(lambda gradient: gradient * 2)
            else:
                context.insert_after_backward_op(lambda gradient: gradient * 2, grad_inputs=[2])

    found = []
    for how in ("eager", "graph"):
        with amanda.apply(Doubles(), compiled=how):
            found.append(run(torch.compile(gated, backend="aot_eager"), inputs()))
    assert equal(*found)
    assert not torch.equal(found[0][1], run(gated, inputs())[1])


@needs_operands
def test_it_is_not_replaced():
    class Replaces(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="Gate", backward=True)

        def analyze(self, context):
            context.replace_backward_op(lambda gradient: (gradient, gradient, gradient))

    with (
        pytest.raises(amanda.Error, match=r"it is the backward of a torch\.autograd\.Function, which"),
        amanda.apply(Replaces(), compiled="graph"),
    ):
        run(torch.compile(gated, backend="aot_eager"), inputs())


def test_layers_of_one_compiled_class_have_places_of_their_own():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-1, 1, 3))

        def forward(self, x):
            return Pair.apply(x, self.w)[0]

    net = nn.Sequential(Layer(), Layer())
    tools = {"eager": Gradients(), "graph": Gradients()}
    x = inputs()[0]
    for layer in net:
        layer.compile(backend="aot_eager")
    for how, tool in tools.items():
        with amanda.apply(tool, compiled=how):
            net(x).sum().backward()
    assert {module for *_, module, _ in tools["graph"].places} == {"0", "1"}
    assert tools["graph"].places == tools["eager"].places


def test_nothing_is_shown_where_autograd_records_nothing(caplog):
    with amanda.apply(tool := Gradients(), compiled="graph"), caplog.at_level(logging.WARNING, "amanda"):
        torch.compile(without_gradients, backend="aot_eager")(*inputs())
    assert not tool.places
    assert not caplog.records


class WithNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, 3

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 2


def test_one_that_cannot_be_shown_is_named():
    def function(x):
        return WithNumber.apply(x)[0]

    x = inputs()[0]
    plain = run(torch.compile(function, backend="aot_eager"), [x])
    torch._dynamo.reset()
    with amanda.apply(tool := Gradients(), compiled="graph", coverage=True) as scope:
        looked = run(torch.compile(function, backend="aot_eager"), [x])
    assert equal(looked, plain)
    assert not tool.places
    (row,) = (row for row in scope.coverage().rows if row.operator == "autograd::WithNumberBackward")
    assert row.skipped == {"compiled": 1}
