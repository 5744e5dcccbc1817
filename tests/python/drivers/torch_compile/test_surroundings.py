"""What a program does around a compiled function: in a scope, with tools that look, it gets the same bits as without."""

import contextlib
import copy
import functools
import logging
import pickle

import amanda
import pytest
import torch
from compiling import Looks, apply
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

# Dynamo looks at the gradients of operands; PyTorch warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:Sparse CSR tensor support")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module, **options):
    return torch.compile(module, backend="aot_eager", **options)


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(4, 4))


def leaf():
    return torch.randn(3, 4, requires_grad=True)


def step(run, wrap=lambda function: function):
    """A model's results and gradients. `run`: gets the compiled model and an input."""
    module, x = model(), leaf()
    y = run(wrap(compiled(module)), x)
    y.sum().backward()
    return [y, x.grad, *(p.grad for p in module.parameters())]


class Forward(amanda.Tool):
    """Looks at the results of forward operators alone."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(lambda context: context.insert_after_op(lambda *results: None))


def run(program):
    torch._dynamo.reset()
    torch.manual_seed(0)
    return program()


def check(program):
    expected = run(program)
    for tool in (Looks(), Forward()):
        with apply(tool):
            found = run(program)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


# ---- what is saved for the backward pass -----------------------------------------------------------------------------


def nested(inner, x):
    return checkpoint(lambda x: inner(checkpoint(inner, x.sin(), use_reentrant=False)).cos(), x, use_reentrant=False)


def without_early_stop(inner, x):
    with set_checkpoint_early_stop(False):
        return checkpoint(inner, x, use_reentrant=False)


@pytest.mark.parametrize(
    "around",
    [
        lambda inner, x: checkpoint(inner, x, use_reentrant=False),
        lambda inner, x: checkpoint(inner, x, use_reentrant=True),
        nested,
        without_early_stop,
    ],
    ids=["not reentrant", "reentrant", "nested", "no early stop"],
)
def test_a_checkpoint_around_it(around):
    check(lambda: step(around))


@pytest.mark.parametrize("keeps", [lambda op: True, lambda op: False, lambda op: op is torch.ops.aten.addmm.default])
def test_a_selective_checkpoint_around_it(keeps):
    asked = []

    def policy(context, op, *args, **kwargs):
        asked.append(op)
        return CheckpointPolicy.MUST_SAVE if keeps(op) else CheckpointPolicy.PREFER_RECOMPUTE

    def around(inner, x):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(lambda x: inner(x.sin()).cos(), x, use_reentrant=False, context_fn=contexts)

    check(lambda: step(around))
    assert not [op for op in asked if op.namespace == "amanda"]


def test_what_a_checkpoint_around_it_computes_again_is_seen_again():
    looks = Looks(ops="linear")
    with apply(looks):
        step(lambda inner, x: checkpoint(inner, x, use_reentrant=False))
    assert looks.forward["linear"] == 4


def hooked(hooks):
    def around(inner, x):
        with hooks():
            return inner(x)

    return around


@pytest.mark.parametrize("hooks", [save_on_cpu, lambda: saved_tensors_hooks(lambda x: x * 2, lambda x: x)])
def test_hooks_on_saved_tensors(hooks):
    check(lambda: step(hooked(hooks)))


@pytest.mark.parametrize("backward", [False, True])
def test_hooks_that_the_compiler_inlines(backward):
    """They change what is saved, and taps would change what that is."""

    def program():
        packs, unpacks = map(torch.fx.symbolic_trace, (lambda x: x * 2, lambda x: x * 0.75))
        with saved_tensors_hooks(packs, unpacks):
            return step(lambda inner, x: inner(x))

    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda context: (context.insert_before_backward_op if backward else context.insert_after_op)(lambda *_: None),
        backward=backward,
    )
    expected = run(program)
    with apply(tool):
        found = run(program)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert [unseen.reason for unseen in tool.evidence().unseen] == ["refused"]


def test_hooks_get_no_tensor_of_the_driver_s():
    packed = []

    def pack(tensor):
        packed.append(type(tensor))
        return tensor

    def program():
        inner, x = compiled(model()), leaf()
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            for rows in 3, 5, 7:  # 5: compiled again
                inner(torch.randn(rows, 4) + x[:1])

    with apply(Looks(), Forward()):
        program()
    assert set(packed) <= {torch.Tensor, torch.nn.Parameter}


# ---- backward passes ---------------------------------------------------------------------------------------------------


def test_a_graph_is_kept_for_another_backward_pass():
    def program():
        module, x = model(), leaf()
        inner = compiled(module)
        for _ in range(2):
            loss = inner(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        return [loss, x.grad, *(p.grad for p in module.parameters())]

    check(program)


def test_gradients_of_some():
    def program():
        module, x, unused = model(), leaf(), leaf()
        y = compiled(module)(x)
        first = torch.autograd.grad(y.sum(), [x, *module.parameters()], retain_graph=True)
        return [y, *first, *torch.autograd.grad(y.sum(), [x, unused], allow_unused=True, materialize_grads=True)]

    check(program)


def batched(routine, backend):
    x = torch.ones(3, requires_grad=True)
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_before_backward_op(routine), ops="sin", backward=True)
    with apply(tool):
        y = torch.compile(lambda x: x.sin() * 2, backend=backend)(x)
        (gradients,) = torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert torch.equal(gradients, torch.eye(3) * (x.cos() * 2).detach())
    return tool


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_batched_gradients_pass_unseen(backend):
    def look(gradient):
        raise AssertionError

    tool = batched(look, backend)
    assert [(one.reason, one.count) for one in tool.evidence().unseen] == [("hidden", 1)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_batched_gradients_are_not_edited(backend):
    with pytest.raises(amanda.Error, match="a routine that may edit a gradient cannot run on batched gradients"):
        batched(lambda gradient: gradient * 2, backend)


def test_hooks_on_gradients():
    def program():
        found, module, x = [], model(), leaf()

        def doubled(gradient):
            found.append(gradient.clone())
            return gradient * 2

        for tensor in (x, *module.parameters()):
            tensor.register_hook(doubled)
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: found.append(p.grad.clone()))
        module[3].register_full_backward_hook(lambda m, before, after: found.extend([*before, *after]))
        y = compiled(module)(x)
        y.retain_grad()
        y.register_hook(doubled)
        y.sum().backward()
        return [y, y.grad, x.grad, *found]

    check(program)


def test_double_backward_is_refused_by_pytorch_in_its_words():
    x = leaf()
    with apply(Looks()):
        (gradient,) = torch.autograd.grad(compiled(model())(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            gradient.sum().backward()


# ---- operands of all kinds -----------------------------------------------------------------------------------------------


def jagged(*lengths):
    return torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged, requires_grad=True)


def test_nested_tensors():
    def program():
        linear, results = torch.nn.Linear(4, 4), []
        inner = compiled(lambda x: linear(x).relu())
        for lengths in (2, 3), (5, 3), (1, 2, 3):
            x = jagged(*lengths)
            y = inner(x)
            y.values().sum().backward()
            results += [y.values(), x.grad.values()]
        return [*results, linear.weight.grad, linear.bias.grad]

    check(program)


def test_nested_tensors_are_counted_as_unseen():
    tool = Looks()
    with apply(tool):
        compiled(lambda x: x.relu())(jagged(2, 3))
    (unseen,) = tool.evidence().unseen
    assert unseen.reason == "hidden"
    assert "aten::relu" in unseen.text


def test_subclasses_that_the_compiler_takes_apart():
    def program():
        x = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
        y = compiled(lambda x: x.sin() * 2)(x)
        y.sum().backward()
        return [y.a, y.b, x.grad.a, x.grad.b]

    check(program)


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.randn(4, dtype=torch.complex64).conj(),
        lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(4, 4).relu().to_sparse(),
        lambda: torch.randn(4, 4).relu().to_sparse_csr(),
    ],
    ids=["conj", "neg", "coo", "csr"],
)
def test_tensors_that_are_not_plain(made):
    check(lambda: [compiled(lambda x: (x if x.layout == torch.strided else x.to_dense()) * 2 + 1)(made())])


def test_tensors_of_mkldnn():
    check(lambda: [compiled(torch.relu)(torch.randn(4, 4).to_mkldnn()).to_dense()])


def test_a_graph_that_cannot_be_learned_runs_without_tools(caplog, monkeypatch):
    from amanda.drivers.torch_compile.front import uninstrumented
    from amanda.drivers.torch_compile.program.graph_run import GraphRun

    def fail(run):
        raise AssertionError("not on this\nand more")

    monkeypatch.setattr(uninstrumented, "_said", {})
    monkeypatch.setattr(GraphRun, "run", fail)
    inner, tool, x = compiled(lambda x: torch.relu(x) + 1), Looks(), torch.ones(2)
    scope = apply(tool, coverage=True)
    for _ in range(2):
        with scope:
            assert inner(x).tolist() == [2, 2]
    (message,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "runs without tools: no taps can be put into it: AssertionError: not on this. " in message
    assert [one.reason for one in tool.evidence().unseen] == ["refused"]
    assert scope.coverage().row("relu").skipped == {"compiled": 1}


# ---- modes, transforms and copies ------------------------------------------------------------------------------------


def test_autocast_and_gradient_modes():
    def program():
        module, x, found = model(), leaf(), []
        inner = compiled(module)
        modes = torch.no_grad, torch.inference_mode, contextlib.nullcontext
        for mode in *modes, lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad:
            with mode():
                y = inner(x)
            found += [y, torch.tensor([y.requires_grad, y.is_inference()])]
            if y.requires_grad:
                y.float().sum().backward()
        return [*found, x.grad, *(p.grad for p in module.parameters())]

    check(program)


def test_a_program_on_fake_tensors():
    looks = Looks()
    with apply(looks):
        with FakeTensorMode():
            result = compiled(model())(torch.randn(3, 4))
        assert isinstance(result, FakeTensor)
        assert looks.forward["linear"] == 0
        compiled(model())(torch.randn(3, 4))
    assert looks.forward["linear"] == 2


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "eager_then_compile", "fail_on_recompile"])
def test_stances(stance):
    def program():
        module, x, inner = model(), leaf(), None
        inner = compiled(module)
        results = [inner(x)]
        with torch.compiler.set_stance(stance):
            results.append(inner(x))
        sum(y.sum() for y in results).backward()
        return [*results, x.grad, *(p.grad for p in module.parameters())]

    check(program)


def test_transforms_of_torch_func():
    def program():
        inner, x = compiled(lambda x: x.sin() * 2), torch.randn(3)
        result, pull = torch.func.vjp(inner, x)
        return [
            torch.func.vmap(inner)(torch.randn(2, 3)),
            torch.func.grad(lambda x: inner(x).sum())(x),
            *torch.func.jvp(inner, (x,), (torch.ones(3),)),
            result,
            *pull(torch.ones(3)),
            torch.autograd.functional.jacobian(inner, x),
        ]

    check(program)


def test_copies_and_pickles():
    def program():
        module, x = model(), leaf()
        inner = compiled(module)
        results = [inner(x), copy.deepcopy(inner)(x), pickle.loads(pickle.dumps(inner))(x)]
        sum(y.sum() for y in results).backward()
        return [*results, x.grad, *(p.grad for p in module.parameters())]

    check(program)
