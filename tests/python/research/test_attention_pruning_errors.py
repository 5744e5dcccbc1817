"""Messages of the tools that prune attention: shares, layers, heads and programs that they refuse."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import math
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
import zoo
from amanda.research.pruning import AttentionPruning, CascadePruning, HeadPruning
from attention_models import Encoder

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


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
