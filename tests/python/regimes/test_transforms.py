"""torch.func inside a scope."""

import amanda
import pytest
import torch
import torch.nn.functional as F

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


def test_vmap(recorder):
    tool, x = recorder(), torch.randn(3, 4)
    with amanda.apply(tool):
        y = torch.vmap(lambda v: torch.sin(v).sum())(x)
    assert torch.allclose(y, x.sin().sum(1))
    assert tool.ran == ["sin", "sum"]


def test_vmap_of_an_edited_operator(after):
    x = torch.randn(3, 4)
    with amanda.apply(after("sin", lambda y: y * 2)):
        y = torch.vmap(lambda v: torch.sin(v).sum())(x)
    assert torch.allclose(y, x.sin().sum(1) * 2)


def test_grad_and_hessian(recorder, after):
    x = torch.randn(3)
    tool = recorder()
    with amanda.apply(tool):
        gradient = torch.func.grad(lambda v: torch.sin(v).sum())(x)
        hessian = torch.func.hessian(lambda v: (v**3).sum())(x)
    assert torch.allclose(gradient, x.cos())
    assert torch.allclose(hessian, torch.diag(6 * x))
    assert tool.ran[:2] == ["sin", "sum"]
    with amanda.apply(after("sin", lambda y: y * 2)):  # straight through
        assert torch.allclose(torch.func.grad(lambda v: torch.sin(v).sum())(x), x.cos())


def test_per_sample_gradients(recorder):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    parameters, x = dict(model.named_parameters()), torch.randn(5, 4)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).sum()

    per_sample = torch.vmap(torch.func.grad(loss), (None, 0))
    expected = per_sample(parameters, x)
    with amanda.apply(recorder()):
        got = per_sample(parameters, x)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_forward_mode(recorder):
    with amanda.apply(recorder()):
        y, tangent = torch.func.jvp(torch.sin, (X,), (torch.ones(2),))
    assert torch.allclose(tangent, X.cos())
    assert torch.equal(y, X.sin())


def test_forward_mode_goes_straight_through_an_edit(after):
    with amanda.apply(after("sin", lambda y: y * 2)):
        y, tangent = torch.func.jvp(torch.sin, (X,), (torch.ones(2),))
    assert torch.allclose(y, X.sin() * 2)
    assert torch.allclose(tangent, X.cos())


def test_functionalize(recorder, after):
    def program(x):
        return x.add(1).relu_()

    with amanda.apply(recorder()):
        assert torch.func.functionalize(program)(X).tolist() == [0.0, 3.0]
    with amanda.apply(after("relu_", lambda y: y * 2)):
        assert torch.func.functionalize(program)(X).tolist() == [0.0, 6.0]


# ---- bit-equal, with events where they belong ------------------------------------------------------------------------


def model_function(weight, x):
    return torch.tanh(F.linear(x, weight)).square().mean()


FUNCTIONS = {
    "vmap": lambda w, x: torch.vmap(lambda row: torch.tanh(row @ w).sum())(x),
    "vmap over two dimensions": lambda w, x: torch.vmap(torch.vmap(lambda e: e.sin() * 2))(x),
    "vmap with in_dims": lambda w, x: torch.vmap(torch.mul, in_dims=(1, None), out_dims=1)(x, w[0, 0]),
    "vmap in chunks": lambda w, x: torch.vmap(lambda row: (row @ w).relu(), chunk_size=2)(x),
    "vmap that draws": lambda w, x: torch.vmap(lambda r: r + torch.randn(4), randomness="different")(x),
    "vmap of dropout": lambda w, x: torch.vmap(lambda r: F.dropout(r), randomness="same")(x),
    "vmap in place": lambda w, x: torch.vmap(lambda r: r.clone().mul_(2).relu_())(x),
    "grad": lambda w, x: torch.func.grad(model_function)(w, x),
    "grad and value": lambda w, x: torch.func.grad_and_value(model_function)(w, x),
    "grad of grad": lambda w, x: torch.func.grad(lambda v: torch.func.grad(lambda u: (u**3).sum())(v).sum())(x),
    "vjp": lambda w, x: torch.func.vjp(lambda v: model_function(v, x), w)[1](torch.tensor(2.0)),
    "jvp": lambda w, x: torch.func.jvp(lambda v: model_function(v, x), (w,), (torch.ones_like(w),)),
    "jvp of jvp": lambda w, x: torch.func.jvp(
        lambda u: torch.func.jvp(lambda v: v.sin().sum(), (u,), (torch.ones_like(u),))[1], (x,), (torch.ones_like(x),)
    ),
    "jacrev": lambda w, x: torch.func.jacrev(lambda v: torch.tanh(x @ v))(w),
    "jacfwd": lambda w, x: torch.func.jacfwd(lambda v: torch.tanh(x @ v))(w),
    "hessian": lambda w, x: torch.func.hessian(lambda v: model_function(v, x))(w),
    "forward over reverse": lambda w, x: torch.func.jacfwd(torch.func.jacrev(lambda v: (v**3).sum()))(x[0]),
    "per-sample gradients": lambda w, x: torch.vmap(torch.func.grad(model_function), (None, 0))(w, x),
    "grad through vmap": lambda w, x: torch.func.grad(lambda v: torch.vmap(lambda r: (r @ v).sin().sum())(x).sum())(w),
    "linearize": lambda w, x: torch.func.linearize(lambda v: torch.tanh(v).sum(), w)[1](torch.ones_like(w)),
    "functionalize": lambda w, x: torch.func.functionalize(lambda v: v.clone().add_(1)[0].relu_())(x),
    "functionalized vmap": lambda w, x: torch.vmap(torch.func.functionalize(lambda v: v.clone().add_(1)))(x),
    "forward-mode levels": lambda w, x: forward_mode(w, x),
    "autograd inside vmap": lambda w, x: torch.vmap(autograd_inside)(x),
    "custom function": lambda w, x: torch.vmap(torch.func.grad(lambda r: Cube.apply(r).sum()))(x),
    "ensemble": lambda w, x: ensemble(x),
}


def forward_mode(w, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, torch.ones_like(w))
        return torch.autograd.forward_ad.unpack_dual(torch.tanh(x @ dual))


def autograd_inside(row):
    with torch.enable_grad():
        return row.sin() * row.cos()


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


MODELS = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(3)]


def ensemble(x):
    parameters, buffers = torch.func.stack_module_state(MODELS)

    def call(parameters, buffers, x):
        return torch.func.functional_call(MODELS[0], (parameters, buffers), (x,))

    return torch.vmap(call, (0, 0, None))(parameters, buffers, x)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # linearize does
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_torch_func(name, unharmed):
    w, x = torch.randn(4, 4), torch.randn(3, 4)
    tool = unharmed(lambda: FUNCTIONS[name](w, x))
    assert tool.ran


@pytest.mark.parametrize("name", ["grad", "vmap", "jvp", "jacrev", "hessian", "per-sample gradients", "ensemble"])
def test_transforms_of_leaves_that_require_gradients(name, unharmed):
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def program():
        results = FUNCTIONS[name](w, x)
        total = sum(each.sum() for each in (results if isinstance(results, tuple) else [results]))
        return results, torch.autograd.grad(total, [w, x], allow_unused=True)

    unharmed(program)


def test_each_operator_of_a_transformed_function_is_one_event(recorder):
    x = torch.randn(3, 4)
    for transform in (
        torch.vmap,
        lambda f: torch.func.grad(lambda v: f(v).sum()),
        lambda f: torch.vmap(torch.func.grad(f)),
        lambda f: lambda v: torch.func.jvp(f, (v,), (v,)),
        torch.func.functionalize,
    ):
        tool = recorder(ops=["sin", "tanh"])
        with amanda.apply(tool):
            transform(lambda v: torch.tanh(torch.sin(v)).sum())(x)
        assert tool.ran == ["sin", "tanh"]


def test_a_nested_in_place_operator_below_autograd_is_looked_at():
    tool, w = amanda.Tool(), torch.ones(2, requires_grad=True)
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: None), ops="copy_", nested=True)
    with amanda.apply(tool):
        assert torch.func.jvp(torch.square, (w,), (torch.ones(2),))[1].tolist() == [2.0, 2.0]
