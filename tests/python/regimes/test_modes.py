"""The user's own modes see the program, and never a tool's operators."""

import contextlib

import amanda
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from unharmed import Look

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


class FunctionMode(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode_outside", [True, False])
@pytest.mark.parametrize(("make", "name"), [(FunctionMode, "relu"), (DispatchMode, "relu.default")])
def test_a_users_mode_sees_the_program_and_not_the_tool(make, name, mode_outside, recorder, after):
    mode, watcher = make(), recorder()
    scope = amanda.apply(watcher, after("relu", lambda y: torch.exp(y) * 0 + 5))
    with mode if mode_outside else scope, scope if mode_outside else mode:
        y = torch.relu(X)
    assert mode.seen == [name]
    assert watcher.ran == ["relu"]
    assert y.tolist() == [5.0, 5.0]


def test_a_mode_that_changes_results_comes_below_the_tools_edit(after):
    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {})) * 2

    with amanda.apply(after("relu", lambda y: y + 1)), Double():
        assert torch.relu(X).tolist() == [1.0, 5.0]


def test_flops_are_counted_as_without_a_tool(recorder, after):
    from torch.utils.flop_counter import FlopCounterMode

    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def flops():
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        return counter.get_total_flops()

    expected = flops()
    with amanda.apply(recorder(), after("linear", lambda y: y @ torch.ones(4, 4))):
        assert flops() == expected


# ---- bit-equal, with events where they belong ------------------------------------------------------------------------


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_mode_changes_the_original_that_a_replacement_runs(backward):
    """The original is the program's; what else the replacement calls is not shown to the mode."""

    class Double(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result * 2 if function in (torch.ops.aten.sin.default, torch.ops.aten.exp.default) else result

    def program():
        x = X.clone().requires_grad_()
        with Double():
            y = torch.sin(x) + torch.cos(x)  # the derivative of cos calls sin
            y.sum().backward()
        return [y.detach(), x.grad]

    def replace(context):
        op = context.backward_op if backward else context.op
        if op.__name__ == "AccumulateGrad":
            return

        def run(*operands):
            torch.exp(torch.ones(2))
            return op(*operands)

        (context.replace_backward_op if backward else context.replace_op)(run)

    expected = program()
    tool = amanda.Tool()
    tool.add_inst_for_op(replace, ops=["sin", "cos"], backward=backward)
    with amanda.apply(tool):
        for _ in range(2):
            assert all(torch.equal(got, want) for got, want in zip(program(), expected, strict=True))


class Halve(TorchDispatchMode):
    """Changes what the program computes: then that is what it computes, under a tool, too."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append(str(function))
        result = function(*args, **(kwargs or {}))
        return result / 2 if function is torch.ops.aten.relu.default else result


class Counted(TorchFunctionMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def training(model, x):
    y = model(x)
    torch.relu(y).square().sum().backward()
    return y, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("stack", [[Halve], [Counted], [Halve, Counted], [Counted, Halve, Halve, Counted]])
def test_modes_entered_inside_a_scope_see_what_they_saw_without(stack, unharmed):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)

    def program():
        calls = []
        model.zero_grad()
        with contextlib.ExitStack() as modes:
            for mode in stack:
                modes.enter_context(mode(calls))
            return training(model, x), calls

    tool = unharmed(program)
    assert tool.count["linear"] == 2
    assert tool.count["AddmmBackward0"] == 2


@pytest.mark.parametrize("order", ["MS", "SM", "MSM", "MMSS", "SMSM"])
@pytest.mark.parametrize("make", [Halve, Counted])
def test_modes_and_scopes_in_every_order_see_the_program_once(order, make, recorder):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)

    def program(scopes):
        calls = []
        model.zero_grad()
        with contextlib.ExitStack() as stack:
            for each in order:
                stack.enter_context(
                    make(calls) if each == "M" else scopes.pop() if scopes else contextlib.nullcontext()
                )
            return [each.tolist() for each in (model(x), *training(model, x)[1])], calls

    expected = program([])
    tools = [recorder(ops=["linear", "relu"]) for _ in range(order.count("S"))]
    assert program([amanda.apply(tool) for tool in tools]) == expected
    assert all(tool.ran == ["linear", "relu"] * 2 + ["relu"] for tool in tools)


def test_a_default_device_is_a_mode(unharmed):
    def program():
        with torch.device("meta"):
            y = torch.ones(3) + torch.zeros(3)
        return y.device.type, torch.ones(3).device.type

    unharmed(program)


def test_modes_that_ship_with_torch(unharmed):
    from torch.utils._python_dispatch import _get_current_dispatch_mode
    from torch.utils.flop_counter import FlopCounterMode

    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def program():
        model.zero_grad()
        with FlopCounterMode(display=False) as flops, torch._C.DisableTorchFunctionSubclass():
            training(model, x)
        with torch.utils._device.DeviceContext(torch.device("cpu")):
            y = torch.ones(2)
        return flops.get_total_flops(), flops.get_flop_counts(), y, _get_current_dispatch_mode() is None

    unharmed(program)


def test_a_mode_that_replaces_an_operator_by_others_is_below_the_tool(recorder):
    class Decompose(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.relu.default:
                return args[0].clamp(min=0)
            return function(*args, **(kwargs or {}))

    tool = recorder()
    with amanda.apply(tool), Decompose():
        y = torch.relu(X)
    assert y.tolist() == [0.0, 2.0]
    assert tool.ran == ["relu"]


def test_a_mode_entered_by_a_routine_is_the_routines_own(before, recorder):
    calls, watcher = [], recorder(ops="relu")
    left = []

    def routine(x):
        mode = Halve(calls)
        mode.__enter__()
        torch.relu(x)
        mode.__exit__(None, None, None)
        left.append(torch._C._len_torch_dispatch_stack())

    with Counted(outside := []), amanda.apply(watcher, before("relu", routine)):
        y = torch.relu(X)
    assert y.tolist() == [0.0, 2.0]
    assert left == [0]
    assert len(outside) == 1
    assert len(calls) >= 1
    assert watcher.ran == ["relu"]


def test_a_mode_that_raises_is_left_alone(recorder):
    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise LookupError(str(function))

    watcher = recorder()
    with amanda.apply(watcher):
        with pytest.raises(LookupError, match="relu"), Refuse():
            torch.relu(X)
        torch.sin(X)
    assert watcher.ran == ["relu", "sin"]


def test_in_place_operators_in_training_under_a_mode(unharmed):
    def program():
        calls, w = [], torch.randn(4, requires_grad=True)
        with Halve(calls):
            h = (w * 2).mul_(3).relu_()
            g = w * 3
            g[:2].add_(1)
            (h + g).sum().backward()
        return h, g, w.grad, calls

    unharmed(program)


def test_mutation_of_saved_tensors(unharmed):
    def program():
        w = torch.randn(4, requires_grad=True)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = w * 1
            y = h.sin()
            h.mul_(2)
            (y + h).sum().backward()
        return w.grad

    unharmed(program)


def test_transforms_in_a_nested_tool_under_a_mode():
    x = torch.randn(4, 3)
    with amanda.apply(Look(nested=True)), DispatchMode():
        assert torch.equal(torch.vmap(torch.func.grad(lambda row: row.sin().sum()))(x), x.cos())
