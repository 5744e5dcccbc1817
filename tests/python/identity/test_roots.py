"""amanda.root: where the call paths of operators outside models begin."""

import asyncio
import contextlib
import functools
import gc
import inspect
import pathlib
import pickle
import threading
import weakref

import amanda
import pytest
import torch
from amanda import _torch
from amanda.driver.identity import roots
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.ones(2)


class Ids(amanda.Tool):
    """Lists the id of every run."""

    def __init__(self, **options):
        super().__init__()
        self.runs = []
        self.add_inst_for_op(self.analyze, **options)

    def analyze(self, context):
        context.insert_before_op(lambda id: self.runs.append(id), inputs=[], id=context.op_id)


def ids(*programs, **options):
    """Of all that the programs run, in one scope."""
    tool = Ids(**options)
    with amanda.apply(tool):
        for program in programs:
            program()
    return tool.runs


def from_here(program):
    return program()


def from_there(program):
    result = program()
    return result


CALLERS = (from_here, from_there, lambda program: program())


def ids_by_caller(program):
    """The ids that the program's operators have, for each of three callers."""
    return [ids(functools.partial(call, program)) for call in CALLERS]


@amanda.root
def loss(prediction=X, target=X):
    return ((prediction - target) ** 2).mean()


def unrooted():
    return X.relu()


# ---- a function -------------------------------------------------------------------------------------------------------


def test_without_a_root_each_caller_makes_other_ids():
    first, second, third = ids_by_caller(unrooted)
    assert len({*first, *second, *third}) == 3


def test_a_root_has_the_same_ids_from_everywhere():
    first, second, third = ids_by_caller(loss)
    assert len(set(first)) == 3
    assert first == second == third


def test_what_a_root_calls_has_the_same_ids_from_everywhere():
    step = amanda.root(lambda: unrooted() + unrooted())
    first, second, third = ids_by_caller(step)
    assert len(set(first)) == 3
    assert first == second == third


def test_two_roots_that_call_one_function_have_their_own_ids():
    @amanda.root
    def train():
        unrooted()

    @amanda.root
    def validate():
        unrooted()

    assert len(set(ids(train, validate))) == 2


def test_a_root_has_the_same_ids_wherever_the_scope_is_entered():
    tool = Ids()

    @amanda.root
    def outside():
        with amanda.apply(tool):
            inner()

    def inner():
        X.relu()

    @amanda.root
    def inside():
        inner()

    def between():
        with amanda.apply(tool):
            inside()

    outside()
    outside()
    between()
    with amanda.apply(tool):
        inside()
    assert tool.runs[0] == tool.runs[1] != tool.runs[2] == tool.runs[3]


def test_a_process_that_calls_from_elsewhere_has_the_same_ids(forked_python):
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import test_roots as t
        def other_caller():
            def and_deeper():
                t.loss()
            and_deeper()
        print(t.ids(other_caller if sys.argv[2] == "other" else t.loss))
    """
    folder = pathlib.Path(__file__).parent
    assert forked_python(program, folder, "other") == forked_python(program, folder, "same")


def test_the_innermost_root_counts():
    @amanda.root
    def outer():
        loss()

    assert ids(outer) == ids(loss)


def test_a_recursive_root_has_the_same_ids_at_every_depth():
    @amanda.root
    def down(depth):
        X.relu()
        if depth:
            down(depth - 1)

    assert len(set(ids(functools.partial(down, 5)))) == 1


def test_a_function_that_raises_leaves_no_root_behind():
    @amanda.root
    def fails():
        raise KeyError("program's")

    def program():
        with contextlib.suppress(KeyError):
            fails()
        X.relu()

    def without():
        X.relu()

    assert len(set(ids_by_caller(program)[0] + ids_by_caller(program)[1])) == 2
    assert ids(without) == ids(without)


def test_other_functions_of_the_same_code_are_no_roots():
    def make():
        def step():
            X.relu()

        return step

    plain, rooted = make(), amanda.root(make())
    first, second, third = ids_by_caller(plain)
    assert len({*first, *second, *third}) == 3
    first, second, third = ids_by_caller(rooted)
    assert first == second == third


def test_a_function_that_is_wrapped_can_be_a_root_and_no_other_that_is_wrapped_alike_is():
    @amanda.root
    @torch.no_grad()
    def rooted():
        X.relu()

    @torch.no_grad()
    def plain():
        X.relu()

    first, second, third = ids_by_caller(rooted)
    assert first == second == third
    first, second, third = ids_by_caller(plain)
    assert len({*first, *second, *third}) == 3


def test_the_function_stays_what_it_is():
    def step(a, /, b: int = 2, *, c: str = "c") -> tuple:
        """Adds."""
        return a, b, c, __class__

    __class__ = "closure"
    step.note = 3
    rooted = amanda.root(step)
    assert rooted(1) == step(1) == (1, 2, "c", "closure")
    assert inspect.signature(rooted) == inspect.signature(step)
    assert (rooted.__name__, rooted.__qualname__, rooted.__doc__) == (step.__name__, step.__qualname__, "Adds.")
    assert (rooted.__module__, rooted.note) == (__name__, 3)
    assert inspect.getsource(rooted) == inspect.getsource(step)
    assert not hasattr(rooted, "__wrapped__")
    assert pickle.loads(pickle.dumps(loss)) is loss


def test_methods_of_every_kind_can_be_roots():
    class Trainer:
        @amanda.root
        def step(self):
            X.relu()

        @amanda.root
        @staticmethod
        def static():
            X.relu()

        @staticmethod
        @amanda.root
        def static_below():
            X.relu()

        @amanda.root
        @classmethod
        def of_class(cls):
            X.relu()

        def plain(self):
            X.relu()

    trainer = Trainer()
    bound = amanda.root(trainer.plain)
    assert bound.__self__ is trainer
    methods = (trainer.step, trainer.static, trainer.static_below, trainer.of_class, bound)
    for method in methods:
        first, second, third = ids_by_caller(method)
        assert first == second == third
    assert len(set(ids(*methods))) == 5


def test_a_closure_that_is_decorated_in_each_step_has_nothing_named_again():
    named = []

    def step():
        @amanda.root
        def closure():
            return X.relu()

        closure()

    def steps():
        for index in range(20):
            if index in (2, 19):
                named.append(_torch.count_named_places())
            step()

    assert len(set(ids(steps))) == 1
    assert named[0] == named[1]


def test_codes_of_roots_die_with_their_functions():
    namespace = {"X": X}
    exec("def step():\n    X.relu()\n", namespace)
    rooted = amanda.root(namespace.pop("step"))
    ids(rooted)
    code, known = weakref.ref(rooted.__code__), len(roots._marked)
    del rooted
    gc.collect()
    assert code() is None
    assert len(roots._marked) <= known


# ---- a function that suspends itself ----------------------------------------------------------------------------------


def test_a_generator_can_be_a_root_and_what_runs_while_it_is_suspended_is_not_in_it():
    @amanda.root
    def batches():
        for _ in range(2):
            yield X.relu()

    def consumer():
        for batch in batches():
            batch.exp()

    tool_ids = [ids(functools.partial(call, consumer), ops=op) for op in ("relu", "exp") for call in CALLERS]
    relu, exp = tool_ids[:3], tool_ids[3:]
    assert relu[0] == relu[1] == relu[2]
    assert len({id for each in exp for id in each}) == 3


def test_coroutines_can_be_roots_and_tasks_beside_them_are_not_in_them():
    @amanda.root
    async def step():
        X.relu()
        await asyncio.sleep(0)
        X.relu()

    async def beside():
        for _ in range(3):
            X.exp()
            await asyncio.sleep(0)

    async def one():
        await asyncio.gather(step(), beside(), step())

    async def other():
        await step()

    relu = ids(lambda: asyncio.run(one()), ops="relu")
    assert len(relu) == 4
    assert set(ids(lambda: asyncio.run(other()), ops="relu")) == set(relu)
    assert len(set(relu)) == 2
    exp = [ids(functools.partial(call, lambda: asyncio.run(one())), ops="exp") for call in CALLERS]
    assert len({id for each in exp for id in each}) == 3


def test_a_thread_that_a_root_starts_is_not_in_it():
    def work():
        unrooted()

    @amanda.root
    def step():
        tool = Ids()

        def on_thread():
            with amanda.apply(tool):
                work()

        thread = threading.Thread(target=on_thread)
        thread.start()
        thread.join()
        return tool.runs

    assert step() == from_there(step)


def test_a_root_works_on_every_thread():
    seen = []

    def work(caller):
        seen.append(ids(functools.partial(caller, loss)))

    threads = [threading.Thread(target=work, args=(caller,)) for caller in CALLERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1] == seen[2]


# ---- a block ----------------------------------------------------------------------------------------------------------


def block_here(name="step"):
    with amanda.root(name):
        X.relu()
        unrooted()


def block_there(name="step"):
    if name:
        with amanda.root(name):
            X.relu()
            unrooted()


def other_lines(name="step"):
    with amanda.root(name):
        unrooted()
        X.relu()


def test_blocks_of_one_name_with_the_same_lines_have_the_same_ids():
    here = ids(block_here)
    assert len(set(here)) == 2
    assert here == ids(block_there) == ids(functools.partial(from_there, block_here))


def test_a_block_with_other_lines_or_another_name_has_its_own_ids():
    found = ids(block_here, other_lines, functools.partial(block_here, "other"))
    assert len(set(found)) == 6


def test_places_in_one_block_stay_apart():
    def program():
        with amanda.root("step"):
            X.relu()
            X.relu()

    assert len(set(ids(program))) == 2


def test_a_block_that_is_entered_on_a_condition_counts_only_then():
    def program(name):
        with amanda.root(name) if name else contextlib.nullcontext():
            X.relu()

    def all_of_them():
        for name in ("a", "", "b", "a", "", "b"):
            program(name)

    found = ids(all_of_them)
    assert len(set(found)) == 3
    assert found[:3] == found[3:]


def test_without_the_fast_walk_blocks_count_alike():
    fast = ids(block_here, functools.partial(block_here, "other"))
    assert _torch.walks_frames_directly()
    _torch.walk_frames_directly(False)
    try:
        assert ids(block_here, functools.partial(block_here, "other")) == fast
    finally:
        _torch.walk_frames_directly(True)


def test_the_innermost_block_counts():
    def program():
        with amanda.root("outer"):
            X.relu()
            with amanda.root("step"):
                X.relu()
                unrooted()
            X.relu()

    found = ids(program)
    assert found[1:3] == ids(block_here)
    assert len(set(found)) == 4


def test_a_block_can_be_entered_again_and_by_an_exit_stack():
    step = amanda.root("step")

    def stacked():
        with contextlib.ExitStack() as stack:
            stack.enter_context(step)
            with step:
                X.relu()
            X.relu()

    first, second, third = ids_by_caller(stacked)
    assert first == second == third
    assert len(set(first)) == 2
    assert not roots._blocks


def test_a_context_manager_of_the_program_can_enter_a_root():
    @contextlib.contextmanager
    def region(name):
        with amanda.root(name), torch.no_grad():
            yield

    def program():
        with region("step"):
            X.relu()

    first, second, third = ids_by_caller(program)
    assert first == second == third


def test_an_asynchronous_context_manager_of_the_program_can_enter_a_root():
    @contextlib.asynccontextmanager
    async def region():
        with amanda.root("step"):
            yield

    async def program():
        async with region():
            X.relu()

    first, second, third = ids_by_caller(lambda: asyncio.run(program()))
    assert first == second == third


def test_a_block_in_a_suspended_generator_does_not_reach_others():
    def generator():
        with amanda.root("step"):
            yield X.relu()

    def consumer():
        suspended = generator()
        next(suspended)
        X.exp()

    exp = [ids(functools.partial(call, consumer), ops="exp") for call in CALLERS]
    assert len({id for each in exp for id in each}) == 3
    gc.collect()
    assert not roots._blocks


def test_an_exception_leaves_a_block():
    def program():
        with contextlib.suppress(KeyError), amanda.root("step"):
            raise KeyError("program's")
        X.relu()

    assert len({id for each in ids_by_caller(program) for id in each}) == 3
    assert not roots._blocks


def test_a_block_of_two_threads_is_left_where_it_was_entered():
    step, inside, go_on = amanda.root("step"), threading.Barrier(2), threading.Barrier(2)
    seen = {}

    def work(number):
        tool = Ids()
        with amanda.apply(tool):
            with step:
                inside.wait()
                X.relu()
                go_on.wait()
                X.relu()
            X.relu()
        seen[number] = tool.runs

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 3
    assert not roots._blocks


def test_a_named_function_has_its_name_for_a_place():
    def make():
        @amanda.root("step")
        def step():
            return X.relu()

        return step

    def make_elsewhere():
        @amanda.root("step")
        def other_name():
            return X.relu()

        return other_name

    first, second, third = ids_by_caller(make())
    assert first == second == third == ids(make_elsewhere())


def test_a_block_around_the_entry_of_a_scope_counts():
    tool = Ids()

    def outside(name):
        with amanda.root(name), amanda.apply(tool):
            X.relu()

    def from_elsewhere():
        outside("step")

    outside("step")
    from_elsewhere()
    outside("other")
    assert tool.runs[0] == tool.runs[1] != tool.runs[2]


# ---- in models --------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.layer, self.activation = nn.Linear(2, 2), activation

    def forward(self, x):
        return self.activation(self.layer(x))


def activate(x):
    with contextlib.nullcontext():
        return x.relu()


def test_inside_a_module_the_path_begins_at_the_module():
    model = Model(activate)
    plain = ids(lambda: model(X))
    model.activation = amanda.root(activate)
    assert ids(lambda: model(X)) == plain


def test_a_model_has_the_same_ids_in_a_root_and_outside():
    model = Model(activate)

    def in_a_block():
        with amanda.root("step"):
            model(X)

    assert ids(in_a_block) == ids(lambda: model(X)) == ids(amanda.root(lambda: model(X)))


def test_a_module_without_state_is_in_the_root():
    @amanda.root
    def step():
        return nn.MSELoss()(X, X)

    first, second, third = ids_by_caller(step)
    assert first == second == third


def test_a_checkpoint_around_a_root_counts():
    start = torch.ones(2, requires_grad=True)

    @amanda.root
    def region(x):
        return x.relu()

    tool = Ids(ops="relu")
    with amanda.apply(tool):
        checkpoint(region, start, use_reentrant=False).sum().backward()
    assert len(tool.runs) == 2
    assert tool.runs[0] == tool.runs[1]


def test_an_optimizers_step_has_the_same_ids_from_every_loop():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @amanda.root
    def step():
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    def warm_up():
        for _ in range(2):
            step()

    def train():
        def epoch():
            step()

        epoch()

    first = ids(warm_up)
    assert set(first) == set(ids(train))
    assert len(first) > len(set(first)) >= 3


def test_compiled_code_may_hold_a_block():
    def program(x):
        with amanda.root("step"):
            return x.relu()

    compiled = torch.compile(program, backend="eager")
    for policy in ("eager", "opaque"):
        with amanda.apply(Ids(), compiled=policy):
            assert torch.equal(compiled(X), X)
    assert torch.equal(compiled(X), X)
    assert torch.equal(torch.compile(loss, backend="eager", fullgraph=True)(X, X), loss(X, X))
    assert not roots._blocks


# ---- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, None, nn.ReLU(), functools.partial(unrooted), print, Model])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(TypeError) as raised:
        amanda.root(wrong)
    assert str(raised.value) == (
        f"[root] amanda.root decorates Python functions, or takes a name, got {wrong!r}; "
        'write `with amanda.root("name"):` around the call'
    )


def test_a_named_root_refuses_them_too():
    with pytest.raises(TypeError, match=r"^\[root\] amanda.root decorates Python functions, or takes a name, got 3;"):
        amanda.root("step")(3)


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError) as raised:
        amanda.root("")
    assert str(raised.value) == '[root] a root needs a name that is not empty, as in `with amanda.root("step"):`'


def test_leaving_a_root_that_was_not_entered_is_an_error():
    step = amanda.root("step")
    with pytest.raises(amanda.Error, match=r"^\[root\] <amanda.root 'step'> was not entered, or left already$"):
        step.__exit__(None, None, None)
