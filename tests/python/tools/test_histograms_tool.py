"""ValueHistograms: counts against numpy.histogram of the same outputs, captured by hooks; steps, memory and plots.

Equal means equal integers.
"""

import concurrent.futures
import math
import re
import sys

import amanda
import matplotlib
import numpy
import pytest
import torch
from amanda.tools.histograms import MAGNITUDES, ValueHistograms

matplotlib.use("Agg")
EDGES = [-2.0, -1.0, -0.25, 0.0, 0.25, 1.0, 2.0]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh()
    )


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 6, 6, generator=generator)).square().sum().backward()
        optimizer.step()


def captured(model, steps):
    """Every module's outputs of each step, by hooks."""
    outputs = {name: [] for name, module in model.named_modules() if name and not isinstance(module, torch.nn.Flatten)}
    for name in outputs:
        model.get_submodule(name).register_forward_hook(
            lambda m, x, y, name=name: outputs[name].append(y.detach().clone())
        )
    train(model, steps)
    return outputs


def histogram(values, edges):
    """Below, in each bin, above."""
    values = values.double().numpy().ravel()
    counts = numpy.histogram(values, edges)[0]
    return int((values < edges[0]).sum()), tuple(counts.tolist()), int((values > edges[-1]).sum())


# ---- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [EDGES, None])
def test_each_step_of_a_training_is_counted_as_numpy_does(bins):
    tool = ValueHistograms(ops=["conv2d", "relu", "linear", "tanh"], bins=bins)
    with amanda.apply(tool):
        train(network(), 20)
    expected = captured(network(), 20)
    rows = {(row.name, row.step): row for row in tool.rows("module")}
    assert rows.keys() == {(name, step) for name in expected for step in range(20)}
    for (name, step), row in rows.items():
        values = expected[name][step]
        found = histogram(values if bins else values.abs(), numpy.array(bins or MAGNITUDES))
        assert (row.below, row.counts, row.above) == found
        assert (row.calls, row.elements, row.zeros) == (1, values.numel(), int((values == 0).sum()))
        assert row.sparsity == row.zeros / row.elements
    assert sum(row.zeros for row in rows.values() if row.name == "1") > 0


def test_bins_are_those_of_histc():
    x = torch.randn(1000)
    tool = ValueHistograms(ops="clone", bins=torch.linspace(-2, 2, 9).tolist())
    with amanda.apply(tool):
        x.clone()
    assert list(tool.rows()[0].counts) == torch.histc(x, 8, -2, 2).int().tolist()


def test_edges_belong_to_the_bin_on_their_right_and_the_last_one_to_the_last():
    tool = ValueHistograms(ops="clone", bins=[0, 1, 2])
    with amanda.apply(tool):
        torch.tensor([0.0, 1.0, 2.0, 2.0001, -0.0001, math.inf, -math.inf, math.nan]).clone()
    (row,) = tool.rows()
    assert (row.below, row.counts, row.above, row.nans, row.zeros, row.elements) == (2, (1, 3 - 1), 2, 1, 1, 8)


def test_exponents_are_those_of_the_values():
    x = torch.tensor([1.0, 1.999, -2.0, 0.5, 3e-39, -0.0, 2.0**33, -math.inf])
    tool = ValueHistograms(ops="clone")
    with amanda.apply(tool):
        x.clone()
    (row,) = tool.rows()
    assert {int(math.log2(MAGNITUDES[i])): n for i, n in enumerate(row.counts) if n} == {-1: 1, 0: 2, 1: 1}
    assert (row.below, row.above, row.zeros) == (2, 2, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64], ids=str)
def test_the_edges_of_exponents_are_exact(dtype):
    edges = torch.tensor(MAGNITUDES, dtype=torch.float64)
    values = torch.cat([edges, edges.nextafter(edges * 0), -edges * 1.5, torch.tensor([0.0, math.nan, math.inf])])
    values = torch.cat([values, edges * (1 - 2.0**-8), edges * (1 + 2.0**-7)]).to(dtype)
    tool = ValueHistograms(ops="clone")
    with amanda.apply(tool):
        values.clone()
    known = values[~values.isnan()]
    (row,) = tool.rows()
    assert (row.below, row.counts, row.above) == histogram(known.double().abs(), numpy.array(MAGNITUDES))
    assert (row.zeros, row.nans) == (int((values == 0).sum()), len(values) - len(known))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int16, torch.bool], ids=str)
def test_other_dtypes(dtype):
    x = (torch.randn(50) * 3).to(dtype)
    tool = ValueHistograms(ops="clone", bins=EDGES)
    with amanda.apply(tool):
        x.clone()
    (row,) = tool.rows()
    assert (row.below, row.counts, row.above) == histogram(x, numpy.array(EDGES))


def test_complex_values_count_by_magnitude():
    tool = ValueHistograms(ops="clone", bins=[0, 1, 6])
    with amanda.apply(tool):
        torch.tensor([3 + 4j, 0j]).clone()
    assert (tool.rows()[0].counts, tool.rows()[0].zeros) == ((1, 1), 1)


def test_every_output_and_all_members_of_a_list():
    x = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    tool = ValueHistograms(bins=[0, 1, 8])
    with amanda.apply(tool):
        torch.max(x, 1)
        torch.unbind(x)
    rows = {(row.name, row.output): row for row in tool.rows()}
    assert rows["aten::max", 0].counts == (0, 2)
    assert rows["aten::max", 1].counts == (1, 1)
    assert (rows["aten::unbind", 0].counts, rows["aten::unbind", 0].elements) == ((2, 2), 4)
    by_op = {row.name: row for row in tool.rows("op")}
    assert by_op["aten::max"].counts == (1, 3)


# ---- steps -----------------------------------------------------------------------------------------------------------


def grow(tool, times, start=0):
    """Execution i has i ones."""
    for i in range(start, start + times):
        torch.ones(i).clone()


def ones(tool):
    return [(row.step, row.calls, row.elements) for row in tool.rows()]


def test_steps_go_on_over_scopes():
    tool = ValueHistograms(ops="clone")
    scope = amanda.apply(tool)
    for start in (0, 2):
        with scope:
            grow(tool, 2, start)
    assert ones(tool) == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3)]
    tool.reset()
    with scope:
        grow(tool, 1, 7)
    assert ones(tool) == [(0, 1, 7)]


def test_only_some_executions_are_looked_at():
    tool = ValueHistograms(ops="clone", every=3)
    with amanda.apply(tool):
        grow(tool, 8)
    assert ones(tool) == [(0, 1, 0), (3, 1, 3), (6, 1, 6)]


def test_neighboring_steps_are_merged_when_there_are_too_many():
    tool, found = ValueHistograms(ops=["clone", "neg"], max_steps=4), []
    with amanda.apply(tool):
        torch.neg(torch.ones(9))
        for i in range(9):
            torch.ones(i).clone()
            found.append([(row.step, row.calls, row.elements) for row in tool.rows("op") if row.name == "aten::clone"])
    assert found[3] == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 3)]
    assert found[4] == [(0, 2, 0 + 1), (2, 2, 2 + 3), (4, 1, 4)]
    assert found[8] == [(0, 4, 0 + 1 + 2 + 3), (4, 4, 4 + 5 + 6 + 7), (8, 1, 8)]
    assert [(row.step, row.calls, row.elements) for row in tool.rows() if row.name == "aten::neg"] == [(0, 1, 9)]


def test_memory_is_bounded_and_nothing_is_lost():
    for every in (1, 5):
        tool = ValueHistograms(ops="clone", max_steps=8, every=every)
        with amanda.apply(tool):
            for i in range(1000):
                torch.full((3,), float(i % 2)).clone()
        rows = tool.rows()
        assert 4 <= len(rows) <= 8
        assert sum(row.calls for row in rows) == 1000 // every
        assert sum(row.zeros for row in rows) == 3 * sum(i % 2 == 0 for i in range(0, 1000, every))
        width = rows[1].step
        assert [row.step for row in rows] == [i * width for i in range(len(rows))]
        assert width == every * 2 ** math.ceil(math.log2(1000 / every / 8))
        tool.reset()
        with amanda.apply(tool):
            for _ in range(2 * every):
                torch.ones(3).clone()
        assert [row.step for row in tool.rows()] == [0, every]


def test_threads_share_a_tool():
    tool = ValueHistograms(ops="clone", max_steps=16)

    def work(_):
        with amanda.apply(tool):
            for _ in range(100):
                torch.ones(2).clone()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sum(row.calls for row in tool.rows()) == 400
    assert sum(row.elements for row in tool.rows()) == 800


# ---- what it leaves alone --------------------------------------------------------------------------------------------


def test_outputs_gradients_and_random_numbers_stay_as_they_are():
    def trained():
        model = torch.nn.Sequential(network(), torch.nn.Dropout(), torch.nn.ReLU(inplace=True))
        train(model, 3)
        return [*model.parameters(), *(parameter.grad for parameter in model.parameters()), torch.get_rng_state()]

    expected = trained()
    with amanda.apply(ValueHistograms()):
        found = trained()
    assert all(map(torch.equal, found, expected))


def test_modules_can_be_selected():
    tool = ValueHistograms(modules=["0", "3"])
    with amanda.apply(tool):
        train(network(), 1)
    assert {row.name for row in tool.rows("module")} == {"0", "3"}


# ---- plots -----------------------------------------------------------------------------------------------------------


def test_the_heat_map_has_a_column_for_each_step_and_shares_of_elements():
    tool = ValueHistograms(ops="clone", bins=[0, 1, 2, 3])
    with amanda.apply(tool):
        for values in ([0.5, 0.5, 2.5, 9.0], [1.5, 1.5, 1.5, 1.5]):
            torch.tensor(values).clone()
    axes = tool.plot("aten::clone", by="op")
    (mesh,) = axes.collections
    assert mesh.get_array().reshape(3, 2).tolist() == [[0.5, 0.0], [0.0, 1.0], [0.25, 0.0]]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("step", "value", "aten::clone")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    tool = ValueHistograms(ops=["conv2d", "relu"])
    with amanda.apply(tool):
        train(network(), 3)
    axes = tool.plot("1")
    assert axes.get_ylabel() == "magnitude"
    assert re.fullmatch(r"\$2\^\{-?\d+\}\$", axes.get_yticklabels()[0].get_text())
    tool.plot("aten::relu", "id", tool.plot("0"))


def test_sparsity_is_a_line_for_each_module():
    tool = ValueHistograms(ops=["conv2d", "relu"], every=2)
    with amanda.apply(tool):
        train(network(), 4)
    lines = {line.get_label(): line for line in tool.plot_sparsity().lines}
    expected = captured(network(), 4)
    assert lines.keys() == {"0", "1"}
    for name, line in lines.items():
        shares = [(y == 0).double().mean().item() for y in expected[name][::2]]
        assert [*line.get_xdata()] == [0, 2]
        assert [*line.get_ydata()] == pytest.approx(shares)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [[], [1.0], [1.0, 1.0], [2, 1], [0, math.nan]])
def test_edges_must_ascend(says, bins):
    with says(ValueError, f"[histograms] bins= are the edges of the bins, two or more that ascend; got {bins!r}"):
        ValueHistograms(bins=bins)


def test_wrong_options_are_refused(says):
    with says(ValueError, "[histograms] every= is 1 for each execution, 2 for every second one, ...; got 0"):
        ValueHistograms(every=0)
    for wrong in (0, 7):
        with says(ValueError, f"[histograms] max_steps= is how many steps to keep, an even number; got {wrong}"):
            ValueHistograms(max_steps=wrong)


def test_a_name_without_rows_is_refused_with_those_that_there_are(says):
    tool = ValueHistograms(ops=["conv2d", "relu"])
    with says(ValueError, "[histograms] no rows by \"module\" are of 'head'; there are none yet"):
        tool.plot("head")
    with amanda.apply(tool):
        train(network(), 1)
    with says(ValueError, "[histograms] no rows by \"module\" are of 'head'; there are '0', '1'"):
        tool.plot("head")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    tool = ValueHistograms()
    with amanda.apply(tool):
        torch.ones(2).clone()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for plot in (tool.plot_sparsity, lambda: tool.plot("")):
        with pytest.raises(ImportError, match=r"\[histograms\] plots need matplotlib: pip install 'amanda-nn\[plot\]'"):
            plot()


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_shows_how_relus_die(run_example, tmp_path):
    good, bad = run_example("sparsity_over_training.py").split("learning rate 3.0")
    shares = [[int(n) for n in re.findall(r"(\d+)%", table.strip().splitlines()[-1])] for table in (good, bad)]
    assert all(20 < share < 90 for share in shares[0])
    assert shares[1][-1] > 95
    assert (tmp_path / "sparsity.png").stat().st_size > 10_000
