"""Calls at known places take a fast path: random programs run on it and on the slow one, and every event is compared."""

import contextlib
import random
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda import _tools, _torch
from amanda.tool import NativeTool
from torch.utils.checkpoint import checkpoint
from unharmed import bits

nn = torch.nn


# They compute what they return.
WRITE = [
    "add",
    "mul",
    "sub",
    "sin",
    "tanh",
    "relu",
    "relu_",
    "add_",
    "mul_",
    "linear",
    "cat",
    "stack",
    "sum",
    "exp",
    "mm",
]
WRITE += [
    "cumsum",
    "logsumexp",
    "lerp",
    "einsum",
    "layer_norm",
    "batch_norm",
    "dropout",
    "pow",
    "mean",
    "lstm",
    "clamp",
]


@contextlib.contextmanager
def path(fast):
    _torch.use_known_places(fast)
    try:
        yield
    finally:
        _torch.use_known_places(True)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2


class Watcher(amanda.Tool):
    """Notes what it sees; it also edits, replaces, fails, or changes itself, as `draw` says for each place."""

    def __init__(self, name, events, draw, *, ops=None, nested=False, backward=False, harmless=False):
        super().__init__(name)
        self.events, self.harmless = events, harmless
        self.choices, self.draw = {}, draw
        self.removable = []
        self.add_inst_for_op(self.analyze, ops=ops, nested=nested)
        if backward:
            self.add_inst_for_op(self.analyze_backward, ops=ops, backward=True)

    def note(self, what, context, *operands, **more):
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        written = what in ("after", "backward") and context.op.__name__ in WRITE  # other memory may hold anything
        shown = [
            (x.shape, x._version, x.requires_grad, written and bits(x)) if isinstance(x, torch.Tensor) else repr(x)
            for x in operands
        ]
        self.events.append(
            (self.name, what, context.op.__name__, self.events.number(context.op_id), state, shown, sorted(more))
        )

    def analyze(self, context):
        self.note("analysis", context)
        choice = self.draw.randrange(12)
        inputs = list(range(len(context.inputs)))[: self.draw.randrange(3)]
        if choice < 3:
            action = context.insert_before_op(lambda *x: self.note("before", context, *x), inputs=inputs)
            self.removable.append(action)
        if 2 <= choice < 5:
            context.insert_after_op(lambda *x: self.note("after", context, *x))
        if choice == 5:
            context.insert_before_op(lambda *x: self.looks_and_works(context, *x), inputs=inputs)
        if choice == 6:
            context.insert_after_op(lambda *x: self.sometimes_fails(context))
        if choice == 7 and not self.harmless and context.op.__name__ in ("add", "mul", "linear", "gelu"):
            context.insert_after_op(lambda x: x * 1.5, outputs=[0])
        if choice == 8 and not self.harmless and context.op.__name__ in ("relu", "tanh"):
            context.replace_op(lambda x: context.get_op()(x) if self.draw.random() < 0.5 else x.sigmoid())
        if choice == 9:
            context.insert_before_op(lambda *x: self.note("run", context, repr(bool(context))), inputs=[])

    def analyze_backward(self, context):
        self.note("backward analysis", context)
        if self.draw.random() < 0.5:
            context.insert_before_backward_op(lambda *x: self.note("backward", context, *x))

    def looks_and_works(self, context, *operands):
        self.note("works", context, *operands)
        assert not torch.add(torch.ones(2, requires_grad=True), 1).requires_grad

    def sometimes_fails(self, context):
        self.note("may fail", context)
        if self.draw.random() < 0.05:
            raise LookupError(context.op.__name__)


class Events(list):
    """Ids are numbered in their order: those of parameters without names differ from object to object."""

    def __init__(self):
        self.ids = {}

    def number(self, op_id):
        return self.ids.setdefault(op_id, len(self.ids))


class Program:
    """The steps that a seed draws, a few times each: at the second the places are known."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        torch.manual_seed(seed)
        self.weights = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
        self.norm, self.lstm = nn.LayerNorm(4), nn.LSTM(4, 4, batch_first=True)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.BatchNorm1d(4))
        self.steps = [self.draw.choice(self.STEPS) for _ in range(self.draw.randrange(4, 10))]
        self.modes = [self.draw.choice(self.MODES) for _ in self.steps]

    def run(self):
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        for _ in range(3):
            for step, mode in zip(self.steps, self.modes, strict=True):
                with mode():
                    y = step(self, x)
                if isinstance(y, torch.Tensor) and y.shape == x.shape and not y.is_inference():
                    x = y
            x = x.detach().clamp(-3, 3).float()
        return x

    def pointwise(self, x):
        return torch.tanh(x + 1).mul(0.5).relu() - x.sin()

    def in_a_loop(self, x):
        for weight in self.weights:
            x = F.linear(x, weight)
        return x

    def in_place(self, x):
        y = x.clone()
        return y.add_(1).mul_(2).relu_()

    def lists(self, x):
        a, b = torch.split(torch.cat([x, x], 1), 4, 1)
        return torch.stack([a, b]).sum(0)

    def views(self, x):
        return x.t().unsqueeze(0).transpose(1, 2).reshape(3, 4).expand(2, 3, 4)[1]

    def boxed(self, x):
        return torch.logsumexp(x, 1, keepdim=True) + torch.cumsum(x, 0) + torch.lerp(x, x * 2, 0.5)

    def composite(self, x):
        return torch.einsum("ij,jk->ik", x, self.weights[0]) + F.mse_loss(x, x)

    def model(self, x):
        return self.block(self.norm(x))

    def recurrent(self, x):
        return self.lstm(x[None])[0][0]

    def train(self, x):
        loss = (self.block(x) * self.weights[0].sum()).pow(2).mean()
        loss.backward()
        return self.weights[0].grad[:3].clone()

    def twice(self, x):
        if not torch.is_grad_enabled():
            return x
        weight = self.weights[1]
        (first,) = torch.autograd.grad(F.linear(x, weight).tanh().sum(), weight, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), weight)[0][:3]

    def checkpointed(self, x):
        y = checkpoint(lambda z: F.linear(z, self.weights[2]).tanh(), x, use_reentrant=False)
        if y.requires_grad:
            y.sum().backward()
        return y.detach()

    def function(self, x):
        return Doubled.apply(x.clone().requires_grad_()).detach()

    def raises(self, x):
        with contextlib.suppress(RuntimeError):
            torch.add(x, torch.ones(7))
        return x

    def transformed(self, x):
        return torch.func.vmap(torch.func.grad(lambda z: z.sin().sum()))(x)

    def recursive(self, x, depth=3):
        return x if depth == 0 else torch.add(self.recursive(x * 0.9, depth - 1), 1)

    def switched_off(self, x):
        with amanda.disabled():
            x = x + 1
        with amanda.cache_disabled():
            return x - 1

    def nested_scope(self, x):
        with amanda.apply(amanda.Tool("nothing")), amanda.apply(self.guest):
            return x * 2 + 1

    def changes_tools(self, x):
        if self.guest.removable:
            self.guest.removable.pop().remove()
        return x + 1

    def on_a_thread(self, x):
        found = []
        thread = threading.Thread(target=lambda: found.append((x + 1).mul(2)))
        thread.start()
        thread.join()
        return found[0]

    STEPS = [
        *[pointwise, in_a_loop, in_place, lists, views, boxed, composite, model, recurrent, train, twice, checkpointed],
        *[function, raises, transformed, recursive, switched_off, nested_scope, changes_tools, on_a_thread],
    ]
    MODES = [
        *[contextlib.nullcontext] * 4,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ]


def tools(draw, events, program):
    """Up to four, the last one a guest of nested scopes."""
    harmless = draw.random() < 0.5
    filters = [None, None, ["add", "linear"], ["relu", "cat", "mul"], ["test::no_such_operator"], ["*norm*", "l*"]]
    made = [
        Watcher(
            f"tool {i}",
            events,
            random.Random(draw.random()),
            ops=draw.choice(filters),
            nested=draw.random() < 0.3,
            backward=draw.random() < 0.4,
            harmless=harmless,
        )
        for i in range(draw.randrange(1, 4))
    ]
    if draw.random() < 0.3:
        looks = draw.random() < 0.5
        made.insert(0, NativeTool(_tools.counting_tool(backward=draw.random() < 0.5, looks=looks)))
    program.guest = Watcher("guest", events, random.Random(draw.random()), ops=["add", "mul"], harmless=harmless)
    return made


def execute(seed):
    """All that there is to see of a program: events, results, gradients, counts."""
    events = Events()
    program = Program(seed)
    draw = random.Random(seed + 1)
    outer, *inner = tools(draw, events, program)
    scope = amanda.apply(outer, on_error="disable")
    inner_scopes = [amanda.apply(tool, on_error=draw.choice(["disable", "raise"])) for tool in inner]
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for each in [scope, *inner_scopes]:
                stack.enter_context(each)
            try:
                events.append(("result", bits(program.run())))
            except (LookupError, RuntimeError, amanda.Error) as error:
                events.append(("raised", type(error), str(error)))
        events.append([(each.cache_info().hits, each.cache_info().misses) for each in [scope, *inner_scopes]])
    events.extend(("gradient", weight.grad is not None and bits(weight.grad)) for weight in program.weights)
    return events


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs_are_the_same_on_both_paths(first):
    for seed in range(first, first + 10):
        found = []
        for fast in (False, True):  # at one line: it is a part of the places
            with path(fast):
                found.append(execute(seed))
        for event, other in zip(*found, strict=True):
            assert event == other, seed


def test_a_place_becomes_known_when_it_runs_again():
    x = torch.ones(2)
    tool = amanda.Tool("looks")
    tool.add_inst_for_op(lambda context: None)
    counts = []

    def work():
        with amanda.apply(tool):
            for fast in (False, True, True):
                with path(fast):
                    for _ in range(5):
                        torch.add(x, 1)
                counts.append(_torch.count_known_places())

    thread = threading.Thread(target=work)  # its table is empty: that of this thread may be full
    thread.start()
    thread.join()
    assert counts == [0, 1, 1]


@pytest.mark.parametrize(("places", "known"), [(300, [300]), (4200, range(2000, 4097))])
def test_all_places_become_known_up_to_a_limit(places, known):
    tool = amanda.Tool("counts")
    seen = []
    tool.add_inst_for_op(lambda context: context.insert_before_op(seen.append, inputs=[0]), ops="add")
    exec("def program(x):\n" + "  x = x + 1\n" * places + "  return x\n", namespace := {})
    program = namespace["program"]
    counts = []

    def work():
        with amanda.apply(tool):
            results = [program(torch.zeros(())) for _ in range(3)]
            counts.append(_torch.count_known_places())
        assert [result.item() for result in results] == [places] * 3

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 3 * places
    assert len(counts) == 1
    assert counts[0] in known
