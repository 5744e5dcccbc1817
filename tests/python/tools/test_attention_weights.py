"""Attention weights that Capture computes: compared with those of transformers' own attention, and with the operator's
result."""

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.capture import Capture, Patch, load
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}


def of_each_kind(model_class, config):
    """A model with sdpa, and the same one with attention that returns its weights."""
    torch.manual_seed(0)
    fused, written = (
        model_class._from_config(copy.deepcopy(config), attn_implementation=kind).eval() for kind in ("sdpa", "eager")
    )
    written.load_state_dict(fused.state_dict())
    return fused, written


def test_a_padded_batch():
    fused, written = of_each_kind(BertModel, BertConfig(**SIZES))
    ids = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    arguments = {"input_ids": ids, "attention_mask": (torch.arange(7) < torch.tensor([[7], [4]])).long()}
    capture = Capture(names="*:attention_weights")
    with torch.no_grad(), amanda.apply(capture):
        fused(**arguments)
    expected = written(**arguments, output_attentions=True).attentions
    assert list(capture) == [f"encoder.layer.{i}.attention.self:attention_weights" for i in range(2)]
    torch.testing.assert_close(list(capture.values()), list(expected))


def test_generated_tokens_with_grouped_queries_and_a_cache():
    fused, written = of_each_kind(LlamaForCausalLM, LlamaConfig(**SIZES, num_key_value_heads=2, eos_token_id=None))
    ids = torch.randint(2, 50, (1, 7), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    capture = Capture(ops=amanda.ops.attention, modules="model.layers.0.self_attn", runs="all")
    with torch.no_grad(), amanda.apply(capture):
        fused.generate(ids, **options)
    expected = [step[0] for step in written.generate(ids, output_attentions=True, **options).attentions]
    kept = capture.runs("model.layers.0.self_attn:attention_weights")
    assert [tuple(each.shape) for each in kept.values()] == [(1, 4, 7, 7), (1, 4, 1, 8), (1, 4, 1, 9)]
    torch.testing.assert_close(list(kept.values()), expected)


def added(queries, keys):
    return torch.randn(queries, keys, generator=torch.Generator().manual_seed(2))


CASES = {
    "plain": lambda: {},
    "causal": lambda: {"is_causal": True},
    "causal, fewer queries": lambda: {"is_causal": True, "queries": 3},
    "booleans": lambda: {"attn_mask": added(5, 6) > 0},
    "a row without keys": lambda: {"attn_mask": (torch.arange(5) != 2)[:, None].expand(5, 6)},
    "added": lambda: {"attn_mask": added(5, 6)},
    "scale": lambda: {"scale": 0.3},
    "grouped queries": lambda: {"enable_gqa": True, "heads": 2},
    "half": lambda: {"dtype": torch.bfloat16, "is_causal": True},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_their_product_with_the_values_is_the_result(case, compiled):
    options = CASES[case]()
    dtype, heads, queries = (
        options.pop(key, default) for key, default in (("dtype", None), ("heads", 4), ("queries", 5))
    )
    drawn = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, queries, 8, generator=drawn, dtype=dtype)
    key, value = (torch.randn(2, heads, 6, 8, generator=drawn, dtype=dtype) for _ in range(2))

    def attend(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **options)

    run = torch.compile(attend, backend="aot_eager") if compiled else attend
    capture = Capture(ops="scaled_dot_product_attention")
    with amanda.apply(capture):
        result = run(query, key, value)
    weights = capture[":attention_weights"]
    assert weights.dtype == query.dtype
    close = {"atol": 2e-2, "rtol": 2e-2} if dtype else {}
    torch.testing.assert_close(weights @ value.repeat_interleave(4 // heads, 1), result, **close)
    rows = weights.float().sum(-1)
    assert torch.allclose(rows, torch.where(rows == 0, 0.0, 1.0), atol=1e-2)
    assert bool((rows == 0).any()) == (case == "a row without keys")


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
EXPECTED = (X @ X.transpose(-2, -1) / 2).softmax(-1)


def captured(x=X, **options):
    capture = Capture(**options)
    with amanda.apply(capture):
        nn.Sequential(Attends())(x)
    return capture


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["scaled_dot_product_attention"]),
        ({"names": "0"}, ["scaled_dot_product_attention"]),
        ({"names": "0:scaled_dot_product_attention"}, ["scaled_dot_product_attention"]),
        ({"ops": amanda.ops.attention}, ["attention_weights", "scaled_dot_product_attention"]),
        ({"names": "0:*"}, ["attention_weights", "scaled_dot_product_attention"]),
        ({"names": "*:attention_weights"}, ["attention_weights"]),
    ],
)
def test_they_are_kept_if_they_are_asked_for(options, names):
    capture = captured(**options)
    assert list(capture) == [f"0:{name}" for name in names]
    if "scaled_dot_product_attention" in names:
        assert torch.equal(capture["0"], Attends()(X))  # the module's path stands for results


def test_they_are_of_the_operands_as_they_were():
    x = X.clone()
    capture = captured(x, names="0:attention_weights")
    x.zero_()
    torch.testing.assert_close(capture["0:attention_weights"], EXPECTED)
    (row,) = capture.rows()
    assert (row.shape, row.bytes, row.dtype) == ("[2, 3, 3]", 2 * X.nbytes, "float32")  # query and key


def test_files_have_the_weights(tmp_path):
    captured(names="0:attention_weights", folder=tmp_path / "kept", dtype=torch.float64)
    torch.testing.assert_close(load(tmp_path / "kept")["0:attention_weights"], EXPECTED.double(), check_dtype=False)


def test_patch_takes_the_results_alone():
    capture, model = captured(ops=amanda.ops.attention), nn.Sequential(Attends())
    with amanda.apply(Patch(capture)):
        assert torch.equal(model(torch.zeros_like(X)), Attends()(X))


def test_inside_a_transformation_they_are_skipped():
    capture = Capture(names="*:attention_weights")
    with amanda.apply(capture):
        torch.func.vmap(Attends())(X[None])
    assert not list(capture)
    assert capture.skipped == {"transformed": 1}
