"""The user's own modes see the program, and never a tool's operators."""

import amanda
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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
