"""The operators of a program are joined with the nodes of its ONNX file, and with those that ONNX Runtime makes of them."""

import json
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import amanda
import onnx
import onnxruntime
import pytest
import torch
from amanda.cli.main import main
from amanda.tools.export_diff import ExportDiff
from amanda.tools.export_diff.file_flops import file_flops
from amanda.tools.export_diff.model_file import ModelFile
from amanda.tools.export_diff.node_times import _medians
from amanda.tools.export_diff.replay import Replay
from export_models import export_of, exported, inputs_of, model_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(h).flatten(1))


X = torch.randn(2, 3, 4, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return exported(net(), (X,), tmp_path_factory.mktemp("file") / "net.onnx")


def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def joined(file):
    diff = ExportDiff(file)
    with amanda.apply(diff), torch.no_grad():
        net()(X)
    return diff


def test_each_operator_has_its_nodes_in_the_order_of_the_file(joined):
    rows = {(row.name, row.module_path): row for row in joined.rows("form")}
    assert [*rows] == [
        *(("aten::batch_norm", "norm"), ("aten::relu", ""), ("aten::flatten", ""), ("aten::linear", "head"))
    ]
    norm, linear = rows["aten::batch_norm", "norm"], rows["aten::linear", "head"]
    assert (norm.written, norm.optimized) == (("Conv",), ("com.microsoft::FusedConv",))
    assert norm.fused_with == ("aten::relu",)
    assert (linear.written, linear.optimized, linear.fused_with) == (("Gemm",), ("Gemm",), ())
    assert linear.source.startswith(__file__)


def test_operators_that_the_exporter_folded_are_named(joined):
    # The convolution is a part of the node of the batch normalization.
    assert joined.without_value["aten::conv2d"] == 1


def test_the_optimized_nodes_are_those_of_a_session(joined, file, tmp_path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(str(file), options)
    seen = []

    class Look(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(lambda context: seen.append((context.namespace, context.op.name)))

    with amanda.apply(Look()):
        session.run(None, {session.get_inputs()[0].name: X.numpy()})
    listed = [type for row in joined.rows("form") for type in row.optimized]
    assert set(listed) == {name.removeprefix("onnx::") for space, name in seen if space.startswith("onnxruntime/")}


def counted_by_torch(model, *arguments):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*arguments)
    return counter.get_total_flops()


def test_a_row_has_the_operators_of_all_forms_and_the_operations_that_torch_counts(tmp_path):
    (tmp_path / "model.onnx").write_bytes(export_of("Decoder"))
    model, arguments = model_of("Decoder"), inputs_of("Decoder")
    torch.export.save(torch.export.export(model, arguments), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    diff = ExportDiff(tmp_path / "model.onnx", exported=program, flops=True)
    with amanda.apply(diff), torch.no_grad():
        model(*arguments)
    rows, total = diff.rows("form"), counted_by_torch(model, *arguments)
    assert diff.flops == (total, total)
    assert diff.uncounted == []
    assert sum(row.flops for row in rows) == sum(row.file_flops for row in rows) == total
    assert all(row.flops == row.file_flops for row in rows)
    assert all(row.name in row.program and row.name in row.exported for row in rows)
    # What torch.export keeps, and the program does not run again: constants.
    assert diff.exported_unmatched == sum("lift_fresh" in node.name for node in program.graph.nodes)
    assert {".pt2", "MFLOP"} <= set(str(diff.table("form")).split())


def test_operations_of_an_operator_without_a_value_are_in_the_row_that_it_leads_to(file):
    diff = ExportDiff(file, flops=True)
    with amanda.apply(diff), torch.no_grad():
        net()(X)
    norm = diff.rows("form")[0]
    assert norm.program == ("aten::conv2d", "aten::batch_norm")
    assert norm.flops == norm.file_flops == counted_by_torch(net().conv, X)


def test_a_node_that_may_multiply_and_is_not_counted_is_named(file, tmp_path):
    """The linear layer as an Einsum."""
    model = onnx.load(file)
    (gemm,) = (node for node in model.graph.node if node.op_type == "Gemm")
    einsum = onnx.helper.make_node("Einsum", gemm.input[:2], ["product"], name="product", equation="ab,cb->ac")
    add = onnx.helper.make_node("Add", ["product", gemm.input[2]], gemm.output, name="sum")
    for node in (einsum, add):
        node.metadata_props.extend(gemm.metadata_props)
    i = list(model.graph.node).index(gemm)
    model.graph.node.remove(gemm)
    for node in (add, einsum):
        model.graph.node.insert(i, node)
    onnx.save(model, tmp_path / "einsum.onnx")
    diff = ExportDiff(tmp_path / "einsum.onnx", flops=True)
    with amanda.apply(diff), torch.no_grad():
        net()(X)
    linear = diff.rows("form")[-1]
    assert (linear.written, linear.file_flops) == (("Einsum", "Add"), None)
    assert diff.uncounted == ["Einsum"]
    assert diff.flops[1] is None


# ---- times ----------------------------------------------------------------------------------------------------------


def timed(model, path, *arguments, **keywords):
    diff = ExportDiff(path, times=True)
    with amanda.apply(diff), torch.no_grad():
        model(*arguments, **keywords)
    return diff


def test_times_of_a_fused_node_are_in_each_row_and_once_in_the_sum(file):
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    diff, random = timed(model, file, X), torch.get_rng_state()
    assert {row.ns for row in diff.rows("form")} == {None}
    assert "µs" not in str(diff.table("form"))
    diff.measure_times(3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    rows = {row.name: row for row in diff.rows("form")}
    norm, linear = rows["aten::batch_norm"], rows["aten::linear"]
    fused = [row for row in rows.values() if row.optimized == norm.optimized]
    assert len(fused) == 2
    assert len({row.optimized_ns for row in fused}) == 1
    times = diff.times
    assert times.runs == 3
    assert len(times.nodes) == len(diff._file.optimized().node)
    assert all(row.ns > 0 for row in rows.values())
    assert sum(row.ns for row in rows.values()) == pytest.approx(sum(times.program))
    assert linear.optimized_ns in times.nodes
    assert {"µs", "optimized"} <= set(str(diff.table("form")).split())


class Heavy(nn.Module):
    """A product that takes some hundred times as long as the other."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Linear(32, 32), nn.Linear(32, 8192)

    def forward(self, x):
        return self.large(self.small(x))


def test_the_operator_that_takes_longer_has_the_longer_times(tmp_path):
    x = torch.randn(64, 32)
    path = exported(Heavy().eval(), (x,), tmp_path / "heavy.onnx")
    diff = timed(Heavy().eval(), path, x)
    started = time.perf_counter_ns()
    diff.measure_times(5)
    took = time.perf_counter_ns() - started
    small, large = diff.rows("form")
    assert (small.module_path, large.module_path) == ("small", "large")
    assert large.ns > 5 * small.ns
    assert large.optimized_ns > 5 * small.optimized_ns
    assert large.ns * 3 < took  # of five runs, three took as long as the median, or longer
    assert large.optimized_ns * 3 < took


def test_times_of_nodes_are_the_medians_of_the_profile_after_the_warm_ups():
    def run(first, second, inside):
        nodes = [("0_kernel_time", first), ("1_kernel_time", second), ("_kernel_time", inside), ("0_fence_before", 99)]
        return [{"name": name, "dur": dur} for name, dur in [*nodes, ("model_run", 1000)]]

    warm_ups = 2 * run(500, 500, 500)
    events = [{"name": "session_initialization", "dur": 7}, *warm_ups, *run(1, 7, 5), *run(3, 8, 5), *run(2, 90, 5)]
    assert _medians(events, 2) == [2e3, 8e3]


class Cached(nn.Module):
    """Runs other operators when it is called again."""

    def __init__(self):
        super().__init__()
        self.calls, self.fc = 0, nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        y = self.fc(x)
        return y if self.calls == 1 else torch.relu(y)


def test_a_model_that_does_not_run_again_as_it_ran_has_no_times(tmp_path):
    x = torch.randn(2, 4)
    path = exported(Cached().eval(), (x,), tmp_path / "cached.onnx")
    model = Cached().eval()
    diff = timed(model, path, x)
    with pytest.raises(ValueError, match="called again, the model runs other operators than in the call that was"):
        diff.measure_times()
    model.train()
    with pytest.raises(ValueError, match=r"the model is no longer in the mode \(train or eval\) of the call"):
        diff.measure_times()
    assert diff.times is None


class Scaled(nn.Module):
    """Writes to its argument."""

    def forward(self, x, *, scale):
        return torch.relu(x.mul_(scale))


def test_the_model_gets_copies_of_the_arguments(tmp_path):
    x, scale = torch.randn(2, 4), torch.tensor(2.0)
    path = exported(Scaled().eval(), (x.clone(),), tmp_path / "scaled.onnx", kwargs={"scale": scale})
    given = x.clone()
    diff = timed(Scaled().eval(), path, given, scale=scale)
    diff.measure_times(2)
    assert torch.equal(given, x * 2)  # once
    assert [row.ns > 0 for row in diff.rows("form")] == [True] * len(diff.rows("form"))


class Held:
    """Has a tensor, and can't be copied."""

    layers: ClassVar[list] = [SimpleNamespace(keys=torch.ones(2, 4), values=None)]

    def __deepcopy__(self, memo):
        raise RuntimeError


def test_an_argument_that_cannot_be_copied_is_named():
    assert Replay.of((X, Held())).refused == "an argument, a Held, can't be copied"
    assert Replay.of(([X, {"x": (X, 3)}],)).refused == ""


def test_mistakes_with_times(file):
    diff = ExportDiff(file, times=True)
    with pytest.raises(ValueError, match="there is nothing to measure: no call was compared"):
        diff.measure_times()
    with pytest.raises(ValueError, match="runs= is a number of runs, 1 or more, got 0"):
        diff.measure_times(0)
    with amanda.apply(diff), pytest.raises(ValueError, match="runs the model again: call it after the scope"):
        diff.measure_times()
    with pytest.raises(ValueError, match="make the tool with times=True"):
        ExportDiff(file).measure_times()


def test_operations_in_a_body_are_those_of_its_node(tmp_path):
    """A model of two branches: one multiplies matrices, the other does not."""
    path = exported(Chooses().eval(), (X.flatten(1),), tmp_path / "chooses.onnx")
    given = X.flatten(1)
    counted = file_flops(ModelFile(path), {"x": given.abs().numpy()})
    (choice,) = (i for i, node in enumerate(onnx.load(path).graph.node) if node.op_type == "If")
    assert counted.by_node == {choice: 2 * len(X) * 48 * 5}
    assert counted.uncounted == {}
    assert file_flops(ModelFile(path), {"x": (-given.abs()).numpy()}).total == 0


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 5)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.fc(x), lambda x: x[:, :5] * 2, (x,))


# ---- the .pt2 file ---------------------------------------------------------------------------------------------------


def test_a_pt2_file_with_dynamic_sizes_is_joined_for_the_sizes_of_the_call(tmp_path):
    (tmp_path / "model.onnx").write_bytes(export_of("Cached"))
    model, (x, keys) = model_of("Cached"), inputs_of("Cached")
    n = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(model, (x, keys), dynamic_shapes={"x": None, "keys": {1: n}})
    diff = ExportDiff(tmp_path / "model.onnx", exported=program)
    with amanda.apply(diff), torch.no_grad():
        model(x, torch.randn(1, 9, 8))
    assert all(row.name in row.exported for row in diff.rows("form"))


def test_a_pt2_file_of_another_model_has_no_counterparts(joined, file):
    diff = ExportDiff(file, exported=torch.export.export(nn.Sequential(nn.Tanh()), (X,)))
    with amanda.apply(diff), torch.no_grad():
        net()(X)
    assert {row.exported for row in diff.rows("form")} == {()}
    assert diff.exported_unmatched == 1
    assert [row.written for row in diff.rows("form")] == [row.written for row in joined.rows("form")]


def test_columns_are_those_that_something_was_given_for(joined):
    assert {".pt2", "MFLOP"}.isdisjoint(str(joined.table("form")).split())


def test_the_command(file, tmp_path):
    script = tmp_path / "infer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            import torch
            sys.path.insert(0, {str(tmp_path)!r})
            from net import Net

            torch.manual_seed(0)
            with torch.no_grad():
                Net().eval()(torch.randn(2, 3, 4, 4))
            """
        )
    )
    source = Path(__file__).read_text()
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\n" + source[source.index("class Net") : source.index("X = torch")]
    )

    def amanda_ls(*options):
        command = [sys.executable, "-m", "amanda", "ls", *options, str(script)]
        return subprocess.run(command, capture_output=True, text=True)

    ran = amanda_ls("--against-onnx", str(file))
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.strip().splitlines()
    assert lines[0].startswith(
        "4 operators of the program became 4 nodes of the file; ONNX Runtime fuses 2 of them with"
    )
    total = f"{counted_by_torch(net(), X) / 1e6:,.4g}"
    assert lines[1] == f"{total} MFLOP in the program, {total} in the file"
    assert lines[2].startswith("operators of the program whose results are no values of the file: ")
    assert "aten::conv2d 1" in lines[2]
    (linear,) = (line for line in lines if "aten::linear" in line)
    assert linear.split()[-4:] == ["Gemm", "Gemm", *[f"{2 * 2 * 16 * 5 / 1e6:.4g}"] * 2]
    ran = amanda_ls("--against-onnx", str(file), "--times", "2")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.strip().splitlines()
    assert re.fullmatch(
        r"[\d.]+ ms in operators of the program, [\d.]+ in optimized nodes: medians of 2 runs; the time of a fused node "
        "belongs to several operators, and is in the row of each",
        lines[2],
    )
    (linear,) = (line for line in lines if "aten::linear" in line)
    assert all(float(cell.replace(",", "")) > 0 for cell in linear.split()[-2:])  # "8,115.1" on a busy machine
    torch.export.save(torch.export.export(net(), (X,)), tmp_path / "net.pt2")
    files = {name: str(tmp_path / f"rows.{name}") for name in ("json", "html")}
    written = [argument for name, path in files.items() for argument in (f"--{name}", path)]
    ran = amanda_ls("--against-onnx", str(file), "--against-pt2", str(tmp_path / "net.pt2"), *written)
    assert ran.returncode == 0, ran.stderr
    row = json.loads(Path(files["json"]).read_text())[-1]
    assert (row["exported"], row["written"]) == (["aten::linear"], ["Gemm"])
    page = Path(files["html"]).read_text()
    assert "What became of each operator" in page
    assert "net.pt2" in page


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--html", "page.html"], "argument --html: it goes with --against-onnx"),
        (["--against-pt2", "net.pt2"], "argument --against-pt2: it goes with --against-onnx"),
        (["--against-onnx", "none.onnx", "--ops", "linear"], "argument --ops: not with --against-onnx"),
        (["--times", "3"], "argument --times: it goes with --against-onnx"),
        (["--against-onnx", "none.onnx", "--times", "0"], "argument --times: expected a positive number, got 0"),
        (["--against-onnx", "none.onnx"], "none.onnx"),
        (["--against-onnx", "none.onnx", "--against-pt2", "none.pt2"], "none.pt2"),
    ],
)
def test_a_mistake_ends_before_the_program_runs(options, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("infer.py").write_text("print('ran')")
    with pytest.raises(SystemExit) as ended:
        main(["ls", *options, "infer.py"])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "ran" not in printed.out
