"""An interpreter that ends with scopes open, on any thread, ends in silence.

Where PyTorch's own does: it aborts, with no scope anywhere, if a daemon thread is running operators at that moment. So the
daemon threads here rest.
"""

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import atexit, gc, sys, threading, time
import amanda, torch
X = torch.tensor([-1.0, 2.0])
rests = threading.Semaphore(0)  # released by a daemon thread that runs no operator any more
def rest():
    rests.release()
    time.sleep(1000)
class Tool(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.me, self.seen = self, []
        self.add_inst_for_op(self.analyse)
        self.add_inst_for_op(self.analyse_backward, backward=True)
    def analyse(self, context):
        context["tool"] = self
        context.insert_before_op(self.look)
        context.insert_after_op(self.look, tool=self)
    def analyse_backward(self, context):
        context.insert_before_backward_op(self.look)
        context.insert_after_backward_op(self.look)
    def look(self, *values, tool=None):
        self.seen = [len(values)]
def train():
    w = torch.ones(3, requires_grad=True)
    (w * 2).sin().sum().backward()
    return w
"""

ENDINGS = {
    "a scope open": """
        scope = amanda.apply(Tool()); scope.__enter__(); train()
    """,
    "several scopes and switches open": """
        for _ in range(3):
            amanda.apply(Tool()).__enter__()
        switch = amanda.cache_disabled(); switch.__enter__(); train()
    """,
    "a graph alive": """
        with amanda.apply(Tool()):
            w = torch.ones(3, requires_grad=True); y = (w * 2).sin().sum()
            y.backward(retain_graph=True)
    """,
    "a graph alive, and the scope open": """
        amanda.apply(Tool()).__enter__()
        w = torch.ones(3, requires_grad=True); sys.kept = (w * 2).sin().sum()
        sys.kept.backward(retain_graph=True, create_graph=True)
    """,
    "a scope held by a module": """
        sys.scope = amanda.apply(Tool()); sys.scope.__enter__(); sys.tool = Tool(); train()
    """,
    "a suspended generator": """
        def steps():
            with amanda.apply(Tool()):
                yield train()
        generator = steps(); next(generator)
    """,
    "operators at exit": """
        amanda.apply(Tool()).__enter__(); atexit.register(train)
    """,
    "operators in a finaliser": """
        class Last:
            def __del__(self):
                torch.relu(X)
        amanda.apply(Tool()).__enter__(); last = Last(); last.me = last; train()
    """,
    "a daemon thread in a scope": """
        def work():
            with amanda.apply(Tool()):
                train()
                rest()
        threading.Thread(target=work, daemon=True).start(); rests.acquire()
    """,
    "several daemon threads, one scope object": """
        scope = amanda.apply(Tool())
        def work():
            with scope:
                train()
                rest()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(4):
            rests.acquire()
        scope.__enter__(); train()
    """,
    "a daemon thread that sleeps in a routine": """
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda c: c.insert_before_op(rest, []), ops="relu")
        def work():
            with amanda.apply(tool):
                torch.relu(X)
        threading.Thread(target=work, daemon=True).start(); rests.acquire()
    """,
    "a daemon thread that waits for an analysis": """
        tool, scope = amanda.Tool(), None
        tool.add_inst_for_op(lambda c: rest(), ops="relu")
        scope = amanda.apply(tool)
        def work():
            with scope:
                torch.relu(X)
        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
        rests.acquire()
        time.sleep(0.3)  # the other one comes to wait, which nothing tells
    """,
    "a tool of C++": """
        from amanda.tools.flops import Flops
        amanda.apply(Flops()).__enter__(); train()
    """,
    "a thread that ends after the main one": """
        def work():
            with amanda.apply(Tool()):
                time.sleep(0.5); train()
        threading.Thread(target=work).start(); amanda.apply(Tool()).__enter__(); train()
    """,
    "sys.exit in a scope": """
        with amanda.apply(Tool()):
            train(); sys.exit(0)
    """,
    "the module torn down": """
        amanda.apply(Tool()).__enter__(); train()
        for name in [name for name in sys.modules if name.startswith("amanda")]:
            del sys.modules[name]
    """,
    "inference mode and a scope": """
        torch.inference_mode().__enter__(); amanda.apply(Tool()).__enter__(); torch.relu(X)
    """,
}
QUICK = ["a graph alive, and the scope open", "several daemon threads, one scope object"]


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in ENDINGS]
)
def test_the_end_is_silent(ending):
    code = PRELUDE + textwrap.dedent(ENDINGS[ending])
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", code],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
