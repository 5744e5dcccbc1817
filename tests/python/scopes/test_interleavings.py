"""Random programs: scopes, threads, modes and exceptions in every order, compared to the bit with the same without scopes.

A failure prints the seed; `execute(plan(seed), scopes=None)` is the program without scopes.
"""

import asyncio
import contextlib
import gc
import os
import random
import signal
import threading
import time

import amanda
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from unharmed import Look, bits, thread_state

nn = torch.nn


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Failing(amanda.Tool):
    """Fails now and then, at one point; it is applied where that stops it and no more."""

    def __init__(self, seed):
        super().__init__("failing")
        self.draw = random.Random(seed)
        self.add_inst_for_op(self.analyse)
        self.add_inst_for_op(self.analyse, backward=True)

    def analyse(self, context):
        self.maybe()
        kind = "backward_op" if context.is_backward() else "op"
        getattr(context, f"insert_before_{kind}")(self.maybe)
        getattr(context, f"insert_after_{kind}")(self.maybe)

    def maybe(self, *operands):
        if self.draw.random() < 0.02:
            raise self.draw.choice([ValueError, MemoryError, LookupError])("now and then")


class Disturbance:
    """What may happen anywhere: in routines, analyses, custom operators, hooks, finalizers and signal handlers."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.scopes = []  # set by whoever runs a program
        self.tools = []
        self.here = threading.local()
        self.forks = 20  # each costs some ten milliseconds

    def begin(self):
        self.here.opened, self.here.switches, self.here.busy = [], [], False

    def end(self):
        for switch in self.draw.sample(self.here.switches, len(self.here.switches)):
            switch.__exit__(None, None, None)
        self.here.switches.clear()

    def maybe(self, *_):
        if getattr(self.here, "busy", True) or self.draw.random() > 0.05:
            return
        self.here.busy = True
        try:
            self.draw.choice(
                [self.leave, self.leave, self.clear, self.finalize, self.register, self.register_elsewhere, self.switch,
                 self.put_back, self.put_back, self.fork, self.signal]
            )()  # fmt: skip
        finally:
            self.here.busy = False

    def leave(self):
        if self.here.opened:
            self.scopes[self.here.opened.pop(self.draw.randrange(len(self.here.opened)))].__exit__(None, None, None)

    def clear(self):
        self.draw.choice(self.scopes).cache_clear()

    def finalize(self):
        value = Finalized(self.draw.choice([self.clear, self.leave, self.put_back]))
        value.itself = value
        del value
        gc.collect(0)

    def register(self):
        self.draw.choice(self.tools).add_inst_for_op(lambda context: None, ops=self.draw.choice(["sin", "relu", "mm"]))

    def register_elsewhere(self):
        thread = threading.Thread(target=self.register)
        thread.start()
        thread.join()

    def switch(self):
        switch = self.draw.choice([amanda.disabled, amanda.enabled, amanda.cache_disabled, amanda.cache_enabled])()
        switch.__enter__()
        self.here.switches.append(switch)

    def put_back(self):
        if self.here.switches:
            switches = self.here.switches
            switches.pop(self.draw.randrange(len(switches))).__exit__(None, None, None)

    def fork(self):
        if self.forks == 0:
            return
        self.forks -= 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(120)  # what hangs is ended
                with amanda.apply(Look("relu")):  # which sees nothing in a routine
                    code = 0 if torch.relu(torch.ones(2)).sum() == 2 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def signal(self):
        if threading.current_thread() is not threading.main_thread():
            return
        move = self.draw.choice([self.leave, self.clear, self.switch, self.put_back])
        before = signal.signal(signal.SIGUSR1, lambda *_: move())
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)


class Finalized:
    def __init__(self, act):
        self.act = act

    def __del__(self):
        self.act()


class Disturbing(amanda.Tool):
    """Has the disturbance happen at all points, and changes nothing."""

    def __init__(self, disturbance):
        super().__init__("disturbing")
        self.disturb = disturbance.maybe
        self.add_inst_for_op(self.analyse)
        self.add_inst_for_op(self.analyse, require_outputs=True)
        self.add_inst_for_op(self.analyse, backward=True)

    def analyse(self, context):
        self.disturb()
        kind = "backward_op" if context.is_backward() else "op"
        getattr(context, f"insert_before_{kind}")(self.disturb)
        getattr(context, f"insert_after_{kind}")(self.disturb)


disturbing = threading.local()  # .now: what happens in the custom operator of the program that this thread runs


@torch.library.custom_op("interleavings::disturbed", mutates_args=())
def disturbed_operator(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    getattr(disturbing, "now", lambda: None)()
    return torch.cos(y) * 2


disturbed_operator.register_autograd(lambda ctx, gradient: gradient * 3)


# Each draws from the generator that it is given, so that threads don't share a stream.
def make_computations():
    def leaf(g, *shape):
        return torch.randn(*shape, generator=g, requires_grad=True)

    def plain(g, x):
        return torch.relu(torch.sin(x) @ x.t()).softmax(1)

    def gradient(g, x):
        w = leaf(g, 3, 3)
        F.linear(x, w).tanh().square().sum().backward()
        return w.grad

    def in_place(g, x):
        w = leaf(g, 3, 3)
        h = (x @ w).relu_().mul_(2)
        h[0].add_(1)
        h.sum().backward()
        return h, w.grad

    def second(g, x):
        w = leaf(g, 3)
        (first,) = torch.autograd.grad((w.sin() * w).sum(), w, create_graph=True)
        return first, torch.autograd.grad(first.sum(), w)

    def step(g, x):
        w = leaf(g, 3, 3)
        optimizer = torch.optim.AdamW([w])
        (x @ w).square().sum().backward()
        optimizer.step()
        return w

    def checkpointed(g, x):
        w = leaf(g, 3, 3)
        y = torch.utils.checkpoint.checkpoint(lambda v: (v @ w).gelu().sin() if hasattr(v, "gelu") else F.gelu(v @ w),
                                              x, use_reentrant=False, preserve_rng_state=False)  # fmt: skip
        y.sum().backward()
        return y, w.grad

    def transformed(g, x):
        return torch.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)

    def forward_mode(g, x):
        return torch.func.jvp(torch.tanh, (x,), (x,))

    def fails(g, x):
        return x @ torch.ones(7, 7)

    def fails_backward(g, x):
        y = leaf(g, 3).sin().sum()
        y.backward()
        y.backward()

    def out(g, x):
        return torch.add(x, x, out=torch.empty(0)), x.view(-1).clone().zero_(), torch.cat([x, x]).split(2)

    def convolution(g, x):
        w = leaf(g, 2, 1, 2, 2)
        y = F.conv2d(x.view(1, 1, *x.shape), w)
        y.sum().backward()
        return y, w.grad

    def custom(g, x):
        w = leaf(g, 3, 3)
        disturbed_operator(x @ w).relu().sum().backward()
        return w.grad

    # PyTorch's forward-mode levels are the process's: the last one is for programs of one thread.
    return [
        plain, gradient, in_place, second, step, checkpointed, transformed, fails, fails_backward, out, convolution, custom,
        forward_mode,
    ]  # fmt: skip


COMPUTATIONS = make_computations()
MODES = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "no inference_mode": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "disabled": amanda.disabled,
    "enabled": amanda.enabled,
    "cache_disabled": amanda.cache_disabled,
}
SCOPES = 5


def plan(seed, length=40, alone=False):
    """What the program does: steps, each with its arguments, that make sense one after the other."""
    draw, depth, opened, steps = random.Random(seed), 0, [], []
    computations = len(COMPUTATIONS) - (not alone)
    for _ in range(length):
        kind = draw.choices(["compute", "enter", "leave", "raise", "open", "close", "body"], [8, 4, 3, 1, 4, 3, 1])[0]
        if kind == "compute":
            steps.append(("compute", draw.randrange(computations), draw.randrange(1 << 30)))
        elif kind == "enter" and depth < 6:
            steps.append(("enter", draw.choice(list(MODES))))
            depth += 1
        elif kind in ("leave", "raise") and depth:
            count = draw.randint(1, depth) if kind == "raise" else 1
            steps.append((kind, count))
            depth -= count
        elif kind == "open" and len(opened) < 6:
            opened.append(draw.randrange(SCOPES))
            steps.append(("open", opened[-1]))
        elif kind == "close" and opened:
            steps.append(("close", opened.pop(draw.randrange(len(opened)))))
        elif kind == "body":  # a scope that an exception leaves
            steps.append(("body", draw.randrange(SCOPES), draw.randrange(computations), draw.randrange(1 << 30)))
    steps += [("close", which) for which in draw.sample(opened, len(opened))]
    return [*steps, ("leave", depth)]


def execute(steps, scopes, opened=None):
    """Runs it, and returns all that it saw; without scopes if there are none."""
    seen = []
    for _ in execution(steps, scopes, seen, [] if opened is None else opened):
        pass
    return seen


def execution(steps, scopes, seen, opened):
    """Step by step. `opened`: scopes to close, unless they are closed before."""
    modes = []

    def compute(which, seed):
        name = COMPUTATIONS[which].__name__
        generator = torch.Generator().manual_seed(seed)
        try:
            result = COMPUTATIONS[which](generator, torch.randn(4, 3, generator=generator))
            seen.append((name, bits(result), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        except (RuntimeError, TypeError) as error:
            seen.append((name, type(error), str(error).partition("\n")[0]))

    for step, *arguments in steps:
        if step == "compute":
            compute(*arguments)
        elif step == "enter":
            modes.append(MODES[arguments[0]]())
            modes[-1].__enter__()
        elif step == "leave":
            for _ in range(arguments[0]):
                modes.pop().__exit__(None, None, None)
        elif step == "raise":
            error = LookupError("thrown")
            for _ in range(arguments[0]):
                with contextlib.suppress(LookupError):  # a generator that holds a mode throws it again
                    modes.pop().__exit__(LookupError, error, None)
        elif step == "open" and scopes:
            scopes[arguments[0]].__enter__()
            opened.append(arguments[0])
        elif step == "close" and arguments[0] in opened:
            opened.remove(arguments[0])
            scopes[arguments[0]].__exit__(None, None, None)
        elif step == "body":
            with contextlib.suppress(KeyError), scopes[arguments[0]] if scopes else contextlib.nullcontext():
                compute(*arguments[1:])
                raise KeyError
        yield


def some_scopes(seed):
    return [
        amanda.apply(Look()),
        amanda.apply(Look(nested=True), Look("sin")),
        amanda.apply(Look(["matmul", "relu_", "linear", "sin"], hand_back=True)),
        amanda.apply(Failing(seed), on_error="disable"),
        amanda.apply(Look("*", hand_back=True), amanda.Tool()),
    ]


def check(seed, count):
    """`count` threads at once, under the same scope objects, and one more without scopes."""
    plans = [plan((seed << 8) + i, alone=count == 1) for i in range(count + 1)]
    expected = [execute(each, None) for each in plans]
    scopes, got, states = some_scopes(seed), {}, []

    def work(i):
        state = thread_state()
        try:
            got[i] = execute(plans[i], scopes if i < count else None)
        except BaseException as error:
            got[i] = error
        states.append(thread_state() == state)

    if count == 1:
        work(0)
        assert got[0] == expected[0], f"seed {seed}"
    else:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(count + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(count + 1):
            assert got[i] == expected[i], f"seed {seed}, thread {i}"
    assert all(states), f"seed {seed}"


def for_seconds(seconds, count, first=0):
    end, seed = time.monotonic() + seconds, first
    while time.monotonic() < end:
        check(seed, count)
        seed += 1
    assert seed > first


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level("CRITICAL", "amanda")  # failing tools are stopped by the dozen


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_seconds_of_random_programs(count):
    for_seconds(2, count)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3])
def test_half_a_minute_of_random_programs(count):
    for_seconds(15, count, first=1000)


# ---- what may happen anywhere ----------------------------------------------------------------------------------------


def disturbed_scopes(seed):
    disturbance = Disturbance(seed)
    disturbance.tools = [Disturbing(disturbance), Look(), Look(["sin", "relu", "mm"], hand_back=True)]
    look, filtered = disturbance.tools[1:]
    scopes = [
        amanda.apply(disturbance.tools[0]),
        amanda.apply(look, Look("sin")),
        amanda.apply(filtered),
        amanda.apply(Disturbing(disturbance), Failing(seed), on_error="disable", coverage=True),
        amanda.apply(Look("*", nested=True), Disturbing(disturbance)),
    ]
    disturbance.scopes = scopes
    return disturbance, scopes


def check_disturbed(seed, count):
    plans = [plan((seed << 8) + i, alone=count == 1) for i in range(count)]
    expected = [execute(each, None) for each in plans]
    disturbance, scopes = disturbed_scopes(seed)
    got, states = {}, []

    def work(i):
        state = thread_state()
        disturbance.begin()
        disturbing.now = disturbance.maybe
        try:
            got[i] = execute(plans[i], scopes, disturbance.here.opened)
        except BaseException as error:
            got[i] = error
        finally:
            disturbing.now = lambda: None
            disturbance.here.busy = True
            disturbance.end()
        states.append(thread_state() == state and amanda.is_enabled() and amanda.is_cache_enabled())

    if count == 1:
        work(0)
    else:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i in range(count):
        assert got[i] == expected[i], f"seed {seed}, thread {i}"
    assert all(states), f"seed {seed}"


def check_tasks(seed):
    """Programs as tasks of one thread, which takes turns after each step: their scopes and switches overlap."""
    own_modes = ["disabled", "enabled", "cache_disabled"]

    def of_tasks(steps):  # PyTorch's modes must be left in order
        draw = random.Random(seed)
        return [("enter", draw.choice(own_modes)) if step == "enter" else (step, *rest) for step, *rest in steps]

    plans = [of_tasks(plan((seed << 8) + i)) for i in range(3)]

    async def task(steps, scopes, opened):
        seen = []
        for _ in execution(steps, scopes, seen, opened):
            await asyncio.sleep(0)
        return seen

    async def main(scopes, opened):
        return await asyncio.gather(*(task(steps, scopes, opened) for steps in plans))

    expected = asyncio.run(main(None, []))
    disturbance, scopes = disturbed_scopes(seed)
    state = thread_state()
    disturbance.begin()
    disturbing.now = disturbance.maybe
    try:
        assert asyncio.run(main(scopes, disturbance.here.opened)) == expected, f"seed {seed}"
    finally:
        disturbing.now = lambda: None
        disturbance.here.busy = True
        disturbance.end()
    assert thread_state() == state, f"seed {seed}"
    assert (amanda.is_enabled(), amanda.is_cache_enabled()) == (True, True), f"seed {seed}"


def seeds_for_seconds(seconds, check, first=0):
    end, seed = time.monotonic() + seconds, first
    while time.monotonic() < end:
        check(seed)
        seed += 1


FORKED = "ignore:.*multi-threaded.*fork.*:DeprecationWarning"


@pytest.mark.filterwarnings(FORKED)
def test_a_second_of_programs_that_are_disturbed():
    seeds_for_seconds(1, lambda seed: check_disturbed(seed, 1))
    seeds_for_seconds(1, check_tasks)


@pytest.mark.slow
@pytest.mark.filterwarnings(FORKED)
@pytest.mark.parametrize("count", [1, 3])
def test_programs_that_are_disturbed(count):
    seeds_for_seconds(3, lambda seed: check_disturbed(seed, count), first=2000)


@pytest.mark.slow
@pytest.mark.filterwarnings(FORKED)
def test_tasks_that_are_disturbed():
    seeds_for_seconds(3, check_tasks, first=3000)


# ---- stress ----------------------------------------------------------------------------------------------------------


def stress(seconds, threads=6):
    """Jobs that train, scopes that come and go, caches that are cleared, graphs that cross threads, all at once."""
    end, errors = time.monotonic() + seconds, []
    shared = some_scopes(0)
    weight = torch.ones(4, 4, requires_grad=True)
    expected = [execute(plan(seed), None) for seed in range(8)]
    graphs, lock = [], threading.Lock()

    def programs(i):
        n = i
        while time.monotonic() < end:
            n += 1
            assert execute(plan(n % 8), shared if n % 3 else some_scopes(n)) == expected[n % 8]

    def disturb(i):
        while time.monotonic() < end:
            for scope in shared:
                scope.cache_clear()
                scope.cache_info()
            time.sleep(0.01)

    def record(i):
        while time.monotonic() < end:
            with shared[0], shared[2]:
                y = (torch.ones(2, 4) @ weight).sin().sum()
            with lock:
                graphs.append(y)
                del graphs[:-4]

    def cross(i):
        while time.monotonic() < end:
            with lock:
                y = graphs.pop() if graphs else None
            if y is not None:
                with shared[i % 3] if i % 2 else contextlib.nullcontext():
                    (gradient,) = torch.autograd.grad(y, weight)
                assert torch.equal(gradient, gradient_expected)

    (gradient_expected,) = torch.autograd.grad((torch.ones(2, 4) @ weight).sin().sum(), weight)
    jobs = [programs] * (threads - 3) + [disturb, record, cross]

    def guarded(job, i):
        state = thread_state()
        try:
            job(i)
            assert thread_state() == state
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=guarded, args=(job, i)) for i, job in enumerate(jobs)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


def test_a_few_seconds_of_stress():
    stress(3)


@pytest.mark.long
def test_half_a_minute_of_stress():
    stress(30, threads=8)
