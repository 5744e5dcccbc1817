"""Which forward operator each autograd node belongs to: one to many, exactly, by the nodes that autograd made."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.drivers.torch.versions import is_at_least
from backward_tools import Watcher, graph_names
from torch.func import grad, hessian, jacrev, vmap
from torch.utils.checkpoint import checkpoint

nn = torch.nn


def leaf(*shape, **options):
    return torch.randn(*shape, requires_grad=True, **options)


def watch(program, **options):
    """Runs the program under a tool that watches, and backward from its result."""
    tool = Watcher(**options)
    with amanda.apply(tool):
        result = program()
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.real.sum().backward()
    return tool


# ---- one to many -----------------------------------------------------------------------------------------------------


def in_place_on_views():
    y = leaf(2, 3) * 1
    y[0].mul_(3)
    y[:, 1].add_(1)
    return y


def index_put():
    y = leaf(3) * 1
    y.index_put_((torch.tensor([0]),), leaf(1))
    return y


def foreach_in_place():
    tensors = [leaf(2) * 1, leaf(2) * 1]
    torch._foreach_mul_(tensors, 2.0)
    return tensors[0] + tensors[1]


CASES = {
    "linear in 3-D": ("linear", lambda: F.linear(leaf(2, 2, 3), leaf(4, 3), leaf(4)),
                      ["ViewBackward0", "AddmmBackward0", "TBackward0", "ViewBackward0", *["AccumulateGrad"] * 3]),
    "linear in 2-D": ("linear", lambda: F.linear(torch.ones(2, 3), leaf(4, 3)),
                      ["MmBackward0", "TBackward0", "AccumulateGrad"]),
    "conv2d": ("conv2d", lambda: F.conv2d(torch.ones(1, 1, 4, 4), leaf(1, 1, 3, 3)),
               ["ConvolutionBackward0", "AccumulateGrad"]),
    "split": ("split", lambda: sum(leaf(4).split(2)), ["SplitBackward0", "AccumulateGrad"]),
    "unbind": ("unbind", lambda: sum(leaf(4).unbind(0)), ["UnbindBackward0", "AccumulateGrad"]),
    "max": ("max", lambda: leaf(2, 3).max(1).values, ["MaxBackward0", "AccumulateGrad"]),
    "relu_": ("relu_", lambda: (leaf(3) * 1).relu_(), ["ReluBackward0"]),
    "add_": ("add_", lambda: (leaf(3) * 1).add_(leaf(3)), ["AddBackward0", "AccumulateGrad"]),
    "in place on a view: first": ("mul_", in_place_on_views, ["CopySlices"]),
    "in place on a view: second": ("add_", in_place_on_views, ["CopySlices"]),
    "foreach": ("_foreach_add", lambda: sum(torch._foreach_add([leaf(2), leaf(2)], 1.0)),
                ["ForeachAddBackward1Scalar"] + ["AccumulateGrad"] * 2),
    "foreach in place": ("_foreach_mul_", foreach_in_place, ["MulBackward1", "MulBackward1"]),
    "embedding": ("embedding", lambda: F.embedding(torch.tensor([1, 2]), leaf(4, 3)),
                  ["EmbeddingBackward0", "AccumulateGrad"]),
    "index_put_": ("index_put_", index_put, ["IndexPutBackward0", "AccumulateGrad"]),
    "cat": ("cat", lambda: torch.cat([leaf(2), leaf(2)]), ["CatBackward0", "AccumulateGrad", "AccumulateGrad"]),
    "stack": ("stack", lambda: torch.stack([leaf(2), leaf(2)]),
              ["StackBackward0", "AccumulateGrad", "AccumulateGrad"]),
    "complex": ("mul", lambda: leaf(2, dtype=torch.cfloat) * leaf(2, dtype=torch.cfloat),
                ["MulBackward0", "AccumulateGrad", "AccumulateGrad"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_backward_operators_of(case):
    op, program, nodes = CASES[case]
    tool = watch(program, ops=op)
    assert sorted(tool.nodes(op)) == sorted(nodes)
    assert sum(tool.count().values()) == sum(tool.count("<").values()) == len(nodes)


def test_attention_is_one_operator():
    q = leaf(1, 2, 4, 8)
    tool = watch(lambda: F.scaled_dot_product_attention(q, q * 2, q * 3), ops="scaled_dot_product_attention")
    assert tool.nodes("scaled_dot_product_attention") == [
        "ScaledDotProductFlashAttentionForCpuBackward0",
        "AccumulateGrad",
    ]


@pytest.mark.parametrize("make", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_recurrent_operator_has_all_nodes_of_its_graph(make):
    model = make(3, 4, num_layers=4)
    expected = graph_names(model(torch.ones(5, 2, 3))[0])
    tool = watch(lambda: model(torch.ones(5, 2, 3))[0].sum(), ops=["rnn_tanh", "lstm", "gru"])
    assert tool.count() == expected
    assert tool.count()["AccumulateGrad"] == 16


def test_a_composite_operator_has_the_nodes_of_its_inside():
    x = leaf(2, 3)
    expected = graph_names(torch.einsum("ij,kj->ik", x, x))
    assert watch(lambda: torch.einsum("ij,kj->ik", x, x), ops="einsum").count() == expected


def test_a_sparse_gradient_arrives():
    seen = []
    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda c: c.insert_after_backward_op(lambda *g: seen.append([v.layout for v in g if v is not None])),
        ops="embedding",
        backward=True,
    )
    weight = leaf(4, 3)
    with amanda.apply(tool):
        F.embedding(torch.tensor([1, 2]), weight, sparse=True).sum().backward()
    assert seen == [[torch.sparse_coo], []]
    assert weight.grad.is_sparse


def test_inner_operators_own_their_nodes_for_a_tool_that_sees_them():
    inner, outer = Watcher(ops="addmm", nested=True), Watcher(ops="linear")
    x = leaf(2, 3)
    with amanda.apply(inner, outer):
        F.linear(x, leaf(4, 3), leaf(4)).sum().backward()
    assert inner.nodes("addmm")[0] == "AddmmBackward0"
    assert outer.nodes("linear").count("AddmmBackward0") == 1


# ---- leaves ----------------------------------------------------------------------------------------------------------


def test_a_leaf_belongs_to_its_first_user():
    w = leaf(3, 3)

    def tied():
        h = torch.mm(w, w)
        return (h + w).sin()

    tool = watch(tied)
    assert tool.nodes("mm") == ["MmBackward0", "AccumulateGrad"]
    assert tool.nodes("add") == ["AddBackward0"]
    assert tool.count()["AccumulateGrad"] == 1


# ---- what backward makes ---------------------------------------------------------------------------------------------


def test_nodes_of_a_double_backward_belong_to_the_forward_operator():
    x = leaf(3)

    def program():
        (g,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        return h

    tool = watch(program, ops="sin")
    assert tool.nodes("sin") == ["SinBackward0", "MulBackward0", "CosBackward0", "MulBackward0", "NegBackward0",
                                 "SinBackward0", "AccumulateGrad"]  # fmt: skip


@pytest.mark.parametrize("reentrant", [True, False])
def test_nodes_of_a_recomputation_belong_to_its_operators(reentrant):
    layer, x = nn.Linear(3, 3), leaf(2, 3)
    plain = watch(lambda: layer(x).sin(), ops=["linear", "sin"])
    tool = watch(lambda: checkpoint(lambda v: layer(v).sin(), x, use_reentrant=reentrant), ops=["linear", "sin"])
    assert tool.nodes("linear") == plain.nodes("linear")
    assert tool.nodes("sin") == plain.nodes("sin")
    assert tool.count() == plain.count()


@pytest.mark.parametrize("ops", [None, "sin"])
def test_deeply_nested_checkpoints(ops):
    """Deeper than the engine recurses on one thread."""
    x = leaf(2)

    def nested(value, depth):
        if depth == 0:
            return value.sin()
        return checkpoint(nested, value, depth - 1, use_reentrant=True) * 1

    tool = watch(lambda: nested(x, 70), ops=ops)
    assert tool.count()["SinBackward0"] == 1
    assert torch.equal(x.grad, x.detach().cos())


@torch.jit.script
def backward_without_python(loss: torch.Tensor):
    loss.backward()


class Nested(torch.autograd.Function):
    """Its backward pass runs that of one more loss, and itself again, until none is left."""

    @staticmethod
    def forward(ctx, x, losses):
        ctx.losses = losses
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.losses:
            with torch.enable_grad():
                backward_without_python(ctx.losses.pop() + Nested.apply(leaf(1), ctx.losses).sum())
        return gradient, None


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("outermost", [torch.Tensor.backward, backward_without_python], ids=["python", "torchscript"])
@pytest.mark.parametrize("ops", [None, "sin"])
def test_deeply_nested_passes_that_python_does_not_start(ops, outermost, coverage):
    depth = 100  # the engine goes on in other threads after 60 levels
    tool = Watcher(ops=ops)
    with amanda.apply(tool, coverage=coverage):
        losses = [leaf(1).sin().sum() for _ in range(depth)]
        outermost(Nested.apply(leaf(1), losses).sum())
    assert not losses
    assert tool.count()["SinBackward0"] == depth


TRANSFORMS = {
    "grad": (lambda x: grad(lambda v: v.sin().sum())(x), 1),
    "vmap of grad": (lambda x: vmap(grad(torch.sin))(x), 1),
    "grad of vmap": (lambda x: grad(lambda a: vmap(torch.sin)(a).sum())(x), 1),
    "jacrev": (lambda x: jacrev(torch.sin)(x), 1),
    "hessian": (lambda x: hessian(lambda v: v.sin().sum())(x), 1),
    "grad of grad": (lambda x: grad(lambda a: grad(lambda v: v.sin().sum())(a).sum())(x), 3),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_torch_func(name):
    transform, runs = TRANSFORMS[name]
    x = torch.tensor([0.3, 0.7])
    expected = transform(x)
    tool = Watcher(ops="sin")
    with amanda.apply(tool):
        got = transform(x)
    assert torch.equal(got, expected)
    assert len(tool.trace) == 2 * runs
    assert tool.nodes("sin")[0] == "SinBackward0"


# ---- autograd.Function -----------------------------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(whole := x.long())
        return x * 2, x * 3, whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, a, b, whole):
        return (0 if a is None else a * 2) + (0 if b is None else b * 3), None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Around(torch.autograd.Function):
    """Runs a graph of its own, made in forward, in its backward."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            ctx.save_for_backward(inner, Double.apply(inner))
        return inner.detach() * 2

    @staticmethod
    def backward(ctx, g):
        inner, y = ctx.saved_tensors
        return torch.autograd.grad(y, inner, g)[0]


def test_a_function_is_an_operator_of_its_name():
    names = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: names.append((c.op.name, c.backward_op.__name__)), ops="autograd::*", backward=True)
    x = leaf(3)
    with amanda.apply(tool):
        Double.apply(x).sum().backward()
    assert names == [("autograd::Double", "DoubleBackward"), ("autograd::Double", "AccumulateGrad")]


def test_a_function_as_the_last_operator():
    x = leaf(1)
    tool = Watcher(ops="Double")
    with amanda.apply(tool):
        Double.apply(x).backward()
    assert tool.trace == ["DoubleBackward<", "DoubleBackward>", "AccumulateGrad<", "AccumulateGrad>"]


@pytest.mark.xfail(
    is_at_least("2.14", torch.__version__), reason="it calls PyTorch's C++ code, and nothing of ours", strict=True
)
def test_a_function_whose_apply_was_bound_before():
    double = Double.apply
    assert watch(lambda: double(leaf(3)), ops="Double").nodes("Double") == ["DoubleBackward", "AccumulateGrad"]


def test_a_function_with_several_outputs_shows_undefined_gradients_as_none():
    shown = []
    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda c: c.insert_before_backward_op(lambda *g: shown.append([v if v is None else v.tolist() for v in g])),
        ops="Several",
        backward=True,
    )
    x = leaf(2)
    with amanda.apply(tool):
        Several.apply(x, 3)[1].sum().backward()
    assert shown == [[None, [1, 1], None], [[3, 3]]]


def test_a_function_that_works_in_place():
    tool = watch(lambda: InPlace.apply(leaf(3) * 1), ops=["InPlace", "mul"])
    assert tool.nodes("InPlace") == ["InPlaceBackward"]
    assert tool.nodes("mul") == ["MulBackward0", "AccumulateGrad"]


def test_a_function_inside_a_function():
    x = leaf(2)
    tool = watch(lambda: Around.apply(x), ops=["Around", "Double"])
    assert tool.trace == ["AroundBackward<", "DoubleBackward<", "DoubleBackward>", "AroundBackward>", "AccumulateGrad<",
                          "AccumulateGrad>"]  # fmt: skip
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f)), lambda f: grad(lambda x: vmap(f)(x).sum())])
def test_a_function_under_torch_func(transform):
    x = torch.tensor(2.0) if transform is grad else torch.tensor([1.0, 2.0])
    tool = Watcher(ops=["Cube", "autograd::VmappedCube"])
    expected = transform(Cube.apply)(x)
    with amanda.apply(tool):
        got = transform(lambda v: Cube.apply(v))(x)
    assert torch.equal(got, expected)
    assert len(tool.trace) == 2


def test_a_custom_operator_owns_the_node_of_its_formula():
    @torch.library.custom_op("amanda_test_mapping::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    def backward(ctx, g):
        return g * 2 * ctx.saved_tensors[0]

    square.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    x = leaf(3)
    for ops in (None, "square"):
        nodes = watch(lambda: square(x), ops=ops).nodes("square")
        assert len(nodes) == 2
        assert "square" in nodes[0]
        assert nodes[1] == "AccumulateGrad"


# ---- ids -------------------------------------------------------------------------------------------------------------


def model_and_input():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4)), leaf(2, 3, 4)


def train(model, x):
    model(x).square().sum().backward()


def test_backward_operators_have_ids_of_their_own_that_stay():
    model, x = model_and_input()
    runs = []
    for _ in range(2):
        tool = Watcher()
        with amanda.apply(tool):
            for _ in range(2):
                train(model, x)
        runs.append(tool.ids)
    assert runs[0] == runs[1]
    ids = [backward for _, backward, _ in runs[0]]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & {forward for forward, _, _ in runs[0]}


def test_ids_are_the_same_in_another_process(fresh_python, forked_python):
    code = """
        import amanda, torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
        ids = []
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda c: ids.append((c.backward_op_id, c.backward_op.__name__)), backward=True)
        with amanda.apply(tool):
            model(torch.ones(2, 4)).sum().backward()
        print(ids)
    """
    first = fresh_python(code)
    assert first == forked_python(code)  # their hashes of strings differ
    assert "GeluBackward0" in first
