"""What tools add to a run of a session of ONNX Runtime, by the operators that they look at or edit."""

import itertools
import statistics

import process

NODES = 32
PROGRAMS = {"64 floats": 64, "1 MiB": 1 << 18}  # what each operator returns
VANILLA = "a run without a scope"
NOBODY_ASKS = "added to a run: scope open, nobody asks"
ROWS = {
    NOBODY_ASKS: None,
    "added for each operator: a routine that looks at its result": lambda value: None,
    "added for each operator: one that edits its result, and gives it back": lambda value: value,
}
RUNS = {"64 floats": 100, "1 MiB": 3}  # in a measurement
REPEATS = 15


def measurement(name, settings):
    """The median over fresh processes of the nanoseconds of a run without a scope, and of those that each row adds: to a
    run, or for each operator."""
    found = process.repeated(settings, once, name)
    return {"program": name, "ns": {row: statistics.median(each[row] for each in found) for row in found[0]}}


def once(name):
    process.prepare()
    import amanda
    import numpy

    opened = session(PROGRAMS[name])
    x = numpy.ones(PROGRAMS[name], numpy.float32)
    vanilla = process.best(lambda count: run(opened, x, count), RUNS[name], REPEATS)
    found = {VANILLA: vanilla}
    for row, routine in ROWS.items():
        with amanda.apply(tool(routine)):
            run(opened, x, 2)  # the first makes sessions of parts
            added = process.best(lambda count: run(opened, x, count), RUNS[name], REPEATS) - vanilla
        found[row] = added / (1 if row == NOBODY_ASKS else NODES)
    return found


def run(opened, x, count):
    for _ in range(count):
        opened.run(None, {"x": x})


def tool(routine):
    import amanda

    made = amanda.Tool("bench")
    if routine is None:
        made.add_inst_for_op(lambda context: None, ops="aten::erfinv", optional=True)
    else:
        made.add_inst_for_op(lambda context: context.insert_after_op(routine), ops="onnx::Sin")
    return made


def session(size):
    """A chain of operators that ONNX Runtime does not fuse, on one thread."""
    import onnxruntime
    from onnx import TensorProto, helper

    values = ["x", *(f"v{i}" for i in range(NODES))]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in itertools.pairwise(values)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in (values[0], values[-1])]
    model = helper.make_model(
        helper.make_graph(nodes, "chain", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
