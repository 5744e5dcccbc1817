"""Compiled programs of many kinds: looking changes not one bit, sees what eager mode runs, and edits are eager mode's."""

from __future__ import annotations

from collections import Counter

import amanda
import pytest
import torch
from compiling import Looks, apply, differentiate
from torch.utils.checkpoint import checkpoint
from unharmed import bits, thread_state

nn = torch.nn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_compiled_code"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # Dynamo's
]


@pytest.fixture
def no_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Checkpointed(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False).tanh()


def python_if(predicate, yes, no, operands):
    return (yes if predicate else no)(*operands)


class Conditional(Block):
    cond = staticmethod(torch.cond)

    def forward(self, x):
        y = self.first(x)
        return self.second(self.cond(y.sum() > 0, lambda y: torch.relu(y) * 2, lambda y: y.neg(), (y,)))


class OtherBranch(Conditional):
    def forward(self, x):
        y = self.first(x)
        return self.second(self.cond(y.sum() != y.sum(), lambda y: y.neg(), lambda y: torch.relu(y) * 2, (y,)))


class Looping(Block):
    def forward(self, x):
        def body(i, y):
            return i + 1, torch.relu(y) + 0.5

        with torch.no_grad():
            _, y = torch.while_loop(lambda i, y: i < 3, body, (torch.zeros((), dtype=torch.long), self.first(x)))
        return self.second(y)


class Autocast(Block):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = super().forward(x)
        return torch.relu(y.float())


class PartlyWithoutGradients(Block):
    def forward(self, x):
        with torch.no_grad():
            scale = torch.relu(x).mean()
        return super().forward(x) * scale


class InPlace(Block):
    def forward(self, x):
        y = self.first(x)
        y[:, 0].mul_(2)
        y += 1
        y.relu_()
        return self.second(y)


class Views(Block):
    def forward(self, x):
        a, b = self.first(x).chunk(2, -1)
        y = torch.cat([b, a], -1).view(-1).reshape(-1, 8)
        return self.second(torch.relu(y.t().t()))


class Buffers(Block):
    """Mutates a buffer, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=0.5)

    def forward(self, x):
        return self.second(nn.functional.dropout(torch.relu(self.norm(self.first(x))), 0.5))


class Broken(Block):
    """Two graphs, and operators between them."""

    def forward(self, x):
        y = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        z = y.exp()
        torch._dynamo.graph_break()
        return self.second(z)


class Twice(Block):
    """A module that runs twice has each operator once."""

    def forward(self, x):
        return super().forward(super().forward(x))


PROGRAMS = [
    Block, Checkpointed, Conditional, OtherBranch, Looping, Autocast, PartlyWithoutGradients, InPlace, Views, Buffers,
    Broken, Twice,
]  # fmt: skip
COMPILED_WITHOUT_BEING_ASKED = {Conditional, OtherBranch, Looping}  # eager mode compiles them to run them
#: Gradients come to these through the tensors that they write to.
BACKWARD_NOT_SHOWN = {InPlace: {"mul_": 1, "relu_": 1}}
each = pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)


class Trained:
    def __init__(self, make):
        torch.manual_seed(0)
        self.module = make()
        self.x = torch.randn(3, 4)
        self.state = {name: value.clone() for name, value in self.module.state_dict().items()}

    def __call__(self, run):
        """Result, gradients, buffers and the random state that one step leaves."""
        with amanda.disabled():
            torch.manual_seed(1)
            self.module.load_state_dict(self.state)
            self.module.zero_grad()
            x = self.x.clone().requires_grad_()
            hidden = x * 1  # no leaf: those have names of their own
        result = run(hidden)
        differentiate(result)
        gradients = [parameter.grad for parameter in self.module.parameters()]
        return [result, x.grad, *gradients, *self.module.buffers(), torch.get_rng_state()]

    def bits(self, run):
        left = self(run)
        with amanda.disabled():
            return [bits(value) for value in left]


@each
def test_looking_changes_nothing(make):
    step, looks = Trained(make), Looks()
    compiled = torch.compile(step.module, backend="aot_eager")
    expected, state = step.bits(compiled), thread_state()
    with apply(looks):
        for _ in range(2):
            looks.clear()
            assert step.bits(compiled) == expected
    assert thread_state() == state
    assert step.bits(compiled) == expected
    assert looks.values > 10


@pytest.mark.parametrize(
    "make", [make for make in PROGRAMS if make not in COMPILED_WITHOUT_BEING_ASKED], ids=lambda make: make.__name__
)
def test_the_operators_are_those_of_eager_mode(make):
    step, looks, eager = Trained(make), Looks(), Looks()
    with amanda.apply(eager):
        step(step.module)
    with apply(looks):
        step(torch.compile(step.module, backend="aot_eager"))
    assert looks.forward == eager.forward
    assert looks.backward == eager.backward - Counter(BACKWARD_NOT_SHOWN.get(make, {}))
    assert looks.places == eager.places


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_compiled(fullgraph, dynamic):
    step, looks = Trained(Block), Looks()
    compiled = torch.compile(step.module, backend="aot_eager", fullgraph=fullgraph, dynamic=dynamic)
    with apply(looks):
        step(compiled)
    assert looks.namespaces == {f"pytorch/{'.'.join(torch.__version__.split('.')[:2])}/compile"}


def doubles_relu():
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y * 2), ops=["relu", "relu_"])
    return tool


def replaces_relu():
    tool = amanda.Tool("replaces")
    tool.add_inst_for_op(lambda context: context.replace_op(lambda x: x.sigmoid()), ops="relu")
    return tool


def masks_weights():
    tool = amanda.Tool("masks")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda w: w * (w > 0), inputs=[1]), ops="linear")
    return tool


def triple(*gradients):
    return tuple(None if gradient is None else gradient * 3 for gradient in gradients)


def triples_gradients(when):
    tool = amanda.Tool("triples")
    tool.add_inst_for_op(lambda context: getattr(context, when)(triple), ops=["relu", "tanh", "exp"], backward=True)
    return tool


def triples_before():
    return triples_gradients("insert_before_backward_op")


def triples_after():
    return triples_gradients("insert_after_backward_op")


@pytest.mark.parametrize(
    "tool",
    [
        doubles_relu,
        triples_before,
        *(pytest.param(tool, marks=pytest.mark.long) for tool in (replaces_relu, masks_weights, triples_after)),
    ],
)
@each
def test_an_edit_is_the_one_that_eager_mode_makes(make, tool):
    step, eager = Trained(make), Trained(make)
    eager.module.cond = python_if  # eager mode compiles torch.cond, and runs its backward graph without tools
    with amanda.apply(tool()):
        expected = eager(eager.module)
    with apply(tool()):
        got = step(torch.compile(step.module, backend="aot_eager"))
    torch.testing.assert_close(got, expected)


def test_a_recomputation_is_told_apart():
    step, looks, eager = Trained(Checkpointed), Looks("relu"), Looks("relu")
    with amanda.apply(eager), amanda.cache_disabled():
        step(step.module)
    with apply(looks):
        step(torch.compile(step.module, backend="aot_eager"))
    assert looks.forward == eager.forward == {"relu": 2}


@pytest.mark.parametrize(
    "program",
    [lambda x: checkpoint(sin_cos, x, use_reentrant=False), lambda x: torch.cond(x.sum() > 0, sin_cos, neg, [x])],
)
def test_a_backward_operator_finds_the_run_of_its_forward_operator(program):
    noted, found = [], []
    tool = amanda.Tool("runs")

    def note(result, run):
        run["result"] = result.detach().clone()
        noted.append((run.index, run["result"].tolist()))

    def find(*gradients, run):
        found.append((run.index, run["result"].tolist()))

    tool.add_inst_for_op(lambda context: context.insert_after_op(note, with_run=True), ops="cos")
    tool.add_inst_for_op(
        lambda context: context.insert_before_backward_op(find, with_run=True), ops="cos", backward=True
    )
    compiled = torch.compile(program, backend="aot_eager")
    with apply(tool):
        for value in 0.5, 1.5:
            compiled(torch.full((2,), value, requires_grad=True)).sum().backward()
    assert found == noted == [(i, torch.full((2,), x).sin().cos().tolist()) for i, x in enumerate([0.5, 1.5])]


def sin_cos(x):
    return x.sin().cos()


def neg(x):
    return x.neg()


def test_only_the_branch_that_is_taken_runs():
    looks, ones = Looks(["relu", "neg"]), torch.ones(3)
    minus = -ones
    compiled = torch.compile(lambda y: torch.cond(y.sum() > 0, torch.relu, torch.neg, (y,)), backend="aot_eager")
    with apply(looks):
        assert compiled(ones).tolist() == [1.0] * 3
        assert looks.forward == {"relu": 1}
        assert compiled(minus).tolist() == [1.0] * 3
    assert looks.forward == {"relu": 1, "neg": 1}


def test_every_iteration_of_a_loop_runs():
    looks = Looks("relu")
    compiled = torch.compile(Looping(), backend="aot_eager")
    with torch.no_grad(), apply(looks):
        compiled(torch.ones(2, 4))
    assert looks.forward == {"relu": 3}
