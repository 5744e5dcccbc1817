"""LearnedStepQuantization against modules with the paper's straight-through expression, and against its gradients in
closed form. Equal means torch.equal.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
import zoo
from amanda.research import LearnedStepQuantization
from equal_tensors import same
from tool_regimes import REGIMES, in_regime
from torch import nn

STEPS = 20


# ---- oracle ----------------------------------------------------------------------------------------------------------


class LearnedStep(nn.Module):
    """A quantizer as in the paper's appendix: gradscale, clip, roundpass."""

    def __init__(self, bits, weight, signed):
        super().__init__()
        self.weight, self.step = weight, None
        self.low, self.high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def forward(self, v):
        if self.step is None:
            self.step = nn.Parameter(v.detach().abs().mean() * 2 / self.high**0.5)
        count = v.numel() if self.weight else v.shape[1:].numel()
        scaled_gradient = self.step * (1 / (count * self.high) ** 0.5)
        step = (self.step - scaled_gradient).detach() + scaled_gradient
        v = torch.clip(v / step, self.low, self.high)
        rounded = torch.round(v)
        return ((rounded - v).detach() + v) * step


class ByHand(nn.Module):
    """Layers whose input and weight go through such modules."""

    def __init__(self, model, bits, signed):
        super().__init__()
        self.model = copy.deepcopy(model)
        self.quantizers = nn.ModuleList()
        for signed_input in signed:
            self.quantizers += [LearnedStep(bits, False, signed_input), LearnedStep(bits, True, True)]

    def forward(self, x):
        quantizers = iter(self.quantizers)
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                x = F.linear(next(quantizers)(x), next(quantizers)(layer.weight), layer.bias)
            elif isinstance(layer, nn.Conv2d):
                x = F.conv2d(next(quantizers)(x), next(quantizers)(layer.weight), layer.bias, padding=layer.padding)
            else:
                x = layer(x)
        return x

    def steps(self):
        return [quantizer.step for quantizer in self.quantizers]


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 4)
    )


MODELS = {"mlp": (mlp, (5, 8), [True, False]), "network": (network, (5, 3, 6, 6), [True, False, True])}


def train(run, make_optimizer, parameters, batches):
    """Outputs, parameters and gradients of all steps. `parameters` is called when there are step sizes."""
    optimizer, found = make_optimizer(parameters()), []
    for batch in batches:
        optimizer.zero_grad()
        output = run(batch)
        output.square().mean().backward()
        optimizer.step()
        found += [output.detach(), *(p.detach().clone() for p in parameters()), *(p.grad.clone() for p in parameters())]
    return found


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
}


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "bits", "optimizer"),
    [("mlp", 2, "sgd"), ("mlp", 3, "adamw"), ("mlp", 8, "sgd"), ("network", 3, "sgd"), ("network", 4, "adamw")],
)
def test_training_is_that_of_modules(name, bits, optimizer):
    make, shape, signed = MODELS[name]
    model, batches = make(), [torch.randn(shape) for _ in range(STEPS)]
    twin = ByHand(model, bits, signed)
    tool = LearnedStepQuantization(bits)
    twin(batches[0])
    expected = train(twin, OPTIMIZERS[optimizer], lambda: [*twin.model.parameters(), *twin.steps()], batches)
    with amanda.apply(tool):
        model(batches[0])
        found = train(model, OPTIMIZERS[optimizer], lambda: [*model.parameters(), *tool.parameters()], batches)
    same(found, expected)
    model.eval(), twin.eval()
    with torch.no_grad():
        evaluated = twin(batches[0])
        with amanda.apply(tool):  # another scope
            assert torch.equal(model(batches[0]), evaluated)
    assert [row.quant_min < 0 for row in tool.rows()] == [sign for one in signed for sign in (one, True)]
    same([row.scale for row in tool.rows()], [step.detach() for step in twin.steps()])


@pytest.mark.long
def test_a_library_model_trains_to_a_lower_loss():
    model, inputs = zoo.bert()
    tool, losses = LearnedStepQuantization(3), []
    with amanda.apply(tool):
        model(**inputs)
        optimizer = torch.optim.Adam([*model.parameters(), *tool.parameters()], lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (model(**inputs).pooler_output - 0.5).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert len(tool.parameters()) == 2 * sum(type(module) is nn.Linear for module in model.modules())


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradients_in_closed_form(v, arriving, step, low, high, count):
    """The paper's equations, element by element."""
    of_step, of_v = 0.0, []
    for value, gradient in zip(v.flatten().tolist(), arriving.flatten().tolist(), strict=True):
        scaled = value / step
        if scaled <= low:
            of_step += gradient * low
        elif scaled >= high:
            of_step += gradient * high
        else:
            of_step += gradient * (round(scaled) - scaled)
        of_v.append(gradient if low < scaled < high else 0.0)
    return of_step / (count * high) ** 0.5, torch.tensor(of_v).view_as(v)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_are_those_of_the_paper(bits, signed):
    layer, tool = nn.Linear(6, 5), LearnedStepQuantization(bits, signed=signed)
    x = torch.randn(7, 6)
    leaf = x.clone().requires_grad_()
    with amanda.apply(tool):
        layer(leaf * 1).backward(out := torch.randn(7, 5))
    steps = [step.detach().double().item() for step in tool.parameters()]
    limits = [(row.quant_min, row.quant_max) for row in tool.rows()]
    rounded = [
        (value.detach().double() / step).clamp(*limit).round() * step
        for value, step, limit in zip((x, layer.weight), steps, limits, strict=True)
    ]
    arriving = [out.double() @ rounded[1], out.double().t() @ rounded[0]]
    counts = [6, 30]  # the features of a sample, the elements of the weight
    found = [leaf.grad, layer.weight.grad]
    for i, value in enumerate((x, layer.weight.detach())):
        of_step, of_value = gradients_in_closed_form(value.double(), arriving[i], steps[i], *limits[i], counts[i])
        assert tool.parameters()[i].grad.item() == pytest.approx(of_step, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(found[i], of_value.float(), rtol=1e-4, atol=1e-5)
    assert steps[0] == pytest.approx(2 * x.abs().mean().item() / limits[0][1] ** 0.5)


def test_it_computes_as_torchs_learnable_fake_quantization():
    """Torch's counts as in range what is up to half a step outside. Here nothing is."""
    weight = nn.Parameter(torch.tensor([-9.0, -4.7, -3.4, -1.6, -0.2, 0.3, 1.4, 2.7, 2.9, 3.6, 8.0])[:, None] * 0.25)
    size = nn.Parameter(torch.tensor([0.25]))
    rounded = torch._fake_quantize_learnable_per_tensor_affine(weight, size, torch.zeros(1), -4, 3, (11 * 3) ** -0.5)
    rounded.sum().backward()
    gradient, weight.grad = weight.grad, None

    @amanda.root
    def product():
        return torch.matmul(torch.eye(11), weight)

    with amanda.apply(tool := LearnedStepQuantization(3, ops=["matmul"])):
        product()
        for step, value in zip(tool.parameters(), (1.0, 0.25), strict=True):
            step.data.fill_(value)
        found = product()
        found.sum().backward()
    assert torch.equal(found, rounded)
    assert torch.equal(weight.grad, gradient)
    assert tool.parameters()[1].grad.item() == pytest.approx(size.grad.item(), rel=1e-5)


# ---- operands --------------------------------------------------------------------------------------------------------


def test_products_without_a_module_have_step_sizes_too():
    x, w = torch.randn(5, 8), nn.Parameter(torch.randn(8, 4).abs())
    with amanda.apply(tool := LearnedStepQuantization(4, ops="matmul")):
        x @ w
        x.abs() @ torch.rand(8, 4)
    assert [(row.position, row.quant_min) for row in tool.rows()] == [
        ("self", -8),
        ("other", -8),  # a parameter is a weight, and signed
        ("self", 0),
        ("other", 0),
    ]


def test_the_result_has_the_operands_dtype_and_integers_are_left_alone():
    for dtype in (torch.bfloat16, torch.float64):
        layer, x = nn.Linear(8, 4, dtype=dtype), torch.randn(5, 8, dtype=dtype)
        with amanda.apply(tool := LearnedStepQuantization(4)):
            layer(x).sum().backward()
        assert layer.weight.grad.dtype == dtype
        assert {step.dtype for step in tool.parameters()} == {torch.float32}
    with amanda.apply(tool := LearnedStepQuantization(4, ops=["mm"])):
        assert torch.mm(torch.eye(2).long(), torch.eye(2).long()).tolist() == [[1, 0], [0, 1]]
    assert tool.rows() == []


def test_a_first_value_of_zeros_has_a_step_size():
    layer = nn.Linear(8, 4)
    with amanda.apply(tool := LearnedStepQuantization(4)):
        assert layer(torch.zeros(5, 8)).isfinite().all()
        assert tool.rows()[0].scale > 0


def test_step_sizes_made_in_inference_mode_can_be_trained():
    layer, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(5, 8)
    with amanda.apply(tool := LearnedStepQuantization(4)):
        with torch.inference_mode():
            layer(x)
        layer(x).sum().backward()
    assert all(step.grad is not None for step in tool.parameters())


def test_two_tools_share_a_model():
    model, x = network(), torch.randn(5, 3, 6, 6)
    outer = LearnedStepQuantization(8, where=lambda context: context.module_path in ("0", "5"))
    inner = LearnedStepQuantization(2, where=lambda context: context.module_path not in ("0", "5"))
    with amanda.apply(outer, inner):
        model(x)
    assert [row.module_path for row in outer.rows()] == ["0", "0", "5", "5"]
    assert [(row.module_path, row.quant_max) for row in inner.rows()] == [("3", 3), ("3", 1)]


def test_after_reset_step_sizes_are_new():
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(tool := LearnedStepQuantization(4)):
        model(x)
        first = tool.parameters()
        tool.reset()
        assert tool.rows() == []
        model(x * 10)
    assert torch.allclose(tool.parameters()[0], first[0] * 10)


# ---- where it works --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_in_a_regime_it_trains_the_same(regime):
    model, batches = mlp(), [torch.randn(5, 8) for _ in range(STEPS)]
    twin = ByHand(model, 4, [True, False])

    def cast(x):  # autocast's casts, after rounding
        quantizers, (first, relu, second) = twin.quantizers, twin.model
        with torch.autocast("cpu", torch.bfloat16):
            x = relu(F.linear(quantizers[0](x), quantizers[1](first.weight), first.bias))
            return F.linear(quantizers[2](x.float()).bfloat16(), quantizers[3](second.weight), second.bias)

    by_hand = cast if regime == "autocast" else twin
    by_hand(batches[0])
    expected = train(
        lambda x: by_hand(x).float(), OPTIMIZERS["sgd"], lambda: [*twin.model.parameters(), *twin.steps()], batches
    )
    with in_regime(regime, model) as run, amanda.apply(tool := LearnedStepQuantization(4)):
        run(batches[0])
        found = train(
            lambda x: run(x).float(), OPTIMIZERS["sgd"], lambda: [*model.parameters(), *tool.parameters()], batches
        )
    same(found, expected)


def test_a_compiled_model_stays_compiled_and_trains_as_the_eager_one():
    """Bit for bit: aot_eager fuses nothing."""

    def trained(call, model):
        tool, namespaces = LearnedStepQuantization(4), set()
        looks = amanda.Tool("looks")
        looks.add_inst_for_op(lambda context: namespaces.add(context.namespace), ops="linear")
        with amanda.apply(tool, looks):
            call(batches[0])
            results = train(call, OPTIMIZERS["sgd"], lambda: [*model.parameters(), *tool.parameters()], batches)
        return results, {namespace.rpartition("/")[2] for namespace in namespaces}

    batches, model = [torch.randn(5, 8) for _ in range(STEPS)], mlp()
    twin = copy.deepcopy(model)
    expected, eagerly = trained(model, model)
    found, compiled = trained(torch.compile(twin, backend="aot_eager"), twin)
    assert (eagerly, compiled) == ({"eager"}, {"compile"})
    same(found, expected)


def test_a_compiled_model_without_gradients_has_no_place_for_those_of_step_sizes(says):
    model, x = mlp().requires_grad_(False), torch.randn(5, 8)
    call = torch.compile(model, backend="aot_eager")
    with says(
        amanda.Error,
        "[quantization] step sizes of aten::linear get no gradient in a compiled function, as none of its operands "
        'requires one; apply the tool with compiled="eager", or call the function under torch.no_grad()',
    ):
        with amanda.apply(LearnedStepQuantization(4), compiled="graph"):
            call(x)
    with amanda.apply(tool := LearnedStepQuantization(4)):
        call(x).sum().backward()  # eagerly
    assert all(size.grad is not None for size in tool.parameters())
    with torch.no_grad(), amanda.apply(tool := LearnedStepQuantization(4), compiled="graph"):
        call(x)
    assert len(tool.parameters()) == 4


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_misuse_is_told(says):
    for bits in (1, 17, 4.0, "8"):
        with says(ValueError, f"[quantization] bits= is an integer from 2 to 16; got {bits!r}"):
            LearnedStepQuantization(bits)
    with says(
        ValueError,
        f"[quantization] the factors of 'relu' are not known; ops= takes {', '.join(amanda.ops.factors)}",
    ):
        LearnedStepQuantization(ops=["linear", "relu"])
    with says(TypeError, "[quantization] where= takes a function of an operator's context, got 'conv1'"):
        LearnedStepQuantization(where="conv1")
    with says(amanda.Error, "[quantization] no step sizes yet: run the model once in a scope of this tool first"):
        LearnedStepQuantization().parameters()


def test_a_layer_that_runs_as_one_operator_is_refused(says):
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    with says(
        amanda.Error,
        "[LearnedStepQuantization] aten::_transformer_encoder_layer_fwd is a whole layer in one operator, whose weights "
        "can't be edited; call torch.backends.mha.set_fastpath_enabled(False) first",
    ):
        with amanda.apply(LearnedStepQuantization()), torch.no_grad():
            layer(x)
