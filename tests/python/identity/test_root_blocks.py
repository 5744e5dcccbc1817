"""amanda.root around blocks."""

import asyncio
import contextlib
import functools
import gc
import threading

import amanda
import torch
from amanda import _torch
from amanda.driver.identity import roots
from callers import CALLERS, Ids, X, from_there, ids, ids_by_caller, unrooted


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
