"""Operators with out= arguments, which hold the edited values."""

import amanda
import torch
from by_hand import edit


def test_an_out_argument_holds_the_edited_value(before, after):
    x, out = torch.ones(2), torch.empty(2)
    with amanda.apply(after("add", edit)):
        assert torch.add(x, x, out=out) is out
        assert out.tolist() == [5.0, 5.0]
    with amanda.apply(before("add", edit, ["self"])):
        assert torch.add(x, x, out=out) is out
        assert out.tolist() == [4.0, 4.0]
    assert x.tolist() == [1.0, 1.0]


def test_an_out_argument_may_grow(after):
    x, out = torch.ones(2), torch.empty(0)
    with amanda.apply(after("add", lambda y: torch.cat([y, y]))):
        torch.add(x, x, out=out)
    assert out.tolist() == [2.0] * 4


def test_one_of_several_out_arguments_is_edited(after):
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
    with amanda.apply(after("max", lambda values, indices: (values * 10, None))):
        result = torch.max(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), 1, out=(values, indices))
    assert (values.tolist(), indices.tolist()) == ([20.0, 40.0], [1, 0])
    assert result.values is values


def test_a_replacement_fills_the_out_argument(replace):
    x, out = torch.ones(2), torch.empty(2)
    with amanda.apply(replace("add", lambda *inputs: torch.full((2,), 7.0))):
        assert torch.add(x, x, out=out) is out
    assert out.tolist() == [7.0, 7.0]


def test_all_edited_results_reach_their_out_tensors(after):
    x, values, indices = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.empty(2), torch.empty(2, dtype=torch.long)
    with amanda.apply(after("max", lambda v, i: (v * 0 + 7, i * 0 + 7))):
        torch.max(x, 1, out=(values, indices))
    assert values.tolist() == [7, 7]
    assert indices.tolist() == [7, 7]
