"""amanda.root on generators, on coroutines and on threads."""

import asyncio
import functools
import threading

import amanda
from callers import CALLERS, Ids, X, from_there, ids, loss, unrooted


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
