"""Check finds hooks that do not run, for nothing calls their module, and nothing where they do."""

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import Check
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Doubled(Net):
    def forward(self, x):
        return 2 * super().forward(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.embedding.register_forward_hook(hook)

    def forward(self, ids):
        return F.linear(self.embedding(ids), self.embedding.weight)


def hook(*given):
    """Changes nothing."""


def hooked(part="", backward=False, kind=Net):
    model = kind()
    module = model.get_submodule(part)
    (module.register_full_backward_hook if backward else module.register_forward_hook)(hook)
    return model


def x():
    return torch.randn(5, 4)


def attention(part):
    module = nn.MultiheadAttention(4, 2)
    module.get_submodule(part).register_forward_hook(hook)
    return module(x(), x(), x())[0]


def pruned_projection():
    module = nn.MultiheadAttention(4, 2)
    prune.random_unstructured(module.out_proj, "weight", 0.5)
    return module(x(), x(), x())[0]


def hooked_later():
    model = Net()
    model.forward(x())
    model.register_forward_hook(hook)
    return model.forward(x())


CALLS_FORWARD, READS = "the program calls forward() itself", "and does not call it"
WRONG = {
    "the model": (lambda: hooked().forward(x()), CALLS_FORWARD),
    "a part": (lambda: hooked("first").first.forward(x()), CALLS_FORWARD),
    "a hook of the backward pass": (lambda: hooked("first", True).first.forward(x()), CALLS_FORWARD),
    "in a checkpoint": (lambda: checkpoint(hooked("first").first.forward, x(), use_reentrant=False), CALLS_FORWARD),
    "a hook that comes later": (hooked_later, CALLS_FORWARD),
    "parameters that another module reads": (lambda: attention("out_proj"), READS),
    "pruning": (pruned_projection, READS),
}


def called_elsewhere():
    model = hooked()
    with torch.no_grad():
        model.forward(x())
    return model(x())


def without_gradients():
    with torch.no_grad():
        return hooked(backward=True).forward(x())


def hooked_when_all_has_run():
    model = Net()
    result = model.forward(x())
    model.register_forward_hook(hook)
    return result


def functional():
    model = hooked()
    return torch.func.functional_call(model, dict(model.named_parameters()), (x(),))


def traced():
    model = hooked("first")
    torch.jit.trace(model, x())
    return model(x())


RIGHT = {
    "called": lambda: hooked()(x()),
    "forward of the base class": lambda: hooked(kind=Doubled)(x()),
    "a hook of a part that is called": lambda: hooked("first").forward(x()),
    "only parts are used": lambda: (model := hooked()).last(model.first(x())),
    "called elsewhere": called_elsewhere,
    "a backward hook, and no gradients": without_gradients,
    "hooked when all has run": hooked_when_all_has_run,
    "removed": lambda: (model := Net(), model.register_forward_hook(hook).remove(), model.forward(x())),
    "functional_call": functional,
    "traced": traced,
    "a copy": lambda: copy.deepcopy(hooked("first"))(x()),
    "a checkpoint": lambda: checkpoint(hooked("first").first, x(), use_reentrant=False),
    "vmap": lambda: torch.vmap(hooked())(x()),
    "attention": lambda: attention(""),
    "a weight that is tied": lambda: Tied()(torch.arange(8)),
    "pruning": lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5)(x()),
}


def findings(program):
    check = Check(only=["hooks-bypassed"])
    with amanda.apply(check):
        program()
    assert check.skipped == {}
    return check.findings()


@pytest.mark.parametrize("name", WRONG)
def test_hooks_that_do_not_run(name):
    program, how = WRONG[name]
    (found,) = findings(program)
    assert found.rule == "hooks-bypassed"
    assert found.place.source.startswith(__file__)
    assert found.evidence.startswith("1 hook of ")
    assert found.evidence.endswith(how)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_hooks_that_run(name):
    assert findings(RIGHT[name]) == []


def test_the_line_calls_forward_and_runs_are_counted():
    model = hooked()
    check = Check()
    with amanda.apply(check):
        for _ in range(3):
            model.forward(x())  # this line
    (found,) = check.findings()
    path, _, line = found.place.source.rpartition(":")
    with open(path) as file:
        assert file.readlines()[int(line) - 1].endswith("# this line\n")
    assert found.count == 3


def trained(each_step, steps=8):
    """What Check finds where `each_step` is called with a model in each step."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with amanda.apply(check := Check(only=["hooks-repeated"])):
        for _ in range(steps):
            each_step(net)
            optimizer.zero_grad()
            net(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    return [(one.rule, one.place.name, one.place.module_path, one.evidence) for one in check.findings()]


def test_hooks_that_are_registered_again():
    found = ("hooks-repeated", "hook hook", "first", "it was there 8 times after 8 steps")
    assert trained(lambda net: net.first.register_forward_hook(hook)) == [found]
    found = ("hooks-repeated", "hook hook", "last", "it was there 8 times after 8 steps")
    assert trained(lambda net: net.last.register_full_backward_hook(hook)) == [found]
    found = ("hooks-repeated", "hook hook", "last.weight", "it was there 8 times after 8 steps")
    assert trained(lambda net: net.last.weight.register_hook(hook)) == [found]


def test_hooks_that_are_removed_or_few():
    handles = []

    def anew(net):
        while handles:
            handles.pop().remove()
        handles.append(net.first.register_forward_hook(hook))

    assert trained(anew) == []
    few = iter(range(3))
    assert trained(lambda net: next(few, None) is not None and net.first.register_forward_hook(hook), steps=16) == []
