"""CascadePruning: BERT and ALBERT without the tokens, by hand; training against a module that does the same.

Equal means torch.equal, on every tensor.
"""

import contextlib
import math
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
import zoo
from amanda.research.pruning import CascadePruning
from attention_models import HEADS, SIZES, TOKENS, albert, bert, pair, share, train, used
from equal_tensors import same
from tool_regimes import REGIMES, in_regime

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small

# ---- library models, against a forward pass that really drops the tokens ---------------------------------------------


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


# ---- training, against a module that does the same -------------------------------------------------------------------


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


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_examples_encoder_keeps_the_words_that_matter(run_example):
    printed = run_example("prune_tokens.py")
    rows = re.findall(r"^ +(\d+)% +(\d\.\d+) +(\d\.\d+)$", printed, flags=re.MULTILINE)
    assert [share for share, _, _ in rows] == ["90", "70", "50", "30", "20"]
    pruned, cut = ([float(row[column]) for row in rows] for column in (1, 2))
    assert all(one > other for one, other in zip(pruned, cut, strict=True))
    assert pruned == sorted(pruned, reverse=True)
    assert pruned[0] > 0.98
