"""Errors of backward analyses and routines: their text, where they arrive, and what they leave behind."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import contextlib
import gc
import threading
import weakref

import amanda
import pytest
import torch
from backward_tools import ReplaceAll, Scheduled, Watcher, same

nn = torch.nn


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def backward(tools, x=None):
    x = torch.ones(2, 3, requires_grad=True) if x is None else x
    with amanda.apply(*([tools] if isinstance(tools, amanda.Tool) else tools)):
        (x * 2).sum().backward()


# ---- what a routine returns ------------------------------------------------------------------------------------------

MISFITS = {
    "shape": (lambda *g: g[0][0], "a gradient of shape [3] cannot replace one of [2, 3]"),
    "dtype": (lambda *g: g[0].double(), "a tensor of dtype Double cannot replace one of Float; convert it with "
              ".to(dtype)"),
    "device": (lambda *g: g[0].to("meta"), "a tensor on meta cannot replace one on cpu; move it"),
    "type": (lambda *g: 3.0, "got float where Tensor? is needed"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISFITS)
def test_a_value_that_does_not_fit(what, says):
    routine, text = MISFITS[what]
    routine.__name__ = "edit"
    for point, position in {"before": "grad_output 0", "after": "grad_input 0"}.items():
        with says(amanda.Error, f"[action] tool: edit {point} MulBackward0 of aten::mul: {position}: {text}"):
            backward(Scheduled(point, "MulBackward0", routine, [0]))
    with says(amanda.Error, f"[action] tool: edit before AccumulateGrad of aten::mul: grad_output 0: {text}"):
        backward(Scheduled("before", "AccumulateGrad", routine, [0]))


def test_a_replacements_value_that_does_not_fit(says):
    for routine, text in MISFITS.values():
        with pytest.raises(amanda.Error) as caught:
            backward(Scheduled("replace", "SumBackward0", lambda g, of=routine: of(g.expand(2, 3))))
        assert text in str(caught.value)
        assert "replacing SumBackward0 of aten::sum" in str(caught.value)


def test_a_wrong_number_of_values(says):
    def one(*g):
        return g[0] * 2

    def three(*g):
        return (g[0],) * 3

    says_so = "return None to keep them all, or one value for each"
    with says(amanda.Error, f"[action] tool: three before MulBackward0 of aten::mul: it returned 3 values for 1 "
                            f"selected position; {says_so}"):  # fmt: skip
        backward(Scheduled("before", "MulBackward0", three))
    with says(amanda.Error, f"[action] tool: one after MulBackward0 of aten::mul: it returned 1 value for 2 selected "
                            f"positions; {says_so}"):  # fmt: skip
        backward(Scheduled("after", "MulBackward0", one))
    for routine, number in ((one, "one value"), (three, "3 values")):
        tool = Scheduled("replace", "MulBackward0", routine)
        with amanda.apply(tool):
            for _ in range(2):  # beside the original, and in its place
                where = f"[action] tool: {routine.__name__} replacing MulBackward0 of aten::mul"
                needed = "where the operator has 2 results; return a tuple of them"
                with says(amanda.Error, f"{where}: it returned {number} {needed}"):
                    (leaf(2, 3) * 2).sum().backward()


def test_a_gradient_changed_in_place(says):
    def mutate(*g):
        g[0].mul_(2)

    for point in ("before", "after", "replace"):
        with pytest.raises(amanda.Error, match=r"it changed grad_(out|in)put 0 in place, and that stays changed"):
            with amanda.apply(Scheduled(point, "SinBackward0", mutate)):
                leaf(3).sin().backward(torch.ones(3))


# ---- what an analysis asks for ---------------------------------------------------------------------------------------


def test_positions_that_are_not_there(says):
    where = "on MulBackward0 of aten::mul: there is no"
    for position, told in ((7, "position 7"), (-1, "position -1"), ("self", "'self'")):
        with says(ValueError, f"[context] tool: insert_before_backward_op {where} {told}; it has 0"):
            backward(Scheduled("before", "MulBackward0", print, [position]))
        with says(ValueError, f"[context] tool: insert_after_backward_op {where} {told}; it has 0, 1"):
            backward(Scheduled("after", "MulBackward0", print, [position]))
        with says(ValueError, f"[context] tool: replace_backward_op {where} {told}; it has 0"):
            backward(Scheduled("replace", "MulBackward0", print, [position]))
    with says(ValueError, "[context] tool: insert_after_backward_op on AccumulateGrad of aten::mul: there is no position "
                          "0; it has none"):  # fmt: skip
        backward(Scheduled("after", "AccumulateGrad", print, [0]))


@pytest.mark.parametrize("position", [-1, "self"])
def test_positions_that_no_node_can_have(position, says):
    with says(ValueError, "[context] tool: insert_before_backward_op on aten::mul: gradients are selected by position, "
                          "from 0 on"):  # fmt: skip
        backward(Scheduled("before", "", print, [position], ops="mul", forward=True))


def test_a_routine_that_cannot_be_called(says):
    with says(TypeError, "[context] insert_before_backward_op takes a routine to call; got 3"):
        backward(Scheduled("before", "MulBackward0", 3))


def test_a_leafs_operator_cannot_be_replaced(says):
    x = leaf(2, 3)
    with says(amanda.Error, "[context] tool: replace_backward_op on AccumulateGrad of aten::mul: a gradient must be "
                            "accumulated into its leaf; edit it before that, by insert_before_backward_op"):  # fmt: skip
        backward(Scheduled("replace", "AccumulateGrad", print), x)
    assert x.grad is None


@pytest.mark.parametrize("name", ["insert_before_op", "insert_after_op", "replace_op"])
def test_forward_actions_come_too_late(name, says):
    tool = amanda.Tool("late")
    tool.add_inst_for_op(lambda c: getattr(c, name)(print), ops="mul", backward=True)
    with says(amanda.Error, f"[context] late: {name} on MulBackward0 of aten::mul: the forward operator has run; schedule "
                            "this in an analysis routine of forward operators"):  # fmt: skip
        backward(tool)


def test_two_replacements(says):
    a, b = (Scheduled("replace", "MulBackward0", lambda g: (g, None), name=name) for name in "ab")
    with says(amanda.Error, "[plan] 'a' and 'b' both replace MulBackward0 of aten::mul; let one depend on the other: "
                            "b.depends_on(a)"):  # fmt: skip
        backward([a, b])


# ---- calling the original --------------------------------------------------------------------------------------------


def original():
    tool, ops = amanda.Tool(), []
    tool.add_inst_for_op(lambda c: ops.append(c.backward_op), ops="mul", backward=True)
    backward(tool)
    return ops[0]


def test_the_original_is_called_outside(says):
    op = original()
    text = "[torch] MulBackward0 can be called only by a routine, on the thread and while that operator runs"
    with says(amanda.Error, text):
        op(torch.ones(2, 3))
    with says(amanda.Error, text):  # while another runs
        backward(Scheduled("before", "SumBackward0", lambda g: op(g)))


def test_the_original_is_called_with_something_else(says):
    calls = {
        lambda op: op(): (amanda.Error, "[torch] MulBackward0 takes 1 grad_outputs, got 0"),
        lambda op: op(3): (TypeError, "[torch] MulBackward0 takes tensors or None, got 3"),
        lambda op: op(torch.ones(2, 3), g=1): (TypeError, "[torch] MulBackward0 takes its grad_outputs by position"),
    }
    for call, (kind, text) in calls.items():
        tool = amanda.Tool()

        def analyse(context, call=call):
            op = context.backward_op
            if op.__name__ == "MulBackward0":
                context.insert_before_backward_op(lambda: call(op), [])

        tool.add_inst_for_op(analyse, ops="mul", backward=True)
        with says(kind, text):
            backward(tool)


def test_the_originals_own_error_has_its_text(says):
    text = "Trying to backward through the graph a second time"
    x = leaf(3)
    with amanda.apply(ReplaceAll(ops="mul")):
        for _ in range(2):
            y = (x * x).sum()
            y.backward()
        with pytest.raises(RuntimeError, match=text) as caught:
            y.backward()
    assert "frame #0" not in str(caught.value)


# ---- exceptions ------------------------------------------------------------------------------------------------------


class Odd(Exception):
    """An exception that can't be made again from its text."""

    def __init__(self, code, *, where):
        super().__init__(f"odd {code}")
        self.code, self.where = code, where


class Failing(amanda.Tool):
    """Raises `error` at one point, as long as it is armed."""

    def __init__(self, point, error, node="MulBackward0"):
        super().__init__("failing")
        self.point, self.error, self.node, self.armed, self.told = point, error, node, True, []
        self.add_inst_for_op(self.analyse, ops="mul", backward=True)
        self.add_inst_for_op(self.analyse_late, ops="mul", backward=True, require_outputs=True)

    def analyse(self, context):
        if context.backward_op.__name__ != self.node:
            return
        if self.point == "analysis":
            self.fail()
        if self.point == "before":
            context.insert_before_backward_op(self.fail)
        if self.point == "after":
            context.insert_after_backward_op(self.fail)
        if self.point == "replace":
            context.replace_backward_op(self.replace, op=context.backward_op)

    def analyse_late(self, context):
        if self.point == "late analysis" and context.backward_op.__name__ == self.node:
            self.fail()

    def replace(self, *gradients, op):
        self.fail()
        return op(*gradients)

    def fail(self, *gradients):
        if self.armed:
            raise self.error

    def on_disable(self, error):
        self.told.append(error)


NOTES = {
    "analysis": "analysis of",
    "late analysis": "analysis of",
    "before": "fail before",
    "after": "fail after",
    "replace": "replace replacing",
}
ERRORS = [lambda: Odd(7, where="here"), lambda: ValueError("v"), StopIteration, KeyboardInterrupt, SystemExit]


@pytest.mark.parametrize("node", ["MulBackward0", "AccumulateGrad"])
@pytest.mark.parametrize("point", NOTES)
@pytest.mark.parametrize("make", ERRORS)
def test_an_exception_arrives_as_itself_and_the_next_step_is_clean(point, make, node, placeless):
    if (point, node) == ("replace", "AccumulateGrad"):
        node = "MulBackward0"
    x, watcher = leaf(3), Watcher(ops=["mul", "sum"])
    tool = Failing(point, make(), node)
    with amanda.apply(watcher, tool):
        for armed in (True, False, True, False):
            tool.armed = armed and not (point.endswith("analysis") and tool.error.__traceback__)
            x.grad = None
            watcher.trace.clear()
            y = (x * 2).sum()
            if not tool.armed:
                y.backward()
                assert x.grad.tolist() == [2.0] * 3
                assert watcher.count() == watcher.count("<")
                assert sum(watcher.count().values()) == 3
                continue
            tool.error = make()
            with pytest.raises(type(tool.error)) as caught:
                y.backward()
            assert caught.value is tool.error
            (note,) = tool.error.__notes__
            assert placeless(note) == f"[amanda] in tool 'failing': {NOTES[point]} {node} of aten::mul"


@pytest.mark.parametrize("point", NOTES)
def test_a_step_after_an_exception_is_bit_equal(point):
    def train(interrupted):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for step in range(4):
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 3)) * 2).square().sum()
            if interrupted and step == 2:
                tool.armed = True
                with pytest.raises(ValueError):
                    loss.backward(retain_graph=True)
                tool.armed = False
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    expected = train(False)
    tool = Failing(point, ValueError())
    tool.armed = False
    with amanda.apply(tool, Watcher()), amanda.cache_disabled() if "analysis" in point else contextlib.nullcontext():
        assert same(train(True), expected)


def test_an_exception_in_a_thread_of_the_users_arrives_there():
    errors, x = [], leaf(3)
    scope = amanda.apply(Failing("before", Odd(1, where="thread")))

    def work():
        try:
            with scope:
                (x * 2).sum().backward()
        except Odd as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [error.code for error in errors] == [1]


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise Odd(3, where="function")


def test_an_exception_of_the_programs_own_passes():
    x, watcher = leaf(3), Watcher(ops=["Own", "sin"])
    with amanda.apply(watcher):
        for _ in range(3):
            with pytest.raises(Odd) as caught:
                Own.apply(x).sum().backward()
            assert caught.value.code == 3
        watcher.trace.clear()
        x.sin().sum().backward()
    assert watcher.trace == ["SinBackward0<", "SinBackward0>", "AccumulateGrad<", "AccumulateGrad>"]


def test_an_exception_of_the_programs_own_passes_through_a_replacement():
    x = leaf(3)
    tool = amanda.Tool()

    def analyse(context):
        op = context.backward_op
        if op.__name__ == "OwnBackward":
            context.insert_before_backward_op(op)

    tool.add_inst_for_op(analyse, ops="Own", backward=True)
    with amanda.apply(tool), pytest.raises(Odd) as caught:
        Own.apply(x).sum().backward()
    assert caught.value.code == 3


@pytest.mark.parametrize("point", NOTES)
def test_a_failing_tool_may_be_disabled(point, log):
    x, watcher = leaf(3), Watcher(ops="mul")
    tool = Failing(point, ValueError("v"))
    with amanda.apply(watcher, tool, on_error="disable"):
        for _ in range(3):
            x.grad = None
            (x * 2).sum().backward()
            assert x.grad.tolist() == [2.0] * 3
    assert tool.told == [tool.error]
    assert len(log()) == 1
    assert "MulBackward0 of aten::mul" in log()[0]
    assert watcher.count() == {"MulBackward0": 3, "AccumulateGrad": 3}


# ---- what is left behind ---------------------------------------------------------------------------------------------


def resident():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * 4096


def test_two_thousand_iterations_do_not_grow(forked_python):
    grown = forked_python("""
        import amanda, gc, torch
        from torch import nn
        def resident():
            with open("/proc/self/statm") as status:
                return int(status.read().split()[1]) * 4096
        def analyse(context):
            if context.backward_op.__name__ == "TanhBackward0":
                context.replace_backward_op(lambda g: g * 0.5)
            else:
                context.insert_before_backward_op(lambda: None, [])
                context.insert_after_backward_op(lambda: None, [])
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.ones(2, 4)
        permanent = model[0].weight.expand_as(model[0].weight).grad_fn.next_functions[0][0]  # as under DDP
        tool = amanda.Tool()
        tool.add_inst_for_op(analyse, backward=True)
        figures = []
        with amanda.apply(tool) as scope:
            for i in range(3000):
                model.zero_grad()
                model(x).sum().backward()
                if i in (1000, 2999):
                    gc.collect()
                    figures.append((resident(), len(gc.get_objects()), scope.cache_info().misses))
        print(*(after - before for before, after in zip(*figures)))
    """)
    size, objects, misses = map(int, grown.split())
    assert size < 2 << 20  # what the allocator maps at once is up to half of that
    assert objects < 200
    assert misses == 0


def test_thousands_of_scopes_leave_nothing_on_a_node_that_lives_on(forked_python):
    grown = forked_python("""
        import amanda, gc, torch
        def resident():
            with open("/proc/self/statm") as status:
                return int(status.read().split()[1]) * 4096
        def analyse(context):
            context.insert_before_backward_op(lambda: None, [])
        w = torch.ones(2, requires_grad=True)
        permanent = w.expand_as(w).grad_fn.next_functions[0][0]  # as under DDP
        for i in range(3001):
            tool = amanda.Tool()
            tool.add_inst_for_op(analyse, backward=True)
            with amanda.apply(tool):
                (w * 2).sum().backward()
            if i in (1000, 3000):
                gc.collect()
                start = resident() if i == 1000 else start
        print(resident() - start)
    """)
    assert int(grown) < 500_000


def test_tools_are_collected_while_graphs_live():
    x = leaf(3)

    def graphs():
        tools = [Watcher(), ReplaceAll(ops="mul")]
        with amanda.apply(*tools):
            results = []
            for _ in range(3):
                results.append((x * 2).sin().sum())
                results[-1].backward(retain_graph=True)
        return results, [weakref.ref(tool) for tool in tools]

    results, tools = graphs()
    gc.collect()
    assert [tool() for tool in tools] == [None, None]
    x.grad = None
    results[-1].backward()
    torch.testing.assert_close(x.grad, (x * 2).detach().cos() * 2)


def test_graphs_are_freed():
    x = leaf(3)
    with amanda.apply(Watcher(), ReplaceAll()):
        for backward_too in (True, True, False):
            big = torch.zeros(1000)
            alive = weakref.ref(big)
            y = (x.sum() * (big + x[0])).sum()
            if backward_too:
                y.backward()
            del y, big
            gc.collect()
            assert alive() is None
