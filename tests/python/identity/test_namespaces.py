"""One code object that runs in several namespaces: an id contains the __name__ of each frame's globals."""

import contextlib
import sys
import types

import amanda
import pytest
import torch
from amanda import _torch

X = torch.tensor([-1.0, 2.0])
CODE = compile("def f(x):\n    return torch.relu(x)\n", "same.py", "exec")


def namespace(name):
    names = {"torch": torch, "__name__": name}
    exec(CODE, names)
    return names


class Ids(amanda.Tool):
    def __init__(self):
        super().__init__("ids")
        self.ran = []
        self.add_inst_for_op(self.analyze, ops="relu")

    def analyze(self, context):
        context.insert_before_op(lambda id: self.ran.append(id), inputs=[], id=context.op_id)


def ids(*functions):
    tool = Ids()
    with amanda.apply(tool):
        for f in functions:
            f(X)
    return tool.ran


@pytest.fixture(autouse=True, params=["direct", "public", "blocks"])
def walk(request):
    """How frames are walked: directly, by Python's public functions, and once a block has been entered."""
    direct = _torch.walks_frames_directly()
    if request.param == "public":
        _torch.walk_frames_directly(False)
    with amanda.root("a block") if request.param == "blocks" else contextlib.nullcontext():
        yield
    _torch.walk_frames_directly(direct)


def test_two_modules_of_one_code_have_ids_of_their_own_whichever_runs_first():
    a, b = namespace("mod_a")["f"], namespace("mod_b")["f"]
    [first, second], [third, fourth] = ids(a, b), ids(b, a)
    assert first != second
    assert [first, second] == [fourth, third]


def test_the_function_of_an_imported_module_and_its_copy_elsewhere_are_told_apart(tmp_path, monkeypatch):
    (tmp_path / "imported_once.py").write_text("import torch\ndef f(x):\n    return torch.relu(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import imported_once

    f = imported_once.f
    copied = types.FunctionType(f.__code__, {"torch": torch, "__name__": "elsewhere"})
    same = types.FunctionType(f.__code__, {"torch": torch, "__name__": "imported_once"})
    one, two, three = ids(f, copied, same)
    assert one == three != two
    assert ids(copied, f, same) == [two, one, one]
    same.__globals__["__name__"] = "elsewhere"
    assert ids(same, f) == [two, one]
    del sys.modules["imported_once"]


def test_a_renamed_namespace_has_the_ids_of_its_name():
    a, b = namespace("mod_a"), namespace("mod_b")
    [of_a], [of_b] = ids(a["f"]), ids(b["f"])
    tool = Ids()
    with amanda.apply(tool):
        for name in ("mod_a", "mod_b", "mod_a", None, "mod_b"):
            a["__name__"] = name
            a["f"](X)
    first, second, third, unnamed, last = tool.ran
    assert first == third != second == last
    assert unnamed not in (first, second)
    a["__name__"] = "mod_b"
    assert ids(a["f"]) == [of_b]
    a["__name__"] = "mod_a"
    assert ids(a["f"]) == [of_a]


def test_a_namespace_at_the_address_of_one_that_has_died_has_its_own_ids():
    tool = Ids()
    with amanda.apply(tool):
        for number in range(20):
            namespace(f"mod_{number % 4}")["f"](X)
    assert len(set(tool.ran)) == 4
    assert tool.ran == tool.ran[:4] * 5


def test_a_frame_further_out_counts_too():
    outer = compile("def g(call):\n    return call()\n", "outer.py", "exec")
    one, two = {"__name__": "one"}, {"__name__": "two"}
    exec(outer, one), exec(outer, two)
    first, second, third = ids(*[lambda x, g=g: g(lambda: torch.relu(x)) for g in (one["g"], two["g"], one["g"])])
    assert first == third != second


def test_an_outer_frame_that_stays_while_its_module_is_renamed_counts_as_it_is_named():
    names = {"torch": torch, "__name__": "before"}
    exec(
        compile("def f(x):\n    for step in range(3):\n        then(step)\n        torch.relu(x)\n", "l.py", "exec"),
        names,
    )
    names["then"] = lambda step: names.update(__name__=("before", "after", "before")[step])
    first, second, third = ids(names["f"])
    assert first == third != second
