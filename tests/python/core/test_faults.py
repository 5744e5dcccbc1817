"""A fault in a tool, of any kind, at any point, in any surroundings: it arrives as itself, and nothing is left of it."""

import contextlib
import signal
import threading

import amanda
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from unharmed import Look, bits, reusable, run, thread_state

nn = torch.nn
X = torch.tensor([-1.0, 2.0])


class Own(Exception):
    pass


def long(*values):
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def torchs_own(call):
    def fail():
        call()
        raise AssertionError("it did not fail")

    return fail


def raising(kind):
    def fail():
        raise kind("boom") if kind is not StopIteration else kind()

    return fail


FAULTS = {
    "Exception": (raising(Own), Own),
    "KeyboardInterrupt": (raising(KeyboardInterrupt), KeyboardInterrupt),
    "a signal": (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    "MemoryError": (raising(MemoryError), MemoryError),
    "SystemExit": (raising(SystemExit), SystemExit),
    "StopIteration": (raising(StopIteration), StopIteration),
    "RecursionError": (lambda: recurse(), RecursionError),
    "wrong shapes": (torchs_own(lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3))), RuntimeError),
    "wrong index": (torchs_own(lambda: torch.ones(3)[7]), IndexError),
    "out of memory": (torchs_own(lambda: torch.empty(1 << 50)), RuntimeError),
    "no kernel": (torchs_own(lambda: torch.ones(2, device="meta").item()), RuntimeError),
    "autograd's": (torchs_own(lambda: torch.ones(2).sum().backward()), RuntimeError),
    "amanda's": (torchs_own(lambda: amanda.apply(amanda.Tool()).__exit__(None, None, None)), amanda.Error),
}


FEW = {name: FAULTS[name] for name in ("Exception", "KeyboardInterrupt", "MemoryError", "wrong shapes")}


def recurse():
    return recurse()


class Faulty(amanda.Tool):
    """Fails at one point of the operators of `ops` while it is armed."""

    def __init__(self, point, ops, node=None, **options):
        super().__init__("faulty")
        self.point, self.node, self.options = point, node, options
        self.fault, self.told, self.runs = None, [], 0
        nested = options.pop("nested", False)
        for late in (False, True):
            self.add_inst_for_op(
                self.analyse_late if late else self.analyse,
                ops=ops, nested=nested, backward=node is not None, require_outputs=late,
            )  # fmt: skip

    def analyse(self, context):
        if self.node not in (None, "*", context.is_backward() and context.backward_op.__name__):
            return
        if self.point == "analysis":
            self.fail()
        if self.point in ("before", "after"):
            kind = "backward_op" if context.is_backward() else "op"
            getattr(context, f"insert_{self.point}_{kind}")(self.fail, **self.options)
        if self.point == "replace" and context.is_backward():
            context.replace_backward_op(self.replace, op=context.backward_op)
        elif self.point == "replace":
            context.replace_op(self.replace, op=context.op, allow_view=True)

    def analyse_late(self, context):
        fits = self.node in (None, "*", context.is_backward() and context.backward_op.__name__)
        if self.point == "late analysis" and fits:
            self.fail()

    def replace(self, *operands, op):
        self.fail()
        return op(*operands)

    def fail(self, *operands):
        self.runs += 1
        if self.fault:
            self.fault()

    def on_disable(self, error):
        self.told.append(error)


FORWARD = [("analysis", {}), ("late analysis", {}), ("replace", {})] + [
    (point, {"differentiable": differentiable}) for point in ("before", "after") for differentiable in (False, True)
]
BACKWARD = [("analysis", {}), ("late analysis", {}), ("before", {}), ("replace", {}), ("after", {})]


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


SURROUNDINGS = {
    "nothing": contextlib.nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "a function mode": FunctionMode,
    "a dispatch mode": DispatchMode,
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "a device": lambda: torch.device("cpu"),
    "another scope": lambda: amanda.apply(Look()),
    "no cache": amanda.cache_disabled,
    "deterministic algorithms": lambda: deterministic(),
}


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


WEIGHT = torch.randn(2, 2, requires_grad=True)


def in_place():
    x = X.clone()
    return torch.relu_(x), x


OPERATORS = {
    "relu": lambda: torch.relu(X * 2),
    "linear": lambda: torch.nn.functional.linear(X, WEIGHT),
    "relu_": in_place,
    "add": lambda: torch.add(X, X, out=torch.empty(2)),
    "max": lambda: tuple(torch.max(torch.eye(2), 1)),
    "split": lambda: torch.split(X, 1),
    "cat": lambda: torch.cat([X, X]),
}


def disarmed_after_first_analysis(point, tool):
    """An analysis runs until it succeeds."""
    return point in ("analysis", "late analysis") and tool.runs


@pytest.mark.parametrize(("point", "options"), FORWARD, ids=str)
def test_each_fault_in_a_forward_operator(point, options):
    fail_in_forward(point, options, "nothing", ["relu"], FAULTS)


@pytest.mark.parametrize("where", SURROUNDINGS)
@pytest.mark.parametrize("point", ["analysis", "before", "replace", "after"])
def test_a_fault_in_a_forward_operator(point, where):
    fail_in_forward(point, {}, where, ["relu", "relu_"], {"Exception": FAULTS["Exception"]})


@pytest.mark.long
@pytest.mark.parametrize("where", SURROUNDINGS)
@pytest.mark.parametrize(("point", "options"), FORWARD, ids=str)
def test_each_fault_in_each_forward_operator(point, options, where):
    fail_in_forward(point, options, where, OPERATORS, {"KeyboardInterrupt": FAULTS["KeyboardInterrupt"]})


def fail_in_forward(point, options, where, operators, faults):
    watcher = Look(list(OPERATORS))
    for name in operators:
        program = OPERATORS[name]
        if options.get("differentiable") and name == "split" and point == "after":
            continue
        with SURROUNDINGS[where]():
            expected = run(program)
            outside = thread_state()
            tool = Faulty(point, name, **options)
            for fault, kind in faults.values():
                with amanda.apply(watcher, tool):
                    inside = thread_state()
                    tool.fault = fault
                    with pytest.raises(kind) as caught:
                        program()
                    assert type(caught.value) is kind, name
                    assert any("in tool 'faulty'" in note for note in caught.value.__notes__), (name, kind)
                    assert thread_state() == inside
                    tool.fault = None
                    watcher.clear()
                    assert run(program) == expected
                    assert watcher.count[name] == 1
                assert thread_state() == outside
        assert run(program) == run(program)


NODES = [
    (point, node)
    for point in ("analysis", "late analysis", "before", "replace", "after")
    for node in ("MulBackward0", "AccumulateGrad", "AddmmBackward0", "SquareBackward")
    if (point, node) != ("replace", "AccumulateGrad")  # it can't be replaced
]


@pytest.mark.parametrize(("point", "node"), NODES)
def test_a_fault_in_a_backward_operator(point, node):
    fail_in_backward(point, node, "nothing", {"Exception": FAULTS["Exception"]})


@pytest.mark.long
@pytest.mark.parametrize("where", ["nothing", "autocast", "a function mode", "another scope", "no cache"])
@pytest.mark.parametrize(("point", "node"), NODES)
def test_each_fault_in_a_backward_operator(point, node, where):
    if (where, node) == ("autocast", "AccumulateGrad"):
        pytest.skip("autocast keeps its copies of weights: what leads to the leaf was recorded outside")
    fail_in_backward(point, node, where, FEW)


def fail_in_backward(point, node, where, faults):
    layer = nn.Linear(2, 2)
    watcher = Look()

    def forward():
        layer.zero_grad()
        return (Square.apply(layer(X[None]) * 2)).sum()

    def program():
        forward().backward()
        return [p.grad for p in layer.parameters()], list(layer.parameters())

    with SURROUNDINGS[where]():
        expected = run(program)
        for create_graph in (False, True):
            tool = Faulty(point, None, node)
            for fault, kind in faults.values():
                with amanda.apply(watcher, tool):
                    loss = forward()
                    inside = thread_state()
                    tool.fault = fault
                    with pytest.raises(kind) as caught:
                        loss.backward(create_graph=create_graph)
                    assert type(caught.value) is kind
                    assert any("in tool 'faulty'" in note for note in caught.value.__notes__)
                    assert thread_state() == inside
                    tool.fault = None
                    watcher.clear()
                    assert run(program) == expected
                    assert watcher.count[node] >= 1
                    assert watcher.count["linear"] == 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


@pytest.mark.parametrize(("point", "options"), FORWARD, ids=str)
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "vmap of grad", "functionalize"])
def test_a_fault_under_a_transform(point, options, transform):
    programs = {
        "vmap": lambda: torch.vmap(torch.sin)(X),
        "grad": lambda: torch.func.grad(lambda x: x.sin().sum())(X),
        "jvp": lambda: torch.func.jvp(torch.sin, (X,), (X,)),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(torch.sin))(X),
        "functionalize": lambda: torch.func.functionalize(torch.sin)(X),
    }
    program = programs[transform]
    expected, state = run(program), thread_state()
    tool = Faulty(point, "sin", **options)
    for fault, kind in FEW.values():
        tool.fault = fault
        with pytest.raises(kind) as caught, amanda.apply(tool):
            program()
        assert type(caught.value) is kind
        assert thread_state() == state
        tool.fault = None
        with amanda.apply(tool):
            assert run(program) == expected


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("point", ["analysis", "late analysis", "before", "after", "replace"])
def test_a_fault_in_an_operator_inside_another(point, nested):
    x, weight, bias = torch.ones(3, 2), torch.ones(2, 2), torch.ones(2)
    expected = run(lambda: nn.functional.linear(x, weight, bias))
    tool, outer = Faulty(point, "addmm", nested=nested), Look(["linear", "addmm"], nested=True)
    with amanda.apply(outer, tool):
        for fault, kind in FEW.values():
            state = thread_state()
            tool.fault = fault
            if not disarmed_after_first_analysis(point, tool):
                with pytest.raises(kind):
                    nn.functional.linear(x, weight, bias)
            tool.fault = None
            assert thread_state() == state
            outer.clear()
            assert run(lambda: nn.functional.linear(x, weight, bias)) == expected
            assert outer.count == {"linear": 1, "addmm": 1}


# ---- threads ---------------------------------------------------------------------------------------------------------


def deep(x, depth):
    """Nested reentrant checkpoints: beyond 60 of them, the engine continues on a thread of its own."""
    if depth == 0:
        return x * 2
    return torch.utils.checkpoint.checkpoint(deep, x, depth - 1, use_reentrant=True)


@pytest.mark.parametrize("kind", [Own, *long(KeyboardInterrupt, MemoryError, SystemExit, RuntimeError)])
@pytest.mark.parametrize("point", ["analysis", "before", "replace", "after"])
def test_a_fault_on_a_thread_of_the_engine(point, kind):
    state, seen = thread_state(), []
    tool = Faulty(point, None, "MulBackward0")  # one that filters may miss what is recomputed there

    def fault():
        seen.append(threading.get_ident())
        raise kind("boom")

    scope = amanda.apply(tool)
    with scope:
        x = X.clone().requires_grad_()
        y = deep(x, 70).sum()
        tool.fault = fault
        with pytest.raises(kind) as caught:
            y.backward()
        assert type(caught.value) is kind
        assert caught.value.args == ("boom",)
        assert seen[0] != threading.get_ident()
        tool.fault = None
        x = X.clone().requires_grad_()
        deep(x, 70).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
    assert thread_state() == state


def on_a_thread(function):
    """What it returned and raised there, and whether that thread was left as it was."""
    outcome = []

    def work():
        state = thread_state()
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))
        outcome.append(thread_state() == state)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return *outcome[0], outcome[1]


@pytest.mark.parametrize(("point", "options"), FORWARD, ids=str)
def test_a_fault_on_a_thread_of_the_users(point, options):
    tool, state = Faulty(point, "relu", **options), thread_state()

    def work():
        with scope:
            return torch.relu(X)

    for fault, kind in FEW.values():
        scope = amanda.apply(tool)
        tool.fault = fault
        _, error, clean = on_a_thread(work)
        assert (type(error), clean) == (kind, True)
        tool.fault = None
        y, error, clean = on_a_thread(work)
        assert (y.tolist(), error, clean) == ([0.0, 2.0], None, True)
    assert thread_state() == state


@pytest.mark.parametrize("point", ["analysis", "before", "replace", "after"])
def test_a_backward_of_another_threads_graph_fails_there(point):
    tool = Faulty(point, "mul", "MulBackward0")
    scope = amanda.apply(tool)
    x = X.clone().requires_grad_()
    with scope:
        y = (x * 2).sum()
    tool.fault = raising(Own)

    def work():
        with scope:
            y.backward(retain_graph=True)

    _, error, clean = on_a_thread(work)
    assert (type(error), clean) == (Own, True)
    tool.fault = None
    assert on_a_thread(work)[1:] == (None, True)
    assert x.grad.tolist() == [2.0, 2.0]


# ---- parameters ------------------------------------------------------------------------------------------------------

model = reusable(
    nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(6, 2))
)


def training(fail_at=None, tool=None, fault=None):
    """Three steps; that in which the tool fails is begun again, as a job would that loads its last checkpoint."""
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for step in range(3):
        state = torch.get_rng_state()
        buffers = [b.clone() for b in net.buffers()]
        if step == fail_at:
            before = bits([net.state_dict(), optimizer.state_dict()])
            tool.fault = fault
            with pytest.raises(BaseException, match="boom"):
                net(torch.randn(4, 3)).square().sum().backward()
            tool.fault = None
            torch.set_rng_state(state)
            with torch.no_grad():
                for buffer, value in zip(net.buffers(), buffers, strict=True):
                    buffer.copy_(value)
            assert bits([net.state_dict(), optimizer.state_dict()]) == before
        optimizer.zero_grad()
        net(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return bits([net.state_dict(), optimizer.state_dict()])


@pytest.mark.parametrize("kind", [Own, *long(KeyboardInterrupt)])
@pytest.mark.parametrize(
    "ops", ["relu_", *(pytest.param(op, marks=pytest.mark.long) for op in ("linear", "batch_norm", "dropout"))]
)
@pytest.mark.parametrize(
    ("point", "options", "node"),
    [(*each, None) for each in FORWARD] + [(*each, "*") for each in BACKWARD if each[0] != "replace"],
    ids=str,
)
def test_training_goes_on_as_if_nothing_had_happened(point, options, node, ops, kind):
    expected = training()
    tool = Faulty(point, ops, node, **options)
    late = "analysis" in point
    with amanda.apply(tool), amanda.cache_disabled() if late else contextlib.nullcontext():
        assert training(1, tool, raising(kind)) == expected


# ---- on_error="disable" ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", ["Exception", *long("MemoryError", "wrong shapes", "out of memory", "RecursionError")]
)
@pytest.mark.parametrize(
    ("point", "options", "node"),
    [(*each, None) for each in FORWARD]
    + [(*each, node) for each in BACKWARD for node in ("AddmmBackward0", "TBackward0")],
    ids=str,
)
def test_a_job_whose_tool_is_stopped_has_vanillas_results(point, options, node, fault, log):
    expected = training()
    fail, kind = FAULTS[fault]
    tool, watcher = Faulty(point, ["linear", "relu_", "batch_norm"], node, **options), Look("linear")
    tool.fault = fail
    with amanda.apply(watcher, tool, on_error="disable"):
        assert training() == expected
    assert tool.runs == 1
    (line,) = log()
    assert line.startswith("[amanda] faulty: ")
    assert line.endswith("; stopped for the rest of the scope: 'faulty'")
    assert [type(error) for error in tool.told] == [kind]
    assert watcher.count["linear"] == 6


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize(("point", "options"), BACKWARD, ids=str)
def test_interrupts_in_the_backward_pass_are_not_swallowed(point, options, kind, log):
    tool = Faulty(point, "mul", "MulBackward0", **options)
    tool.fault = raising(kind)
    with amanda.apply(tool, on_error="disable"), pytest.raises(kind):
        (X.clone().requires_grad_() * 2).sum().backward()
    assert (log(), tool.told) == ([], [])


def test_a_stopped_tool_on_a_thread_of_the_engine(log):
    tool = Faulty("before", None, "MulBackward0")
    tool.fault = raising(Own)
    x = X.clone().requires_grad_()
    with amanda.apply(tool, on_error="disable"):
        for _ in range(2):
            x.grad = None
            deep(x, 70).sum().backward()
            assert x.grad.tolist() == [2.0, 2.0]
    assert (len(log()), tool.runs) == (1, 1)


def test_tools_that_fail_on_many_threads_at_once_say_so_once(log):
    tool = Faulty("before", "relu")
    tool.fault = raising(Own)
    scope, barrier = amanda.apply(tool, on_error="disable"), threading.Barrier(8)
    results = []

    def work():
        with scope:
            barrier.wait()
            results.extend(torch.relu(X).tolist() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0.0, 2.0]] * 160
    assert len(log()) == 1
    assert len(tool.told) == 1


def test_a_failing_on_disable_is_logged_and_no_more(log):
    tool = Faulty("before", "relu")
    tool.fault = raising(Own)
    tool.on_disable = lambda error: 1 / 0
    with amanda.apply(tool, on_error="disable"):
        assert torch.relu(X).tolist() == [0.0, 2.0]
    first, second = log()
    assert first.endswith("'faulty'")
    assert second.startswith("[amanda] on_disable of 'faulty' failed: ZeroDivisionError")
