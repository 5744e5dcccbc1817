"""What tools that edit weights say of the parameters that they leave as they are. The oracle is named_parameters()."""

import contextlib
import copy
import re
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research import LearnedStepQuantization
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import TilewisePruning
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization, int8_activation
from mixture import Mixture, tokens

PRODUCTS = {"proj.weight", "experts.up", "experts.down"}
RECURRENT = {"rnn.weight_ih_l0", "rnn.weight_hh_l0"}
TOOLS = {
    "MagnitudePruning": (MagnitudePruning, PRODUCTS),
    "VectorwisePruning": (VectorwisePruning, PRODUCTS),
    "TilewisePruning": (lambda: TilewisePruning(tile=4), PRODUCTS),
    "FakeQuantization": (FakeQuantization, PRODUCTS),
    "LearnedStepQuantization": (LearnedStepQuantization, PRODUCTS),
    "DynamicQuantization": (DynamicQuantization, PRODUCTS | RECURRENT),
    "StaticQuantization": (StaticQuantization, PRODUCTS),
    "ErrorInjection, weight": (lambda: ErrorInjection(BitFlip(0), at="weight"), PRODUCTS),
    "ErrorInjection, output": (lambda: ErrorInjection(BitFlip(0)), PRODUCTS | {"proj.bias"}),
    "ErrorInjection, input": (
        lambda: ErrorInjection(BitFlip(0), at="input", position=1, ops="linear"),
        {"proj.weight"},
    ),
}


def run(tool, model, *inputs):
    """What is told, beside."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad(), amanda.apply(tool):
            model(*inputs)
    return [str(one.message) for one in caught if one.category is amanda.UnmatchedFilterWarning]


def names(rows):
    return {(row.name, row.parameter, row.elements) for row in rows}


# ---- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOOLS)
def test_the_share_is_that_of_named_parameters(name):
    make, handled = TOOLS[name]
    tool, model = make(), Mixture()
    assert run(tool, model, tokens()) == []
    sizes = {each: parameter.numel() for each, parameter in model.named_parameters()}
    assert tool.covered == (sum(sizes[each] for each in handled), sum(sizes.values()))
    assert {row.parameter for row in tool.unhandled} == set(sizes) - handled
    assert all(row.elements == sizes[row.parameter] for row in tool.unhandled)
    kinds = {row.parameter: row.name for row in tool.unhandled}
    assert kinds["embed.weight"] == "aten::embedding"  # the head's use of it is handled, its own is not
    assert kinds["scale"] == "aten::mul"
    assert kinds["rnn.bias_ih_l0"] == "aten::lstm"


def test_rows_say_where_largest_first():
    tool, model = MagnitudePruning(), Mixture()
    run(tool, model, tokens())
    sizes = [row.elements for row in tool.unhandled]
    assert sizes == sorted(sizes, reverse=True)
    row = tool.unhandled[0]
    assert (row.name, row.module_path, row.elements) == ("aten::lstm", "rnn", 256)
    assert row.source.rpartition(":")[0].endswith("mixture.py")
    assert row.op_id is not None


def test_tables_name_what_is_left_out():
    tool = MagnitudePruning()
    run(tool, Mixture(), tokens())
    text = " ".join(str(tool.table()).split())
    assert (
        "parameters covered: 53.6% (832 of 1,552 elements); not handled: aten::lstm ×1 (rnn.weight_ih_l0, …), "  # noqa: RUF001
        "aten::embedding ×1 (embed.weight), aten::mul ×1 (scale) and 1 more"  # noqa: RUF001
    ) in text


def test_almost_everything_is_not_everything():
    tool, model = MagnitudePruning(), torch.nn.Linear(10_000, 1)
    run(tool, model, torch.ones(1, 10_000))
    assert "parameters covered: 99.9% (10,000 of 10,001 elements)" in str(tool.table())


def test_a_model_without_anything_else_is_covered():
    tool, model = MagnitudePruning(), torch.nn.Linear(4, 4, bias=False)
    run(tool, model, torch.ones(1, 4))
    assert tool.unhandled == []
    assert tool.covered.share == 1
    assert "parameters covered: 100% (16 of 16 elements)" in str(tool.table())


def test_a_program_without_parameters_has_no_such_line():
    tool = FakeQuantization()
    run(tool, torch.mm, torch.eye(2), torch.eye(2))
    assert tool.covered == (0, 0)
    assert tool.covered.share == 0
    assert "covered" not in str(tool.table())


@torch.library.custom_op("amanda_test_parameter_use::mix", mutates_args=())
def mix(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return x @ experts.sum(0)


def test_a_custom_operator_is_named():
    class Custom(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts, self.head = torch.nn.Parameter(torch.ones(3, 4, 4)), torch.nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.head(mix(x, self.experts))

    tool = MagnitudePruning()
    run(tool, Custom(), torch.ones(1, 4))
    assert names(tool.unhandled) == {("amanda_test_parameter_use::mix", "experts", 48)}
    assert tool.covered == (16, 64)


# ---- what counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1, foreach=False),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    ],
    ids=["SGD foreach", "SGD", "AdamW"],
)
def test_optimizers_and_regularization_compute_nothing_of_the_model(optimizer):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    step = optimizer(model.parameters())
    tool = MagnitudePruning()
    with amanda.apply(tool):
        for _ in range(2):
            (model(torch.ones(2, 4)).sum() + sum(each.pow(2).sum() for each in model.parameters())).backward()
            step.step()
            step.zero_grad()
        copy.deepcopy(model.state_dict())
    assert tool.unhandled == []
    assert tool.covered == (32, 32)


def test_a_view_stands_for_its_parameter_and_moving_it_is_no_use():
    attention = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    tool, x = MagnitudePruning(), torch.ones(1, 3, 8)
    with amanda.apply(tool):
        attention(x, x + 1, x + 2)
    assert tool.unhandled == []
    assert tool.covered.elements == sum(each.numel() for each in attention.parameters())


def test_a_weight_that_is_computed_stands_for_the_parameters_that_it_is_computed_of():
    inner = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4, bias=False))
    model = torch.nn.Sequential(inner, torch.nn.LayerNorm(4))
    tool = MagnitudePruning()
    run(tool, model, torch.ones(1, 4))
    assert {row.parameter for row in tool.unhandled} == {"1.weight", "1.bias"}
    assert tool.covered == (20, 28)


def test_a_weight_of_another_dtype_that_is_converted_is_the_same_weight():
    class Converting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.float64))

        def forward(self, x):
            weight = self.weight.to(x.dtype)
            return F.linear(x, weight)

    for dtype in (torch.float32, torch.float64):
        tool = MagnitudePruning()
        run(tool, torch.nn.Sequential(Converting()), torch.ones(1, 4, dtype=dtype))
        assert tool.unhandled == []
        assert tool.covered == (16, 16)


class Computing(torch.nn.Module):
    """A model whose own forward computes with its parameter."""

    def __init__(self, compute):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
        self.compute = compute

    def forward(self, x):
        return self.compute(x, self.weight)


def experts(x, weight):
    return F.grouped_mm(x.bfloat16(), weight.view(1, 8, 8).bfloat16(), offs=torch.tensor([3], dtype=torch.int32))


@pytest.mark.parametrize("outermost", [True, False])
@pytest.mark.parametrize(
    ("compute", "covered", "left"),
    [
        (lambda x, w: F.linear(x.bfloat16(), w.bfloat16()), 64, set()),
        (lambda x, w: F.linear(x, w * 2), 64, set()),
        (lambda x, w: F.linear(x, w) * w.sum(), 0, {"aten::sum"}),
        (experts, 0, {"aten::to"}),
    ],
    ids=["cast", "scaled", "also dense", "experts"],
)
def test_the_outermost_modules_own_operators_count_as_those_of_others(compute, covered, left, outermost):
    tool, model = MagnitudePruning(), Computing(compute)
    texts = run(tool, model if outermost else torch.nn.Sequential(model), torch.randn(3, 8))
    assert tool.covered == (covered, 64)
    assert {row.name for row in tool.unhandled} == left
    assert bool(texts) == (compute is experts)


def test_a_parametrization_computes_the_weight_that_is_pruned():
    for make in (torch.nn.utils.parametrizations.spectral_norm, torch.nn.utils.parametrizations.orthogonal):
        for outermost in (True, False):
            layer = make(torch.nn.Linear(8, 8, bias=False)).eval()
            plain = F.linear(x := torch.randn(3, 8), (w := layer.weight.detach()) * (w.abs() > w.abs().median()))
            tool = MagnitudePruning(sparsity=0.5)
            with torch.no_grad(), amanda.apply(tool):
                found = (layer if outermost else torch.nn.Sequential(layer))(x)
            assert [row.name for row in tool.rows()] == ["aten::linear"]
            assert tool.covered == (64, 64)
            torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("make", [torch.nn.GRUCell, torch.nn.LSTMCell, torch.nn.RNNCell, torch.nn.GRU, torch.nn.RNN])
def test_biases_inside_of_recurrent_layers_are_not_rounded(make):
    tool, layer = FakeQuantization(), make(8, 4)
    run(tool, layer, torch.randn(3, 8))
    sizes = [parameter.numel() for parameter in layer.parameters()]
    biases = [parameter.numel() for name, parameter in layer.named_parameters() if name.startswith("bias")]
    assert tool.covered == (sum(sizes) - sum(biases), sum(sizes))
    assert [row.elements for row in tool.unhandled] == biases


def test_a_weight_left_out_by_where_is_left_out():
    tool, model = (
        MagnitudePruning(where=lambda context: context.module_path == "0"),
        torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False)),
    )
    run(tool, model, torch.ones(1, 4))
    assert names(tool.unhandled) == {("aten::linear", "1.weight", 8)}
    assert tool.covered == (16, 24)


def test_what_is_inside_of_another_operator_is_found_there():
    class Summed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4, 5))

        def forward(self, x):
            return torch.einsum("bd,edf->bef", x, self.weight)  # copies the weight, then calls bmm

    for tool in (FakeQuantization(), ErrorInjection(BitFlip(0)), MagnitudePruning()):
        run(tool, Summed(), torch.ones(2, 4))
        assert tool.unhandled == [], type(tool)
        assert tool.covered == (60, 60), type(tool)


def test_operators_on_one_line_are_told_apart():
    weight, scale, x = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.ones(4)), torch.ones(2, 4)
    for tool in (FakeQuantization(), ErrorInjection(BitFlip(0)), MagnitudePruning()):
        run(tool, lambda: F.layer_norm(F.linear(x, weight), (4,), scale) + torch.einsum("bd,df->bf", x, weight))
        assert [(row.name, row.elements) for row in tool.unhandled] == [("aten::layer_norm", 4)], type(tool)
        tool = MagnitudePruning(where=lambda context: context.op.__name__ != "einsum")
        run(tool, lambda: F.linear(x, weight) + torch.einsum("bd,df->bf", x, weight))
        assert [(row.name, row.elements) for row in tool.unhandled] == [("aten::einsum", 16)]


def test_an_operator_that_raised_leaves_nothing_behind():
    tool, layer = MagnitudePruning(), torch.nn.Linear(4, 4, bias=False)
    with amanda.apply(tool):
        for size in (3, 4):
            with contextlib.suppress(RuntimeError):
                layer(torch.ones(1, size))
    assert tool.unhandled == []
    assert tool.covered == (16, 16)


def test_it_stays_after_reset():
    tool, model = MagnitudePruning(), Mixture()
    with torch.no_grad(), amanda.apply(tool):
        model(tokens())
        before = tool.covered, tool.unhandled
        tool.reset()
        model(tokens())
    assert (tool.covered, tool.unhandled) == before


# ---- a tool that handled nothing -------------------------------------------------------------------------------------


class Lookup(torch.nn.Module):
    """An embedding, and a product of activations."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(16, 8)

    def forward(self, tokens):
        x = self.embed(tokens)
        return x @ x.mT


@pytest.mark.parametrize(
    ("speaker", "make"),
    [
        ("pruning", MagnitudePruning),
        ("pruning", VectorwisePruning),
        ("pruning", TilewisePruning),
        ("quantization", DynamicQuantization),
        ("quantization", StaticQuantization),
        ("error_injection", lambda: ErrorInjection(BitFlip(), at="weight")),
    ],
)
def test_that_nothing_was_handled_is_told_once(speaker, make):
    tool = make()
    (told,) = run(tool, Lookup(), tokens())
    assert told == (
        f"[{speaker}] tool '{type(tool).__name__}' handled no parameter of the operators that ran; not handled: "
        "aten::embedding ×1 (embed.weight)"  # noqa: RUF001
    )
    assert run(tool, Lookup(), tokens()) == []
    assert "parameters covered: 0% (0 of 256 elements)" in str(tool.table())


def test_another_warning_says_it_already():
    (told,) = run(MagnitudePruning(), torch.nn.Embedding(16, 8), tokens())
    assert "matched nothing that ran" in told
    (told,) = run(FakeQuantization(), torch.nn.Embedding(16, 8), tokens())
    assert "matched nothing that ran" in told
    (told,) = run(MagnitudePruning(where=lambda context: False), torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert "where= of tool" in told


def test_who_asks_for_activations_is_not_told_of_weights():
    tool = FakeQuantization({"matmul": {"self": int8_activation}})
    assert run(tool, Lookup(), tokens()) == []
    assert run(ErrorInjection(BitFlip(), ops="matmul"), Lookup(), tokens()) == []


def test_looking_changes_nothing_and_is_done_once():
    torch.manual_seed(0)
    model = Mixture()
    seen = []
    counter = amanda.Tool("counter")
    counter.add_inst_for_op(lambda context: context.insert_before_op(lambda: seen.append(1), inputs=[]), ops="mul")
    expected = model(tokens())
    with amanda.apply(MagnitudePruning(sparsity=0.0), counter):
        assert torch.equal(model(tokens()), expected)
        assert torch.equal(model(tokens()), expected)
    assert len(seen) == 2


# ---- evidence --------------------------------------------------------------------------------------------------------


def unhandled(tool):
    (found,) = (one for one in tool.evidence().unseen if one.reason == "unhandled")
    return found


@pytest.mark.parametrize("name", TOOLS)
def test_the_evidence_counts_the_operators_of_which_no_parameter_was_handled(name):
    make, handled = TOOLS[name]
    tool = make()
    run(tool, Mixture(), tokens())
    operators = {"lstm": RECURRENT, "embedding": set(), "mul": set(), "up": {"experts.up"}, "down": {"experts.down"}}
    assert unhandled(tool).count == sum(not known & handled for known in operators.values())
    assert not tool.evidence().is_complete


def test_the_evidence_names_operators_and_calls_those_of_the_largest_parameters_first():
    tool = MagnitudePruning()
    run(tool, Mixture(), tokens())
    text = re.sub(r"\(\S*/mixture.py:\d+\)", "(mixture.py)", unhandled(tool).text)
    assert text == (
        "3 operators ran as without the tool: aten::lstm of rnn.weight_ih_l0 (mixture.py), "
        "aten::embedding of embed.weight (mixture.py), aten::mul of scale (mixture.py)"
    )


def test_a_layer_whose_weight_was_handled_counts_as_handled_with_its_bias():
    tool = MagnitudePruning()
    run(tool, torch.nn.Linear(4, 4), torch.ones(1, 4))
    assert names(tool.unhandled) == {("aten::linear", "bias", 4)}
    assert tool.evidence().is_complete
    assert tool.evidence().operators == 1


def test_what_is_left_out_stays_in_the_evidence_after_a_reset():
    tool, model = MagnitudePruning(), torch.nn.Embedding(16, 8)
    run(tool, model, torch.tensor([1]))
    before = unhandled(tool)
    tool.reset()
    assert unhandled(tool) == before
