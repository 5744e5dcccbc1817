"""PyTorch's other machinery around backward operators: users' hooks, transforms, compilers, distribution."""

# ruff: noqa: SIM117 -- outside what is PyTorch's, inside the scope

import contextlib
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward_tools import ReplaceAll, Scheduled, Watcher, same
from process_groups import destroy_group

nn = torch.nn
TOOLS = pytest.mark.parametrize("make", [Watcher, ReplaceAll])


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def thrice(tool, program, **options):
    with amanda.apply(tool, **options):
        return [program() for _ in range(3)]


# ---- users' hooks ----------------------------------------------------------------------------------------------------


@TOOLS
def test_users_hooks_run_in_their_order(make):
    x = leaf(2, 3)
    layer = nn.Linear(3, 3)

    def program():
        seen = []
        handles = [
            layer.register_full_backward_hook(lambda m, gi, go: seen.append("module") or (gi[0] * 2,)),
            layer.register_full_backward_pre_hook(lambda m, go: seen.append("module pre")),
            x.register_hook(lambda g: seen.append("leaf") or g * 3),
            x.register_post_accumulate_grad_hook(lambda t: seen.append(("accumulated", t.grad.sum().item()))),
        ]
        x.grad = layer.weight.grad = None
        h = x * 2
        h.register_hook(lambda g: seen.append("tensor"))
        y = layer(h)
        y.grad_fn.register_prehook(lambda g: seen.append("node pre"))
        y.grad_fn.register_hook(lambda gi, go: seen.append("node"))
        y.sum().backward()
        for handle in handles:
            handle.remove()
        return seen, x.grad.clone(), layer.weight.grad.clone()

    expected = program()
    for seen, *gradients in thrice(make(), program):
        assert seen == expected[0]
        assert same(gradients, expected[1:])


@TOOLS
def test_saved_tensor_hooks(make):
    x = leaf(3)

    def program():
        packed, unpacked = [], []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t.shape) or t.numpy(force=True), lambda a: unpacked.append(1) or torch.from_numpy(a)
        ):
            y = (x.exp() * x).sum()
        return [torch.autograd.grad(y, x)[0], torch.tensor([len(packed), len(unpacked)])]

    expected = program()
    results = thrice(make(), program)
    assert all(torch.equal(got[0], expected[0]) for got in results)
    assert same(results[-1], expected)  # in its first run, a replacement that calls the original unpacks again


@TOOLS
def test_anomaly_mode(make):
    x = leaf(3)

    def program():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly():
                return torch.autograd.grad((x * 2).exp().sum(), x)[0]

    expected = program()
    assert all(torch.equal(got, expected) for got in thrice(make(), program))


def test_anomaly_mode_finds_a_replacements_nan():
    x = leaf(3)
    with amanda.apply(Scheduled("replace", "SinBackward0", lambda g: g * float("nan"))), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            with torch.autograd.detect_anomaly():
                with pytest.raises(RuntimeError, match="'SinBackward0' returned nan values in its 0th output"):
                    x.sin().sum().backward()


# ---- transforms ------------------------------------------------------------------------------------------------------

X = torch.tensor([0.3, 0.7])
TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda v: f(v).sum())(X),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f))(X),
    "grad of vmap": lambda f: torch.func.grad(lambda v: torch.func.vmap(f)(v).sum())(X),
    "jacrev": lambda f: torch.func.jacrev(f)(X),
    "jacobian": lambda f: torch.autograd.functional.jacobian(f, X),
    "vectorized jacobian": lambda f: torch.autograd.functional.jacobian(f, X, vectorize=True),
    "batched gradients": lambda f: (lambda x: torch.autograd.grad(f(x), x, torch.eye(2), is_grads_batched=True)[0])(
        X.clone().requires_grad_()
    ),
    "hessian": lambda f: torch.func.hessian(lambda v: f(v).sum())(X),
    "functional hessian": lambda f: torch.autograd.functional.hessian(lambda v: f(v).sum(), X),
}


def each_transform(*ways):
    return [(name, way) for name in TRANSFORMS for way in ways]


@pytest.mark.parametrize(("name", "make"), each_transform(Watcher, ReplaceAll))
def test_transforms_are_unharmed(name, make):
    expected = TRANSFORMS[name](torch.sin)
    assert all(torch.equal(got, expected) for got in thrice(make(), lambda: TRANSFORMS[name](torch.sin)))


@pytest.mark.parametrize(("name", "point"), each_transform("before", "after"))
def test_an_edit_reaches_every_transform(name, point):
    expected = 2 * TRANSFORMS[name](torch.sin)
    tool = Scheduled(point, "SinBackward0", lambda g: g * 2, ops="sin")
    for got in thrice(tool, lambda: TRANSFORMS[name](lambda v: v.sin())):
        # What is put in after the node passes a second derivative straight through.
        torch.testing.assert_close(got, expected / 2 if "hessian" in name and point == "after" else expected)


@pytest.mark.parametrize(("name", "point"), each_transform("replace"))
def test_a_replacement_reaches_every_transform(name, point):
    tool = amanda.Tool()

    def analyse(context):
        if context.backward_op.__name__ == "SinBackward0":
            op = context.backward_op
            context.replace_backward_op(lambda g: op(g) * 2)

    tool.add_inst_for_op(analyse, ops="sin", backward=True)
    expected = 2 * TRANSFORMS[name](torch.sin)
    for got in thrice(tool, lambda: TRANSFORMS[name](lambda v: v.sin())):
        torch.testing.assert_close(got, expected)


# ---- compilers -------------------------------------------------------------------------------------------------------


def compiled_backward(x):
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        (x * 2).sum().backward()


def backward_in_compiled_code(x):
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: (x * 2).sum().backward(), backend="aot_eager")(x)


@pytest.mark.parametrize("run", [compiled_backward, backward_in_compiled_code])
@pytest.mark.parametrize(
    "make",
    [
        Watcher,
        lambda: Scheduled("replace", "MulBackward0", lambda g: (g * 2, None)),
    ],
    ids=["look", "replace"],
)
def test_compiled_autograd(make, run):
    """Backward operators of eager code are not seen there, which evidence says; nothing breaks."""
    x, tool = leaf(3), make()
    with amanda.apply(tool):
        (x * 2).sum().backward()
        assert not tool.evidence().unseen
        x.grad = None
        run(x)
    assert x.grad.tolist() == [2.0] * 3
    assert "1 kind of backward pass shows no backward operators of eager code: compiled autograd" in str(
        tool.evidence()
    )


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@pytest.mark.parametrize("compiled_how", ["auto", "eager"])
@TOOLS
def test_a_compiled_function_with_an_autograd_function(make, compiled_how):
    @torch.compile(backend="eager")
    def compiled(x):
        return Twice.apply(x.sin()).sum()

    x = leaf(3)
    expected = torch.autograd.grad(Twice.apply(x.sin()).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], expected)
    is_refused = make is ReplaceAll and compiled_how == "auto"
    text = r'it is the backward of a torch.autograd.Function, .*; open the scope with compiled="eager" to replace it'
    with pytest.raises(amanda.Error, match=text) if is_refused else contextlib.nullcontext():
        for got in thrice(make(), lambda: torch.autograd.grad(compiled(x), x)[0], compiled=compiled_how):
            assert torch.equal(got, expected)
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], expected)


@TOOLS
def test_cond(make):
    def program():
        x = torch.tensor([0.3, 0.7], requires_grad=True)
        torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,)).sum().backward()
        return x.grad

    expected = program()
    assert all(torch.equal(got, expected) for got in thrice(make(), program))


# ---- other tensors, other processes ----------------------------------------------------------------------------------


class Sub(torch.Tensor):
    pass


@TOOLS
def test_subclasses(make):
    def program():
        x = torch.tensor([0.3, 0.7]).as_subclass(Sub).requires_grad_()
        y = (x * 2).sin()
        assert isinstance(y, Sub)
        y.sum().backward()
        return x.grad.as_subclass(torch.Tensor)

    expected = program()
    assert all(torch.equal(got, expected) for got in thrice(make(), program))


def test_a_distributed_model(ranks, tmp_path):
    ranks.function(distributed, 2, str(tmp_path / "rendezvous"))


def distributed(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)

    def train(tools):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(rank)
        for _ in range(3):
            with amanda.apply(*tools):
                optimizer.zero_grad()
                model(torch.randn(2, 3)).square().sum().backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    expected = train([])
    watcher = Watcher()
    assert same(train([watcher, ReplaceAll()]), expected)
    assert watcher.count()["AccumulateGrad"] == 4 * 3
    destroy_group()


@TOOLS
def test_clipped_gradients_that_are_zeroed(make):
    def program():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        for _ in range(2):
            model.zero_grad(set_to_none=False)
            with torch.no_grad():
                target = model(torch.ones(2, 3))
            F.mse_loss(model(torch.ones(2, 3)), target.detach()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return [p.grad for p in model.parameters()]

    expected = program()
    assert all(same(got, expected) for got in thrice(make(), program))
