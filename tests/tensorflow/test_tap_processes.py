"""The op AmandaTap at the end of the interpreter and in forked processes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

LEAVES = """
import os, sys, threading, time
import numpy as np, tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import Graph, emit, operator, taps, tool
ran = threading.Event()
def routine(x):
    return x + 1
scope, artifact = taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=[0])))
node = _tensorflow.TapNode(operator(), artifact.lowered[0][0].id, [("input", 0, -1)], [(0, -1)])
graph = tf.Graph()
with graph.as_default():
    result = tf.constant(np.zeros(4, np.float32))
    result = tf.ensure_shape(emit(node, [result], [tf.float32])[0], [4])
"""


def in_another_process(program):
    folder = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", LEAVES + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_end_of_the_interpreter_waits_for_a_routine():
    # Not for the run: TensorFlow may abort where it returns to a thread that Python has ended.
    _status, out, err = in_another_process(
        """
        ending = threading.Event()
        def slow(x):
            ran.set()
            ending.wait()
            time.sleep(0.5)
            os.write(1, b"finished\\n")
        other, made = taps(Graph(), tool(lambda c: c.insert_before_op(slow, inputs=[0])))
        slow_node = _tensorflow.TapNode(operator(), made.lowered[0][0].id, [("input", 0, -1)], [(0, -1)])
        with graph.as_default():
            result = emit(slow_node, [result], [tf.float32])
        def work():
            with tf.compat.v1.Session(graph=graph) as session:
                session.run(result)
        threading.Thread(target=work, daemon=True).start()
        ran.wait()
        os.write(1, b"end\\n")
        ending.set()
        """
    )
    assert out == "end\nfinished\n", err


def test_a_forked_process_can_leave_scopes_and_make_others():
    status, out, err = in_another_process(
        """
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(result)
        child = os.fork()
        if child == 0:  # TensorFlow itself does not run in a forked process that it was used in before
            del scope, artifact, node
            other, made = taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=[0])))
            _tensorflow.begin_run()
            _tensorflow.end_run()
            assert _tensorflow.TapNode(operator(), made.lowered[0][0].id, [("input", 0, -1)], []).number
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert (status, out) == (0, "0\n"), err
