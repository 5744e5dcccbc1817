"""CascadePruning and HeadPruning: BERT and ALBERT without the tokens, by hand; training against modules that do the same.

Equal means torch.equal, on every tensor.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import contextlib
import copy
import math
import re
import threading
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
import zoo
from amanda.research.pruning import AttentionPruning, CascadePruning, HeadPruning
from tool_regimes import REGIMES, in_regime
from torch.utils.checkpoint import checkpoint

TOKENS, HEADS = [0.9, 0.7, 0.45], [1, 0.7, 0.4]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    yield
    torch.set_num_threads(before)


def share(shares, layer):
    return shares if isinstance(shares, float) else shares[min(layer, len(shares) - 1)]


def same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


# ---- library models, against a forward pass that really drops the tokens ----------------------------------------------

SIZES = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 99,
    "hidden_dropout_prob": 0.0,
}
SIZES |= {"num_hidden_layers": 5, "attention_probs_dropout_prob": 0.0}


def bert(**options):
    return transformers.BertModel(transformers.BertConfig(**SIZES, **options)).double()


def albert(**options):
    config = transformers.AlbertConfig(**SIZES, embedding_size=12, **options)
    return transformers.AlbertModel(config).double()


def albert_of_two():
    return albert(inner_group_num=2)


def layers_of(model):
    """By hand: functions of a sample's tokens to query, key and value; and of its heads' outputs to the layer's."""
    if isinstance(model, transformers.BertModel):
        for layer in model.encoder.layer:
            own, output = layer.attention.self, layer.attention.output

            def rest(x, y, layer=layer, output=output):
                y = output.LayerNorm(output.dense(y) + x)
                return layer.output.LayerNorm(layer.output.dense(F.gelu(layer.intermediate.dense(y))) + y)

            yield own.query, own.key, own.value, rest
        return
    group = model.encoder.albert_layer_groups[0].albert_layers
    for _ in range(SIZES["num_hidden_layers"]):
        for layer in group:
            own = layer.attention

            def rest(x, y, layer=layer, own=own):
                y = own.LayerNorm(x + own.dense(y))
                return layer.full_layer_layer_norm(layer.ffn_output(layer.activation(layer.ffn(y))) + y)

            yield own.query, own.key, own.value, rest


def drops_tokens(model, ids, tokens, heads):
    """The last hidden states of one sample's tokens that stay, with their positions, and of which heads."""
    x = model.embeddings(ids[None])[0]
    if isinstance(model, transformers.AlbertModel):
        x = model.encoder.embedding_hidden_mapping_in(x)
    count, positions, living = len(ids), list(range(len(ids))), list(range(4))
    attended, magnitude = dict.fromkeys(positions, 0.0), dict.fromkeys(living, 0.0)
    for layer, (query, key, value, rest) in enumerate(layers_of(model)):
        outputs = []
        for head in range(4):
            part = slice(6 * head, 6 * head + 6)
            q, k, v = (project(x)[:, part] for project in (query, key, value))
            probabilities = (q @ k.T / math.sqrt(6)).softmax(1)
            output = probabilities @ v
            outputs.append(output if head in living else torch.zeros_like(output))
            if head in living:
                magnitude[head] += output.abs().sum().item()
                for column, position in enumerate(positions):
                    attended[position] += probabilities[:, column].sum().item()
        x = rest(x, torch.cat(outputs, 1))
        most = sorted(positions, key=lambda position: -attended[position])[: math.ceil(share(tokens, layer) * count)]
        stay = [row for row, position in enumerate(positions) if position in most]
        x, positions = x[stay], [positions[row] for row in stay]
        living = sorted(living, key=lambda head: -magnitude[head])[: math.ceil(share(heads, layer) * 4)]
    return x, positions


@pytest.mark.parametrize("written", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [bert, albert, albert_of_two])
def test_the_tokens_that_stay_are_as_if_the_others_were_gone(make, written):
    model = make().eval()
    model.set_attn_implementation(written)
    ids = torch.randint(3, 99, (3, 11))
    lengths = [11, 7, 4]
    padding = torch.tensor([[int(token < length) for token in range(11)] for length in lengths])
    pruning = CascadePruning(TOKENS, HEADS)
    with amanda.apply(pruning):
        model(torch.randint(3, 99, (2, 6)))  # another pass, with other tokens
        found = model(ids, attention_mask=padding).last_hidden_state
    gradients = torch.autograd.grad(found[pruning.kept_tokens].square().sum(), used(model))
    loss = 0
    for sample, length in enumerate(lengths):
        expected, positions = drops_tokens(model, ids[sample, :length], TOKENS, HEADS)
        assert pruning.kept_tokens[sample].nonzero()[:, 0].tolist() == positions
        assert len(positions) == math.ceil(0.45 * length)
        torch.testing.assert_close(found[sample, positions], expected, rtol=1e-10, atol=1e-12)
        loss = loss + expected.square().sum()
    for gradient, other in zip(gradients, torch.autograd.grad(loss, used(model)), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-11)


def used(model):
    return [parameter for name, parameter in model.named_parameters() if "pooler" not in name]


def test_a_padding_mask_may_be_additive():
    model, ids = bert().eval(), torch.randint(3, 99, (2, 9))
    padding = torch.ones(2, 9).long()
    padding[0, 5:] = 0
    results = []
    for mask in (padding, (1 - padding.double())[:, None, None] * -10000):
        pruning = CascadePruning(TOKENS)
        model.set_attn_implementation("eager")
        with amanda.apply(pruning):
            results.append(model(ids, attention_mask=mask).last_hidden_state[padding.bool()])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("written", ["sdpa", "eager"])
def test_under_a_causal_mask_nothing_is_nan(written):
    model, _ = zoo.gpt2()
    model.set_attn_implementation(written)
    ids, padding = torch.randint(3, 99, (2, 7)), torch.ones(2, 7).long()
    padding[1, :3] = 0
    pruning = CascadePruning(0.4)
    with amanda.apply(pruning):
        loss = model(ids, attention_mask=padding, labels=ids, use_cache=False).loss
        loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert pruning.kept_tokens.sum(1).tolist() == [3, 2]


def test_other_library_models_run():
    for make in (zoo.vit, zoo.distilbert, zoo.llama, zoo.gemma, zoo.opt):
        model, inputs = make()
        pruning = CascadePruning(0.5, 0.5)
        with amanda.apply(pruning):
            result = model(**inputs, **({"use_cache": False} if hasattr(model, "lm_head") else {}))
        assert all(value.isfinite().all() for value in result.values() if isinstance(value, torch.Tensor))
        assert [row.heads_kept / row.heads for row in pruning.rows()] == [1, 0.5]


# ---- training, against a module that does the same --------------------------------------------------------------------


class Attention(torch.nn.Module):
    def __init__(self, fused, causal):
        super().__init__()
        self.fused, self.causal = fused, causal
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def heads(self, x):
        return (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.heads(x)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.mT * 0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
            y = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Encoder(torch.nn.Module):
    """Layers of attention, each its own or all the same one."""

    def __init__(self, fused=True, shared=False, causal=False, layers=4):
        super().__init__()
        made = [Attention(fused, causal) for _ in range(1 if shared else layers)]
        self.layers = torch.nn.ModuleList(made * layers if shared else made)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class PrunedEncoder(Encoder):
    """The oracle: the rule of CascadePruning, written into the module."""

    def forward(self, x):
        batch, count, _ = x.shape
        tokens, heads = torch.ones(batch, count).bool(), torch.ones(batch, 4).bool()
        attended, magnitude = torch.zeros(batch, count), torch.zeros(batch, 4)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.heads(x)
            scores = q @ k.mT * 0.5
            triangle = torch.ones(count, count).tril().bool()
            visible = tokens[:, None, None, :] & (triangle if layer.causal else torch.ones(1, 1).bool())
            if layer.causal:
                scores = scores.masked_fill(~triangle, -math.inf)
            if index:
                scores = scores.masked_fill(~tokens[:, None, None, :], torch.finfo(torch.float32).min / 2)
            probabilities = scores.softmax(-1)
            if not layer.fused:
                y = F.dropout(probabilities, 0.1, self.training) @ v
            elif index:
                y = F.scaled_dot_product_attention(q, k, v, visible)
            else:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=layer.causal)
            there = tokens[:, None, :, None] & heads[:, :, None, None]
            attended = attended + probabilities.detach().where(there, 0).sum((1, 2))
            magnitude = magnitude + y.detach().abs().where(tokens[:, None, :, None], 0).sum((2, 3))
            y = y.where(heads[:, :, None, None], 0)
            tokens = self.best(attended, tokens, math.ceil(share(TOKENS, index) * count))
            heads = self.best(magnitude, heads, math.ceil(share(HEADS, index) * 4))
            x = x + layer.out(y.transpose(1, 2).flatten(2))
        self.tokens = tokens
        return x

    def best(self, importance, living, count):
        kept = torch.zeros_like(living)
        for sample, row in enumerate(importance):
            there = living[sample].nonzero()[:, 0].tolist()
            for one in sorted(there, key=lambda one, row=row: -row[one].item())[:count]:
                kept[sample, one] = True
        return kept


def pair(**options):
    model = Encoder(**options)
    oracle = PrunedEncoder(**options)
    oracle.load_state_dict(model.state_dict())
    return model, oracle


def train(run, model, inputs):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
    for x in inputs:
        torch.manual_seed(len(losses))
        optimizer.zero_grad()
        losses.append(run(x).square().mean())
        losses[-1].backward()
        optimizer.step()
    return [loss.detach() for loss in losses]


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("shared", [False, True], ids=["own layers", "one layer"])
@pytest.mark.parametrize("fused", [False, True], ids=["written out", "fused"])
def test_twenty_steps_are_those_of_a_module_by_hand(fused, shared, causal):
    model, oracle = pair(fused=fused, shared=shared, causal=causal)
    inputs = torch.randn(20, 3, 9, 16)
    expected = train(oracle, oracle, inputs)
    pruning = CascadePruning(TOKENS, HEADS)
    with amanda.apply(pruning):
        losses = train(model, model, inputs)
    same(losses, expected)
    same(model.parameters(), oracle.parameters())
    assert torch.equal(pruning.kept_tokens, oracle.tokens)


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("fused", [False, True], ids=["written out", "fused"])
def test_it_works_in_every_regime(name, fused):
    model, oracle = pair(fused=fused, shared=True)
    model.eval(), oracle.eval()
    x = torch.randn(3, 9, 16)
    eager = contextlib.nullcontext(oracle)  # in a scope, compiled code runs eagerly
    with eager if name == "compiled code" else in_regime(name, oracle) as run:
        expected = run(x)
        expected.float().square().sum().backward()
    pruning = CascadePruning(TOKENS, HEADS)
    with in_regime(name, model) as run, amanda.apply(pruning):
        found = run(x)
        found.float().square().sum().backward()
    if name == "autocast":  # the oracle's probabilities have fewer digits
        assert [row.tokens_kept for row in pruning.rows()] == [27, 27, 21, 15]
        assert found.isfinite().all()
        return
    same([found, *(p.grad for p in model.parameters())], [expected, *(p.grad for p in oracle.parameters())])
    assert [row.samples for row in pruning.rows()] == [3] * 4  # a recomputation does not count


# ---- what a pass is --------------------------------------------------------------------------------------------------


def gradients_of(model, run, *inputs):
    model.zero_grad()
    sum(run(x).square().sum() for x in inputs).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


class Checkpointed(Encoder):
    """Each layer is a checkpoint, or two layers, with one inside the other."""

    reentrant = False
    nested = False

    def forward(self, x):
        for one, two in zip(self.layers[::2], self.layers[1::2], strict=True):
            if self.nested:
                x = self.checkpointed(
                    lambda x, one=one, two=two: self.step(two, self.checkpointed(self.step, one, x)), x
                )
            else:
                x = self.checkpointed(self.step, two, self.checkpointed(self.step, one, x))
        return x

    def step(self, layer, x):
        return x + layer(x)

    def checkpointed(self, function, *inputs):
        return checkpoint(function, *inputs, use_reentrant=self.reentrant)


@pytest.mark.parametrize("nested", [False, True], ids=["side by side", "nested"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
@pytest.mark.parametrize("shared", [False, True], ids=["own layers", "one layer"])
def test_a_layer_is_recomputed_with_its_tokens(shared, reentrant, nested):
    model = Encoder(shared=shared)
    recomputing = Checkpointed(shared=shared)
    recomputing.load_state_dict(model.state_dict())
    recomputing.reentrant, recomputing.nested = reentrant, nested
    inputs = [torch.randn(3, 9, 16).requires_grad_() for _ in range(2)]  # two passes before the first is recomputed
    with amanda.apply(CascadePruning(TOKENS, HEADS)):
        expected = gradients_of(model, model, *inputs)
        found = gradients_of(recomputing, recomputing, *inputs)
    same(found, expected)


def test_a_graph_that_runs_backward_twice_is_recomputed_twice():
    model = Checkpointed(shared=True)
    x = torch.randn(3, 9, 16)
    with amanda.apply(CascadePruning(TOKENS, HEADS)):
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        first = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        loss.backward()
    same([parameter.grad for parameter in model.parameters()], first)


def test_library_models_with_gradient_checkpointing():
    model, ids, found = bert(), torch.randint(3, 99, (2, 8)), []  # ALBERT has none
    for reentrant in (None, False, True):
        model.zero_grad()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        with amanda.apply(CascadePruning(TOKENS, HEADS)):
            model.train()(ids).last_hidden_state.square().sum().backward()
        found.append([parameter.grad for parameter in used(model)])
    same(found[1], found[0])
    same(found[2], found[0])


def test_a_model_that_is_called_twice_inside_another_is_named():
    class Siamese(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder(shared=True)

        def forward(self, pair):
            return [self.encoder(x) for x in pair]

    siamese, x, y = Siamese(), torch.randn(2, 9, 16), torch.randn(2, 9, 16)
    with amanda.apply(CascadePruning(TOKENS)):
        expected = [siamese.encoder(x), siamese.encoder(y)]
    pruning = CascadePruning(TOKENS, model=siamese.encoder)
    with amanda.apply(pruning):
        same(siamese((x, y)), expected)
    assert [row.layer for row in pruning.rows()] == [0, 1, 2, 3]
    assert pruning.kept_tokens.sum(1).tolist() == [5, 5]
    merged = CascadePruning(TOKENS)
    with amanda.apply(merged):
        assert not torch.equal(siamese((x, y))[1], expected[1])
    assert [row.layer for row in merged.rows()] == list(range(8))


def test_without_modules_a_pass_is_an_entry_of_the_scope():
    def program(x):
        for _ in range(3):
            x = F.scaled_dot_product_attention(x, x, x)
        return x

    x, pruning = torch.randn(2, 2, 5, 4), CascadePruning(0.5)
    with amanda.apply(pruning):
        first = program(x)
    with amanda.apply(pruning):
        same([program(x)], [first])
    assert [(row.layer, row.tokens_kept) for row in pruning.rows()] == [(0, 20), (1, 12), (2, 12)]


def test_an_exception_ends_a_pass():
    model, x = Encoder(shared=True), torch.randn(2, 9, 16)
    with amanda.apply(CascadePruning(TOKENS)):
        expected = model(x)
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 9, 15))
        handle = model.layers[0].out.register_forward_pre_hook(lambda module, inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x)
        handle.remove()
        same([model(x)], [expected])


def test_threads_and_scopes_do_not_mix():
    model, inputs = Encoder(shared=True).eval(), torch.randn(4, 2, 9, 16)
    pruning, found, barrier = CascadePruning(TOKENS, HEADS), {}, threading.Barrier(4)
    with amanda.apply(pruning):
        expected = [model(x) for x in inputs]

    def run(index):
        with amanda.apply(pruning), torch.no_grad():
            barrier.wait()
            for _ in range(5):
                found[index] = model(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same([found[index] for index in range(4)], expected)
    with amanda.apply(pruning), amanda.apply(pruning):
        same([model(inputs[0])], expected[:1])
        with amanda.apply(pruning):
            same([model(inputs[1])], expected[1:2])
    assert sum(row.samples for row in pruning.rows()) == 4 * (8 + 40 + 4)


# ---- nothing to prune ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True], ids=["written out", "fused"])
def test_whoever_keeps_all_changes_nothing(fused):
    model, x = Encoder(fused=fused).eval(), torch.randn(2, 9, 16)
    expected = [model(x), *gradients_of(model, model, x)]
    for pruning in (CascadePruning(), HeadPruning({})):
        with amanda.apply(pruning):
            same([model(x), *gradients_of(model, model, x)], expected)
        assert [row.tokens_kept for row in pruning.rows()] == [36] * 4


def test_scale_bias_and_shared_keys_are_those_of_attention_written_out():
    x, bias = torch.randn(2, 4, 9, 8).double(), torch.randn(4, 9, 9).double()

    def fused(x):
        for _ in range(3):
            x = F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], bias, scale=0.9, enable_gqa=True)
        return x

    def written_out(x):
        for _ in range(3):
            shared = x[:, :2].repeat_interleave(2, 1)
            x = (x @ shared.mT * 0.9 + bias).softmax(-1) @ shared
        return x

    found, kept = [], []
    for program in (fused, written_out):
        pruning = CascadePruning(TOKENS, HEADS)
        with amanda.apply(pruning):
            found.append(program(x))
        kept.append(pruning.kept_tokens)
    assert torch.equal(*kept)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_probabilities_that_are_used_again_are_one_layer():
    x, pruning = torch.randn(2, 2, 5, 5), HeadPruning({0: [0]})
    with amanda.apply(pruning):
        probabilities = (x @ x.mT).softmax(-1)
        first, again = probabilities @ x, probabilities @ x
    assert [row.layer for row in pruning.rows()] == [0]
    assert torch.equal(first[:, 1], again[:, 1])
    assert not first[:, 0].any()
    assert again[:, 0].all()


def test_other_softmaxes_and_products_are_left_alone():
    images, weight = torch.randn(2, 3, 4, 5), torch.randn(5, 6)
    pruning = CascadePruning(0.5)
    with amanda.apply(pruning), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [images.softmax(1), images.softmax(-1), images @ weight, images[:, 0] @ weight]
    same(found, [images.softmax(1), images.softmax(-1), images @ weight, images[:, 0] @ weight])
    assert pruning.rows() == []


# ---- heads -----------------------------------------------------------------------------------------------------------


PRUNED = {0: [1], 2: [0, 3]}


@pytest.mark.parametrize("written", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [bert, albert])
def test_heads_are_pruned_as_zeros_in_front_of_the_output_projection(make, written):
    model, inputs = make(), torch.randint(3, 99, (20, 2, 8))
    model.set_attn_implementation(written)
    oracle, calls = copy.deepcopy(model), []
    for name, module in oracle.named_modules():
        if name.endswith(("attention.dense", "attention.output.dense")):

            def zero(module, inputs):
                (x,) = inputs
                heads = PRUNED.get(len(calls) % SIZES["num_hidden_layers"], [])
                calls.append(heads)
                kept = torch.tensor([head not in heads for head in range(4)]).repeat_interleave(6)
                return x.where(kept, 0)

            module.register_forward_pre_hook(zero)
    expected = train(lambda ids: oracle(ids).last_hidden_state, oracle, inputs)
    pruning = HeadPruning(PRUNED)
    with amanda.apply(pruning):
        losses = train(lambda ids: model(ids).last_hidden_state, model, inputs)
    same(losses, expected)
    same(used(model), used(oracle))
    assert [(row.layer, row.heads, row.heads_kept) for row in pruning.rows()] == [
        (0, 160, 120),
        (1, 160, 160),
        (2, 160, 80),
        (3, 160, 160),
        (4, 160, 160),
    ]


@pytest.mark.parametrize("name", REGIMES)
def test_heads_are_pruned_in_every_regime(name):
    model, x = Encoder(shared=True), torch.randn(2, 9, 16)
    oracle, calls = copy.deepcopy(model), []

    def zero(module, inputs):
        calls.append(PRUNED.get(len(calls), []))
        kept = torch.tensor([head not in calls[-1] for head in range(4)]).repeat_interleave(4)
        return inputs[0].where(kept, 0)

    oracle.layers[0].out.register_forward_pre_hook(zero)
    eager = contextlib.nullcontext(oracle)  # in a scope, compiled code runs eagerly; and the hook counts calls
    with eager if name in ("compiled code", "checkpointing") else in_regime(name, oracle) as run:
        expected = gradients_of(oracle, run, x)
    with in_regime(name, model) as run, amanda.apply(HeadPruning(PRUNED)):
        same(gradients_of(model, run, x), expected)


def test_tools_of_attention_can_be_used_together():
    model, x = Encoder(), torch.randn(2, 9, 16)
    with amanda.apply(CascadePruning(TOKENS)):
        cascade = model(x)
    with amanda.apply(CascadePruning(TOKENS), HeadPruning({3: [0, 1, 2, 3]})):
        both = model(x)
    assert not torch.equal(both, cascade)
    with amanda.apply(HeadPruning(dict.fromkeys(range(4), range(4)))):
        nothing = model(x)
    expected = x
    for layer in model.layers:
        expected = expected + layer.out.bias
    torch.testing.assert_close(nothing, expected)


# ---- results ---------------------------------------------------------------------------------------------------------


def test_rows_are_layers():
    model, x = Encoder(shared=True), torch.randn(2, 9, 16)
    pruning = CascadePruning(TOKENS, HEADS)
    with amanda.apply(pruning):
        for _ in range(3):
            model(x)
    rows = [(row.layer, row.samples, row.tokens, row.tokens_kept, row.heads, row.heads_kept) for row in pruning.rows()]
    assert rows == [(0, 6, 54, 54, 24, 24), (1, 6, 54, 54, 24, 24), (2, 6, 54, 42, 24, 18), (3, 6, 54, 30, 24, 12)]
    assert {(row.name, row.module_path) for row in pruning.rows()} == {
        ("aten::scaled_dot_product_attention", "layers.0")
    }
    pruning.reset()
    assert pruning.rows() == []


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [0, 1.5, -1.0, math.nan, "half", [], [0.5, 0], None])
def test_what_stays_is_a_share(shares, says):
    for what in ("tokens", "heads"):
        message = f"[pruning] {what} is the share of {what} that stays, above 0 and up to 1, or one for each layer; "
        with says(ValueError, f"{message}got {shares!r}"):
            CascadePruning(**{what: shares})


def test_misuse_is_told(says):
    with says(TypeError, "[pruning] heads maps layers to lists of heads; write {0: [1]}"):
        HeadPruning({0: 1})
    with says(TypeError, "[pruning] heads maps layers to the heads to prune, such as {0: [2, 5]}; got [0]"):
        HeadPruning([0])
    with says(ValueError, "[pruning] layers and heads are numbers from 0 on, got -1"):
        HeadPruning({0: [-1]})
    with says(ValueError, "[pruning] layers and heads are numbers from 0 on, got 'encoder'"):
        HeadPruning({"encoder": [0]})
    with says(TypeError, "[pruning] model= is the module of which one call is one pass, got 'encoder'"):
        CascadePruning(0.5, model="encoder")
    message = "[pruning] kept_tokens is of the last pass, and no attention has run in one on this thread"
    with says(amanda.Error, message):
        CascadePruning(0.5).kept_tokens  # noqa: B018
    with says(NotImplementedError, "[pruning] Own has no after"):

        class Own(AttentionPruning):
            def __init__(self):
                super().__init__(type(CascadePruning()._passes.last), 0, None, None)

        with amanda.apply(Own()):
            Encoder()(torch.randn(1, 9, 16))


def test_a_head_or_a_layer_that_is_not_there_is_refused(says):
    model, x = Encoder(), torch.randn(1, 9, 16)
    with says(amanda.Error, "[pruning] layer 1 has no head 4: its heads are 0 to 3"):
        with amanda.apply(HeadPruning({1: [4]})):
            model(x)
    message = "[pruning] layer 4 of tool 'HeadPruning' never ran: the passes had 4 layers of attention, 0 to 3"
    with says(amanda.Error, message):
        with amanda.apply(HeadPruning({4: [0]})):
            model(x)
    message = "[pruning] layer 4 of tool 'CascadePruning' never ran: the passes had 4 layers of attention, 0 to 3"
    with says(amanda.Error, message):
        with amanda.apply(CascadePruning([1, 1, 1, 1, 0.5])):
            model(x)


def test_attention_to_other_tokens_is_refused_and_can_be_left_out(says):
    model, inputs = zoo.t5()
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :4]
    inputs.pop("labels")
    with says(
        amanda.Error,
        "[pruning] attention over 4 tokens of 2 samples follows one over 7 of 2 in the same pass; "
        "choose one kind by modules=",
    ):
        with amanda.apply(CascadePruning(0.5)):
            model(**inputs)
    pruning = CascadePruning(0.5, modules="encoder")
    with amanda.apply(pruning):
        model(**inputs)
    assert [row.module_path.split(".")[0] for row in pruning.rows()] == ["encoder", "encoder"]
    x, y = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 5, 4)
    with says(
        amanda.Error,
        "[pruning] 1 queries attend to 5 keys; cascade pruning is for self-attention over all tokens: "
        "pass use_cache=False, or modules= to leave out attention to another sequence",
    ):
        with amanda.apply(CascadePruning(0.5)):
            F.scaled_dot_product_attention(x, y, y)


def test_a_program_without_attention_is_told():
    message = re.escape(
        "[pruning] tool 'CascadePruning' found no attention: no scaled_dot_product_attention, and no softmax"
    )
    with pytest.warns(amanda.UnmatchedFilterWarning, match=message) as caught:
        with amanda.apply(CascadePruning(0.5)):
            torch.randn(2, 3).softmax(-1) @ torch.randn(3, 4)
    assert caught[0].filename == __file__
    with pytest.warns(amanda.UnmatchedFilterWarning, match="matched nothing that ran"):
        with amanda.apply(CascadePruning(0.5)):
            torch.relu(torch.ones(2))


def test_a_layer_that_runs_as_one_operator_is_refused():
    layer, x = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    with pytest.raises(amanda.Error, match="is a whole layer in one operator"):
        with amanda.apply(HeadPruning({0: [0]})), torch.no_grad():
            layer(x)


def test_tensors_that_cannot_be_read_are_skipped():
    pruning, x = CascadePruning(0.5), torch.empty(1, 2, 3, 4, device="meta")
    with amanda.apply(pruning), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.scaled_dot_product_attention(x, x, x)
    assert pruning.skipped["meta"] > 0
    assert pruning.rows() == []


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_examples_encoder_keeps_the_words_that_matter(run_example):
    printed = run_example("prune_tokens.py")
    rows = re.findall(r"^ +(\d+)% +(\d\.\d+) +(\d\.\d+)$", printed, flags=re.MULTILINE)
    assert [share for share, _, _ in rows] == ["90", "70", "50", "30", "20"]
    pruned, cut = ([float(row[column]) for row in rows] for column in (1, 2))
    assert all(one > other for one, other in zip(pruned, cut, strict=True))
    assert pruned == sorted(pruned, reverse=True)
    assert pruned[0] > 0.98
