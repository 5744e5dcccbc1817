"""Threads: each has its own scopes, one scope object may be open on many, and what is not supported says so."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import warnings

import amanda
import pytest
import torch
from unharmed import Look, bits, reusable, thread_state

nn = torch.nn
X = torch.tensor([-1.0, 2.0])


def together(*works):
    """Runs them on a thread each, all at once; raises here what one of them raises."""
    barrier = threading.Barrier(len(works))

    def begin(work):
        barrier.wait()
        state = thread_state()
        result = work()
        assert thread_state() == state
        return result

    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(begin, work) for work in works]]


def train(seed, steps=3):
    """A job on tensors of its own: its draws come from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(4, 4, generator=generator, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=generator)
        torch.relu_(torch.tanh(x @ weights[0]) @ weights[1]).square().sum().backward()
        optimizer.step()
    return bits(weights)


def test_different_tools_on_several_threads_at_once():
    expected = [train(seed) for seed in range(6)]
    tools = [
        Look(), Look("tanh"), Look(["matmul", "relu_"], nested=True), Look(nested=True), Look("*", hand_back=True),
    ]  # fmt: skip

    def job(seed):
        if seed == 5:  # without a scope
            return train(seed)
        with amanda.apply(tools[seed]):
            return train(seed)

    for _ in range(3):
        assert together(*(lambda seed=seed: job(seed) for seed in range(6))) == expected
    assert [tool.count["tanh"] for tool in tools] == [9, 9, 0, 9, 9]
    assert tools[2].count["relu_"] == 9


def test_an_edit_on_one_thread_does_not_reach_another(after):
    barrier = threading.Barrier(3)

    def edited(factor):
        with amanda.apply(after("relu", lambda y: y * factor)):
            barrier.wait()
            results = {tuple(torch.relu(X).tolist()) for _ in range(200)}
            barrier.wait()
        return results

    def vanilla():
        barrier.wait()
        results = {tuple(torch.relu(X).tolist()) for _ in range(200)}
        barrier.wait()
        return results

    assert together(lambda: edited(3), lambda: edited(5), vanilla) == [{(0.0, 6.0)}, {(0.0, 10.0)}, {(0.0, 2.0)}]


def test_scopes_entered_while_other_threads_run_models():
    """Entering a scope that names an operator for the first time adds a kernel to it, under running threads."""
    names = [
        "sin",
        "cos",
        "tan",
        "exp",
        "log1p",
        "sinh",
        "cosh",
        "asinh",
        "erf",
        "expm1",
        "floor",
        "ceil",
        "round",
        "sign",
    ]
    stop, running = threading.Event(), threading.Semaphore(0)

    def vanilla():
        runs = 0
        while not stop.is_set():
            for name in names:
                assert torch.equal(getattr(torch, name)(X), EXPECTED[name])
            runs += 1
            if runs == 1:
                running.release()
        return runs

    def scoped():
        try:
            assert running.acquire(timeout=60)
            assert running.acquire(timeout=60)
            for name in names:
                tool = Look(name)
                with amanda.apply(tool):
                    assert torch.equal(getattr(torch, name)(X), EXPECTED[name])
                assert tool.ran == [name]
        finally:
            stop.set()

    EXPECTED = {name: getattr(torch, name)(X) for name in names}
    runs = together(vanilla, vanilla, scoped)
    assert min(runs[:2]) >= 1


model = reusable(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)))


def test_threads_as_of_data_parallel_under_one_scope_object():
    net, inputs = model(), torch.randn(8, 3, 4)
    expected = [bits(torch.autograd.grad(net(x).square().sum(), list(net.parameters()))) for x in inputs]
    tool = Look("linear")
    scope = amanda.apply(tool)

    def replica(x):
        with scope:
            return bits(torch.autograd.grad(net(x).square().sum(), list(net.parameters())))

    for _ in range(3):
        assert together(*(lambda x=x: replica(x) for x in inputs)) == expected
    assert tool.count["linear"] == 2 * 8 * 3
    assert tool.analysed["linear"] == 4  # two places, with and without outputs, once each
    assert tool.count["AddmmBackward0"] == 2 * 8 * 3


def test_a_scope_of_the_main_thread_does_not_cover_its_workers():
    tool, net = Look(), model()
    with amanda.apply(tool):
        together(lambda: net(torch.ones(1, 4)), lambda: net(torch.ones(1, 4)))
    assert tool.ran == []


@pytest.mark.parametrize("inside", [True, False])
def test_backward_from_another_thread(inside):
    tool, x = Look(), X.clone().requires_grad_()
    scope = amanda.apply(tool)
    with scope:
        y = (x * 3).sin().sum()

    def work():
        if not inside:
            return y.backward()
        with scope:
            return y.backward()

    together(work)
    assert torch.equal(x.grad, 3 * (X * 3).cos())
    assert tool.count["SinBackward0"] == inside


def test_backward_of_one_thread_while_another_records():
    tool, w = Look(), torch.ones(4, 4, requires_grad=True)
    scope = amanda.apply(tool)
    expected = torch.autograd.grad((torch.ones(2, 4) @ w).sin().sum(), w)[0]

    def work():
        with scope:
            for _ in range(30):
                assert torch.equal(torch.autograd.grad((torch.ones(2, 4) @ w).sin().sum(), w)[0], expected)

    together(work, work, work)
    assert tool.count["SinBackward0"] == 90


def test_gradients_are_accumulated_into_one_leaf_from_many_threads():
    tool, w = Look(), torch.zeros(4, requires_grad=True)
    scope = amanda.apply(tool)

    def work():
        with scope:
            for _ in range(20):
                (w * 2).sum().backward()

    together(work, work, work, work)
    assert w.grad.tolist() == [160.0] * 4
    assert tool.count["AccumulateGrad"] == 80


def test_another_thread_accumulates_while_a_tool_looks_at_what_a_leaf_has_taken():
    """The leaf takes the first gradient over; what others add to it is no change by the tool."""
    tool, w, added = amanda.Tool("looks"), torch.zeros(4, requires_grad=True), []

    def add():
        together(lambda: w.grad.add_(1))
        added.append(w.grad.tolist())

    def analyse(context):
        if context.backward_op.__name__ == "AccumulateGrad":
            add()
            context.insert_after_backward_op(lambda *values, grad_outputs: add(), grad_outputs=[0])

    tool.add_inst_for_op(analyse, ops="mul", backward=True, require_outputs=True)
    with amanda.apply(tool):
        (w * 2).sum().backward()
    assert added == [[3.0] * 4, [4.0] * 4]


# ---- left in another order, on another thread, or not at all -----------------------------------------------------------


@pytest.mark.parametrize("order", ["abcabc", "abccba", "abcbca", "abacbc", "aabbaa"])
def test_scopes_are_left_in_any_order(order):
    tools = {name: Look("relu") for name in "abc"}
    scopes = {name: amanda.apply(tool) for name, tool in tools.items()}
    is_open, expected = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    entered = set()
    state = thread_state()
    plan = order if order != "aabbaa" else "aabbabb"[:4] + "ab" + "ab"
    for name in plan:
        if name in entered and is_open[name]:
            scopes[name].__exit__(None, None, None)
            is_open[name] -= 1
        else:
            scopes[name].__enter__()
            entered.add(name)
            is_open[name] += 1
        torch.relu(X)
        for each in "abc":
            expected[each] += bool(is_open[each])
        assert {each: tool.count["relu"] for each, tool in tools.items()} == expected
    for name, scope in scopes.items():
        for _ in range(is_open[name]):
            scope.__exit__(None, None, None)
    assert thread_state() == state


def test_a_thread_that_ends_in_a_scope_takes_it_along():
    tool = Look()
    scope = amanda.apply(tool)

    def work():
        scope.__enter__()
        torch.relu(X)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.relu(X)
    assert tool.ran == ["relu"]
    with scope:
        torch.sin(X)
    assert tool.ran == ["relu", "sin"]


def test_a_switch_is_put_back_where_it_was_turned(says):
    switch = amanda.disabled()
    with switch:
        with says(amanda.Error, "[scope] this switch was turned on another thread; put it back where it was turned"):
            together(lambda: switch.__exit__(None, None, None))
        assert not amanda.is_enabled()
    assert amanda.is_enabled()


def test_switches_of_one_object_on_many_threads_are_apart():
    switch, barrier = amanda.disabled(), threading.Barrier(2)

    def work():
        with switch, switch:
            barrier.wait()
            assert not amanda.is_enabled()
        barrier.wait()
        return amanda.is_enabled()

    assert together(work, work) == [True, True]
    assert switch(amanda.is_enabled)() is False


def test_a_scope_is_left_where_it_was_entered(says):
    scope = amanda.apply(Look())
    with scope:
        with says(amanda.Error, "[scope] this scope was not entered on this thread; leave it where it was entered"):
            together(lambda: scope.__exit__(None, None, None))
        torch.relu(X)


# ---- code that suspends itself ---------------------------------------------------------------------------------------


def test_a_generator_suspended_inside_a_scope_covers_the_thread():
    """As documented: a scope covers its thread while it is open, whoever runs there."""
    tool = Look()

    def steps():
        with amanda.apply(tool):
            yield torch.relu(X)
            yield torch.sin(X)

    generator = steps()
    next(generator)
    torch.cos(X)
    next(generator)
    generator.close()
    torch.tan(X)
    assert tool.ran == ["relu", "cos", "sin"]


def test_two_generators_suspended_in_scopes_that_end_in_the_order_they_began():
    tools = [Look(), Look()]

    def steps(tool):
        with amanda.apply(tool):
            yield torch.relu(X)

    first, second = map(steps, tools)
    next(first), next(second)
    first.close()
    torch.cos(X)
    second.close()
    torch.tan(X)
    assert [tool.ran for tool in tools] == [["relu", "relu"], ["relu", "cos"]]


def test_a_generator_that_another_thread_closes(says):
    tool = Look()

    def steps():
        with amanda.apply(tool):
            yield torch.relu(X)

    generator = steps()
    next(generator)
    with says(amanda.Error, "[scope] this scope was not entered on this thread; leave it where it was entered"):
        together(generator.close)
    torch.cos(X)
    assert tool.ran == ["relu", "cos"]
    (still_open,) = (scope for scope in amanda.core.scope._open.values() if scope._tools == (tool,))
    still_open.__exit__(None, None, None)


def test_a_suspended_generator_that_is_collected_leaves_its_scope():
    tool = Look()

    def steps():
        with amanda.apply(tool):
            yield torch.relu(X)

    generator = steps()
    next(generator)
    del generator
    torch.cos(X)
    assert tool.ran == ["relu"]


def test_asyncio_tasks_that_do_not_await_inside_a_scope_are_apart():
    tools = [Look(), Look()]

    async def job(tool, operator):
        for _ in range(5):
            with amanda.apply(tool):
                operator(X)
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(job(tools[0], torch.sin), job(tools[1], torch.cos))

    asyncio.run(main())
    assert [tool.ran for tool in tools] == [["sin"] * 5, ["cos"] * 5]


def test_asyncio_tasks_that_await_inside_their_scopes_share_a_thread():
    """As documented: while both are open, each sees the other's operators; afterwards the thread is clean."""
    tools = [Look(), Look()]

    async def job(tool, operator, turns):
        with amanda.apply(tool):
            for _ in range(3):
                operator(X)
                for _ in range(turns):
                    await asyncio.sleep(0)

    async def main():
        await asyncio.gather(job(tools[0], torch.sin, 1), job(tools[1], torch.cos, 2))

    state = thread_state()
    asyncio.run(main())
    assert thread_state() == state
    assert tools[0].ran.count("sin") == 3
    assert tools[1].ran.count("cos") == 3


def test_to_thread_and_contexts_carry_no_scope():
    tool = Look()

    async def main():
        with amanda.apply(tool):
            await asyncio.to_thread(torch.relu, X)
            contextvars.copy_context().run(torch.sin, X)

    asyncio.run(main())
    assert tool.ran == ["sin"]


# ---- one tool, from many threads -------------------------------------------------------------------------------------


def test_analyses_of_one_operator_never_run_at_once():
    running, most, tool = [], [], amanda.Tool()

    def analyse(context):
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.005)
        running.pop()

    tool.add_inst_for_op(analyse, ops="relu")
    scope = amanda.apply(tool)

    def work():
        with scope, amanda.cache_disabled():
            for _ in range(5):
                torch.relu(X)

    together(work, work, work)
    assert set(most) == {1}
    assert len(most) == 15


def test_a_tool_grows_and_a_cache_is_cleared_under_running_threads():
    tool, stop = Look("relu"), threading.Event()
    scope = amanda.apply(tool)

    def work():
        with scope:
            while not stop.is_set():
                assert torch.relu(X).tolist() == [0.0, 2.0]

    def disturb():
        try:
            for _ in range(50):
                scope.cache_clear()
                tool.add_inst_for_op(lambda context: None, ops="relu")
                assert scope.cache_info().currsize <= 2
        finally:
            stop.set()

    together(work, work, disturb)


def test_actions_are_removed_under_running_threads(after):
    tool, stop = after("relu", lambda y: y * 1), threading.Event()
    scope = amanda.apply(tool)

    def work():
        with scope:
            while not stop.is_set():
                assert torch.relu(X).tolist() == [0.0, 2.0]

    def disturb():
        try:
            for _ in range(100):
                while tool.actions:
                    tool.actions.pop().remove()
                scope.cache_clear()
        finally:
            stop.set()

    together(work, work, disturb)


# ---- a model on another thread ---------------------------------------------------------------------------------------


def on_a_thread(work):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def warned(work):
    """The texts of the warnings that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in caught]


ELSEWHERE = (
    "[scope] no operator ran on this thread while the scope was entered, and aten::linear ran on another thread; a scope "
    "covers the thread that enters it: enter it in the function that the other thread runs"
)


@pytest.mark.parametrize("ops", [None, "linear", ["relu", "linear"]])
def test_a_model_that_runs_on_another_thread_only(ops):
    model, look = nn.Linear(2, 2), Look(ops)

    def program():
        for _ in range(2):
            with scope:
                on_a_thread(lambda: model(X))
                on_a_thread(lambda: model(X))

    scope = amanda.apply(look)
    assert warned(program) == [ELSEWHERE]  # once per scope
    assert look.count["linear"] == 0


def test_no_warning_of_another_thread():
    model, inner = nn.Linear(2, 2), Look()

    def in_scope():
        with amanda.apply(inner):
            model(X)

    def both():
        with amanda.apply(Look()):
            model(X)
            on_a_thread(lambda: model(X))

    def other_first():
        with amanda.apply(Look()):
            on_a_thread(lambda: model(X))
            model(X)

    def with_its_own_scope():
        with amanda.apply(inner):
            on_a_thread(in_scope)

    def none():
        with amanda.apply(Look()):
            pass

    def failed():
        with contextlib.suppress(KeyError), amanda.apply(Look()):
            on_a_thread(lambda: model(X))
            raise KeyError

    for program in (both, other_first, with_its_own_scope, none, failed):
        assert warned(program) == [], program.__name__


def test_the_wait_for_the_first_operator_leaves_no_callback_behind():
    def callbacks():
        return torch._C._autograd._profiler_enabled(), amanda._torch.record_callbacks()

    before, before_there = callbacks(), on_a_thread(callbacks)  # a test before may have left one of this thread
    with amanda.apply(Look()):
        on_a_thread(lambda: torch.relu(X))
        assert on_a_thread(callbacks) == before_there
    with amanda.apply(Look()):
        pass
    assert on_a_thread(callbacks) == before_there
    assert callbacks() == before
