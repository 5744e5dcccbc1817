"""NaNSentinel: masks of -inf are meant, unless a row has nothing else, or they come to what is no mask."""

import warnings

import amanda
import numpy as np
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel
from torch.nn import functional as F

SCORES = torch.zeros(4, 4)
HIDDEN = torch.ones(4, 4).triu(1).bool()


def found_in(program, **options):
    sentinel = NaNSentinel(action="warn", **{"inf": True, **options})
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        program()
    return sentinel


def filled():
    return SCORES.masked_fill(HIDDEN, -torch.inf)


def filled_in_place():
    return SCORES.clone().masked_fill_(HIDDEN, float("-inf"))


def chosen():
    return torch.where(HIDDEN, -torch.inf, SCORES)


def chosen_from_a_tensor():
    return torch.where(HIDDEN, torch.tensor(-torch.inf), SCORES)


def added():
    return SCORES + torch.full((4, 4), -torch.inf).triu(1)


def assigned():
    scores = SCORES.clone()
    scores[HIDDEN] = -torch.inf
    return scores


BUFFER = torch.full((4, 4), -torch.inf).triu(1)


def from_a_buffer():
    return (SCORES + BUFFER[:4, :4]).to(torch.bfloat16)


def of_the_least_number():
    mask = torch.full((4, 4), torch.finfo(torch.half).min, dtype=torch.half).triu(1)
    return SCORES.half() - 20 + mask


def of_groups():
    return torch.cat([filled(), SCORES], 1).view(4, 2, 4)[:, 0].unsqueeze(0).expand(2, 4, 4).contiguous()


MASKS = [
    filled,
    filled_in_place,
    chosen,
    chosen_from_a_tensor,
    added,
    assigned,
    from_a_buffer,
    of_the_least_number,
    of_groups,
]
READERS = [
    lambda scores: scores.softmax(-1) @ torch.ones(4, 3, dtype=scores.dtype),
    lambda scores: scores.log_softmax(-1).exp(),
    lambda scores: scores.logsumexp(-1),
    lambda scores: scores.max(-1).values,
    lambda scores: scores.amax((-1,)),
    lambda scores: scores.topk(1).values,
    lambda scores: scores.exp().sum(),
    lambda scores: torch.sigmoid(scores).sum(),
]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("reader", READERS)
def test_a_mask_that_leaves_an_element_in_each_row_is_no_finding(mask, reader):
    sentinel = found_in(lambda: reader(mask()))
    assert sentinel.findings() == []
    assert sentinel.masks
    count = len(sentinel.masks)
    told = f"infinities of masks, which {count} operator{'s' * (count > 1)} wrote or passed on, do not count"
    assert sentinel.answer().endswith(told)


def test_training_of_masked_attention_is_no_finding():
    def train(weights):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
        padding = torch.zeros(3, 5).masked_fill(torch.arange(5) == 4, -torch.inf)
        layer(torch.randn(5, 3, 8), src_mask=mask, src_key_padding_mask=padding).square().mean().backward()
        query = torch.randn(2, 2, 5, 8, requires_grad=True)
        F.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
        scores = query @ query.transpose(-1, -2) + mask
        scores.softmax(-1).matmul(query).sum().backward()
        del weights

    assert found_in(lambda: train(True)).findings() == []


ROWS = [
    ((slice(3, 8),), "rows 3 to 7 are wholly masked"),
    (([0, 2],), "rows 0 and 2 are wholly masked"),
    ((5,), "row 5 is wholly masked"),
    ((slice(None),), "all 10 rows are wholly masked"),
]


@pytest.mark.parametrize(("rows", "text"), ROWS)
@pytest.mark.parametrize("inf", [False, True])
def test_rows_that_are_wholly_masked_are_named_as_the_cause(rows, text, inf):
    hidden = np.eye(10, k=1, dtype=bool)  # and one element of the others
    hidden[rows] = True
    sentinel = found_in(
        lambda: torch.zeros(10, 10).masked_fill(torch.from_numpy(hidden), -torch.inf).softmax(-1), inf=inf
    )
    (found,) = sentinel.findings()
    assert (found.kind, found.name, found.cause) == ("produced", "aten::softmax", text)
    assert str(found).partition("\n")[0].split("; ")[1].startswith(f"{text}, by aten::masked_fill (")
    named = np.zeros(10, dtype=bool)
    named[rows] = True
    with np.errstate(invalid="ignore"):
        scores = np.where(hidden, -np.inf, np.zeros((10, 10)))
        exponents = np.exp(scores - scores.max(1, keepdims=True))
    assert (np.isnan(exponents).any(1) == named).all()


def test_rows_of_a_batch_are_named_with_it():
    hidden = torch.zeros(2, 3, 10, 10, dtype=torch.bool)
    hidden[1, :, 3:8] = hidden[..., 5] = True
    (found,) = found_in(lambda: torch.zeros(2, 3, 10, 10).masked_fill(hidden, -torch.inf).softmax(-1)).findings()
    assert found.cause == "rows 3 to 7 of [1, :] are wholly masked"
    assert found.chain[-1].result == "NaN at [1, :, 3:8, :], 150 of 600 elements"


def test_columns_are_columns():
    (found,) = found_in(lambda: torch.zeros(3, 3).index_fill(1, torch.tensor([2]), -torch.inf).softmax(0)).findings()
    assert found.cause == "column 2 is wholly masked"


@pytest.mark.parametrize("reader", [lambda s: s.logsumexp(-1), lambda s: s.amax(-1), lambda s: s.max(-1)])
def test_a_reduction_of_a_row_without_anything_else_is_a_finding(reader):
    (found,) = found_in(lambda: reader(SCORES.masked_fill(torch.eye(4)[:, :1].bool(), -torch.inf))).findings()
    assert (found.kind, found.cause) == ("produced", "row 0 is wholly masked")
    assert found_in(lambda: reader(SCORES.masked_fill(torch.eye(4)[:, :1].bool(), -torch.inf)), inf=False).first is None


# What comes of a mask and is none: a program, the operator that is named
MISUSES = [
    (lambda: F.nll_loss(filled().log_softmax(-1), torch.tensor([3, 0, 0, 0])), "aten::nll_loss_nd"),
    (lambda: filled().mean(), "aten::mean"),
    (lambda: filled().abs() @ torch.ones(4, 1), "aten::matmul"),
    (lambda: filled().log_softmax(-1)[0, 3:].sum(), "aten::sum"),
    (lambda: BUFFER.sum(), "aten::sum"),
    (lambda: filled()[0][HIDDEN[0] & (torch.arange(4) == 3)], "aten::index"),
]


@pytest.mark.parametrize(("program", "name"), MISUSES)
def test_what_computes_with_a_mask_as_if_it_were_none_is_named(program, name):
    found = found_in(program).first
    assert (found.kind, found.name) == ("given", name)
    held = "an input that no operator seen here produced" if found.origin.held else "the mask that aten::masked_fill ("
    assert f"was in {held}" in str(found)


def test_a_nan_that_comes_of_a_mask_leads_back_to_it():
    (found,) = found_in(lambda: filled() * 0, inf=False).findings()
    assert (found.name, [link.name for link in found.chain]) == ("aten::mul", ["aten::masked_fill", "aten::mul"])
    assert "; input self is infinite at 6 of 16 elements, by aten::masked_fill (" in str(found)


@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.zeros(4).log(),  # it could be one, and nobody wrote it
        lambda: torch.full((4,), 3e38) * -2,
        lambda: torch.nn.Parameter(BUFFER.clone()) + 1,
        lambda: SCORES + torch.tensor([torch.inf, 0.0, 0.0, 0.0]),
    ],
)
def test_other_infinities_are_findings(program):
    assert found_in(program).first is not None
