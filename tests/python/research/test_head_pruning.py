"""HeadPruning: training against models with zeros in front of the output projection.

Equal means torch.equal, on every tensor.
"""

import contextlib
import copy

import amanda
import pytest
import torch
from amanda.research.pruning import CascadePruning, HeadPruning
from attention_models import SIZES, TOKENS, Encoder, albert, bert, gradients_of, train, used
from equal_tensors import same
from tool_regimes import REGIMES, in_regime

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small

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
