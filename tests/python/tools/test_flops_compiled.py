"""Flops of functions that stay compiled: those of the eager model, by PyTorch's FlopCounterMode and by Flops."""

import amanda
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.quantization import DynamicQuantization
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2)
        self.transposed = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.classify = nn.Linear(4, 5)

    def forward(self, x):
        x = self.grouped(self.norm(self.first(x)).relu())
        return self.classify(self.transposed(x).mean((2, 3)))


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x):
        x = torch.einsum("bi,ij->bj", x, self.weight)
        return torch.baddbmm(x[:, :1, None], x[:, None], x[:, :, None]) + (x @ torch.ones(5)).sum()


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20
    )
    return transformers.BertModel(config, add_pooling_layer=False).train()


def tokens(model):
    model(torch.arange(14).view(2, 7))[0].sum().backward()


def train(*sizes):
    return lambda model: model(torch.ones(sizes)).sum().backward()


def several_shapes(model):
    for batch in (2, 5, 9, 2):
        model(torch.ones(batch, 3, 6)).sum().backward()


def several_gradients(model):
    parameters = list(model.parameters())
    for frozen, with_input in ((0, False), (0, True), (2, True)):
        for i, parameter in enumerate(parameters):
            parameter.requires_grad_(i >= frozen)
        model(torch.ones(4, 6, requires_grad=with_input)).sum().backward()


def infer(model):
    with torch.no_grad():
        model(torch.ones(2, 3, 6))


def layers():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


PROGRAMS = {
    "convolutions": (Convolutions, train(2, 3, 16, 16)),
    "a transformer": (bert, tokens),
    "layers": (layers, train(2, 3, 6)),
    "without gradients": (layers, infer),
    "shapes that change": (layers, several_shapes),
    "gradients that change": (layers, several_gradients),
}


def counted(model, program, **options):
    flops = Flops(**options)
    with amanda.apply(flops):
        program(model)
    return flops


def compiled(model, **options):
    torch.compiler.reset()
    return torch.compile(model, backend="aot_eager", **options)


def expected(model, program):
    with FlopCounterMode(display=False) as counter:
        program(model)
    return counter.get_total_flops()


@pytest.mark.parametrize(("make", "program"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_compiled_model_takes_as_many_as_the_eager_one(make, program, log):
    """The function stays compiled: the default of `apply`."""
    torch.manual_seed(0)
    model = make()
    eager, found = counted(model, program), counted(compiled(model), program)
    assert found.total == expected(model, program) > 0
    assert set(found.rows()) == set(eager.rows())
    assert (found.by_module(), found.by_operator()) == (eager.by_module(), eager.by_operator())
    assert found.uncounted == eager.uncounted
    assert found.uncounted_products == eager.uncounted_products
    assert {one.reason for one in found.evidence().unseen} <= {"uncounted"}
    assert not [line for line in log() if line.startswith("[flops]")]


def test_results_and_gradients_are_those_of_the_compiled_model():
    def trained(*tools, **how):
        torch.manual_seed(0)
        model, x = Convolutions(), torch.linspace(-1, 1, 3 * 16 * 16).view(1, 3, 16, 16).requires_grad_()
        with amanda.apply(*tools, **how):
            y = compiled(model)(x)
            y.square().sum().backward()
        return [y, x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()]

    expected = trained(amanda.Tool("nothing"), compiled="opaque")
    assert all(map(torch.equal, trained(Flops()), expected))


def test_products_that_flop_counter_mode_does_not_count():
    model = Products()
    eager, found = counted(model, train(4, 6)), counted(compiled(model, dynamic=True), train(4, 6))
    assert set(found.rows()) == set(eager.rows())
    assert found.uncounted_products == eager.uncounted_products


def test_dynamic_shapes_are_those_of_each_run():
    model = layers()
    found = counted(compiled(model, dynamic=True), several_shapes)
    assert found.total == expected(model, several_shapes) > 0


def test_operators_without_a_formula_are_listed():
    def solve(a):
        return torch.linalg.pinv(a).sum()

    flops = counted(compiled(solve), lambda call: call(torch.ones(4, 3)))
    assert flops.by_operator() == {"aten::mm": 2 * 3 * 3 * 4}
    assert flops.uncounted_products == {"aten::_linalg_svd": 1}
    assert "may multiply: aten::_linalg_svd" in flops.evidence().not_looked_at


def test_operators_that_a_graph_cannot_show_are_named():
    def program(x):
        return torch.vmap(lambda row: row @ x)(x) + x @ x

    flops = counted(compiled(program), lambda call: call(torch.ones(3, 3)))
    assert flops.by_operator() == {"aten::mm": 2 * 3 * 3 * 3}
    text = "could not be shown: aten::matmul"
    assert text in flops.evidence().not_looked_at
    assert text in " ".join(str(flops.table()).split())


def test_attention_on_the_cpu_is_listed_or_counted():
    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x)

    def run(call):
        return call(torch.ones(2, 3, 5, 4))

    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert counted(compiled(attend), run).uncounted_products == {name: 1}
    assert counted(compiled(attend), run, cpu_attention=True).by_operator() == {name: 2 * (2 * 2 * 3 * 5 * 5 * 4)}


def test_an_operator_that_a_tool_replaced_is_listed():
    replaces = amanda.Tool("replaces")
    replaces.add_inst_for_op(lambda context: context.replace_op(lambda x, w, b: x.new_zeros(4, 5)), ops="linear")
    for tools in ([replaces, Flops()], [Flops(), replaces]):
        with amanda.apply(*tools, compiled="graph"):
            compiled(nn.Linear(6, 5))(torch.ones(4, 6)).sum().backward()
        (flops,) = (tool for tool in tools if isinstance(tool, Flops))
        assert flops.uncounted_products == {"aten::linear": 1}, "its replacements' operators are not the program's"
        assert flops.total == 0


def test_kernels_that_a_tool_runs_are_counted_once():
    flops = Flops()
    with torch.no_grad(), amanda.apply(DynamicQuantization(), flops, compiled="graph"):
        compiled(nn.Linear(6, 5))(torch.ones(4, 6))
    assert (flops.total, flops.uncounted_products) == (2 * 4 * 6 * 5, {})
    assert all("quantized" in name for name in flops.by_operator())


NARROWED = {
    "an operator": ({"ops": "addmm"}, True),
    "another operator": ({"ops": "convolution"}, False),
    "a module": ({"modules": "0"}, True),
    "another module": ({"modules": "1"}, False),
}


@pytest.mark.parametrize(("asked", "counts"), NARROWED.values(), ids=NARROWED)
def test_a_tool_that_is_narrowed_counts_what_it_asks_for(asked, counts):
    flops, model = Flops(), compiled(nn.Sequential(nn.Linear(6, 5), nn.ReLU()))
    flops.narrow(**asked)
    with amanda.apply(flops, compiled="graph"):
        model(torch.ones(4, 6))
    assert flops.by_operator() == ({"aten::addmm": 2 * 4 * 6 * 5} if counts else {})


@pytest.mark.parametrize("uncounted", [True, False])
def test_reset_forgets_what_compiled_functions_took(uncounted):
    flops, call, x = Flops(uncounted=uncounted), compiled(layers()), torch.ones(4, 6)
    with amanda.apply(flops):
        call(x)
        once = flops.rows()
        flops.reset()
        assert (flops.total, flops.rows(), flops.uncounted) == (0, [], {})
        call(x)
    assert flops.rows() == once != []
    assert flops.uncounted == ({"aten::relu": 1} if uncounted else {})
