"""OpStatistics: its figures against numpy's on the same tensors, gathered in one piece."""

import copy
import gc
import math
import sys
import threading
import weakref

import amanda
import numpy as np
import pytest
import torch
from amanda.toolkit.skips import Skips
from amanda.tools.statistics import OpStatistics, _Summary


class Captured(amanda.Tool):
    """Copies every output that is a tensor, by operator id and position."""

    def __init__(self):
        super().__init__()
        self.outputs = {}
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        context.insert_after_op(self.keep, op_id=context.op_id)

    def keep(self, *outputs, op_id):
        for position, output in enumerate(outputs):
            members = output if isinstance(output, list) else [output]
            arrays = [member.double().numpy().copy().ravel() for member in members if isinstance(member, torch.Tensor)]
            self.outputs.setdefault((op_id, position), []).extend(arrays)


def test_the_figures_of_a_training_run_are_numpys(network):
    statistics, captured = OpStatistics(), Captured()
    with amanda.apply(statistics, captured):
        _train(network)
    rows = statistics.rows()
    assert {(row.op_id, row.output) for row in rows if row.output is not None} == set(captured.outputs)
    # What aten::empty returns was never written: its figures are any memory's.
    floating = [row for row in rows if row.mean is not None and not row.name.startswith("aten::empty")]
    model = {"aten::linear", "aten::batch_norm", "aten::relu_", "aten::dropout", "aten::chunk"}
    assert model <= {row.name for row in floating}
    for row in floating:
        values = np.concatenate(captured.outputs[row.op_id, row.output])
        assert (row.elements, row.zeros) == (values.size, np.sum(values == 0))
        assert row.sparsity == np.mean(values == 0)
        assert (row.min, row.max) == (values.min(), values.max())
        assert row.mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-15)
        assert row.std == pytest.approx(values.std(), rel=1e-12, abs=1e-15)
        assert (row.nans, row.infs) == (0, 0)
    relu = _row(statistics, "aten::relu_")
    assert (relu.calls, relu.elements, relu.min, relu.module_path) == (3, 3 * 6 * 8, 0, "2")
    assert 0.2 < relu.sparsity < 0.8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_small_spread_around_a_large_mean_keeps_its_digits(dtype):
    # Where the naive sum of squares has lost all of them: 1e8 squared is 1e16, and float64 has 16 digits.
    big = 1e8 if dtype == torch.float64 else 256.0
    parts = [(torch.randint(-4, 5, (n,)).double() + big).to(dtype) for n in (1, 1000, 37)]
    statistics = _gathered(lambda: [part.clone() for part in parts])
    row, values = _row(statistics, "aten::clone"), torch.cat(parts).double().numpy()
    assert row.mean == pytest.approx(values.mean(), rel=1e-15)
    assert row.std == pytest.approx(values.std(), rel=1e-9)
    assert row.calls == 3


def test_nans_and_infinities_are_counted_and_left_out_of_the_rest():
    x = torch.tensor([1.0, math.nan, 3.0, math.inf, -math.inf, 0.0, math.nan])
    row = _row(_gathered(lambda: [part.clone() for part in (x, torch.tensor([8.0]))]), "aten::clone")
    assert (row.elements, row.nans, row.infs, row.zeros) == (8, 2, 2, 1)
    assert (row.min, row.max, row.mean) == (0.0, 8.0, 3.0)
    assert row.std == pytest.approx(np.std([1.0, 3.0, 0.0, 8.0]))
    assert row.sparsity == 1 / 8


def test_where_nothing_is_finite_there_are_no_values():
    row = _row(_gathered(lambda: torch.full((3,), math.nan)), "aten::full")
    assert (row.elements, row.nans, row.min, row.max, row.mean, row.std) == (3, 3, None, None, None, None)
    row = _row(_gathered(lambda: torch.zeros(0)), "aten::zeros")
    assert (row.calls, row.elements, row.sparsity, row.mean) == (1, 0, 0.0, None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16, torch.bool, torch.complex64])
def test_of_other_types_elements_and_zeros_are_counted(dtype):
    x = torch.tensor([0, 1, 0, 1]).to(dtype)
    row = _row(_gathered(x.clone), "aten::clone")
    assert (row.elements, row.zeros, row.sparsity) == (4, 2, 0.5)
    assert (row.min, row.max, row.mean, row.std) == (None, None, None, None)


def test_each_output_has_a_row_and_a_list_is_one():
    def program(x):
        x.max(0)
        x.unbind(0)
        x.sum().item()
        torch._foreach_neg_([x])

    statistics = _gathered(program, torch.arange(6.0).view(3, 2))
    rows = {(row.name, row.output): row for row in statistics.rows()}
    assert list(rows) == [
        ("aten::max", 0),
        ("aten::max", 1),
        ("aten::unbind", 0),
        ("aten::sum", 0),
        ("aten::item", 0),
        ("aten::_foreach_neg_", None),
    ]
    assert rows["aten::max", 0].max == 5
    assert rows["aten::max", 1].mean is None  # indices
    assert (rows["aten::unbind", 0].elements, rows["aten::unbind", 0].mean) == (6, 2.5)
    assert (rows["aten::item", 0].calls, rows["aten::item", 0].elements) == (1, 0)
    assert (rows["aten::_foreach_neg_", None].calls, rows["aten::_foreach_neg_", None].elements) == (1, 0)


class OwnDispatch(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"called for {function}")


@pytest.mark.parametrize(
    "tensor",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.empty(2, dtype=torch.uint8).view(torch.uint4),
    ],
)
def test_tensors_without_plain_elements_have_their_calls_counted(tensor):
    tensor = tensor()
    row = _row(_gathered(tensor.detach), "aten::detach")
    assert (row.calls, row.elements) == (1, 0)


def test_subclasses_with_their_own_dispatch_are_not_computed_with():
    skips = Skips("statistics")
    summary = _Summary.of(torch.Tensor._make_subclass(OwnDispatch, torch.ones(2)), skips)
    assert (summary.elements, summary.skipped, skips.counts()) == (0, 1, {"subclass": 1})


def test_inside_vmap_the_elements_of_all_samples_count():
    row = _row(_gathered(lambda: torch.vmap(torch.exp)(torch.zeros(3, 4))), "aten::exp")
    assert (row.calls, row.elements, row.mean) == (1, 12, 1.0)


def test_an_operator_that_raises_is_not_counted():
    def fail():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    assert {row.name for row in _gathered(fail).rows()} == {"aten::ones"}


def test_several_threads_lose_no_element():
    statistics, layer, x = OpStatistics(), torch.nn.Linear(4, 4), torch.ones(1, 4)
    both_run = threading.Barrier(4)

    def work():
        both_run.wait()
        with amanda.apply(statistics):
            for _ in range(200):
                layer(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = _row(statistics, "aten::linear")
    assert (row.calls, row.elements) == (800, 3200)
    assert row.mean == pytest.approx(layer(x).double().mean().item(), rel=1e-12)


def test_a_training_run_is_bit_equal_under_it(network):
    expected = _train(copy.deepcopy(network))
    with amanda.apply(OpStatistics()):
        found = _train(network)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def test_no_tensor_is_kept_alive():
    statistics, x = OpStatistics(), torch.ones(2)
    with amanda.apply(statistics):
        gone = [weakref.ref(x.relu()), weakref.ref(x)]
        del x
        gc.collect()
        assert [ref() for ref in gone] == [None, None]


# ---- pandas ----------------------------------------------------------------------------------------------------------


def test_the_table_has_the_rows_and_sparsity():
    def program(x):
        x.max(0)
        torch._foreach_neg_([x])

    statistics = _gathered(program, torch.arange(6.0).view(3, 2))
    table = statistics.to_pandas()
    values, indices, neg = statistics.rows()
    assert table.columns[-1] == "sparsity"
    assert table["op_id"].dtype == "uint64"
    assert table["op_id"].tolist() == [values.op_id, indices.op_id, neg.op_id]
    assert table["name"].tolist() == ["aten::max", "aten::max", "aten::_foreach_neg_"]
    assert table["mean"].iloc[0] == values.mean == 4.5
    assert table["sparsity"].tolist() == [values.sparsity, indices.sparsity, neg.sparsity]
    assert table["mean"].isna().tolist() == [False, True, True]
    assert table["output"].isna().tolist() == [False, False, True]
    assert table[["calls", "elements", "zeros", "nans", "infs"]].dtypes.unique().tolist() == ["int64"]


def test_an_unused_tool_has_an_empty_table():
    assert OpStatistics().rows() == []
    assert OpStatistics().to_pandas().empty


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"\[statistics\] to_pandas needs pandas: pip install 'amanda-nn\[files\]'"):
        OpStatistics().to_pandas()


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_tells_the_dead_layers_of_the_second_run(run_example):
    printed = run_example("operator_statistics.py")
    healthy, dying = printed.split("learning rate 0.4")
    assert "mostly dead: none" in healthy
    assert "mostly dead: module 1, module 3" in dying
    assert printed.count("aten::linear") == 6
    assert printed.count("aten::relu") == 4


# ---- plumbing --------------------------------------------------------------------------------------------------------


class Half(torch.nn.Module):
    def forward(self, x):
        return x.chunk(2, dim=1)[0]


@pytest.fixture
def network():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Dropout(),
        Half(),
        torch.nn.Linear(4, 2),
    )


def _train(model):
    torch.manual_seed(0)
    optimizer, outputs = torch.optim.Adam(model.parameters()), []
    for _ in range(3):
        outputs.append(model(torch.randn(6, 4)))
        outputs[-1].square().sum().backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *gradients, *model.parameters(), *model.buffers(), torch.get_rng_state()]


def _gathered(program, *inputs):
    statistics = OpStatistics()
    with amanda.apply(statistics):
        program(*inputs)
    return statistics


def _row(statistics, name):
    (row,) = (row for row in statistics.rows() if row.name == name)
    return row
