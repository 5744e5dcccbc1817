"""How the driver is loaded: with TensorFlow, whoever imports it, and never before. The hook itself is tested without
TensorFlow, by tests/python/drivers/test_loading.py."""

from __future__ import annotations

import textwrap

import amanda
import pytest
import tensorflow as tf

LOOKING = """
    import os, sys, warnings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import amanda
    from amanda.driver import registry

    class Looking(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.add_inst_for_op(lambda context: self.seen.append((context.namespace, context.op.__name__)), ops="Relu")

    def names():
        return [driver.framework for driver in registry.loaded()]
"""


@pytest.fixture
def run(fresh_python):
    """Runs code after `LOOKING`, and returns what it printed, line by line."""
    return lambda code: fresh_python(textwrap.dedent(LOOKING) + textwrap.dedent(code)).splitlines()


def test_an_open_scope_sees_what_a_library_imports_in_it(run):
    code = """
        assert names() == []
        with amanda.apply(tool := Looking()):
            import keras
            import tensorflow as tf
            print(names())
            keras.ops.relu(tf.constant(1.0))
        tf.nn.relu(tf.constant(1.0))
        print(tool.seen)
    """
    assert run(code) == ["['TensorFlow']", "[('tensorflow/2.21/eager', 'Relu')]"]


def test_tensorflow_may_be_imported_first(fresh_python):
    code = """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow, amanda
        from amanda.driver import registry
        print([driver.framework for driver in registry.loaded()])
    """
    assert fresh_python(code) == "['TensorFlow']"


def test_another_version_is_one_warning_and_runs_as_it_is(run):
    told = (
        "[tensorflow] this version of amanda is for TensorFlow 2.22, and TensorFlow 2.21.0 is imported: it runs "
        "uninstrumented, and tools see nothing of it; install tensorflow==2.22.*"
    )
    lines = run("""
        from amanda.drivers.tensorflow import version
        version.VERSION = "2.22"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import tensorflow as tf
        print(*[warning.message for warning in told if "[tensorflow]" in str(warning.message)])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with amanda.apply(tool := Looking()):
                print(float(tf.nn.relu(tf.constant(1.0))))
        print(tool.seen, names())
        print(*[warning.message for warning in told])
        from amanda.cli.main import main
        main(["doctor"])
    """)
    assert lines[:4] == [told, "1.0", "[] []", f"[scope] tools see nothing here: {told}"]
    described = "2.21.0; amanda needs TensorFlow 2.22, so that tools see nothing of it"
    assert ["tensorflow", described] in [line.split(maxsplit=1) for line in lines]


def test_missing_names_are_listed_in_one_warning(run):
    code = """
        sys.meta_path[:] = [finder for finder in sys.meta_path if "amanda" not in str(finder)]
        import tensorflow as tf
        from tensorflow.python.eager import execute
        from tensorflow.python.framework import ops
        del execute.execute_with_callbacks, ops.get_gradient_function
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with amanda.apply(Looking()):
                print(float(tf.nn.relu(tf.constant(1.0))))
        print(told[0].message)
    """
    first, text = run(code)
    assert first == "1.0"
    assert text.startswith("[tensorflow] TensorFlow 2.21.0 has no ")
    assert "tensorflow.python.framework.ops.get_gradient_function" in text
    assert "tensorflow.python.eager.execute.execute_with_callbacks" in text


# ---- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", ["Conv2D", "tensorflow::Conv2D", "Conv*", "aten::conv2d", "tensorflow::LoadedLater"])
def test_names_that_operators_may_have(ops):
    amanda.Tool().add_inst_for_op(print, ops=ops)


@pytest.mark.parametrize(
    ("ops", "complaint"),
    [
        ("conv2D", "; did you mean 'Conv2D'?"),
        ("Reluu", "; did you mean 'Relu' or 'Relu6'?"),
        ("nothing at all", "; ops= takes names, shell globs, and lists of these"),
        (
            "ReluBackward0",
            "; ask for backward operators by the name of the forward operator: ops='Relu', backward=True",
        ),
        (
            "LoadedLater",
            "; those of a module are selected with modules='LoadedLater'; if it is registered later, give its namespace as "
            "well: 'tensorflow::LoadedLater'",
        ),
    ],
)
def test_names_that_no_operator_has(ops, complaint, says):
    with says(ValueError, f"[tool] Tool: no operator {ops!r}{complaint}"):
        amanda.Tool().add_inst_for_op(print, ops=ops)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (tf.nn.relu, "; write ops='Relu'"),
        (tf.raw_ops.Relu, "; write ops='Relu'"),
        (tf.nn.conv2d, "; write ops='Conv2D'"),
        (tf.matmul, "; write ops='MatMul' or ops='BatchMatMulV3' or ops='BatchMatMulV2'"),
        (tf.add, "; write ops='Add' or ops='AddV2'"),
        (tf.nn.softmax, "; write ops='Softmax'"),
        (len, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_functions_in_place_of_names(value, meant, says):
    with says(TypeError, f"[tool] Tool.add_inst_for_op: ops= takes operator names, got {value!r}{meant}"):
        amanda.Tool().add_inst_for_op(print, ops=value)


# ---- the command -------------------------------------------------------------------------------------------------------


def test_the_command_runs_a_script(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import tensorflow as tf

        with tf.name_scope("dense"):
            tf.nn.relu(tf.constant([[1.0, -1.0]]))
        print("ran")
        """)
    )
    lines = run(f"""
        from amanda.cli.main import main
        main(["doctor", {str(script)!r}])
        main(["ls", "--ops", "Relu", {str(script)!r}])
    """)
    rows = [line.split(maxsplit=1) for line in lines]
    assert ["torch", 'not installed; pip install "torch==2.13.*"'] in rows
    assert ["tensorflow", "2.21.0; amanda is ready for it when a program imports it"] in rows
    assert "forward: 1 dispatched, 1 seen, 0 skipped" in lines
    assert "backward: nothing" in lines
    assert lines.count("ran") == 2
    listed = lines[lines.index("ran", lines.index("ran") + 1) :]
    answer, row = [line for line in listed if "Relu" in line]
    assert answer.startswith("operators ran at 1 place; it is at ")
    assert "dense" in row
    assert "script.py:5" in row


# ---- what is not supported ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_function", [False, True])
def test_strategies_run_without_tools_after_one_warning(in_function, recorder, log, monkeypatch):
    from amanda.drivers.tensorflow.front import unsupported

    monkeypatch.setattr(unsupported._unshown, "_told", [])
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def step():
        return strategy.run(lambda: tf.nn.relu(tf.constant(1.0)))

    run = tf.function(step) if in_function else step
    with amanda.apply(tool := recorder(ops="Relu")):
        for _ in range(2):
            assert run().numpy() == 1.0
        with strategy.scope():
            assert tf.function(lambda: tf.nn.relu(tf.constant(1.0)))().numpy() == 1.0
        assert tool.ran == []
        tf.distribute.get_strategy().run(lambda: tf.nn.relu(tf.constant(1.0)))
    assert tool.ran == ["Relu"]
    assert log() == ["[tensorflow] MirroredStrategy runs without tools; run the model without a distribution strategy"]
    assert unsupported.remarks()[1:] == [
        "  MirroredStrategy runs without tools; run the model without a distribution strategy"
    ]


def test_coverage_counts_the_operators_of_graphs(recorder):
    @tf.function
    def function(x):
        return tf.nn.relu(x) * 2.0

    scope = amanda.apply(recorder(ops="Relu"), coverage=True)
    with scope:
        function(tf.constant(1.0))
        function(tf.constant(1.0))
    report = scope.coverage()
    assert report.row("tensorflow::Relu").seen == 1
    assert dict(report.row("tensorflow::Mul").skipped) == {"unasked": 1}
