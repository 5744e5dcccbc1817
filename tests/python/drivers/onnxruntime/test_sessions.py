"""All ways in which programs make and run sessions."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import amanda
import numpy as np
import onnx
import onnxruntime
import pytest
from amanda.driver import registry
from amanda.tools.statistics import OpStatistics
from onnx import TensorProto, helper
from sessions import BIAS, NODES, REGIMES, WEIGHT, Every, X, bits, model, session

RUNS = ("run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")


def negates(op):
    """A tool that negates the results of an operator."""
    tool = amanda.Tool("negates")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: -y), ops=op)
    return tool


def test_outside_of_scopes_methods_are_onnxruntimes():
    originals = [getattr(onnxruntime.InferenceSession, name) for name in RUNS]
    with amanda.apply(Every()):
        assert all(
            getattr(onnxruntime.InferenceSession, name) is not one for name, one in zip(RUNS, originals, strict=True)
        )
    assert [getattr(onnxruntime.InferenceSession, name) for name in RUNS] == originals


def test_an_edit_is_that_of_a_model_edited_by_hand():
    edited = model(
        (*NODES[:3], helper.make_node("Neg", ["r"], ["n"]), helper.make_node("Concat", ["n", "a"], ["y"], axis=1))
    )
    with amanda.apply(negates("onnx::Relu")):
        result = session().run(None, {"x": X})
    assert bits(result) == bits(session(edited).run(None, {"x": X}))


def test_an_edited_weight_is_that_of_a_file_edited_by_hand():
    """A weight stays a constant, which kernels prepare: as an input it would give other bits."""
    factor = [0.5]
    tool = amanda.Tool("scales")

    def analyze(context):
        for position, operand in enumerate(context.inputs):
            if getattr(operand, "is_constant", False) and len(operand.shape) == 2:
                context.insert_before_op(lambda w: w * np.float32(factor[0]), inputs=[position])

    tool.add_inst_for_op(analyze)
    opened = session()
    for factor[0] in (0.5, 0.5, 3.0):
        by_hand = session(model(constants={"W": WEIGHT * np.float32(factor[0]), "b": BIAS})).run(None, {"x": X})
        with amanda.apply(tool):
            assert bits(opened.run(None, {"x": X})) == bits(by_hand)


@pytest.mark.parametrize("names", [["r"], ["y", "m"], ["m", "y"], []])
def test_a_run_gives_the_outputs_that_it_is_asked_for(names):
    opened = session(model(outputs=["y", "r", "m"]))
    alone = opened.run(names, {"x": X})
    for regime in REGIMES:
        with amanda.apply(Every(regime)):
            assert bits(opened.run(names, {"x": X})) == bits(alone)


def test_what_the_session_refuses_it_refuses_in_a_scope():
    opened = session()
    wrong = [(None, {}), (None, {"x": X, "z": X}), (["nothing"], {"x": X}), (None, {"x": X.astype(np.float64)})]
    for names, feeds in wrong:
        with pytest.raises(Exception) as alone:
            opened.run(names, feeds)
        with amanda.apply(Every()), pytest.raises(type(alone.value)) as scoped:
            opened.run(names, feeds)
        assert str(scoped.value) == str(alone.value)


def test_an_input_with_a_default_may_be_given():
    proto = model(inputs={"x": TensorProto.FLOAT, "b": TensorProto.FLOAT})
    opened = session(proto)
    for feeds in ({"x": X}, {"x": X, "b": BIAS + 1}):
        alone = bits(opened.run(None, feeds))
        for regime in REGIMES:
            with amanda.apply(Every(regime)):
                assert bits(opened.run(None, feeds)) == alone


@pytest.mark.parametrize("regime", REGIMES)
def test_run_async(regime):
    opened, came, got = session(), threading.Event(), []

    def done(results, user_data, error):
        got.append((bits(results), user_data, error))
        came.set()

    with amanda.apply(Every(regime)):
        opened.run_async(None, {"x": X}, done, "mine")
        assert came.wait(60)
    assert got == [(bits(opened.run(None, {"x": X})), "mine", "")]


def test_an_error_of_a_routine_in_run_async_is_given_to_the_callback():
    opened, came, got = session(), threading.Event(), []
    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: 1 / 0))
    with amanda.apply(tool):
        opened.run_async(None, {"x": X}, lambda *given: (got.append(given), came.set()), None)
        assert came.wait(60)
    assert got == [([], None, "ZeroDivisionError: division by zero")]


@pytest.mark.parametrize("regime", REGIMES)
def test_run_with_ort_values(regime):
    opened, tool = session(), Every(regime)
    feeds = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)}
    alone = [each.numpy() for each in opened.run_with_ort_values(None, feeds)]
    with amanda.apply(tool):
        assert bits(each.numpy() for each in opened.run_with_ort_values(None, feeds)) == bits(alone)
    assert tool.values


def value_of(array):
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


INPUTS = {
    "array": lambda binding, x: binding.bind_cpu_input("x", x),
    "value": lambda binding, x: binding.bind_ortvalue_input("x", value_of(x)),
    "pointer": lambda binding, x: binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data),
}
OUTPUTS = {
    "new": lambda binding, y: binding.bind_output("y"),
    "value": lambda binding, y: binding.bind_ortvalue_output("y", value_of(y)),
    "pointer": lambda binding, y: binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data),
}


@pytest.fixture(params=[(i, o) for i in INPUTS for o in OUTPUTS if i == "array" or o == "new"], ids="-".join)
def bound(request):
    """A session, a binding of it, and the memory that an output was bound to by its address."""
    opened, given, into = session(), X.copy(), np.zeros((3, 16), np.float32)
    binding = opened.io_binding()
    INPUTS[request.param[0]](binding, given)
    OUTPUTS[request.param[1]](binding, into)
    yield opened, binding, into if request.param[1] == "pointer" else None
    assert bits([given]) == bits([X])


@pytest.mark.parametrize("regime", REGIMES)
def test_a_binding(bound, regime):
    opened, binding, into = bound
    alone, tool = bits(opened.run(None, {"x": X})), Every(regime)
    with amanda.apply(tool):
        for _ in range(2):
            opened.run_with_iobinding(binding)
            assert bits(binding.copy_outputs_to_cpu()) == alone
    assert into is None or bits([into]) == alone
    assert tool.values
    assert tool.evidence().is_complete


def test_an_edit_is_in_the_memory_that_is_bound(bound):
    opened, binding, into = bound
    with amanda.apply(negates("onnx::Relu")):
        edited = bits(opened.run(None, {"x": X}))
        opened.run_with_iobinding(binding)
    assert edited != bits(opened.run(None, {"x": X}))
    assert bits(binding.copy_outputs_to_cpu()) == edited
    assert into is None or bits([into]) == edited
    opened.run_with_iobinding(binding)  # outside of scopes
    assert bits(binding.copy_outputs_to_cpu()) == bits(opened.run(None, {"x": X}))


def test_an_output_may_be_bound_to_the_memory_of_an_input():
    square = model([helper.make_node("MatMul", ["x", "W"], ["y"])])
    opened, state, tool = session(square), X.copy(), Every()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", state)
    binding.bind_output("y", "cpu", 0, np.float32, state.shape, state.ctypes.data)
    expected = [X]
    with amanda.apply(tool):
        for _ in range(2):
            expected = opened.run(None, {"x": expected[0]})
            opened.run_with_iobinding(binding)
            assert bits([state]) == bits(expected)
    assert tool.values


def test_what_is_bound_last_counts():
    opened, tool = session(), Every()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    binding.bind_ortvalue_input("x", value_of(X + 1))
    with amanda.apply(tool):
        opened.run_with_iobinding(binding)
    assert bits(binding.copy_outputs_to_cpu()) == bits(opened.run(None, {"x": X + 1}))


def test_an_edit_that_does_not_fit_the_memory_is_named():
    opened, tool = session(), amanda.Tool("cuts")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y[:1]), ops="onnx::Concat")
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    with amanda.apply(tool):
        opened.run_with_iobinding(binding)
    assert bits(binding.copy_outputs_to_cpu()) == bits(opened.run(None, {"x": X}))
    assert "results of run_with_iobinding() are those without tools: an edit has changed the dtype or the shape" in (
        tool.evidence().not_looked_at
    )


def test_a_binding_with_a_dtype_that_numpy_lacks_runs_without_tools_and_evidence_says_so():
    opened, tool = session(), Every()
    binding = opened.io_binding()
    binding.bind_input("x", "cpu", 0, TensorProto.FLOAT, X.shape, X.ctypes.data)
    binding.bind_output("y")
    with amanda.apply(tool):
        opened.run_with_iobinding(binding)
    assert bits(binding.copy_outputs_to_cpu()) == bits(opened.run(None, {"x": X}))
    assert "run_with_iobinding() runs without tools: an input is bound with a dtype that numpy does not have" in (
        tool.evidence().not_looked_at
    )


def test_a_vector_of_values_runs_without_tools_and_evidence_says_so():
    opened, tool = session(), Every()
    value = onnxruntime.capi.onnxruntime_pybind11_state.OrtValueVector
    feeds, fetches = value(), value()
    feeds.push_back(value_of(X)._ortvalue)
    cpu = onnxruntime.capi.onnxruntime_pybind11_state.OrtDevice(0, 0, 0)
    with amanda.apply(tool):
        opened.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], feeds, ["y"], fetches, [cpu])
    assert bits(each.numpy() for each in fetches) == bits(opened.run(None, {"x": X}))
    assert "run_with_ortvaluevector() runs without tools; use run() or run_with_iobinding()" in (
        tool.evidence().not_looked_at
    )
    asks_for_nothing = amanda.Tool("other")
    asks_for_nothing.add_inst_for_op(lambda context: None, ops="aten::relu", optional=True)
    with amanda.apply(asks_for_nothing):
        opened.run_with_ortvaluevector(onnxruntime.RunOptions(), ["x"], feeds, ["y"], value(), [cpu])
    assert asks_for_nothing.evidence().is_complete


def written(path, proto=None):
    onnx.save(model() if proto is None else proto, path)
    return path


def test_a_session_of_a_file_and_of_bytes_have_the_same_ids(tmp_path):
    ids = []
    for source in (written(tmp_path / "a.onnx"), written(tmp_path / "b.onnx"), model()):
        tool, seen = amanda.Tool("ids"), []
        tool.add_inst_for_op(lambda context, seen=seen: seen.append(context.op_id))
        with amanda.apply(tool):
            session(source).run(None, {"x": X})
        ids.append(seen)
    assert ids[0] == ids[1] == ids[2]
    assert len({*ids[0]}) == len(ids[0]) >= 3


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("/encoder/fc1/Relu", "encoder.fc1"),
        ("/row/row.1/row.1.0/act/Relu_1", "row.1.0.act"),  # of a Sequential
        ("/layers.0/Relu", "layers.0"),
        ("relu", ""),
    ],
)
def test_a_module_is_read_off_the_name_of_a_node(name, module):
    """As torch.onnx.export(dynamo=False) writes it."""
    proto, tool = model(), Every("after")
    (relu,) = (node for node in proto.graph.node if node.op_type == "Relu")
    relu.name = name
    with amanda.apply(tool):
        session(proto, level="DISABLED").run(None, {"x": X})
    assert module in {path for path, _ in tool.places.values()}


def test_models_with_other_weights_have_other_ids():
    seen = []
    tool = amanda.Tool("ids")
    tool.add_inst_for_op(lambda context: seen.append(context.op_id))
    with amanda.apply(tool):
        for weight in (WEIGHT, WEIGHT + 1):
            session(model(constants={"W": weight, "b": BIAS})).run(None, {"x": X})
    assert len({*seen}) == len(seen)


def unread(opened, tool=None):
    """What the evidence says after a run that computes what the session computes alone."""
    tool = tool or Every("after")
    alone = bits(opened.run(None, {"x": X}))
    with amanda.apply(tool):
        assert bits(opened.run(None, {"x": X})) == alone
    assert tool.places == {}
    return tool.evidence().not_looked_at


def test_a_file_that_changed_after_the_session_was_made(tmp_path):
    opened = session(written(tmp_path / "m.onnx"))
    written(tmp_path / "m.onnx", model(constants={"W": WEIGHT * 2, "b": BIAS}))
    assert "m.onnx' has changed since the session was made; make it again" in unread(opened)


def test_a_file_that_is_gone(tmp_path):
    opened = session(written(tmp_path / "m.onnx"))
    (tmp_path / "m.onnx").unlink()
    assert "a session runs without tools: " in unread(opened)


def test_onnxruntimes_own_format(tmp_path):
    session(optimized_model_filepath=str(tmp_path / "m.ort"))
    opened = onnxruntime.InferenceSession(str(tmp_path / "m.ort"))
    assert "own format; load the .onnx file that it was made of" in unread(opened)


def test_a_session_that_keeps_no_model():
    opened = session()
    opened._model_bytes = None
    assert "it keeps neither the path nor the bytes of its model" in unread(opened)


def test_weights_in_a_file_beside_the_model(tmp_path):
    big = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    x = X.repeat(8, 1)
    proto = model(constants={"W": big, "b": big[0]})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    opened = session(tmp_path / "m.onnx")
    alone = bits(opened.run(None, {"x": x}))
    for regime in REGIMES:
        tool = Every(regime)
        with amanda.apply(tool):
            assert bits(opened.run(None, {"x": x})) == alone
        assert tool.values


def test_other_providers_are_another_session():
    opened = session()
    tool = Every()
    with amanda.apply(tool):
        opened.run(None, {"x": X})
        seen = tool.values
        opened.set_providers(["CPUExecutionProvider"])
        opened.run(None, {"x": X})
    assert tool.values == 2 * seen


def test_statistics_of_a_model_file():
    statistics = OpStatistics()
    with amanda.apply(statistics):
        session(level="DISABLED").run(None, {"x": X})
    (relu,) = [row for row in statistics.rows("op") if row.name == "onnx::Relu"]
    by_hand = np.maximum(X @ WEIGHT + BIAS, 0)
    assert relu.mean == pytest.approx(by_hand.mean(), rel=1e-5)
    assert relu.max == pytest.approx(by_hand.max(), rel=1e-5)


# ---- control flow, sequences, types that numpy lacks ----------------------------------------------------------------


def conditional():
    """x is negated if `flag`, by a body that captures what an operator before has made."""
    taken = helper.make_graph(
        [helper.make_node("Neg", ["r"], ["n"], "neg")], "taken", [], [onnx.ValueInfoProto(name="n")]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["i"])], "other", [], [onnx.ValueInfoProto(name="i")]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("If", ["flag"], ["y"], "choice", then_branch=taken, else_branch=other),
    ]
    return model(nodes, inputs={"x": TensorProto.FLOAT, "flag": TensorProto.BOOL}, constants={})


@pytest.mark.parametrize("flag", [True, False])
def test_a_body_gets_what_an_edit_has_made(flag):
    opened, feeds = session(conditional(), "DISABLED"), {"x": X, "flag": np.array(flag)}
    alone = opened.run(None, feeds)
    for regime in REGIMES:
        tool = Every(regime)
        with amanda.apply(tool):
            assert bits(opened.run(None, feeds)) == bits(alone)
        assert tool.evidence().is_complete
    with amanda.apply(negates("onnx::Relu")):
        assert bits(opened.run(None, feeds)) == bits([-alone[0]])


def test_sequences_pass_between_parts():
    nodes = [
        helper.make_node("SplitToSequence", ["x", "one"], ["s"], axis=0),
        helper.make_node("SequenceAt", ["s", "index"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    proto = model(nodes, constants={"one": np.array(1), "index": np.array(2)}, outputs=["y", "s"])
    opened = session(proto)
    alone = bits(opened.run(None, {"x": X}))
    tool = amanda.Tool("edits")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda *y: y), ops=["SequenceAt", "Relu"])
    with amanda.apply(tool, Every("look")):
        assert bits(opened.run(None, {"x": X})) == alone
    for regime in ("look", "before", "after"):
        with amanda.apply(Every(regime)):
            assert bits(opened.run(None, {"x": X})) == alone
    for schedule in (
        lambda context: context.insert_after_op(lambda s: s[::-1]),
        lambda context: context.replace_op(lambda *given: [X]),
    ):
        tool = amanda.Tool("edits")
        tool.add_inst_for_op(schedule, ops="SplitToSequence")
        with amanda.apply(tool), pytest.raises(amanda.Error, match="'s' is no tensor that numpy has"):
            opened.run(None, {"x": X})


def test_a_value_that_a_node_reads_twice():
    """An edit of one position leaves the other as it is."""
    opened = session(model([helper.make_node("Sub", ["x", "x"], ["y"])], constants={}))
    alone = bits(opened.run(None, {"x": X}))
    for regime in REGIMES:
        with amanda.apply(Every(regime)):
            assert bits(opened.run(None, {"x": X})) == alone

    def edits(schedule):
        tool = amanda.Tool("edits")
        tool.add_inst_for_op(schedule)
        return tool

    for tool, expected in (
        (edits(lambda context: context.insert_before_op(lambda b: b * 0, inputs=[1])), X),
        (edits(lambda context: context.insert_before_op(lambda a, b: (a * 3, b))), X * 3 - X),
        (edits(lambda context: context.replace_op(lambda a, b, op: op(a, b * 0), op=context.op)), X),
    ):
        with amanda.apply(tool):
            assert bits(opened.run(None, {"x": X})) == bits([expected])


def test_a_session_and_what_was_made_of_it_are_freed_together():
    opened = session()
    with amanda.apply(Every("after")):
        opened.run(None, {"x": X})
    made = weakref.ref(opened.__dict__["_amanda_program"][1])
    gone = weakref.ref(opened)
    folder = made()._folder
    assert os.path.exists(folder)
    del opened
    assert gone() is None
    gc.collect()
    assert made() is None
    assert not os.path.exists(folder)


def test_bfloat16_runs_without_tools_that_would_cut_there():
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    opened = session(model(nodes, constants={}), "DISABLED")
    alone, look = bits(opened.run(None, {"x": X})), Every("look")
    with amanda.apply(look):
        assert bits(opened.run(None, {"x": X})) == alone
    assert look.values == 2  # not the value between
    assert "'c', a tensor(bfloat16), can't leave the graph: no tool looks at it" in look.evidence().not_looked_at
    cuts = Every("after")
    with amanda.apply(cuts):
        assert bits(opened.run(None, {"x": X})) == alone
    assert "a tensor(bfloat16), can't leave the graph" in cuts.evidence().not_looked_at


def test_a_half_model():
    half = {"W": WEIGHT.astype(np.float16), "b": BIAS.astype(np.float16)}
    opened = session(model(inputs={"x": TensorProto.FLOAT16}, constants=half))
    feeds = {"x": X.astype(np.float16)}
    alone = bits(opened.run(None, feeds))
    for regime in REGIMES:
        with amanda.apply(Every(regime)):
            assert bits(opened.run(None, feeds)) == alone


def test_a_constant_that_is_a_result():
    proto = model([helper.make_node("Relu", ["x"], ["r"])], outputs=["r", "W"], constants={"W": WEIGHT})
    opened = session(proto)
    alone = bits(opened.run(None, {"x": X}))
    for regime in REGIMES:
        with amanda.apply(Every(regime)):
            results = opened.run(None, {"x": X})
        assert bits(results) == alone
        results[1] += 1  # it is the program's
    assert bits(opened.run(None, {"x": X})) == alone


def test_a_quantized_model(tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        left = [{"x": X}, {"x": X * 2}]

        def get_next(self):
            return self.left.pop() if self.left else None

    source = model()
    source.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16]))
    source.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8]))
    quantize_static(written(tmp_path / "m.onnx", source), tmp_path / "q.onnx", Reader())
    for level in ("DISABLED", "ALL"):
        opened = session(tmp_path / "q.onnx", level)
        alone = bits(opened.run(None, {"x": X}))
        for regime in REGIMES:
            with amanda.apply(Every(regime)):
                assert bits(opened.run(None, {"x": X})) == alone


def test_doctor_names_it():
    lines = dict(line for driver in registry.registered() for line in driver.describe())
    assert lines["onnxruntime"].endswith("amanda is attached to it")


def test_without_onnx_a_warning_says_what_to_install():
    program = """
import sys
sys.modules["onnx"] = None
import amanda
import onnxruntime
with amanda.apply(amanda.Tool()):
    pass
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "amanda needs onnx to read models: pip install 'amanda-nn[onnx]'" in ran.stderr


def test_a_name_of_no_operator_is_refused():
    with pytest.raises(ValueError, match="onnx::Convv"):
        negates("onnx::Convv")


@pytest.mark.parametrize("given", ["F.relu", "torch.nn.ReLU", "torch.ops.aten.relu.default"])
def test_in_a_program_with_both_pytorchs_names_are_suggested(given):
    with pytest.raises(ValueError, match=f"no operator '{given}'; did you mean 'relu'"):
        negates(given)
