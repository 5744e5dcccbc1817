"""SubgraphRewriting: torch.fx's fusion, modules fused by hand and the models' own attention against it; and programs that
look at what it skips, which must not notice.

Equal means torch.equal, on every tensor.
"""

import copy
import gc
import io
import re
import threading
import warnings
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
import zoo
from amanda.tools.rewriting import SubgraphRewriting
from tool_regimes import REGIMES, in_regime
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.utils.checkpoint import checkpoint


def same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


def counts(rewriting):
    return [(row.rewritten, row.kept) for row in rewriting.rows()]


# ---- convolution and batch normalization, against torch.fx ---------------------------------------------------------------


class Block(torch.nn.Module):
    """Of He et al., with two convolutions, or three that narrow and widen. ReLU works in place, as usual."""

    def __init__(self, inputs, outputs, stride, deep):
        super().__init__()
        middle = outputs // 4 if deep else outputs
        narrow, wide = (inputs, middle, 1, 1), (middle, outputs, 1, 1)
        plain = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        layers = [narrow, (middle, middle, 3, stride), wide] if deep else plain
        self.layers = torch.nn.ModuleList(convolution(*layer) for layer in layers)
        skips = stride == 1 and inputs == outputs
        self.skip = torch.nn.Identity() if skips else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        y = x
        for layer in self.layers[:-1]:
            y = F.relu_(layer(y))
        return F.relu_(self.layers[-1](y) + self.skip(x))


def convolution(inputs, outputs, size, stride):
    layer = torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return torch.nn.Sequential(layer, torch.nn.BatchNorm2d(outputs))


def resnet(depths, deep, width):
    layers, channels = [convolution(3, width, 7, 2), torch.nn.ReLU(True), torch.nn.MaxPool2d(3, 2, 1)], width
    for stage, depth in enumerate(depths):
        outputs = width * 2**stage * (4 if deep else 1)
        for block in range(depth):
            layers.append(Block(channels, outputs, 2 if stage and not block else 1, deep))
            channels = outputs
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, 10)]
    model = torch.nn.Sequential(*layers, *head)
    with torch.no_grad():
        model(torch.randn(2, 3, 64, 64))  # for running statistics that are not those of a new model
    return model.eval()


def folded(conv, norm):
    statistics = norm.running_mean, norm.running_var, norm.eps
    weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics, norm.weight, norm.bias)
    return F.conv2d(conv.input, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


CONV_NORM = ["conv2d", "batch_norm"]


@pytest.mark.parametrize(
    ("depths", "deep", "matches"), [((2, 2, 2, 2), False, 20), ((3, 4, 6, 3), True, 53)], ids=["ResNet-18", "ResNet-50"]
)
@pytest.mark.parametrize("width", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_convolutions_are_folded_as_torch_fx_does(depths, deep, matches, width):
    model, x = resnet(depths, deep, width), torch.randn(1, 3, 32, 32)
    rewriting = SubgraphRewriting(CONV_NORM, folded)
    with torch.no_grad(), amanda.apply(rewriting):
        traced, rewritten = model(x), model(x)
    with torch.no_grad():
        assert torch.equal(traced, model(x))
        assert torch.equal(rewritten, fuse(model)(x))
    assert not torch.equal(rewritten, traced)
    assert counts(rewriting) == [(1, 0)] * matches


def test_batch_normalization_in_training_runs_as_written_and_in_evaluation_as_one():
    model = resnet((1,), False, width=4)
    x, by_hand, rewriting = torch.randn(2, 3, 32, 32), copy.deepcopy(model), SubgraphRewriting(CONV_NORM, folded)
    kinds = []
    model[0][0].register_forward_hook(lambda module, inputs, output: kinds.append(type(output).__name__))
    for net, scope in ((by_hand, amanda.disabled()), (model, amanda.apply(rewriting))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with scope:
            for _ in range(3):
                optimizer.zero_grad()
                net.train()(x).square().sum().backward()
                optimizer.step()
    same(model.state_dict().values(), by_hand.state_dict().values())
    same((p.grad for p in model.parameters()), (p.grad for p in by_hand.parameters()))
    assert counts(rewriting) == [(0, 2)] * 3
    assert kinds == ["Tensor", "Deferred", "Tensor"]  # that the next operator cannot be replaced is known from then on
    with torch.no_grad(), amanda.apply(rewriting):
        model.eval()
        model(x)  # traced: there was no run without gradients yet
        found = model(x)
    with torch.no_grad():
        assert torch.equal(found, fuse(model)(x))


# ---- linear and GELU, against a module fused by hand ---------------------------------------------------------------------


class LinearGelu(torch.autograd.Function):
    """With a backward pass of its own: one that keeps only the input, and computes the product again."""

    runs = 0

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return F.gelu(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx, gradient):
        LinearGelu.runs += 1
        x, weight, bias = ctx.saved_tensors
        inner = torch.ops.aten.gelu_backward(gradient, F.linear(x, weight, bias))
        rows = inner.flatten(0, -2)
        return inner @ weight, rows.t() @ x.flatten(0, -2), rows.sum(0)


def fused(linear, gelu):
    return LinearGelu.apply(linear.input, linear.weight, linear.bias)


LINEAR_GELU = ["linear", "gelu"]


def train(model, program, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(program().float().square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


def test_a_bert_trains_as_one_whose_layers_are_fused_by_hand():
    model, _ = zoo.bert()
    by_hand, batch = copy.deepcopy(model), {"input_ids": zoo.ids()}
    rewriting = SubgraphRewriting(LINEAR_GELU, fused)
    with amanda.apply(rewriting):
        model(**batch)  # the traced run
    for layer in by_hand.encoder.layer:
        dense = layer.intermediate.dense
        layer.intermediate.forward = lambda x, dense=dense: LinearGelu.apply(x, dense.weight, dense.bias)
    expected = train(by_hand, lambda: by_hand(**batch).pooler_output, 20)
    LinearGelu.runs = 0
    with amanda.apply(rewriting):
        losses = train(model, lambda: model(**batch).pooler_output, 20)
    assert LinearGelu.runs == 40
    same([*losses, *model.parameters()], [*expected, *by_hand.parameters()])
    same((p.grad for p in model.parameters()), (p.grad for p in by_hand.parameters()))
    assert counts(rewriting) == [(20, 0)] * 2


# ---- attention written out, against the models' own implementations --------------------------------------------------


def attention(scores, scaled, masked, weights, dropped, mixed):
    rate = dropped.p if dropped.train else 0.0
    key, scale = scores.other.transpose(-2, -1), float(scaled.other)
    return F.scaled_dot_product_attention(scores.self, key, mixed.other, masked.other, rate, scale=scale)


def attention_of_all(scores, scaled, weights, dropped, mixed):
    key = scores.other.transpose(-2, -1)
    return F.scaled_dot_product_attention(scores.self, key, mixed.other, scale=float(scaled.other))


ATTENTION = ["matmul", "mul", "add", "softmax", "dropout", "matmul"]
OF_ALL = ["matmul", "mul", "softmax", "dropout", "matmul"]
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])


def attending(implementation, kind="Bert", **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**zoo.SMALL, **options, attn_implementation=implementation)
    return getattr(transformers, f"{kind}Model")(config)


NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "of all"])
def test_attention_that_is_written_out_becomes_the_models_own_sdpa(masked):
    written, own = (attending(implementation, **NO_DROPOUT) for implementation in ("eager", "sdpa"))
    batch = {"input_ids": zoo.ids(), **({"attention_mask": MASK} if masked else {})}
    rewriting = SubgraphRewriting(*((ATTENTION, attention) if masked else (OF_ALL, attention_of_all)))
    scope = amanda.apply(rewriting)
    with scope:
        written(**batch)
        outputs = written(**batch)
    assert torch.equal(outputs.last_hidden_state, own(**batch).last_hidden_state)
    with scope:
        losses = train(written, lambda: written(**batch).pooler_output, 20)
    own_losses = train(own, lambda: own(**batch).pooler_output, 20)
    same([*losses, *written.parameters()], [*own_losses, *own.parameters()])
    same(gradients(written), gradients(own))
    assert counts(rewriting) == [(21, 0)] * 2


def gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_layers_that_share_their_operators_are_matched_once_and_rewritten_each_time():
    options = {"num_hidden_groups": 1, "inner_group_num": 1, "hidden_dropout_prob": 0.0, "embedding_size": 8}
    written, own = (attending(implementation, "Albert", **options) for implementation in ("eager", "sdpa"))
    batch, rewriting = {"input_ids": zoo.ids(), "attention_mask": MASK}, SubgraphRewriting(ATTENTION, attention)
    with amanda.apply(rewriting):
        written(**batch)
        losses = train(written, lambda: written(**batch).pooler_output, 5)
    same(losses, train(own, lambda: own(**batch).pooler_output, 5))
    assert counts(rewriting) == [(11, 0)]  # two layers, six runs, the first one traced


def test_dropout_is_drawn_by_the_function():
    model, x, rewriting = Scaled(), torch.randn(2, 3, 4, 8), SubgraphRewriting(OF_ALL, with_dropout)
    with amanda.apply(rewriting):
        model(x)
        torch.manual_seed(1)
        found = model(x)
    torch.manual_seed(1)
    scores = torch.softmax(x @ x.transpose(-2, -1) * 0.5, -1)
    assert torch.equal(found, F.dropout(scores, 0.5) @ x)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = x * self.gain
        scores = F.dropout(torch.softmax(x @ x.transpose(-2, -1) * 0.5, -1), 0.5, self.training)
        return scores @ x


def with_dropout(scores, scaled, weights, dropped, mixed):
    weights = torch.softmax(scores.self @ scores.other * scaled.other, weights.dim)
    return F.dropout(weights, dropped.p, dropped.train) @ mixed.other


# ---- graphs ----------------------------------------------------------------------------------------------------------

GATED = {"gate": "linear", "act": ("silu", "gate"), "up": "linear", "product": ("mul", "act", "up")}


def gated(gate, act, up, product):
    if gate.input is not up.input:
        return NotImplemented
    both = F.linear(gate.input, torch.cat([gate.weight, up.weight])).chunk(2, -1)
    return F.silu(both[0]) * both[1]


def test_a_gated_layer_of_llama_multiplies_once():
    model, batch = zoo.llama()
    by_hand, rewriting = copy.deepcopy(model), SubgraphRewriting(GATED, gated)
    for layer in by_hand.model.layers:

        def forward(x, mlp=layer.mlp):
            both = F.linear(x, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])).chunk(2, -1)
            return mlp.down_proj(F.silu(both[0]) * both[1])

        layer.mlp.forward = forward
    with amanda.apply(rewriting):
        model(**batch)
        losses = train(model, lambda: model(**batch).logits, 20)
    same([*losses, *model.parameters()], [*train(by_hand, lambda: by_hand(**batch).logits, 20), *by_hand.parameters()])
    assert counts(rewriting) == [(20, 0)] * 2
    assert [row.module_path for row in rewriting.rows()] == ["model.layers.0.mlp", "model.layers.1.mlp"]


def test_a_result_that_two_operators_of_the_match_take():
    def written(x, weight):
        h = x @ weight
        return h * torch.sigmoid(h * 2)

    def function(h, doubled, gate, product):
        return F.silu(h.self @ h.other * doubled.other) / doubled.other

    pattern = {"h": "matmul", "d": ("mul", "h"), "g": ("sigmoid", "d"), "p": ("mul", "h", "g")}
    found, expected, rewriting = trained_layer(written, pattern, function)
    torch.testing.assert_close(found, expected)
    assert counts(rewriting) == [(1, 0)]


def trained_layer(written, pattern, function, runs=2):
    """Output and gradients of the last run with the tool, and without."""
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    rewriting = SubgraphRewriting(pattern, function)
    with amanda.apply(rewriting):
        for _ in range(runs):
            y = written(x, weight)
            found = [y, *torch.autograd.grad(y.square().sum(), [x, weight])]
    y = written(x, weight)
    return found, [y, *torch.autograd.grad(y.square().sum(), [x, weight])], rewriting


def test_none_is_an_input_from_outside_and_alternatives_are_a_tuple():
    pattern = {"product": ("matmul",), "scaled": (("mul", "div"), "product"), "sum": ("add", None, "scaled")}

    def function(product, scaled, total):
        assert sorted(vars(total)) == ["alpha", "op", "self"]
        assert scaled.op.__name__ == "div"
        return torch.addmm(total.self, product.self, product.other, alpha=1 / float(scaled.other))

    for order, runs in ((lambda bias, y: bias + y, [(1, 0)]), (lambda bias, y: y + bias, [])):

        def written(x, weight, order=order):
            return order(torch.ones(5), x @ weight / 4)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if not runs else "error", amanda.UnmatchedFilterWarning)
            found, expected, rewriting = trained_layer(written, pattern, function)
        torch.testing.assert_close(found, expected)
        assert counts(rewriting) == runs


def test_a_view_inside_a_match():
    def function(product, turned, made):
        return torch.relu(product.other.t() @ product.self.t())

    found, expected, rewriting = trained_layer(lambda x, w: torch.relu((x @ w).t()), ["matmul", "t", "relu"], function)
    torch.testing.assert_close(found, expected)
    assert counts(rewriting) == [(1, 0)]


def test_earlier_rules_go_first_and_no_operator_is_in_two_matches():
    ran = []
    rewriting = SubgraphRewriting(["relu", "sin", "relu"], lambda *_: ran.append("long") or torch.ones(2))
    rewriting.add_rule(["sin", "relu"], lambda *_: ran.append("short") or torch.ones(2))
    rewriting.add_rule(["neg"], lambda _: ran.append("single") or torch.ones(2))

    def program(x):
        return torch.relu(torch.sin(torch.relu(x))), torch.neg(torch.relu(torch.sin(x)))

    with amanda.apply(rewriting):
        for _ in range(2):
            program(torch.randn(2))
    assert ran == ["long", "short", "single"]
    assert [row.name for row in rewriting.rows()] == [
        "aten::relu > aten::sin > aten::relu",
        "aten::sin > aten::relu",
        "aten::neg",
    ]


# ---- what is no match ------------------------------------------------------------------------------------------------

LAYER = torch.nn.Linear(4, 4)


def never(*operators):
    raise AssertionError("it is no match")


NOT_LINEAR = "is not linear, or is in another match, writes in place or returns several values"


@pytest.mark.parametrize(
    ("written", "pattern", "why"),
    [
        (lambda x: F.gelu(h := LAYER(x)) + h, LINEAR_GELU, "the result of aten::linear also goes to aten::add"),
        (lambda x: F.gelu(LAYER(x).add_(1)), LINEAR_GELU, f"aten::add_ {NOT_LINEAR}"),
        (lambda x: (h := LAYER(x), h.mul_(2), F.gelu(h))[2], LINEAR_GELU, f"aten::mul_ {NOT_LINEAR}"),
        (lambda x: F.gelu(LAYER(x).t()), LINEAR_GELU, f"aten::t {NOT_LINEAR}"),
        (lambda x: LAYER(F.gelu(x)), LINEAR_GELU, f"self {NOT_LINEAR}"),
        (lambda x: (h := LAYER(x)) * h, ["linear", "mul"], "the result of aten::linear also goes to aten::mul"),
        (torch.sin, LINEAR_GELU, "no gelu ran"),
    ],
    ids=["used twice", "in place", "written to", "in between", "other way round", "twice in one", "absent"],
)
def test_what_matches_nothing_runs_as_written_and_warns(written, pattern, why):
    x, rewriting = torch.randn(3, 4), SubgraphRewriting(pattern, never)
    with pytest.warns(amanda.UnmatchedFilterWarning) as caught:  # noqa: SIM117 -- it is given when the scope is left
        with amanda.apply(rewriting):
            found = [written(x) for _ in range(3)]
    same(found, [written(x)] * 3)
    (warning,) = caught
    text = re.sub(r" \([^)]*\)", "", str(warning.message))
    assert (text, warning.filename) == (
        f"[rewriting] the pattern {' > '.join(pattern)} matched nothing that ran: {why}",
        __file__,
    )
    assert rewriting.rows() == []
    with amanda.apply(rewriting):
        written(x)  # it warns once


def test_a_view_of_an_outside_tensor_is_not_skipped():
    x, rewriting = torch.randn(2, 3), SubgraphRewriting(["t", "t"], never)
    with amanda.apply(rewriting):
        for _ in range(3):
            x.t().t().add_(1)
    assert counts(rewriting) == [(0, 2)]


def test_a_name_of_the_pattern_elsewhere_costs_nothing_after_its_second_run():
    rewriting = SubgraphRewriting(LINEAR_GELU, fused)
    model, scope = torch.nn.Sequential(LAYER, copy.deepcopy(LAYER), torch.nn.GELU()), amanda.apply(rewriting)
    with scope:
        for _ in range(3):
            model(torch.ones(2, 4))
    described = [(row.operator, row.module_path) for row in scope.describe().rows()]
    assert described == [("aten::linear", "1"), ("aten::gelu", "2")]


# ---- what the program sees of what was skipped -----------------------------------------------------------------------


class Layer(torch.nn.Module):
    """What `look` returns for the inner result and the last one is the output."""

    def __init__(self, look=lambda h, y: y):
        super().__init__()
        self.linear = torch.nn.Linear(4, 5)
        self.look = look

    def forward(self, x):
        h = self.linear(x)
        return self.look(h, F.gelu(h))


def gelu_of(linear, gelu):
    return F.gelu(F.linear(linear.input, linear.weight, linear.bias))


LOOKS = {
    "an operator": lambda h, y: y * h,
    "an operator alone": lambda h, y: h.neg(),
    "in place": lambda h, y: h.mul_(2) if not h.requires_grad else h.clone().mul_(2) + y,
    "a view that is written to": lambda h, y: (h.view(-1).add_(1), h * 1)[1],
    "a number": lambda h, y: y * h.detach().sum().item(),
    "a list": lambda h, y: y * h.tolist()[0][0],
    "numpy": lambda h, y: y * float(h.detach().numpy().sum()),
    "repr": lambda h, y: y * len(repr(h.detach())),
    "an address": lambda h, y: y * (h.data_ptr() != 0),
    "a comparison": lambda h, y: y * (h > 0),
    "a list of tensors": lambda h, y: torch.cat([h, y]),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("records", [True, False], ids=["recorded", "not recorded"])
def test_a_program_that_looks_at_what_was_skipped_does_not_notice(look, records):
    looks = False  # in the first run nobody does, and the layer is a match
    layer = Layer(lambda h, y: look(h, y) if looks else y)
    x, rewriting = torch.randn(3, 4, requires_grad=records), SubgraphRewriting(LINEAR_GELU, gelu_of)
    layer.requires_grad_(records)

    def step():
        layer.zero_grad()
        y = layer(x)
        return [y, *(torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]) if records else [])]

    with amanda.apply(rewriting):
        step()
        looks = True
        found = [step() for _ in range(3)]
    expected = step()
    torch.testing.assert_close(found[0], expected)  # two gradients, of the function and of what was read, are summed
    for each in found[1:]:
        same(each, expected)
    (row,) = rewriting.rows()
    assert (row.rewritten, row.kept) == (1, 2)
    assert row.why.startswith("the result of aten::linear is read by aten::")
    (left_out,) = rewriting.evidence().unseen
    assert (left_out.reason, left_out.count) == ("unhandled", 1)
    assert left_out.text == f"1 operator ran as without the tool: {row.name} ({row.source}): {row.why}"


def test_what_is_known_without_the_elements_does_not_compute_them():
    def look(h, y):
        assert (h.shape, h.stride(), h.dtype, h.device.type, h.dim()) == ((3, 5), (5, 1), torch.float32, "cpu", 2)
        assert h.is_contiguous()
        assert h.requires_grad == y.requires_grad
        assert (h.grad_fn is None) == (y.grad_fn is None)
        assert isinstance(h, torch.Tensor)
        return y

    layer, rewriting = Layer(look), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(3):
            layer(torch.randn(3, 4))
            with torch.no_grad():
                layer(torch.randn(3, 4))
    (row,) = rewriting.rows()
    assert (row.rewritten, row.kept, row.why) == (4, 0, "")
    assert rewriting.evidence().is_complete


def test_what_was_returned_is_computed_when_it_is_read_even_outside_the_scope():
    layer, x = Layer(lambda h, y: (h, y)), torch.randn(3, 4, requires_grad=True)
    rewriting = SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        layer(x)
        h, _ = layer(x)
    assert rewriting.rows()[0].why == ""
    plain, _ = layer(x)
    same(
        torch.autograd.grad(h.sin().sum(), [x, layer.linear.weight]),
        torch.autograd.grad(plain.sin().sum(), [x, layer.linear.weight]),
    )
    with torch.no_grad(), amanda.apply(rewriting):
        layer(x)
        rewriting.reset()
        layer(x)
        h, _ = layer(x)
    stored = io.BytesIO()
    torch.save(h, stored)
    stored.seek(0)
    for found in (torch.load(stored), copy.deepcopy(h), h.cpu().clone(), torch.as_tensor(h.numpy())):
        assert type(found) is torch.Tensor
        assert torch.equal(found, plain)


def test_what_is_read_later_is_computed_in_the_modes_of_its_operator():
    layer, x, rewriting = Layer(lambda h, y: (h, y)), torch.randn(3, 4), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                h, _ = layer(x)
            with torch.no_grad():
                k, _ = layer(x)
    with torch.no_grad():
        found = h * 1
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, layer(x)[0])
        found = k * 1
    assert torch.equal(found, layer(x)[0])
    assert not found.requires_grad


def test_hooks_and_second_derivatives_of_what_was_skipped():
    looks, seen = False, []

    def look(h, y):
        if looks:
            h.register_hook(seen.append)
        return y * h if looks else y

    layer, x, rewriting = Layer(look), torch.randn(3, 4, requires_grad=True), SubgraphRewriting(LINEAR_GELU, gelu_of)

    def derivatives():
        y = layer(x)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return [y, first, *torch.autograd.grad(first.square().sum(), [x, layer.linear.weight])]

    with amanda.apply(rewriting):
        layer(x)
        looks = True
        found = derivatives()
    hooked, h = seen[0], F.linear(x, layer.linear.weight, layer.linear.bias)
    torch.testing.assert_close(found, derivatives())
    leaf = h.detach().requires_grad_()
    (2 * F.gelu(h).detach().square() * leaf.square() / 2).sum().backward()  # with the other factor held
    torch.testing.assert_close(hooked, leaf.grad)


def test_inputs_that_depend_on_each_other_have_their_gradients_once():
    x = torch.randn(3, 4, requires_grad=True)

    @amanda.root
    def gradient():
        left = x * 2
        h = left @ (left + 1).t()  # the right factor is made of the left one
        (found,) = torch.autograd.grad((torch.relu(h) + (h.sin() if looks else 0)).sum(), x)
        return found

    looks, rewriting = False, SubgraphRewriting(["matmul", "relu"], lambda h, y: torch.relu(h.self @ h.other))
    with amanda.apply(rewriting):
        gradient()
        looks = True
        found = gradient()
    assert rewriting.rows()[0].rewritten == 1
    torch.testing.assert_close(found, gradient())


CHAINS = {
    "both are read": lambda h, k, y: h.sin() + k.sin() + y,
    "the first one is read before": lambda h, k, y: (h * 2 + k) * y,
    "the first one is written to": lambda h, k, y: h.mul_(2) + k + y,
    "the second one is written to": lambda h, k, y: k.mul_(2) + h + y,
    "a view of the first one is written to": lambda h, k, y: h.view(-1).add_(1).view(3, 5) + h + k + y,
}


@pytest.mark.parametrize("look", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("early", [True, False], ids=["before the last one", "after it"])
def test_a_longer_chain_of_skipped_operators(look, early):
    looks = False

    def written(x, weight):
        h = x @ weight
        k = torch.neg(h)
        if looks and early:
            seen = look(h, k, 1)
            return torch.tanh(k) + seen
        y = torch.tanh(k)
        return look(h, k, y) if looks else y

    @amanda.root
    def step():
        x, weight = torch.ones(3, 4).cumsum(0).requires_grad_(), torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        left = x * 1
        y = written(left, weight)
        return [y, *torch.autograd.grad(y.square().sum(), [x, left, weight])]

    rewriting = SubgraphRewriting(["matmul", "neg", "tanh"], lambda m, n, t: torch.tanh(-(m.self @ m.other)))
    with amanda.apply(rewriting):
        step()
        looks = True
        found = step()
    torch.testing.assert_close(found, step())
    assert rewriting.rows()[0].why


def test_module_hooks_get_tensors():
    layer, seen, rewriting = Layer(), [], SubgraphRewriting(LINEAR_GELU, gelu_of)
    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x)
        handle = layer.linear.register_forward_hook(lambda module, inputs, output: seen.append(output.mean()))
        found = layer(x)
    handle.remove()
    assert torch.equal(seen[0], layer.linear(x).mean())
    assert torch.equal(found, layer(x))


def test_before_an_input_is_written_to_what_needs_it_is_computed():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    writes = False

    @amanda.root
    def program():
        x = torch.ones(3, 4)
        h = layer.linear(x)
        if writes:
            x[1:].zero_()
        return F.gelu(h)

    for mode in (torch.no_grad, torch.inference_mode):
        writes = False
        rewriting.reset()
        with amanda.apply(rewriting), mode():
            program()
            writes = True
            found = program()
            assert torch.equal(found, F.gelu(layer.linear(torch.ones(3, 4))))
        assert (
            rewriting.rows()[-1].why
            == "the result of aten::linear is read by nobody yet, but aten::zero_ writes to an input"
        )


def test_a_write_that_nobody_saw_is_an_error_not_a_wrong_result():
    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.ones(3, 4)
    writes = False

    @amanda.root
    def program():
        h = layer.linear(x)
        if writes:
            with amanda.disabled():
                x.zero_()
        return F.gelu(h)

    with amanda.apply(rewriting):
        program()
        writes = True
        with pytest.raises(
            amanda.Error, match=r"\[rewriting\] an input of aten::linear was written to after the operator"
        ):
            program()


def test_memory_of_what_was_skipped_is_freed():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting):
        for _ in range(2):
            x = torch.randn(3, 4, requires_grad=True)
            gone = weakref.ref(x)
            layer(x).sum().backward()
            del x
    gc.collect()
    assert gone() is None
    assert len(rewriting._pending) == 0


# ---- programs that change --------------------------------------------------------------------------------------------


def test_other_sizes_run_as_written_once():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting), torch.no_grad():
        for size in (2, 3, 2, 3, 3, 4):
            x = torch.randn(size, 4)
            found = layer(x)
            with amanda.disabled():
                assert torch.equal(found, layer(x))
    assert counts(rewriting) == [(3, 0)]


def test_control_flow_that_changes_gets_what_the_operators_compute():
    layer, rewriting, other = torch.nn.Linear(4, 5), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.nn.Linear(4, 5)
    order, kept = "as traced", []

    def program(x):
        h = layer(x)
        if order == "another":
            h = other(x)
        elif order == "of the run before":
            h = kept[-1]
        elif order == "sum":
            h = h + 1
        kept.append(h)
        return F.gelu(h)

    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        for each in ("as traced", "as traced", "another", "of the run before", "sum", "as traced"):
            order = each
            found, length = program(x * 1), len(kept)
            with amanda.disabled():
                kept_before = kept[:]
                kept[:] = kept[: length - 1]
                expected = program(x * 1)
                kept[:] = kept_before
            assert torch.equal(found, expected), each
    assert rewriting.rows()[0].why == "the result of aten::linear is read by aten::add.Tensor"


def test_not_implemented_runs_the_operators_as_written():
    layer, ask = Layer(), [True, False, True]
    x = torch.randn(3, 4, requires_grad=True)

    def sometimes(linear, gelu):
        return torch.zeros(3, 5, requires_grad=True) * 1 if ask.pop() else NotImplemented

    rewriting, found = SubgraphRewriting(LINEAR_GELU, sometimes), []
    with amanda.apply(rewriting):
        for _ in range(4):
            layer.zero_grad()
            y = layer(x)
            y.sum().backward()
            found.append((y, layer.linear.weight.grad))
    layer.zero_grad()
    (y := layer(x)).sum().backward()
    same(found[2], (y, layer.linear.weight.grad))
    assert [bool(y.any()) for y, _ in found] == [True, False, True, False]
    assert counts(rewriting) == [(2, 1)]


def test_under_torch_func_operators_run_as_written():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x), layer(x[0])
        found = [torch.vmap(layer)(x), torch.func.jacrev(layer)(x[0]), torch.func.jvp(layer, (x,), (x,))[1]]
    same(found, [torch.vmap(layer)(x), torch.func.jacrev(layer)(x[0]), torch.func.jvp(layer, (x,), (x,))[1]])


def test_several_threads_rewrite_at_once():
    layer, rewriting, wrong = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), []
    scope = amanda.apply(rewriting)
    with scope:
        layer(torch.ones(3, 4))

    def work(value):
        x = torch.full((3, 4), float(value))
        with scope:
            wrong.extend(value for _ in range(50) if not torch.equal(layer(x), expected[value]))

    expected = [layer(torch.full((3, 4), float(value))) for value in range(4)]
    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counts(rewriting) == [(200, 0)]


def test_another_scope_knows_the_matches():
    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.randn(3, 4)
    for _ in range(3):
        with amanda.apply(rewriting), amanda.apply(rewriting):
            layer(x)
    assert counts(rewriting) == [(2, 0)]


def test_other_tools_skip_what_has_no_elements_yet():
    from amanda.tools.statistics import OpStatistics

    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.randn(3, 4)
    for order in (0, 1):
        statistics = OpStatistics()
        with amanda.apply(*[rewriting, statistics][:: 1 if order else -1]):
            layer(x)
            layer(x)
        assert rewriting.rows()[0].why == ""
        assert statistics.skipped.keys() <= {"subclass"}


# ---- regimes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_trains_as_the_module_by_hand(regime):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), torch.nn.Linear(5, 4), Layer())
    by_hand, x = copy.deepcopy(model), torch.randn(6, 4)
    for layer in (by_hand[0], by_hand[2]):
        linear = layer.linear
        layer.forward = lambda x, linear=linear: LinearGelu.apply(*cast(x, linear.weight, linear.bias))
    rewriting = SubgraphRewriting(
        LINEAR_GELU, lambda linear, gelu: LinearGelu.apply(*cast(linear.input, linear.weight, linear.bias))
    )
    with amanda.apply(rewriting), in_regime(regime, model) as program:
        program(x)  # the traced run
        losses = train(model, lambda: program(x), 20)
    with amanda.disabled(), in_regime(regime if regime != "compiled code" else "checkpointing", by_hand) as program:
        expected = train(by_hand, lambda: program(x), 20)
    same([*losses, *model.parameters()], [*expected, *by_hand.parameters()])
    same(gradients(model), gradients(by_hand))


def cast(*tensors):
    """As autocast would."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    return [tensor.to(dtype) for tensor in tensors]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_recomputes_what_it_ran(reentrant):
    """In the first step, too, in which one run of a shared layer is traced, and the next one could be rewritten."""
    model, runs = Scaled(), []

    def with_noise(scores, scaled, weights, dropped, mixed):
        runs.append(1)
        scale = torch.rand(()) * mixed.other.exp()  # other numbers, and other tensors for the backward pass
        return with_dropout(scores, scaled, weights, dropped, mixed) * scale.sin()

    rewriting, x = SubgraphRewriting(OF_ALL, with_noise), torch.randn(2, 3, 4, 8, requires_grad=True)

    def step(checkpointed):
        model.zero_grad()
        torch.manual_seed(2)
        y = x
        for _ in range(3):
            y = checkpoint(model, y, use_reentrant=reentrant) if checkpointed else model(y)
        y.sum().backward()
        return [y, model.gain.grad.clone()]

    with amanda.apply(rewriting):
        found = [step(True) for _ in range(3)]
    if not reentrant:
        same(found[0], step(False))
    with amanda.apply(SubgraphRewriting(OF_ALL, with_noise)):
        model(x)
        model(x * 1)
        expected = step(False)
    same(found[2], expected)
    assert len(runs) > 6


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "error", "text"),
    [
        ([], ValueError, 'an empty pattern matches nothing; write a list such as ["linear", "gelu"]'),
        ({}, ValueError, 'an empty pattern matches nothing; write a list such as ["linear", "gelu"]'),
        ("linear", TypeError, 'a pattern is a list such as ["linear", "gelu"], or a dict, got \'linear\''),
        (3, TypeError, 'a pattern is a list such as ["linear", "gelu"], or a dict, got 3'),
        (["linear", 3], ValueError, "1 of the pattern has no operator's name: (3, 0)"),
        (["linear", ()], ValueError, "1 of the pattern has no operator's name: ((), 0)"),
        (["conv2D", "relu"], ValueError, "the pattern matches nothing: no operator 'conv2D'; did you mean 'conv2d'?"),
        (
            ["conv2d", "relu_"],
            ValueError,
            "'relu_' works in place, and other tensors see what it writes; end the pattern before it",
        ),
        (
            {"a": "linear", "b": "linear", "c": ("relu", "b")},
            ValueError,
            "the pattern is not connected: no later operator takes the result of 'a' (linear); the last one, 'c', must "
            "depend on all others",
        ),
        (
            {"a": "linear", "b": ("mul", "div")},
            ValueError,
            "'b' takes the result of 'div', which is no earlier operator of the pattern ('a'); None is an input from "
            'outside, and alternatives are a tuple of their own: (("mul", "div"), ...)',
        ),
    ],
)
def test_a_pattern_that_cannot_match_is_refused(says, pattern, error, text):
    with says(error, f"[rewriting] {text}"):
        SubgraphRewriting(pattern, never)


def test_a_function_that_cannot_take_the_operators_is_refused(says):
    with says(TypeError, "[rewriting] what replaces the pattern is a function, got 3"):
        SubgraphRewriting(LINEAR_GELU, 3)
    rewriting = SubgraphRewriting(LINEAR_GELU, never)
    with says(
        TypeError,
        "[rewriting] gelu_of cannot take 3 arguments, one for each operator of the pattern linear > mul > gelu",
    ):
        rewriting.add_rule(["linear", "mul", "gelu"], gelu_of)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            lambda y: y.double(),
            "returned torch.float64 [3, 5] on cpu; the program computes torch.float32 [3, 5] on cpu",
        ),
        (lambda y: y.t(), "returned torch.float32 [5, 3] on cpu; the program computes torch.float32 [3, 5] on cpu"),
        (lambda y: y.detach(), "returned a tensor without a gradient; what the program computes has one"),
        (lambda y: None, "returned NoneType; return a tensor, or NotImplemented to run what is written"),
    ],
    ids=["dtype", "shape", "gradient", "nothing"],
)
def test_a_result_that_is_not_what_the_program_computes_is_an_error(function, problem):
    layer, x = Layer(), torch.randn(3, 4)

    def wrong(linear, gelu):
        return function(gelu_of(linear, gelu))

    with amanda.apply(SubgraphRewriting(LINEAR_GELU, wrong)):
        layer(x)
        with pytest.raises(amanda.Error) as caught:
            layer(x)
    text = re.sub(r" \([\w.]+:\d+\)", "", str(caught.value))
    assert text.startswith(f"[rewriting] wrong, in place of aten::linear > aten::gelu, {problem}")


def test_a_result_in_the_memory_of_an_input_is_an_error():
    x, model = torch.randn(3), torch.nn.Sequential(Layer(lambda h, y: torch.neg(torch.neg(x))))
    with amanda.apply(SubgraphRewriting(["neg", "neg"], lambda inner, outer: inner.self.view(3))):
        model(torch.ones(4))
        with pytest.raises(
            amanda.Error, match=r"returned a tensor that shares memory with an input; return result\.clone"
        ):
            model(torch.ones(4))


def test_an_input_that_the_match_makes_is_no_attribute(says):
    rewriting, layer, x = SubgraphRewriting(LINEAR_GELU, lambda linear, gelu: gelu.self), Layer(), torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x)
        with says(
            AttributeError, "[rewriting] aten::gelu has no input 'self' from outside the match; it has approximate"
        ):
            layer(x)


# ---- results and the example ------------------------------------------------------------------------------------------


def test_rows_tell_which_operators_run_as_one():
    layer, rewriting, ids = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), []
    watch = amanda.Tool()
    watch.add_inst_for_op(lambda context: ids.append(context.op_id), ops=["linear", "gelu"])
    model = torch.nn.Sequential(layer)
    with amanda.apply(watch, rewriting):
        for _ in range(3):
            model(torch.randn(3, 4))
    (row,) = rewriting.rows()
    assert (row.name, row.module_path) == ("aten::linear > aten::gelu", "0")
    assert row.source.partition(":")[0].endswith("test_rewriting_tool.py")
    assert row.op_ids == tuple(ids)
    assert row.op_id == ids[-1]
    assert (row.rewritten, row.kept, row.why) == (2, 0, "")
    rewriting.reset()
    assert rewriting.rows() == []


@pytest.mark.slow
def test_the_example_prints_what_was_rewritten(run_example):
    printed = run_example("rewrite_attention.py")
    assert re.search(r"6 matches", printed)
