"""SubgraphRewriting: torch.fx's fusion, modules fused by hand and the models' own attention against it.

Equal means torch.equal, on every tensor.
"""

import copy
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
import zoo
from amanda.tools.rewriting import SubgraphRewriting
from equal_tensors import same
from rewritten_layers import (
    LINEAR_GELU,
    OF_ALL,
    Layer,
    LinearGelu,
    Scaled,
    counts,
    fused,
    gelu_of,
    gradients,
    train,
    with_dropout,
)
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_weights

# ---- convolution and batch normalization, against torch.fx -----------------------------------------------------------


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


# ---- linear and GELU, against a module fused by hand -----------------------------------------------------------------


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


# ---- a gated layer, by hand ------------------------------------------------------------------------------------------


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


# ---- results and the example -----------------------------------------------------------------------------------------


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
    assert row.source.partition(":")[0].endswith("rewritten_layers.py")
    assert row.op_ids == tuple(ids)
    assert row.op_id == ids[-1]
    assert (row.rewritten, row.kept, row.why) == (2, 0, "")
    rewriting.reset()
    assert rewriting.rows() == []


@pytest.mark.long
def test_the_example_prints_what_was_rewritten(run_example):
    printed = run_example("rewrite_attention.py")
    assert re.search(r"6 matches", printed)
