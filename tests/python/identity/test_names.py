"""What ids are named by: files, roots, modules and classes of all kinds, and what interrupts the naming."""

import gc
import importlib.util
import os
import signal
import sys

import amanda
import pytest
import torch
from torch import nn

x = torch.ones(2, 4)


class Ids(amanda.Tool):
    """Lists (operator name, id, module path, source) of every run."""

    def __init__(self):
        super().__init__()
        self.runs = []
        self.analysed = []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        run = (context.op.__name__, context.op_id, context.module_path, context.source)
        self.analysed.append(run)
        context.insert_before_op(lambda: self.runs.append(run), inputs=[])


def runs(program, *args):
    tool = Ids()
    with amanda.apply(tool):
        program(*args)
    return tool.runs


def ids(program, *args):
    return [run[1] for run in runs(program, *args)]


def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("first.ops", "second.ops"), ("ops", "ops"), ("__main__", "__main__")])
def test_equal_functions_in_files_of_one_base_name_have_their_own_ids(tmp_path, names):
    functions = []
    for folder, name in zip(("a", "b"), names, strict=True):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "ops.py"
        path.write_text("import torch\ndef f(x):\n    return torch.relu(x)\n")
        functions.append(loaded(path, name).f)
    found = ids(lambda: [f(x) for f in functions * 2])
    assert len(set(found)) == 2
    assert found[:2] == found[2:]


def test_files_of_one_name_that_a_program_generates_for_ever_have_a_bounded_number_of_ids():
    code = "def f(x):\n    return x.relu()\n"

    def generated():
        for number in range(300):
            names = {"__name__": "generated"}
            exec(compile(code, f"/nowhere/{number}/generated.py", "exec"), names)
            names["f"](x)

    assert len(set(ids(generated))) == 257


def test_the_main_module_is_the_same_in_spawned_workers():
    code = compile("def f(x):\n    return x.relu()\n", "worker.py", "exec")
    found = []
    for name in ("__main__", "__mp_main__"):
        names = {"__name__": name}
        exec(code, names)
        found.append(ids(names["f"], x))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [None, 3, "\udce9"])
def test_code_whose_module_has_a_strange_name_has_ids(name):
    names = {"__name__": name}
    exec(compile("def f(x):\n    return x.relu()\n", "strange.py", "exec"), names)
    first, second = ids(names["f"], x), ids(names["f"], x)
    assert first == second
    assert first[0] != 0


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="file names there are text")
def test_code_under_a_path_that_is_not_utf_8_is_analysed_once_and_has_a_source(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    path = os.fsdecode(folder) + "/ops.py"
    with open(path, "w") as file:
        file.write("def f(x):\n    return x.relu()\n")
    f, tool = loaded(path, "ops_of_cafe").f, Ids()
    with amanda.apply(tool):
        for _ in range(3):
            f(x)
    assert len(tool.analysed) == 1
    assert tool.runs[0][1] != 0
    assert tool.runs[0][3].endswith("caf\\udce9/ops.py:2")


# ---- roots ------------------------------------------------------------------------------------------------------------


def test_scopes_further_out_do_not_change_ids_outside_models():
    def step():
        torch.relu(x)

    alone = ids(step)
    with amanda.apply(Ids()), amanda.apply(Ids()):
        assert ids(step) == alone
    assert ids(step) == alone


# ---- torch.compile ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.layer(x)) * 2


class Outer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)


def test_a_compiled_module_that_runs_eagerly_has_the_ids_and_paths_of_the_module():
    net = Net()
    plain = runs(net, x)
    assert [run[2] for run in plain] == ["layer", "act", ""]
    assert runs(torch.compile(net, backend="eager"), x) == plain
    net.compile(backend="eager")
    assert runs(net, x) == plain


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_module_around_a_compiled_one_has_the_paths_of_one_around_the_module(compiled_first):
    net = Net()
    nets = [torch.compile(net, backend="eager"), net]
    outer = Outer(nets[0] if compiled_first else nets[1])
    first = runs(outer, x)
    outer.net = nets[1] if compiled_first else nets[0]
    assert [run[2] for run in first] == ["net.layer", "net.act", "net"]
    assert runs(outer, x) == first


def test_a_compiled_function_that_runs_eagerly_has_the_ids_of_the_function():
    def f(x):
        return torch.relu(x) + 1

    def both(g):
        return ids(lambda: g(x))

    assert both(torch.compile(f, backend="eager")) == both(f)


# ---- modules ----------------------------------------------------------------------------------------------------------


class Act(nn.Module):
    """With or without state."""

    def __init__(self, learns):
        super().__init__()
        if learns:
            self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x.relu()


def test_a_module_at_the_address_of_a_dead_stateless_one_has_its_own_id():
    found, addresses = {True: set(), False: set()}, {True: set(), False: set()}

    def program():
        for number in range(40):
            act = Act(number % 2 == 1)
            addresses[number % 2 == 1].add(id(act))
            act(x)
            del act

    relus = [run[1] for run in runs(program) if run[0] == "relu"]
    for number, run in enumerate(relus):
        found[number % 2 == 1].add(run)
    assert addresses[True] & addresses[False]
    assert not found[True] & found[False]
    assert len(found[False]) == 1


def test_a_part_of_a_model_at_the_address_of_a_dead_stateless_module_has_its_own_id():
    def program(act):
        act(x)

    def alone():
        act = nn.ReLU()
        program(act)
        return id(act)

    tool, reborn = Ids(), None
    with amanda.apply(tool):
        for _ in range(100):  # another object may get the address first
            address = alone()
            dead = tool.runs[-1][1]
            kept = [nn.ReLU() for _ in range(100)]
            reborn = next((act for act in kept if id(act) == address), None)
            if reborn is not None:
                break
        assert reborn is not None
        model = nn.Sequential(nn.Linear(4, 4), reborn)
        model(x)
        program(model[1])
    assert tool.runs[-1][1] != dead


@pytest.mark.long
def test_a_class_at_the_address_of_a_dead_one_is_told_from_it():
    def program():
        for number in range(40):
            cls = type(f"Act{number % 2}", (nn.Module,), {"forward": Act.forward})
            cls()(x)
            del cls
            gc.collect()

    found = ids(program)
    assert not set(found[::2]) & set(found[1::2])


def test_a_model_that_overrides_how_it_is_walked_has_ids():
    class Listed(Net):
        def parameters(self, recurse=True):
            return [self.layer.weight]

        def named_modules(self, *args, **kwargs):
            raise RuntimeError("not this way")

        named_parameters = buffers = children = named_modules

    net, tool = Listed(), Ids()
    with amanda.apply(tool):
        for _ in range(3):
            net(x)
    assert len(tool.analysed) == 3
    assert 0 not in [run[1] for run in tool.runs]


@pytest.mark.parametrize("hash_of", [None, lambda self: 1, lambda self: 1 // 0])
def test_modules_go_by_identity_whatever_they_say_of_equality(hash_of):
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return torch.mm(x, self.weight) * self.scale

        def __eq__(self, other):
            raise RuntimeError("not to be asked")

        __hash__ = hash_of

    model, tool = nn.Module(), Ids()
    model.first, model.second = Strange(), Strange()

    def step():
        model.second(model.first(x))

    with amanda.apply(tool):
        step()
        first = [run[1] for run in tool.runs]
        model.first.weight = model.second.weight = nn.Parameter(torch.zeros(4, 4))
        model.first.scale, model.second.scale = torch.zeros(4), torch.zeros(4)
        del model.first.weight
        model.first.weight = nn.Parameter(torch.ones(4, 4))
        step()
        assert [run[1] for run in tool.runs[-4:]] == first
    assert 0 not in first
    assert len(set(first)) == 4


class FailingMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert "shape" not in str(function)
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_program_does_not_see_how_a_model_is_named():
    net = Net()
    with FailingMode():
        assert len(ids(net, x)) == 3


# ---- interruptions ----------------------------------------------------------------------------------------------------


class AlarmError(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_what_a_signal_handler_raises_while_an_id_is_found_reaches_the_program(monkeypatch, request):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    # What is raised inside a callback of the garbage collector (Hypothesis has one) is lost, whoever runs.
    request.addfinalizer(gc.enable)
    gc.disable()

    def ring(*_):
        raise AlarmError

    def until_it_rings(delay):
        signal.setitimer(signal.ITIMER_REAL, delay)
        for _ in range(100_000):  # a new place each time
            names = {"__name__": "rung"}
            exec(compile("def f(x):\n    return x.relu()\n", "rung.py", "exec"), names)
            names["f"](x)
        pytest.fail(f"the alarm was lost: {unraisable}")

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.getitimer(signal.ITIMER_REAL)  # of pytest-timeout
    tool = Ids()
    try:
        with amanda.apply(tool):
            for number in range(100):
                with pytest.raises(AlarmError):
                    until_it_rings(0.0005 + number * 1e-5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert not unraisable
    assert len({run[1] for run in tool.runs}) == 1


def test_an_exception_under_way_survives_the_naming_of_a_place():
    class Last:
        def __del__(self):
            torch.relu(x)

    def program():
        last = Last()  # noqa: F841 -- dies as the exception leaves
        raise KeyError("of the program")

    with amanda.apply(Ids()), pytest.raises(KeyError, match="of the program"):
        program()
