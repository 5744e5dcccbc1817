"""Runs the programs of `leaks/`, which leak or do not, and counts what they hold by other means.

`python leak_runs.py` prints what `found` returns. A process of its own has few objects besides: the search for owners looks
at all, and has no time for those that thousands of tests leave behind.
"""

from __future__ import annotations

import functools
import gc
import json
import pathlib
import runpy
import subprocess
import sys
from types import SimpleNamespace

import amanda
import leak_switches
import torch
from amanda.tools.memory import PeakMemory

PROGRAMS = sorted(pathlib.Path(__file__).with_name("leaks").glob("*.py"))
STEPS = 10


def run(program, leak, steps=None):
    leak_switches.LEAK, leak_switches.STEPS = leak, range(STEPS) if steps is None else steps
    return runpy.run_path(str(program), run_name="__main__")


@functools.cache
def found():
    """For each program, by its name: the growth with its leak, the answer without it, and what it holds after each
    step."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, object_hook=lambda fields: SimpleNamespace(**fields)).__dict__


def _found(program):
    growth = growth_of(program, leak=True)
    fields = ("kind", "kept_by", "share", "user_line")
    return {
        "rows": [{name: getattr(row, name) for name in fields} for row in growth.rows()],
        "answer": growth.answer(),
        "bytes_per_step": growth.bytes_per_step,
        "right_answer": growth_of(program, leak=False).answer(),
        "held": held_after_each_step(program, leak=True),
    }


def growth_of(program, leak):
    memory = PeakMemory(growth=True)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection would end what waits for one
    try:
        with amanda.apply(memory):
            run(program, leak)
    finally:
        if enabled:
            gc.enable()
    return memory.growth


def held_after_each_step(program, leak):
    """The bytes of all tensors that exist, and of those that the graphs of these have saved, without Amanda."""
    gc.collect()
    gc.disable()
    held = []

    def steps():
        for step in range(STEPS):
            yield step
            held.append(_held())

    try:
        run(program, leak, steps())
    finally:
        gc.enable()
    return held


def _held():
    storages, known = {}, set()
    objects = gc.get_objects()
    types = set(map(type, objects))  # PyTorch's own check of an instance is slow for all objects
    of_tensors = {one for one in types if issubclass(one, torch.Tensor)}
    of_nodes = {one for one in types if issubclass(one, torch.autograd.graph.Node)}
    tensors = [thing for thing in objects if type(thing) in of_tensors]
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    waiting += [thing for thing in objects if type(thing) in of_nodes]
    del objects
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        waiting += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    saved = getattr(node, name)
                except RuntimeError:  # freed by a backward pass
                    continue
                tensors += [one for one in (saved if isinstance(saved, tuple) else [saved]) if torch.is_tensor(one)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    for tensor in tensors:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    print(json.dumps({program.stem: _found(program) for program in PROGRAMS}))
