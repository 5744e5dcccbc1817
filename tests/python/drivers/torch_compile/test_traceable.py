"""Routines that become part of a compiled function."""

import logging

import amanda
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def on(method, fn, ops="linear", **options):
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda context: getattr(context, method)(fn, **options), ops=ops)
    return tool


def step(call, model, x=None):
    model.zero_grad()
    output = call(torch.linspace(-1, 2, 12).view(3, 4) if x is None else x)
    if output.requires_grad:
        output.square().sum().backward()
    return [output.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def assert_as_eager(make_tool, model=None):
    model = model or make_model()
    with amanda.apply(make_tool()):
        expected = step(model, model)
    with amanda.apply(make_tool(), compiled="graph"):
        found = step(compiled(model), model)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(found, step(model, model), strict=True))


class Counted:
    """A routine that counts its calls."""

    def __init__(self, fn):
        self.fn, self.calls = fn, 0

    def __call__(self, *operands):
        self.calls += 1
        return self.fn(*operands)


def halves(w):
    return w * 0.5


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize(
    ("method", "options"), [("insert_before_op", {"inputs": ["weight"]}), ("insert_after_op", {"outputs": [0]})]
)
def test_an_edit_is_that_of_eager_mode(method, options, differentiable):
    fn = Counted(halves)
    model = make_model()
    assert_as_eager(lambda: on(method, fn, **options, differentiable=differentiable, traceable=True), model)
    assert fn.calls == 4  # two layers eagerly, and two when they were compiled


def test_no_run_calls_it():
    fn, model = Counted(halves), make_model()
    call = compiled(model)
    with amanda.apply(on("insert_before_op", fn, inputs=["weight"], traceable=True), compiled="graph"):
        calls = []
        for _ in range(3):
            step(call, model)
            calls.append(fn.calls)
    assert calls == [2, 2, 2]


def test_a_replacement_has_a_gradient_of_its_own():
    def replace(context):
        context.replace_op(lambda x, w, b: torch.tanh(context.op(x, w, b)), traceable=True)

    def make():
        tool = amanda.Tool("tool")
        tool.add_inst_for_op(replace, ops="linear")
        return tool

    assert_as_eager(make)


def test_inputs_are_shown_after_an_operator():
    def scaled(y, inputs):
        return y * inputs[0].mean()

    assert_as_eager(lambda: on("insert_after_op", scaled, inputs=["input"], traceable=True))


def test_its_tensors_are_read_when_the_function_runs():
    model, mask = make_model(), torch.ones(4)
    call = compiled(model)
    with (
        torch.no_grad(),
        amanda.apply(
            on("insert_before_op", lambda x: x * mask if x.shape[-1] == 4 else x, inputs=["input"], traceable=True),
            compiled="graph",
        ),
    ):
        x = torch.ones(3, 4)
        assert torch.equal(call(x), model[2](torch.relu(model[0](x))))
        mask.zero_()
        zeros = call(x)
    assert torch.allclose(zeros, model(torch.zeros(3, 4)))


def test_its_parameters_are_trained():
    model = make_model()

    def gradient(**how):
        scale = torch.ones(4, requires_grad=True)
        tool = on(
            "insert_before_op",
            lambda x: x * scale if x.shape[-1] == 4 else None,
            inputs=["input"],
            differentiable=True,
            traceable=True,
        )
        with amanda.apply(tool, **how):
            step(compiled(model) if how else model, model)
        return scale.grad

    assert torch.allclose(gradient(compiled="graph"), gradient())


def test_what_cannot_be_traced_is_called_each_time(caplog):
    fn, model = Counted(lambda x: x * 2 if x.sum() > 0 else x * 3), make_model()
    caplog.set_level(logging.INFO, "amanda")
    assert_as_eager(lambda: on("insert_before_op", fn, inputs=["input"], traceable=True), model)
    assert "[compile] a traceable routine at aten::linear" in caplog.text
    assert "can't be compiled, and is called each time" in caplog.text


def test_another_dtype_is_refused_as_in_eager_mode():
    model = make_model()
    tool = on("insert_before_op", lambda x: x.double(), inputs=["input"], traceable=True)
    with pytest.raises(amanda.Error, match="input 0"), amanda.apply(tool, compiled="graph"):
        step(compiled(model), model)


def test_dynamic_shapes_and_no_grad():
    model = make_model()
    call = torch.compile(model, backend="aot_eager", dynamic=True)
    fn = Counted(lambda x: x - x.mean(0) * (x.shape[0] / 10))
    tool = on("insert_after_op", fn, differentiable=True, traceable=True)
    for rows in (3, 5, 7):
        x = torch.linspace(-1, 2, 4 * rows).view(rows, 4)
        with amanda.apply(on("insert_after_op", fn.fn, differentiable=True)), torch.no_grad():
            expected = model(x)
        with amanda.apply(tool, compiled="graph"), torch.no_grad():
            assert torch.allclose(call(x), expected, atol=1e-6)


def test_under_autocast():
    model, fn = make_model(), Counted(halves)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.model(x).float()

    assert_as_eager(lambda: on("insert_before_op", fn, inputs=["weight"], differentiable=True, traceable=True), Cast())
    assert fn.calls == 4


def test_random_numbers_are_the_programs():
    model = make_model()

    def noisy(x):
        return x + torch.rand_like(x)

    outputs = []
    for how in ({}, {"compiled": "graph"}):
        torch.manual_seed(3)
        with torch.no_grad(), amanda.apply(on("insert_after_op", noisy, traceable=True), **how):
            outputs.append((compiled(model) if how else model)(torch.ones(3, 4)))
    assert torch.allclose(*outputs)


# ---- the keyword -----------------------------------------------------------------------------------------------------


def test_it_makes_no_difference_in_eager_mode():
    model = make_model()
    with amanda.apply(on("insert_before_op", halves, inputs=["weight"], traceable=True)):
        traceable = step(model, model)
    with amanda.apply(on("insert_before_op", halves, inputs=["weight"])):
        assert all(map(torch.equal, traceable, step(model, model)))


def test_it_has_no_run():
    tool = on("insert_before_op", lambda x, run: x, inputs=["input"], traceable=True, with_run=True)
    with pytest.raises(TypeError) as caught, amanda.apply(tool):
        step(model := make_model(), model)
    assert str(caught.value) == (
        "[context] traceable=True and with_run=True exclude each other: a routine that becomes part of a compiled function "
        "is not called in each execution; leave out one of them"
    )


def test_gradients_have_no_such_option():
    tool = on("insert_before_backward_op", lambda g: g, traceable=True)
    text = "has no option traceable=; its options are grad_outputs, with_run"
    with pytest.raises(TypeError, match=text), amanda.apply(tool):
        step(model := make_model(), model)
