"""TorchScript is opaque, and unharmed."""

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|torch.jit).*:DeprecationWarning")


def test_scripted_and_traced_functions_are_unharmed(recorder):
    def program(x):
        return torch.relu(x) + 1

    with amanda.apply(recorder()):
        scripted, traced = torch.jit.script(program), torch.jit.trace(program, (X,))
        for function in (scripted, traced):
            for _ in range(3):
                assert function(X).tolist() == [1.0, 3.0]


def branches(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        if bool(x.sum() > 0):  # noqa: SIM108
            x = torch.sin(x) * (i + 1)
        else:
            x = torch.cos(x)
    return x


@pytest.mark.parametrize("compile_inside", [False, True])
def test_scripted_control_flow_forward_and_backward(compile_inside, unharmed):
    made = torch.jit.script(branches)
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))

    def program():
        script = torch.jit.script(branches) if compile_inside else made
        x = X.clone().requires_grad_()
        y = script(model(x), 3)
        y.sum().backward()
        return y, x.grad

    for _ in range(3):  # past the interpreter's own profiling runs
        program()
    unharmed(program, runs=3, all_end=False)


def test_traced_graphs_are_the_same(recorder):
    def trace():
        module = torch.jit.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval(), (X,))
        return str(module.inlined_graph).count("aten::"), torch.jit.script(branches).code, module.code

    expected = trace()
    with amanda.apply(recorder()):
        assert trace() == expected


def test_frozen_and_optimised_modules(unharmed):
    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.ReLU()).eval()))
    frozen = torch.jit.optimize_for_inference(frozen)

    def program():
        with torch.no_grad():
            return [frozen(X) for _ in range(3)]

    program()
    unharmed(program, all_end=False)


def test_forked_tasks_of_a_script(unharmed):
    @torch.jit.script
    def script(x: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(torch.sin, x)
        return torch.jit.wait(future) + torch.cos(x)

    unharmed(lambda: script(X), all_end=False)


def test_a_module_is_traced_in_a_scope(recorder):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    expected = torch.jit.trace(module, (X,))
    for nested in (False, True):
        with amanda.apply(recorder(nested=nested)):
            traced = torch.jit.trace(module, (X,))
        assert traced.code == expected.code
        assert torch.equal(traced(X), module(X))


def test_a_traced_module_has_no_trace_of_a_tool(after):
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with amanda.apply(after("linear", lambda y: y * 2)):
        traced = torch.jit.trace(module, (X,))
    assert torch.equal(traced(X), module(X))


def test_parameters_of_a_scripted_module_have_names():
    scripted, names, tool = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.ReLU())), [], amanda.Tool("names")
    tool.add_inst_for_op(lambda context: names.append(context.parameter_names), ops="linear")
    with amanda.apply(tool):
        scripted(X)
    assert names == [(None, "0.weight", "0.bias")]
