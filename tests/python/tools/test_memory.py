"""PeakMemory: against torch.profiler's totals, and against bytes that are computed by hand."""

import gc
import json
import re

import amanda
import pytest
import torch
from amanda.tools.memory import PeakMemory
from amanda.tools.memory.rows import GRAPHS, keepers
from memory_runs import BATCH, F32, WIDTHS, by, measured, mlp, train
from page_tables import tables_of


def test_kinds_are_the_bytes_computed_by_hand():
    def run():
        model = mlp()
        return model, train(model)

    memory, (model, _) = measured(run)
    parameters = sum(parameter.numel() for parameter in model.parameters()) * F32
    steps = 4 * F32  # Adam's, of each parameter
    kinds = by(memory, "kind", "bytes", "device")
    assert kinds["parameter"] == (parameters, "cpu")
    assert kinds["gradient"] == (parameters, "cpu")
    assert kinds["optimizer state"] == (2 * parameters + steps, "cpu")
    keepers = {row.kept_by for row in memory.rows("id") if row.kind == "parameter"}
    assert any("0.weight" in keeper for keeper in keepers)
    states = {row.kept_by for row in memory.rows("id") if row.kind == "optimizer state"}
    assert any("exp_avg of Adam: 0.weight" in keeper for keeper in states)


def test_saved_activations_and_who_keeps_them():
    model = mlp()

    def run():
        x = torch.ones(BATCH, WIDTHS[0])
        hidden = torch.tanh(torch.nn.functional.linear(x, model[0].weight))
        loss = torch.nn.functional.linear(hidden, model[2].weight).square().sum()
        del hidden
        loss.backward()

    memory, _ = measured(run)
    saved = {(row.name, row.bytes): row.kept_by for row in memory.rows("id") if row.kind == "saved activation"}
    tanh = saved["aten::tanh", BATCH * WIDTHS[1] * F32]
    assert "TanhBackward0" in tanh or "MmBackward0" in tanh or "AddmmBackward0" in tanh
    assert "test_memory.py:" in tanh
    lines = [row for row in memory.rows("line") if row.kind == "saved activation"]
    assert all("test_memory.py:" in row.name for row in lines)


@pytest.mark.filterwarnings("ignore:.*Memory block of unknown size.*")
def test_totals_are_those_of_the_profiler():
    def run():
        model = mlp()
        train(model, steps=1, optimizer=torch.optim.SGD)

    run()  # what happens once in a process
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    sizes = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert sizes
    live = peak = 0
    for size in sizes:
        live += size
        peak = max(peak, live)
    memory, _ = measured(run)
    assert memory.allocated_bytes == {"cpu": sum(size for size in sizes if size > 0)}
    assert memory.peak_bytes == {"cpu": peak}
    assert sum(row.bytes for row in memory.rows("op")) == peak
    for grouping in ("kind", "id", "op", "module", "line"):
        assert sum(row.bytes for row in memory.rows(grouping)) == peak
        assert sum(row.share for row in memory.rows(grouping)) == pytest.approx(1)


def test_training_is_bit_equal():
    def run():
        model = mlp()
        train(model, steps=3)
        return [parameter.detach().clone() for parameter in model.parameters()]

    alone = run()
    _, under = measured(run)
    assert all(torch.equal(one, other) for one, other in zip(alone, under, strict=True))


def test_what_was_there_when_memory_ran_out():
    memory, kept = PeakMemory(), []

    def run():
        kept.append(torch.ones(1000))
        torch.empty(1 << 50)

    with pytest.raises(RuntimeError, match="allocate memory"), amanda.apply(memory):
        run()
    snapshot = memory.at_error
    assert snapshot.when.startswith("when aten::empty (test_memory.py:")
    assert by(snapshot, "op", "bytes") == {"aten::ones": (4000,)}
    assert "ran out of memory" in " ".join(str(snapshot.table()).split())
    with pytest.raises(ValueError, match="boom"), amanda.apply(memory):
        raise ValueError("boom")
    assert memory.at_error is None


def test_an_operator_that_raised_is_not_blamed_for_later_memory():
    def run():
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        return torch.full((500,), 1.0)

    memory, _ = measured(run)
    assert by(memory, "op", "bytes")["aten::full"] == (2000,)


def test_the_peak_is_followed_over_many_allocations():
    def run():
        peak = [torch.ones(1000) for _ in range(50)]
        del peak
        return [torch.ones(10) for _ in range(3000)]

    memory, _ = measured(run)
    assert memory.peak_bytes == {"cpu": 200_000}
    assert memory.live_bytes == {"cpu": 120_000}
    (row,) = memory.rows("op")
    assert (row.name, row.bytes, row.blocks) == ("aten::ones", 200_000, 50)
    curve = memory.timeline()
    assert max(size for _, size in curve) == 200_000
    assert curve[-1][1] == 120_000
    assert len(curve) <= 4096


def test_page_and_trace(tmp_path):
    memory, _ = measured(lambda: train(mlp()))
    memory.write_html(tmp_path / "memory.html")
    page = (tmp_path / "memory.html").read_text()
    assert "Memory at the peak" in page
    assert "cpu in use over time" in page
    assert any("optimizer state" in column for table in tables_of(page) for column in table["texts"])
    memory.export_chrome_trace(tmp_path / "trace.json")
    counters = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "C"]
    assert max(event["args"]["bytes"] for event in counters) == memory.peak_bytes["cpu"]


class OneTensor(torch.optim.SGD):
    """Its state is not a dict, as that of PyTorch's optimizers."""

    def step(self, closure):
        closure()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = torch.zeros_like(parameter)


@pytest.mark.parametrize("make", [OneTensor, torch.optim.LBFGS])
def test_states_of_any_form(make):
    def run():
        model = torch.nn.Linear(64, 8, bias=False)
        optimizer = make(model.parameters(), lr=0.01)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 64)).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return optimizer, torch.ones(1_000_000)  # this is the peak

    memory, (optimizer, _) = measured(run)
    leaves = torch.utils._pytree.tree_leaves(list(optimizer.state.values()))
    storages = {
        leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in leaves if torch.is_tensor(leaf)
    }
    size, keepers = by(memory, "kind", "bytes", "kept_by")["optimizer state"]
    assert size == sum(storages.values())
    assert re.match(rf"(state|prev_flat_grad)(, \w+)* of {make.__name__}: weight", keepers)


def test_keepers_that_share_an_end_name_it_once():
    nodes = [f"{name}Backward0 of {GRAPHS}" for name in ("Addmm", "Relu", "Tanh")]
    assert keepers(nodes[:1]) == "AddmmBackward0 of a graph that the program keeps"
    assert keepers([*nodes[:2], "", nodes[0]]) == "AddmmBackward0, ReluBackward0 of a graph that the program keeps"
    assert keepers([*nodes, "0.weight", "step of Adam: 0.weight", "exp_avg of Adam: 0.weight"]) == (
        "step, exp_avg of Adam: 0.weight, AddmmBackward0, ReluBackward0 and 1 more of a graph that the program keeps, "
        "0.weight"
    )


def test_names_outlive_the_model():
    """As in a program with a main function."""

    def run():
        train(mlp())

    memory, _ = measured(run)
    keepers = " ".join(row.kept_by for row in memory.rows("id"))
    for name in ("0.weight", "2.bias.grad", "exp_avg of Adam: "):
        assert name in keepers
    assert "a parameter" not in keepers


def test_reset_and_a_second_scope():
    memory, _ = measured(lambda: torch.ones(1000))
    memory.reset()
    assert memory.rows() == []
    assert memory.peak_bytes == {}
    with amanda.apply(memory):
        kept = torch.ones(10)
    assert by(memory, "op", "bytes") == {"aten::ones": (40,)}
    assert kept is not None


def test_the_example_finds_what_grows_with_the_batch(run_example):
    printed = run_example("memory_at_peak.py")
    small, large = {}, {}
    for line in printed.splitlines()[:6]:
        kind, *numbers = re.fullmatch(
            r"(.*?) +([\d.]+) MB(?: at batch 8)? +([\d.]+) MB(?: at batch 32)?", line
        ).groups()
        small[kind], large[kind] = map(float, numbers)
    layer = 4 * 64 * 64 + 4 * 64 + 2 * 4 * 64 * 64 + 5 * 64 + 4 * 64  # attention, feed-forward, two norms
    assert small["parameter"] == large["parameter"] == pytest.approx(2 * layer * F32 / 1e6, abs=1e-3)
    assert small["optimizer state"] == large["optimizer state"] == pytest.approx(2 * small["parameter"], abs=1e-3)
    assert large["saved activation"] == pytest.approx(4 * small["saved activation"], rel=0.01)
    assert "most is saved by operators of layers.0.self_attn" in printed
