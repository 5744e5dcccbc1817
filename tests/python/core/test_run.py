"""`run`: one execution of an operator, forward and backward. Numbers are compared with autograd's, worked out by hand."""

import gc
import threading
import weakref

import amanda
import pytest
import torch
from torch.utils.checkpoint import checkpoint


class GradientTimesActivation(amanda.Tool):
    """The sum of result times gradient, of each execution of the operators `op`, in the order they ran forward."""

    def __init__(self, op, node):
        super().__init__()
        self.sums, self.node = {}, node
        self.add_inst_for_op(self.analyze, ops=op)
        self.add_inst_for_op(self.analyze_backward, ops=op, backward=True)

    def analyze(self, context):
        context.insert_after_op(self.keep, with_run=True)

    def analyze_backward(self, context):
        if context.backward_op.__name__ == self.node:
            context.insert_before_backward_op(self.meet, [0], with_run=True)

    def keep(self, result, run):
        run["result"] = result

    def meet(self, gradient, run):
        self.sums[run.op_id, run.index] = (gradient * run["result"]).sum().item()

    def in_order(self):
        assert len({op_id for op_id, _ in self.sums}) == 1
        return [self.sums[key] for key in sorted(self.sums)]


def by_hand(results):
    """Of tensors that retain their gradients, after backward()."""
    return [(result.grad * result.detach()).sum().item() for result in results]


class Cell(torch.nn.Module):
    """An Elman cell that is applied 16 times."""

    def __init__(self):
        super().__init__()
        self.input, self.hidden = torch.nn.Linear(3, 5), torch.nn.Linear(5, 5)

    def forward(self, xs):
        self.states = [torch.zeros(2, 5)]
        for x in xs:
            self.states.append(torch.tanh(self.input(x) + self.hidden(self.states[-1])))
        return self.states[-1]


class Shared(torch.nn.Module):
    """As ALBERT: one layer, applied six times."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())

    def forward(self, x):
        self.states = []
        for _ in range(6):
            x = self.layer(x)
            self.states.append(x)
        return x


@pytest.mark.parametrize(
    ("make", "shape", "op", "node", "runs"),
    [(Cell, (16, 2, 3), "tanh", "TanhBackward0", 16), (Shared, (3, 4), "gelu", "GeluBackward0", 6)],
)
def test_a_value_meets_its_own_gradient(make, shape, op, node, runs):
    model, x = make(), torch.randn(shape)
    tool = GradientTimesActivation(op, node)
    with amanda.apply(tool):
        model(x).square().sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]

    loss = model(x).square().sum()
    states = model.states[-runs:]
    for state in states:
        state.retain_grad()
    model.zero_grad()
    loss.backward()
    assert tool.in_order() == by_hand(states)
    assert len(set(tool.in_order())) == runs
    assert all(map(torch.equal, plain, (parameter.grad for parameter in model.parameters())))


# ---- which execution ------------------------------------------------------------------------------------------------


def tool_with(forward=None, backward=None, op="sin", node="SinBackward0", **options):
    """Runs `forward(run)` after the operator, `backward(run)` before its backward operator."""
    tool = amanda.Tool()
    if forward:
        tool.add_inst_for_op(
            lambda c: c.insert_after_op(lambda run: forward(run), [], with_run=True, **options), ops=op
        )

    def analyze_backward(context):
        if node in (None, context.backward_op.__name__):
            context.insert_before_backward_op(lambda run: backward(run), [], with_run=True)

    if backward:
        tool.add_inst_for_op(analyze_backward, ops=op, backward=True)
    return tool


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_index_counts_the_executions_of_a_place_since_the_scope_was_entered():
    seen = []
    scope = amanda.apply(tool_with(lambda run: seen.append(run.index)))
    x = torch.ones(2)
    for _ in range(2):
        with scope:
            for _ in range(3):
                torch.sin(x)
            torch.sin(x)  # another place
    assert seen == [0, 1, 2, 0] * 2
    seen.clear()
    with scope:
        for _ in range(2):
            with scope:  # it is open already
                torch.sin(x)
    assert seen == [0, 1]


def test_each_scope_counts_for_itself():
    outer, inner, x = [], [], torch.ones(2)
    with amanda.apply(tool_with(lambda run: outer.append(run.index))):
        for _ in range(3):
            with amanda.apply(tool_with(lambda run: inner.append(run.index))):
                torch.sin(x)
    assert (outer, inner) == ([0, 1, 2], [0, 0, 0])


def test_index_goes_on_over_cleared_and_disabled_caches():
    seen = []
    with amanda.apply(tool_with(lambda run: seen.append(run.index))) as scope:
        for step in range(4):
            if step == 1:
                scope.cache_clear()
            if step == 2:
                with amanda.cache_disabled():
                    torch.sin(torch.ones(2))
            else:
                torch.sin(torch.ones(2))
    assert sorted(seen) == [0, 0, 1, 2]  # two places


def test_a_backward_routine_alone_has_the_number_of_its_forward_execution():
    seen, x = [], leaf(2)
    with amanda.apply(tool_with(None, lambda run: seen.append(run.index))):
        for _ in range(2):
            y = x * 1  # an operator on a leaf is a place of its own
            for _ in range(4):
                y = torch.sin(y)
            y.sum().backward()
    assert seen == [3, 2, 1, 0, 7, 6, 5, 4]


def test_executions_of_an_autograd_function_are_counted():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    seen, y = [], leaf(2) * 1
    with amanda.apply(tool_with(None, lambda run: seen.append(run.index), op="Double", node="DoubleBackward")):
        for _ in range(3):
            y = Double.apply(y)
        y.sum().backward()
    assert seen == [2, 1, 0]


def test_forward_and_backward_have_one_run_per_tool():
    runs = {"a": [], "b": []}
    tools = [tool_with(runs[name].append, runs[name].append) for name in runs]
    x = leaf(2)
    with amanda.apply(*tools):
        torch.sin(x).sum().backward()
    (a, a_backward), (b, b_backward) = runs["a"], runs["b"]
    assert a is a_backward
    assert b is b_backward
    assert a is not b
    assert (a.index, a.op_id) == (b.index, b.op_id)


def test_all_backward_operators_of_an_execution_share_its_run():
    seen = []

    def backward(run):
        seen.append(run["number"])

    x, numbers = leaf(2, 3), iter(range(9))
    with amanda.apply(tool_with(lambda run: run.update(number=next(numbers)), backward, op="linear", node=None)):
        for _ in range(2):
            torch.nn.functional.linear(x, x).sum().backward()
    assert len(seen) >= 4
    assert seen == sorted(seen)
    assert {*seen} == {0, 1}


def test_a_retained_graph_has_its_runs_again():
    kept, met = [], []
    x = leaf(2)
    with amanda.apply(tool_with(kept.append, met.append)):
        loss = torch.sin(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert [id(run) for run in met] == [id(kept[0])] * 2


def test_backward_operators_of_backward_operators_have_the_run_of_the_forward_one():
    kept, met = [], []
    x = leaf(2)
    with amanda.apply(tool_with(kept.append, met.append, node=None)):
        (gradient,) = torch.autograd.grad(torch.sin(x).sum(), x, create_graph=True)
        gradient.sum().backward()
    assert len(met) > 2
    assert {id(run) for run in met} == {id(kept[0])}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_is_an_execution_of_its_own(reentrant):
    trace, x = [], leaf(2)
    tool = tool_with(
        lambda run: run.update(number=run.index) or trace.append(f"forward {run.index}"),
        lambda run: trace.append(f"backward {run['number']} {run.index}"),
    )
    with amanda.apply(tool):
        checkpoint(lambda x: torch.sin(x).exp(), x, use_reentrant=reentrant).sum().backward()
    # The graph that runs backward is the recomputed one, or the first one, which unpacks what was recomputed.
    assert trace == ["forward 0", "forward 1", "backward 1 1" if reentrant else "backward 0 0"]


def test_threads_have_runs_of_their_own():
    met, lock = [], threading.Lock()

    def backward(run):
        with lock:
            met.append((run["thread"], run["x"], run.index))

    tool = tool_with(lambda run: run.update(thread=threading.get_ident()), backward)
    tool.add_inst_for_op(
        lambda c: c.insert_before_op(lambda x, run: run.update(x=x[0].item()), with_run=True), ops="sin"
    )
    scope, runs = amanda.apply(tool), 20

    def work(number):
        with scope:
            mine.add((threading.get_ident(), number))
            start.wait()
            for _ in range(runs):
                torch.sin(torch.full((2,), number, requires_grad=True) * 1).sum().backward()
            start.wait()

    mine, start = set(), threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(thread, x) for thread, x, _ in met} == mine
    assert sorted(index for *_, index in met) == list(range(4 * runs))


def test_an_execution_that_nobody_counted_is_an_error_that_says_so():
    met = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: None, ops="sin", backward=True)  # it is seen, and nothing is scheduled yet
    x = leaf(2)
    with amanda.apply(tool):
        for step in range(2):
            loss = torch.sin(x).sum()
            if step == 1:
                tool.add_inst_for_op(
                    lambda c: c.insert_before_backward_op(lambda run: met.append(run), [], with_run=True),
                    ops="sin",
                    backward=True,
                )
            loss.backward()
    assert met[0].op_id > 0
    with pytest.raises(amanda.Error) as raised:
        _ = met[0].index
    assert str(raised.value) == (
        "[run] which execution of aten::sin this is, is not known: nobody asked for a run while it ran"
    )


def test_a_run_is_a_dict_that_prints_itself():
    runs = []
    with amanda.apply(tool_with(runs.append)):
        for _ in range(2):
            torch.sin(torch.ones(2))
    assert isinstance(runs[1], amanda.Run)
    assert isinstance(runs[1], dict)
    runs[1].update(start=1.5)
    assert repr(runs[1]) == "<amanda.Run 1 of aten::sin: {'start': 1.5}>"
    assert runs[0] == {}


# ---- how long -------------------------------------------------------------------------------------------------------

KEEPS = {
    "a result": lambda y: y,
    "a list of results": lambda y: [1, [y]],
    "a tuple in a dict": lambda y: {"y": (y, y)},
    "what follows from it": lambda y: y * 2,
}


@pytest.mark.parametrize("program", [torch.sin, lambda x: (x * 1).sin_()], ids=["sin", "sin_"])
@pytest.mark.parametrize("end", ["backward", "create_graph", "abandon"])
@pytest.mark.parametrize("differentiable", [False, True], ids=["", "differentiable"])
@pytest.mark.parametrize("kept", KEEPS)
def test_a_run_goes_with_its_graph(program, end, differentiable, kept):
    alive = []

    def keep(*results, run):
        run["y"] = KEEPS[kept](results[0])
        alive.append(weakref.ref(run))

    def meet(gradient, run):
        run["gradient"] = gradient

    tool = amanda.Tool()
    ops = ["sin", "sin_"]
    tool.add_inst_for_op(lambda c: c.insert_after_op(keep, with_run=True, differentiable=differentiable), ops=ops)
    tool.add_inst_for_op(lambda c: c.insert_before_backward_op(meet, [0], with_run=True), ops=ops, backward=True)
    x = leaf(2)
    with amanda.apply(tool):
        for _ in range(3):
            loss = program(x).sum()
            if end == "backward":
                loss.backward()
            if end == "create_graph":
                torch.autograd.grad(loss, x, create_graph=True)
            assert alive[-1]() is not None
            del loss
        x.grad = None
        gc.collect()
        torch.ones(1).sin()  # what a pass has left on this thread goes with the next operator
        assert [run() for run in alive[:3]] == [None] * 3


def test_what_a_run_keeps_for_the_backward_pass_has_no_graph():
    met, x = [], leaf(2)
    tool = tool_with(None, met.append)

    def keep(y, inputs, run):
        run.update(y=y, x=inputs[0])
        assert run["y"] is y

    tool.add_inst_for_op(lambda c: c.insert_after_op(keep, inputs=["self"], with_run=True), ops="sin")
    with amanda.apply(tool):
        y = torch.sin(x)
        y.sum().backward()
    (run,) = met
    assert run["x"] is x  # a leaf stays what it is
    assert run["y"].grad_fn is None
    assert run["y"].data_ptr() == y.data_ptr()


def test_a_run_that_no_backward_routine_asks_for_ends_with_the_operator():
    alive = []
    tool = amanda.Tool()
    tool.add_inst_for_op(
        lambda c: c.insert_after_op(lambda y, run: run.update(y=y) or alive.append(weakref.ref(run)), with_run=True),
        ops="sin",
    )
    tool.add_inst_for_op(lambda c: c.insert_before_backward_op(lambda *g: None), ops="sin", backward=True)
    x = leaf(2)
    with amanda.apply(tool):
        for _ in range(2):  # in the first run the backward analysis is still to come
            alive.clear()
            y = torch.sin(x)
            gone = alive[0]() is None
            y.sum().backward()
    assert gone


def test_a_leafs_node_that_outlives_its_graphs_has_the_latest_run():
    trace, x = [], leaf(2)
    alive = x.view_as(x).grad_fn.next_functions[0][0]  # as DistributedDataParallel keeps it
    runs = []

    def forward(run):
        run["number"] = run.index
        runs.append(weakref.ref(run))

    with amanda.apply(tool_with(forward, lambda run: trace.append(run["number"]), node=None)):
        for _ in range(3):
            torch.sin(x).sum().backward()
        gc.collect()
        assert [run() for run in runs] == [None] * 3
    assert trace == [0, 0, 1, 1, 2, 2]  # SinBackward0 and AccumulateGrad
    assert alive.name().endswith("AccumulateGrad")
