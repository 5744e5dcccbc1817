"""ErrorInjection's places: operators, parameters, views, gradients and threads."""

import concurrent.futures
import copy

import amanda
import torch
import torch.nn.functional as F
from amanda.research.error_injection import BitFlip, ErrorInjection, StuckAt
from faulty_network import faults_of, flipped, network


def test_rows_are_what_was_done():
    model, x = network(), torch.randn(3, 2, 6, 6)
    captured = []
    look = amanda.Tool("look")
    look.add_inst_for_op(lambda c: c.insert_after_op(captured.append), ops=["conv2d", "linear"])
    tool = ErrorInjection(BitFlip(range(16, 23)), count=4, seed=3)
    with amanda.apply(look, tool):
        model(x)
    clean = dict(zip(("aten::conv2d", "aten::linear"), captured, strict=True))
    for row in tool.rows():
        assert row.before == clean[row.name][row.index].item()
        assert row.after == flipped(clean[row.name], row.index, row.bit)[row.index].item()
        assert (row.faults, row.execution, row.position) == (1, 0, 0)
        assert row.source.split(":")[0].endswith("faulty_network.py")
    assert len(tool.rows()) == 8
    assert [(row.name, row.faults, row.executions, row.elements) for row in tool.rows("op")] == [
        ("aten::conv2d", 4, 1, 3 * 4 * 16),
        ("aten::linear", 4, 1, 15),
    ]


def test_operators_are_selected_by_name_module_and_context():
    x = torch.randn(3, 2, 6, 6)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1), torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1)))

    def modules(**options):
        tool = ErrorInjection(BitFlip(0), **options)
        with amanda.apply(tool):
            model(x)
        return [row.name for row in tool.rows("module")]

    assert modules() == ["0", "1.0"]
    assert modules(modules="1") == ["1.0"]
    assert modules(where=lambda context: context.module_path == "0") == ["0"]
    assert modules(ops="linear") == []


def test_gradients_are_selected_by_module_and_context_and_counted_from_0_after_a_reset():
    model, x = torch.nn.Sequential(*(torch.nn.Conv2d(2, 2, 1) for _ in range(2))), torch.randn(3, 2, 6, 6)
    for selected in ({"modules": "1"}, {"where": lambda context: context.module_path == "1"}):
        tool = ErrorInjection(
            BitFlip(0), ops="conv2d", at="grad_output", backward_op="ConvolutionBackward0", execution=1, **selected
        )
        for _ in range(2):
            with amanda.apply(tool):
                for _ in range(2):
                    model(x).sum().backward()
            assert [(row.module_path, row.execution) for row in tool.rows()] == [("1", 1)]
            tool.reset()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.eye(4))

    def forward(self, x):
        q = x @ self.qkv
        return q @ q.transpose(-1, -2)


def test_the_weight_of_a_product_is_the_factor_that_is_a_parameter():
    model, x = Attention(), torch.ones(2, 4)
    tool = ErrorInjection(StuckAt(3.0), at="weight", index=(0, 1))
    with amanda.apply(tool):
        y = model(x)
    weight = torch.eye(4)
    weight[0, 1] = 3
    q = x @ weight
    assert torch.equal(y, q @ q.T)
    assert torch.equal(model.qkv, torch.eye(4))
    assert [row.position for row in tool.rows()] == ["other"]


def test_of_two_parameters_the_right_one_is_the_weight():
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = (torch.nn.Parameter(torch.eye(2)) for _ in range(2))

        def forward(self):
            return self.left @ self.right

    tool = ErrorInjection(BitFlip(0), at="weight")
    with amanda.apply(tool):
        Product()()
    assert [row.position for row in tool.rows()] == ["other"]


def test_a_layer_called_twice_is_hit_twice():
    layer, x = torch.nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    twice, mask = torch.nn.Sequential(layer, layer), torch.tensor([0.0, 1.0])
    for execution, expected in [(None, layer(layer(x) * mask) * mask), (0, layer(layer(x) * mask))]:
        tool = ErrorInjection(StuckAt(0.0), index=(0, 0), execution=execution)
        for _ in range(2):
            with amanda.apply(tool):
                assert torch.equal(twice(x), expected)
            tool.reset()  # from here on executions count from 0 again
    with (
        amanda.apply(ErrorInjection(StuckAt(2.0), index=(0, 0))),
        amanda.apply(ErrorInjection(StuckAt(3.0), index=(0, 1))),
    ):
        assert layer(x).tolist() == [[2.0, 3.0]]


def test_in_place_operators_layouts_scalars_and_empty_tensors_are_hit_as_they_are():
    with amanda.apply(ErrorInjection(StuckAt(9.0), ops=["relu_", "clone"], count=1)):
        x = torch.zeros(1, 3, 4, 5)
        assert x.relu_() is x
        assert x.sum() == 9
        strided = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert strided.clone().stride() == strided.stride()
        assert strided.clone().sum() == 9
        assert torch.zeros(()).clone() == 9
        assert torch.zeros(0).clone().shape == (0,)
        assert torch.zeros(1).expand(4).clone().sum() == 9


def test_views_are_not_hit():
    x = torch.zeros(2, 3)
    tool = ErrorInjection(StuckAt(1.0), ops=None, rate=1.0)
    with amanda.apply(tool):
        total = x.view(3, 2).t().unsqueeze(0).chunk(2, 1)[0].sum()
    assert total == 1  # of the sum alone
    assert {row.name for row in tool.rows("op")} == {"aten::sum"}


def test_what_cannot_be_read_and_what_is_not_there_is_not_hit():
    tool = ErrorInjection(StuckAt(1.0), ops=["to_sparse", "linear"], at="output")
    bias = ErrorInjection(StuckAt(1.0), ops="linear", at="input", position="bias")
    with amanda.apply(tool, bias):
        torch.ones(2).to_sparse()
        F.linear(torch.ones(1, 2), torch.ones(2, 2))
    assert tool.skipped == {"sparse": 1}
    assert tool.faults == 1
    assert bias.rows("id") == []


def test_gradients_of_torch_func_pass_a_fault():
    layer, x = torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2)
    with amanda.apply(ErrorInjection(StuckAt(5.0), ops="linear", index=(0, 0))):
        found = torch.func.grad(lambda x: layer(x).square().sum())(x)
    y = layer(x)
    y[0, 0] = 5
    torch.testing.assert_close(found, 2 * y @ layer.weight)


def test_rows_are_bounded_and_counts_are_not():
    tool = ErrorInjection(StuckAt(1.0), ops="clone", rate=1.0, max_rows=5)
    with amanda.apply(tool):
        torch.zeros(4).clone()
        torch.zeros(4).clone()
    assert (len(tool.rows()), tool.dropped, tool.faults) == (5, 3, 8)
    assert [row.faults for row in tool.rows("op")] == [8]
    assert str(tool.table().caption) == "3 more faults were injected"
    assert tool.table("op").caption is None


def test_threads_share_a_tool():
    tool = ErrorInjection(StuckAt(1.0), ops="clone", count=2, max_rows=10**6)

    def work(_):
        with amanda.apply(tool):
            return sum(torch.zeros(50).clone().sum().item() for _ in range(100))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 800
    assert tool.faults == len(tool.rows()) == 800


def test_copies_of_a_model_have_equal_faults():
    model, x = network(), torch.randn(3, 2, 6, 6)
    assert faults_of(copy.deepcopy(model), x) == faults_of(model, x)
