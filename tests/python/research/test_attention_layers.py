"""Operators that the tools that prune attention take for a layer, and those that they leave alone."""

import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.pruning import CascadePruning, HeadPruning
from attention_models import HEADS, TOKENS, Encoder, gradients_of
from equal_tensors import same

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


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


def test_tensors_that_cannot_be_read_are_skipped():
    pruning, x = CascadePruning(0.5), torch.empty(1, 2, 3, 4, device="meta")
    with amanda.apply(pruning), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.scaled_dot_product_attention(x, x, x)
    assert pruning.skipped["meta"] > 0
    assert pruning.rows() == []
