"""ExportDiff: faithful exports have no row, planted faults have theirs, other files have a sentence."""

import re
from pathlib import Path

import amanda
import export_zoo
import numpy as np
import onnx
import onnx_faults
import onnxruntime
import pytest
import torch
from amanda.tools.export_diff import ExportDiff
from export_models import KINDS, export_of, exported, inputs_of, labelled_file, model_of
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def file_of(tmp_path):
    """file_of("Decoder"): its export; file_of(model): this file."""

    def write(what, name="model.onnx"):
        path = tmp_path / name
        path.write_bytes(export_of(what) if isinstance(what, str) else what.SerializeToString())
        return path

    return write


def compared(path, model, *arguments, runs=1, **options):
    diff = ExportDiff(path, **options)
    with amanda.apply(diff), torch.no_grad():
        for _ in range(runs):
            model(*arguments)
    return diff


def diff_of(path, name, **options):
    return compared(path, model_of(name), *inputs_of(name), **options)


def planted(name, kind, **wanted):
    """The first fault of a kind, in a node with these fields."""
    model = onnx.load_from_string(export_of(name))
    for fault in onnx_faults.faults(model):
        node = next(each for each in fault.model.graph.node if fault.outputs[0] in each.output)
        if fault.kind == kind and all(getattr(node, key) == value for key, value in wanted.items()):
            return fault
    raise LookupError(kind)


def names_of(fault):
    """For each planted fault, the names of its nodes."""
    return [{node.name for node in fault.model.graph.node if output in node.output} for output in fault.outputs]


# ---- faithful files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_faithful_export_has_no_cause_and_all_its_nodes_are_compared(name, file_of):
    diff = diff_of(file_of(name), name)
    assert not diff.rows(), diff.table()
    assert not diff.not_compared
    nodes = len(onnx.load_from_string(export_of(name)).graph.node)
    assert re.fullmatch(
        rf"no cause in \d+ values that {nodes} of {nodes} nodes compute, in 1 call of {name}\n"
        r"outputs of the file differ from the program's by \S+, as an optimized session",
        diff.answer(),
    )
    assert diff.output_error < 1e-5
    assert max(row.error for row in diff.rows("value")) < 2e-6


@pytest.mark.parametrize("name", KINDS)
def test_the_program_gets_the_same_bits(name, file_of):
    model, arguments = model_of(name), inputs_of(name)
    before = model(*arguments)
    diff = ExportDiff(file_of(name))
    with amanda.apply(diff):
        inside = model(*arguments)
    assert diff.compared == 1
    flat = torch.utils._pytree.tree_leaves
    assert all(torch.equal(a, b) for a, b in zip(flat(before), flat(inside), strict=True))


def test_calls_of_other_sizes_are_compared_up_to_the_number_asked_for(file_of):
    model, (x, keys) = model_of("Cached"), inputs_of("Cached")
    diff = ExportDiff(file_of("Cached"), calls=2)
    with amanda.apply(diff), torch.no_grad():
        for _ in range(3):
            keys = model(x, keys=keys)["keys"]
    assert (diff.compared, {row.calls for row in diff.rows("value")}) == (2, {2})
    assert not diff.rows()
    assert not diff.not_compared
    shapes = {row.value: row.shape for row in diff.rows("value") if len(row.shape) == 3}
    assert (1, 4, 8) in shapes.values() or (1, 5, 8) in shapes.values()


def test_an_exported_part_of_a_model_is_found_in_it(file_of):
    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_of("Perceptron")

        def forward(self, x):
            return self.inner(x * 2)

    diff = compared(file_of("Perceptron"), Around(), *inputs_of("Perceptron"))
    assert not diff.rows()
    assert {row.module_path for row in diff.rows("value")} >= {"inner.norm", "inner.first"}


def test_weights_in_other_files_are_compared(tmp_path):
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    model, data = onnx.load_from_string(export_of("Decoder")), path.with_name("model.onnx.data")
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=1024)
    assert data.exists()
    faithful = diff_of(path, "Decoder")
    assert (faithful.rows(), faithful.not_compared) == ([], [])
    weights = bytearray(data.read_bytes())
    graph = onnx.load(path, load_external_data=False).graph
    matrix = [node for node in graph.node if node.op_type == "MatMul"][-1].input[1]
    head = next(each for each in graph.initializer if each.name == matrix)
    where = {each.key: int(each.value) for each in head.external_data if each.key in ("offset", "length")}
    weights[where["offset"] : where["offset"] + 4] = np.float32(9).tobytes()
    data.write_bytes(weights)
    assert [row.module_path for row in diff_of(path, "Decoder").rows()] == ["head"]


# ---- planted faults --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Perceptron", "approximation"),
        ("ConvNet", "weight"),
        ("ConvNet", "cast"),
        ("Decoder", "epsilon"),
        ("Decoder", "axis"),
        ("Decoder", "transposition"),
        ("Decoder", "mask"),
        ("Decoder", "constant"),
        ("Decoder", "dropped"),
        ("Decoder", "doubled"),
        ("Cached", "bias"),
    ],
)
def test_a_planted_fault_is_the_only_row(name, kind, file_of):
    fault = planted(name, kind)
    (row,) = diff_of(file_of(fault.model), name).rows()
    assert names_of(fault)[0] & set(row.nodes)
    assert row.error > row.tolerance
    assert row.differs == row.calls == 1


def test_a_row_has_the_module_and_the_line_of_the_program(file_of):
    fault = planted("Decoder", "approximation")
    diff = diff_of(file_of(fault.model), "Decoder")
    (row,) = diff.rows()
    file, _, line = row.source.rpartition(":")
    assert "F.gelu(" in Path(file).read_text().splitlines()[int(line) - 1]
    assert (row.name, row.module_path, row.op_types) == ("aten::gelu", "blocks.0", ("Gelu",))
    assert diff.answer().startswith("the only cause: Gelu (gelu), where the program runs aten::gelu at blocks.0, ")


def test_a_weight_that_differs_is_named(file_of):
    fault = planted("Perceptron", "weight", op_type="Gemm")
    (row,) = diff_of(file_of(fault.model), "Perceptron").rows()
    assert re.fullmatch(r"(first|second)\.weight differs by 0\.\d+", row.note)
    assert row.note.startswith(row.module_path)
    (row,) = diff_of(file_of(planted("Perceptron", "cast").model), "Perceptron", rtol=1e-6).rows()
    assert row.note == ""


def test_two_faults_are_two_rows(file_of):
    fault = planted("Decoder", "epsilon")
    last = len(fault.model.graph.node) - 2
    two = next(
        found for i in range(last, 0, -1) if (found := onnx_faults.both(fault, onnx_faults.weight, i)) is not None
    )
    first, second = diff_of(file_of(two.model), "Decoder").rows()
    assert all(names & set(row.nodes) for names, row in zip(names_of(two), (first, second), strict=True))


def test_a_fault_that_no_output_shows_is_found(file_of):
    """The value is a result that the program does not return: the output agrees to 1e-5 or so."""
    model = onnx.load_from_string(export_of("Decoder"))
    gelu = next(node for node in model.graph.node if node.op_type == "Gelu")
    attribute = next(each for each in gelu.attribute if each.name == "approximate")
    attribute.s = b"none"
    diff = diff_of(file_of(model), "Decoder")
    assert len(diff.rows()) == 1
    assert diff.output_error < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_fault_of_every_kind_is_named_exactly(name, file_of):
    model = onnx.load_from_string(export_of(name))
    faults = list(onnx_faults.faults(model))
    plants = list(onnx_faults.KINDS.values())
    for k, fault in enumerate(faults[::4]):  # a second one in every fourth
        nodes = range(k % len(fault.model.graph.node), len(fault.model.graph.node))
        other = (onnx_faults.both(fault, plant, i) for i in nodes for plant in (plants[k % len(plants)], *plants))
        faults += [found for found in [next(filter(None, other), None)] if found is not None]
    wrong = []
    for fault in faults:
        rows = diff_of(file_of(fault.model), name).rows()
        nodes = names_of(fault)
        if not all(any(names & set(row.nodes) for row in rows) for names in nodes) or not all(
            any(names & set(row.nodes) for names in nodes) for row in rows
        ):
            wrong.append(f"{fault.kind} in {fault.outputs}: {[(row.value, row.error) for row in rows]}")
    print(f"{name}: {len(faults)} faults, {len(wrong)} not named")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", export_zoo.named("llama", "swin"))
def test_an_architecture_of_transformers_has_no_row(name, tmp_path):
    model, arguments = export_zoo.made(name)
    path = exported(model, (), tmp_path / "model.onnx", kwargs=arguments)
    diff = ExportDiff(path)
    with amanda.apply(diff), torch.no_grad():
        model(**arguments)
    assert not diff.rows(), diff.table()
    assert not diff.not_compared
    results, unmatched = diff.rows("value"), diff.rows("unmatched")
    assert len(results) >= 6 * len(unmatched), unmatched


# ---- files that something has rewritten ------------------------------------------------------------------------------


def test_an_optimized_file_is_compared_where_its_values_survive(file_of, tmp_path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    written = file_of("Decoder")
    onnxruntime.InferenceSession(str(written), options)
    diff = diff_of(tmp_path / "optimized.onnx", "Decoder", written=written)
    assert not diff.rows()
    assert not diff.not_compared
    assert len(diff.rows("value")) >= 20


def quantized(path, made):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.left = [{"x": inputs_of("Perceptron")[0].numpy()}]

        def get_next(self):
            return self.left.pop() if self.left else None

    quantize_static(path, made, Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return made


def test_a_bad_scale_ranks_its_producer_and_its_reader_first(file_of, tmp_path):
    made = quantized(file_of("Perceptron"), tmp_path / "quantized.onnx")
    assert not diff_of(made, "Perceptron").rows()
    model = onnx.load(made)
    scale = next(each for each in model.graph.initializer if each.name == "gelu_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(8), scale.name))
    diff = diff_of(file_of(model, "bad.onnx"), "Perceptron")
    assert {row.value for row in diff.rows()} == {"gelu", "linear_1"}
    assert {row.value for row in diff.rows("value")[:2]} == {"gelu", "linear_1"}


def test_a_float16_file_has_the_tolerance_of_float16(file_of, tmp_path):
    half = half_of(onnx.load_from_string(export_of("Perceptron")))
    diff = diff_of(file_of(half), "Perceptron")
    assert not diff.rows()
    assert {row.tolerance for row in diff.rows("value") if row.dtype == "float16"} == {5e-3}
    fault = next(each for each in onnx_faults.faults(half) if each.kind == "dropped")
    (row,) = diff_of(file_of(fault.model, "fault.onnx"), "Perceptron").rows()
    assert names_of(fault)[0] & set(row.nodes)


def half_of(model):
    """The file in float16, with float32 inputs and outputs."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def test_values_without_an_array_are_a_part_of_the_next_one(file_of):
    """ONNX Runtime's Python has none for bfloat16."""
    model = onnx.load_from_string(export_of("Perceptron"))
    gelu = next(node for node in model.graph.node if node.op_type == "Gelu")
    i = list(model.graph.node).index(gelu)
    read = gelu.input[0]
    linear = next(node for node in model.graph.node if read in node.output)
    linear.output[0] = "wide"
    model.graph.node.insert(i, helper.make_node("Cast", ["wide"], [read], to=TensorProto.BFLOAT16, name="narrow"))
    gelu.input[0] = "again"
    model.graph.node.insert(i + 1, helper.make_node("Cast", [read], ["again"], to=TensorProto.FLOAT, name="widen"))
    del model.graph.value_info[:]
    diff = diff_of(file_of(model), "Perceptron")
    (row,) = diff.rows()
    assert {"narrow", "widen", gelu.name} <= set(row.nodes)
    assert not diff.not_compared


# ---- what cannot be compared -----------------------------------------------------------------------------------------


def test_calls_that_do_not_fit_are_named(file_of):
    model, (x,) = model_of("Perceptron"), inputs_of("Perceptron")
    diff = ExportDiff(file_of("Perceptron"))
    with amanda.apply(diff), torch.no_grad():
        model(torch.cat([x, x]))
    why = "1 call of Perceptron: its x has the shape [8, 16], and the file takes [4, 16]"
    assert diff.not_compared == [why]
    assert diff.answer() == f"nothing was compared: {why}"
    assert not diff.evidence().is_complete


def test_a_program_without_the_model_is_named(file_of):
    diff = compared(file_of("Perceptron"), torch.nn.Linear(2, 2), torch.ones(2, 2))
    assert diff.answer() == (
        "nothing was compared: the program has called no Perceptron, which is the model that was exported"
    )


def test_another_number_of_arguments_is_named(file_of):
    class Cached(torch.nn.Module):
        def forward(self, x):
            return x

    diff = compared(file_of("Cached"), Cached(), torch.ones(1, 1, 8))
    assert diff.not_compared == ["1 call of Cached: it got 1 tensor, and the file takes 2 tensors"]


def test_a_file_that_changes_meanwhile_is_named(file_of):
    path = file_of("Perceptron")
    diff = ExportDiff(path)
    path.write_bytes(export_of("Decoder"))
    with amanda.apply(diff):
        model_of("Perceptron")(*inputs_of("Perceptron"))
    assert "has changed since the comparison began; run it again" in diff.answer()


def test_an_argument_that_the_model_writes_to_is_never_a_false_cause(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            x[0] += 1
            return torch.relu(x)

    path, x = labelled_file(tmp_path / "model.onnx"), torch.tensor([1.0, -2.0])
    model = onnx.load(path)
    model.graph.node[0].input[0] = "sum"
    model.graph.node.insert(0, helper.make_node("Add", ["x", "first"], ["sum"], name="sum"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 0], np.float32), "first"))
    onnx.save(model, path)
    diff = ExportDiff(path)
    with amanda.apply(diff):
        Net()(x.clone())
    assert (diff.compared, diff.rows(), diff.not_compared) == (1, [], [])
    diff.reset()
    with amanda.apply(diff):
        Net()(x=x.clone())
    assert not diff.rows()
    assert diff.not_compared == [
        "1 call of Net: the model writes to its argument x; the call is compared if that is given by position"
    ]


def test_no_hook_is_left(file_of):
    from torch.nn.modules import module as torch_module

    def hooks():
        found = {name: value for name, value in vars(torch_module).items() if name.startswith("_global_forward_")}
        return {name: len(value) for name, value in found.items() if isinstance(value, dict)}

    before = hooks()
    assert diff_of(file_of("Perceptron"), "Perceptron").compared == 1
    assert hooks() == before


def test_operators_of_the_tool_are_not_seen(file_of):
    seen = []
    counter = amanda.Tool("counter")
    counter.add_inst_for_op(lambda context: context.insert_before_op(lambda: seen.append(0), inputs=[]))
    model, arguments = model_of("Perceptron"), inputs_of("Perceptron")
    with amanda.apply(counter), torch.no_grad():
        model(*arguments)
    alone = len(seen)
    diff = ExportDiff(file_of("Perceptron"))
    with amanda.apply(counter, diff), torch.no_grad():
        model(*arguments)
    assert diff.compared == 1
    assert len(seen) == 2 * alone


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_a_compiled_model_runs_and_is_not_compared(file_of):
    torch._dynamo.reset()
    model, arguments = model_of("Perceptron"), inputs_of("Perceptron")
    compiled = torch.compile(model, backend="aot_eager")
    diff = ExportDiff(file_of("Perceptron"))
    with amanda.apply(diff, compiled="graph"), torch.no_grad():
        assert torch.equal(compiled(*arguments), model(*arguments))
    assert diff.compared == 1, "the second call is not compiled"
    assert not diff.evidence().is_complete
    torch._dynamo.reset()


def test_outputs_that_differ_without_a_cause_are_named(file_of, monkeypatch):
    diff = diff_of(file_of("Perceptron"), "Perceptron")
    sentence = "no node does that by itself: smaller errors add up, or the session's optimizations do it"
    assert sentence not in diff.answer()
    monkeypatch.setattr(diff._comparison, "output_error", 2e-5)  # of the optimized session
    assert diff.answer().endswith(sentence)


def test_training_mode_is_named_where_something_differs(file_of):
    model = model_of("ConvNet").train()
    diff = compared(file_of("ConvNet"), model, *inputs_of("ConvNet"))
    assert "ConvNet was in training mode" in diff.answer()


@pytest.mark.slow
def test_an_export_inside_the_scope_is_no_call(file_of, tmp_path):
    model, arguments = model_of("Perceptron"), inputs_of("Perceptron")
    diff = ExportDiff(file_of("Perceptron"))
    with amanda.apply(diff), torch.no_grad():
        exported(model, arguments, tmp_path / "again.onnx")
        model(*arguments)
    assert diff.compared == 1
    assert not diff.rows()


def test_files_that_are_no_export_are_refused(tmp_path):
    def refused(content, match):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=match):
            ExportDiff(path)

    refused(
        b"\x08\x00\x00\x00ORTM" + bytes(20), "has ONNX Runtime's own format; give the .onnx file that it was made of"
    )
    refused(b"\x9c\xff\xfe\xff\x13\x37" * 9, "is no ONNX file, or is encrypted")
    refused(b"", "has no nodes; give a file that torch.onnx.export has written")
    node = helper.make_node("Relu", ["x"], ["y"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [value("x", 1, [2])], [value("y", 1, [2])])
    refused(
        helper.make_model(graph).SerializeToString(),
        re.escape("does not say of which operators or modules of PyTorch its nodes were made: export it with torch"),
    )
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["x"], ["y"])], "g", [sequence], [value("y", 7, [])])
    refused(helper.make_model(graph).SerializeToString(), "x is a sequence; only inputs and outputs that are tensors")
    with pytest.raises(FileNotFoundError):
        ExportDiff(tmp_path / "missing.onnx")


def test_arguments_are_checked(file_of):
    path = file_of("Perceptron")
    with pytest.raises(ValueError, match=re.escape("[export_diff] calls= is a number of calls, 1 or more, got 0")):
        ExportDiff(path, calls=0)
    with pytest.raises(ValueError, match=re.escape("[export_diff] rtol= is a tolerance, 0 or more, got -1")):
        ExportDiff(path, rtol=-1)


def test_reset_forgets(file_of):
    diff = diff_of(file_of(planted("Perceptron", "epsilon").model), "Perceptron")
    assert diff.rows()
    diff.reset()
    assert not diff.rows("value")
    assert diff.compared == 0


def test_a_tolerance_of_the_user_counts(file_of):
    path = file_of(planted("Perceptron", "approximation").model)
    assert not diff_of(path, "Perceptron", rtol=0.1).rows()
    assert diff_of(path, "Perceptron").rows()
