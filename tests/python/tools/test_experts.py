"""Three-dimensional weights, of mixtures of experts: pruned and quantized as by hand, whichever operators multiply."""

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research import LearnedStepQuantization
from amanda.research.pruning import TilewisePruning
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization, int8_activation
from mixture import WAYS, Experts
from pruned_by_hand import l1_mask, search_of_six
from torch.ao.quantization import MinMaxObserver, QConfig, default_dynamic_qconfig, per_channel_dynamic_qconfig

pytestmark = pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")  # torch's, of the oracle
each_way = pytest.mark.parametrize("way", WAYS)


def made(way):
    torch.manual_seed(0)
    return Experts(way), torch.randn(7, 8)


def masked_by(mask, experts, way):
    """The masks of the two weights. An operator that has one expert has that expert's mask."""
    each = (lambda weight: torch.stack([mask(one) for one in weight])) if way == "one_by_one" else mask
    return each(experts.up), each(experts.down)


def pruned_by_hand(experts, x, masks):
    model = copy.deepcopy(experts)
    result = WAYS[model.way](x, model.up * masks[0], model.down * masks[1])
    result.square().sum().backward()
    return result, model.up.grad, model.down.grad


def check(tool, experts, x, masks):
    expected = pruned_by_hand(experts, x, masks)
    with amanda.apply(tool):
        for _ in range(2):
            experts.zero_grad()
            result = experts(x)
            result.square().sum().backward()
            torch.testing.assert_close((result, experts.up.grad, experts.down.grad), expected)
    tool.apply_to(experts)
    assert torch.equal(experts.up != 0, masks[0].bool())
    assert torch.equal(experts.down != 0, masks[1].bool())
    torch.testing.assert_close(experts(x), result)


@each_way
def test_the_smallest_weights_of_each_operator_are_pruned(way):
    experts, x = made(way)
    check(MagnitudePruning(0.7), experts, x, masked_by(lambda weight: l1_mask(weight, 0.7), experts, way))


@each_way
def test_two_of_four_are_pruned_along_the_inputs_of_each_expert(way):
    experts, x = made(way)
    masks = [search_of_six(weight, -1) for weight in (experts.up, experts.down)]
    check(VectorwisePruning(), experts, x, masks)


@pytest.mark.parametrize("way", ["grouped", "batched", "broadcast", "summed"])
def test_tiles_are_cut_from_each_expert(way):
    """A row of a tile is an input of four outputs; all of them, of both weights, are ranked together."""
    experts, x = made(way)
    tool = TilewisePruning(0.5, tile=4)
    scores = [
        (weight[expert, begin : begin + 4, row].abs().double().mean().item(), name, expert, begin, row)
        for name, weight in (("up", experts.up), ("down", experts.down))
        for expert in range(3)
        for begin in range(0, weight.shape[1], 4)
        for row in range(weight.shape[2])
    ]
    masks = {"up": torch.ones_like(experts.up), "down": torch.ones_like(experts.down)}
    for _, name, expert, begin, row in sorted(scores)[: len(scores) // 2]:
        masks[name][expert, begin : begin + 4, row] = 0
    with amanda.apply(tool):
        experts(x)
        tool.rank()
        found = experts(x)
    torch.testing.assert_close(found, pruned_by_hand(experts, x, (masks["up"], masks["down"]))[0])


def test_a_loop_over_experts_has_a_row_with_all_of_them():
    experts, x = made("one_by_one")
    tool = MagnitudePruning(0.5)
    with amanda.apply(tool):
        experts(x)
    assert [(row.name, row.weights, row.pruned) for row in tool.rows()] == [("aten::linear", 384, 192)] * 2


EQUATIONS = {
    "bd,efd->ebf": (2, 1),
    "bd,df->bf": (0, 0),
    "b...d,fd->b...f": (1, 1),
    "bhd,hdm->bm": (1, 1),
    "bd,edf": (1, 1),
}


@pytest.mark.parametrize(("equation", "dim"), [(equation, dims[0]) for equation, dims in EQUATIONS.items()])
def test_einsum_sums_over_the_last_dimension_that_both_have(equation, dim):
    sizes = dict(zip("bdefhm", (3, 8, 2, 5, 4, 6), strict=True))
    left, right = (
        [sizes[letter] for letter in term.replace("...", "h")] for term in equation.partition("->")[0].split(",")
    )
    torch.manual_seed(0)
    x, weight = torch.randn(left), torch.nn.Parameter(torch.randn(right))
    with amanda.apply(VectorwisePruning()):
        found = torch.einsum(equation, x, weight)
    torch.testing.assert_close(found, torch.einsum(equation, x, weight * search_of_six(weight, dim)))


# ---- quantization ----------------------------------------------------------------------------------------------------


def dynamic_layer(qconfig):
    def run(x, weight):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = torch.nn.Parameter(weight.detach().clone())
        model = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), {torch.nn.Linear: qconfig})
        return model(x)

    return run


@pytest.mark.parametrize("qconfig", [default_dynamic_qconfig, per_channel_dynamic_qconfig])
@pytest.mark.parametrize("way", ["grouped", "batched", "broadcast"])
@torch.no_grad()
def test_each_expert_is_a_layer_of_quantize_dynamic(way, qconfig):
    experts, x = made(way)
    layer = dynamic_layer(qconfig)

    def both(rows, expert):
        return layer(layer(rows, experts.up[expert]).relu(), experts.down[expert])

    if way == "grouped":
        expected = torch.cat([both(x[:2], 0), both(x[2:], 2)])
    else:
        expected = torch.stack([both(x, expert) for expert in range(3)]).sum(0)
    tool = DynamicQuantization(qconfig)
    with amanda.apply(tool):
        found = [experts(x) for _ in range(2)]
    assert not torch.equal(found[0], experts(x))
    for each in found:
        assert torch.equal(each, expected)
    assert tool.unhandled == []
    assert tool.covered == (768, 768)


PRODUCTS = {
    "grouped": lambda x, weights: F.grouped_mm(x, weights.mT, offs=torch.tensor([2, 2, 7], dtype=torch.int32)),
    "batched": lambda x, weights: torch.bmm(x.expand(3, 7, 8), weights.mT),
    "broadcast": lambda x, weights: x @ weights.mT,
}


@pytest.mark.parametrize("name", PRODUCTS)
@torch.no_grad()
def test_static_kernels_of_all_experts_have_the_ranges_of_their_operator(name):
    """The kernels add integers, and round the sum once."""
    torch.manual_seed(0)
    weights, x, product = torch.nn.Parameter(torch.randn(3, 12, 8)), torch.randn(7, 8), PRODUCTS[name]
    activation = MinMaxObserver.with_args(quant_min=0, quant_max=127)
    weight = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    plain = product(x, weights)
    tool = StaticQuantization(QConfig(activation=activation, weight=weight))
    with amanda.apply(tool):
        for is_converted in (False, True):
            found = product(x, weights)
            if not is_converted:
                assert torch.equal(found, plain)
                tool.convert()
    exact = product(rounded(x, activation()), torch.stack([rounded(one, weight()) for one in weights]))
    expected = rounded(exact, activation(), seen=plain)
    step = next(row.scale.item() for row in tool.rows() if row.side == "output")
    assert (found - expected).abs().max() <= 1.01 * step
    assert (found - expected).abs().mean() < 0.01 * step
    assert tool.unhandled == []
    assert tool.covered == (288, 288)


def rounded(value, observer, seen=None):
    """To the integers of an observer that has seen it, or something else."""
    observer(value.detach() if seen is None else seen)
    scale, zero_point = observer.calculate_qparams()
    return torch.fake_quantize_per_tensor_affine(value, scale, zero_point.int(), observer.quant_min, observer.quant_max)


@torch.no_grad()
def test_rows_behind_the_last_group_are_zero():
    weights = torch.nn.Parameter(torch.randn(2, 8, 4))
    x, ends = torch.randn(5, 8), torch.tensor([1, 3], dtype=torch.int32)
    with amanda.apply(DynamicQuantization()):
        found = F.grouped_mm(x, weights, offs=ends)
    assert found.shape == (5, 4)
    assert not found[3:].any()


@torch.no_grad()
def test_experts_under_autocast_have_the_dtype_of_the_program():
    experts, x = made("grouped")
    for dtype in (torch.bfloat16, torch.float32):
        moved = copy.deepcopy(experts).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = moved(x.to(dtype)).dtype
            with amanda.apply(DynamicQuantization()):
                assert moved(x.to(dtype)).dtype == expected


def test_fake_quantization_rounds_both_factors():
    experts, x = made("grouped")
    with amanda.apply(FakeQuantization()):
        found = experts(x)
    ends = torch.tensor([2, 2, len(x)], dtype=torch.int32)
    hidden = F.grouped_mm(rounded(x, int8_activation()), rounded(experts.up.mT, int8_activation()), offs=ends).relu()
    torch.testing.assert_close(
        found, F.grouped_mm(rounded(hidden, int8_activation()), rounded(experts.down.mT, int8_activation()), offs=ends)
    )


def test_learned_steps_are_one_for_the_weight_of_all_experts():
    experts, x = made("grouped")
    tool = LearnedStepQuantization(bits=4)
    with amanda.apply(tool):
        experts(x).square().sum().backward()
    up = next(row for row in tool.rows() if row.position == "mat2")
    torch.testing.assert_close(up.scale, 2 * experts.up.detach().abs().mean() / 7**0.5)
    assert all(parameter.grad is not None for parameter in tool.parameters())
