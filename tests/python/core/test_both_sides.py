"""Inputs beside outputs: `insert_after_op(fn, inputs=…)`, `insert_after_backward_op(fn, grad_outputs=…)`."""

import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from unharmed import Look


def after(fn, ops=None, **options):
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda c: c.insert_after_op(fn, **options), ops=ops)
    return tool


def after_backward(fn, ops, node, **options):
    tool = amanda.Tool("tool")

    def analyze(context):
        if context.backward_op.__name__ == node:
            context.insert_after_backward_op(fn, **options)

    tool.add_inst_for_op(analyze, ops=ops, backward=True)
    return tool


class FindNan(amanda.Tool):
    """Operators that make what is not finite of what is."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        context.insert_after_op(self.check, inputs=None, op=context.op.__name__)

    def check(self, *outputs, inputs, op):
        def finite(values):
            return all(v.isfinite().all() for v in values if isinstance(v, torch.Tensor) and v.is_floating_point())

        if finite(inputs) and not finite(outputs):
            self.found.append(op)


def test_the_producer_of_a_nan_is_the_one_whose_inputs_are_finite():
    tool = FindNan()
    with amanda.apply(tool):
        x = torch.relu(torch.tensor([-1.0, 4.0]))
        y = torch.log(x - 1)  # log of a negative number
        torch.add(y, 1).sum()
    assert tool.found == ["log"]


def test_inputs_come_as_a_tuple_beside_the_outputs():
    seen = []
    x, weight, bias = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)

    def look(*outputs, inputs, label):
        seen.append((outputs, inputs, label))

    tools = [
        after(look, "linear", inputs=None, label="all"),
        after(look, "linear", outputs=[], inputs=["bias", 0], label="two"),
        after(lambda y, label: seen.append(((y,), None, label)), "linear", inputs=[], label="none"),
    ]
    with amanda.apply(*tools):
        y = F.linear(x, weight, bias)
    (all_out, all_in, _), (two_out, two_in, _), (none_out, _, _) = seen
    assert torch.equal(all_out[0], y)
    assert [one is other for one, other in zip(all_in, (x, weight, bias), strict=True)] == [True] * 3
    assert two_out == ()
    assert [one is other for one, other in zip(two_in, (bias, x), strict=True)] == [True] * 2
    assert torch.equal(none_out[0], y)


def test_what_a_routine_returns_replaces_outputs_only():
    x = torch.tensor([1.0, -2.0])
    with amanda.apply(after(lambda y, inputs: y - inputs[0], "relu", inputs=[0])):
        assert torch.relu(x).tolist() == [0.0, 2.0]
    assert x.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("op", ["relu", "cos"])  # with operands in C++, and boxed
def test_inputs_are_what_the_operator_ran_on(op):
    seen, x = [], torch.tensor([1.0, -2.0])
    edits, looks = amanda.Tool("edits"), after(lambda y, inputs: seen.append((y, *inputs)), op, inputs=[0])
    edits.add_inst_for_op(lambda c: c.insert_before_op(lambda v: v * 3), ops=op)
    analysed = []
    looks.add_inst_for_op(lambda c: analysed.append(c.inputs[0]), ops=op, require_outputs=True)
    with amanda.apply(edits, looks):
        y = getattr(torch, op)(x)
    assert torch.equal(seen[0][0], y)
    assert torch.equal(seen[0][1], x * 3)
    assert analysed[0] is x  # an analysis sees what the program passed


def test_inputs_of_a_replaced_operator_are_those_of_the_replacement():
    seen, x = [], torch.tensor([1.0, -2.0])
    replaces = amanda.Tool()
    replaces.add_inst_for_op(lambda c: c.replace_op(lambda v, op: op(v) + 1, op=c.op), ops="relu")
    with amanda.apply(replaces, after(lambda y, inputs: seen.append((y.tolist(), *inputs)), "relu", inputs=[0])):
        torch.relu(x)
    assert seen[0][0] == [2.0, 1.0]
    assert torch.equal(seen[0][1], x)


@pytest.mark.parametrize("recorded", [False, True])
def test_what_an_in_place_operator_writes_to_is_its_result(recorded):
    seen = []
    with amanda.apply(after(lambda y, inputs: seen.append((y.tolist(), inputs[0].tolist())), "mul_", inputs=[0])):
        for _ in range(2):  # the first recorded run is a trial
            (torch.ones(2, requires_grad=recorded) + 1).mul_(3)
    assert seen == [([6.0, 6.0], [6.0, 6.0])] * 2


def test_gradients_come_in_beside_those_that_go_out():
    seen, x = [], torch.randn(5, requires_grad=True)

    def look(grad_input, grad_outputs):
        seen.append((grad_input, *grad_outputs))

    with amanda.apply(after_backward(look, "tanh", "TanhBackward0", grad_outputs=[0])):
        y = torch.tanh(x)
        (y * torch.arange(5.0)).sum().backward()
    ((grad_input, grad_output),) = seen
    assert torch.equal(grad_output, torch.arange(5.0))
    assert torch.equal(grad_input, x.grad)
    torch.testing.assert_close(grad_input, grad_output * (1 - y.detach() ** 2))


def test_a_forward_analysis_selects_gradients_of_operators_to_come():
    seen = []
    tool = amanda.Tool()

    def analyze(context):
        for position in (0, 7):  # no backward operator has the second
            context.insert_after_backward_op(
                lambda *grad_inputs, grad_outputs: seen.append((len(grad_inputs), len(grad_outputs))),
                grad_outputs=[position],
            )

    tool.add_inst_for_op(analyze, ops="tanh")
    with amanda.apply(tool):
        torch.tanh(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [(1, 1)]


def test_looking_at_both_sides_changes_nothing():
    class LookBoth(Look):
        def analyse(self, context):
            if context.is_backward():
                context.insert_after_backward_op(lambda *g, grad_outputs: self.count.update(["b"]), grad_outputs=None)
            else:
                context.insert_after_op(lambda *y, inputs: self.count.update(["f"]), inputs=None)

    def program():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3),
            torch.nn.BatchNorm2d(2),
            torch.nn.ReLU(inplace=True),
            torch.nn.Flatten(),
            torch.nn.Dropout(),
            torch.nn.Linear(72, 3),
        )
        loss = F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()]

    plain, tool = program(), LookBoth()
    with amanda.apply(tool):
        for _ in range(2):
            assert all(map(torch.equal, plain, program()))
    assert tool.count["f"] > 10
    assert tool.count["b"] > 10


def changes_an_input(y, inputs):
    inputs[0].zero_()


def test_changing_an_input_is_an_error():
    x = torch.ones(2)
    with (
        amanda.apply(after(changes_an_input, "relu", inputs=[0])),
        pytest.raises(
            amanda.Error,
            match=r"^\[action\] tool: changes_an_input after aten::relu \(.*\): it changed input 0 \(self\) in place",
        ),
    ):
        torch.relu(x)


@pytest.mark.parametrize(
    ("error", "options", "message"),
    [
        (
            ValueError,
            {"inputs": ["weights"]},
            "[context] tool: insert_after_op on aten::linear (HERE): there is no 'weights'; it has 0 (input), 1 (weight), "
            "2 (bias)",
        ),
        (
            ValueError,
            {"inputs": [3]},
            "[context] tool: insert_after_op on aten::linear (HERE): there is no position 3; it has 0 (input), 1 (weight), "
            "2 (bias)",
        ),
        (
            ValueError,
            {"inputs": ["weight", 1]},
            "[context] tool: insert_after_op on aten::linear: inputs= selects 'weight' twice; give each position once",
        ),
        (TypeError, {"inputs": "weight"}, "[context] inputs= takes a list of positions or names, such as inputs=[0]"),
        (
            TypeError,
            {"inputs": [0]},
            "[context] tool: insert_after_op on aten::linear: <lambda> got an unexpected keyword argument 'inputs'",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused_when_it_is_scheduled(error, options, message):
    fn = (lambda y: None) if options == {"inputs": [0]} else (lambda y, inputs: None)
    with amanda.apply(after(fn, "linear", outputs=[0], **options)), pytest.raises(error) as raised:
        F.linear(torch.ones(1, 2), torch.ones(3, 2))
    assert re.sub(r"\(forward, .*?\)", "(HERE)", str(raised.value)).startswith(message)
