"""The switches of a thread: instrumentation and its cache, on and off."""

import asyncio
import itertools
import threading

import amanda
import pytest
import torch

X = torch.ones(2)


def test_disabled_is_as_if_no_scope_were_open(recorder, after):
    tool = recorder(ops="relu")
    with amanda.apply(tool, after("relu", lambda y: y + 1)):
        with amanda.disabled():
            assert not amanda.is_enabled()
            assert torch.relu(X).tolist() == [1.0, 1.0]
        assert amanda.is_enabled()
        assert torch.relu(X).tolist() == [2.0, 2.0]
    assert tool.ran == ["relu"]


def test_the_switches_nest(recorder):
    tool = recorder()
    with amanda.apply(tool), amanda.disabled():
        torch.sin(X)
        with amanda.enabled():
            torch.cos(X)
            with amanda.disabled():
                torch.sin(X)
            torch.tan(X)
        torch.sin(X)
    assert tool.ran == ["cos", "tan"]


def test_a_scope_opened_under_disabled_takes_effect_when_enabled(recorder):
    tool = recorder()
    with amanda.disabled(), amanda.apply(tool):
        torch.sin(X)
        with amanda.enabled():
            torch.cos(X)
    torch.tan(X)
    assert tool.ran == ["cos"]


def test_without_a_cache_every_run_is_analysed(recorder):
    tool = recorder()
    with amanda.apply(tool), amanda.cache_disabled():
        assert not amanda.is_cache_enabled()
        for _ in range(3):
            torch.relu(X)
        with amanda.cache_enabled():
            for _ in range(3):
                torch.sin(X)
    assert amanda.is_cache_enabled()
    assert tool.analysed == ["relu"] * 3 + ["sin"]
    assert tool.ran == ["relu"] * 3 + ["sin"] * 3


def test_results_made_without_a_cache_are_not_remembered(recorder):
    tool = recorder(ops="relu")
    with amanda.apply(tool):
        for step in range(3):
            with amanda.cache_disabled() if step == 0 else amanda.cache_enabled():
                torch.relu(X)
    assert len(tool.analysed) == 2
    assert len(tool.ran) == 3


def test_a_switch_is_put_back_by_an_exception():
    try:
        with amanda.disabled(), amanda.cache_disabled():
            raise KeyError
    except KeyError:
        pass
    assert amanda.is_enabled()
    assert amanda.is_cache_enabled()


def test_a_switch_is_the_threads_own(recorder):
    tool = recorder()
    scope = amanda.apply(tool)
    states = []

    def work():
        states.append((amanda.is_enabled(), amanda.is_cache_enabled()))
        with scope:
            torch.relu(X)

    with amanda.disabled(), amanda.cache_disabled():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert states == [(True, True)]
    assert tool.ran == ["relu"]


def test_a_switch_is_put_back_on_its_own_thread_only():
    switch = amanda._core.Switch("instrumentation", False)
    failed = []

    def leave():
        try:
            switch.put_back()
        except amanda.Error as error:
            failed.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert failed == ["[scope] this switch was turned on another thread; put it back where it was turned"]
    assert not amanda.is_enabled()
    switch.put_back()
    assert amanda.is_enabled()


def test_switches_of_tasks_overlap(recorder):
    tool = recorder(ops=["sin", "cos"])

    async def first(switch, turned, left):
        with switch():
            turned.set()
            await left[0].wait()
        left[1].set()

    async def second(switch, turned, left):
        await turned.wait()
        with switch():
            left[0].set()
            await left[1].wait()

    async def main(switch):
        turned, *left = (asyncio.Event() for _ in range(3))
        await asyncio.gather(first(switch, turned, left), second(switch, turned, left))

    with amanda.apply(tool):
        for switch in (amanda.disabled, amanda.cache_disabled, amanda.enabled, amanda.cache_enabled):
            asyncio.run(main(switch))
            assert amanda.is_enabled()
            assert amanda.is_cache_enabled()
        torch.sin(X)
    assert tool.ran == ["sin"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_switches_end_in_any_order(order):
    makers = [amanda.disabled, amanda.enabled, amanda.disabled, amanda.disabled]
    turned = [make() for make in makers]
    for switch in turned:
        switch.__enter__()
    for n, which in enumerate(order):
        turned[which].__exit__(None, None, None)
        left = [i for i in range(4) if i not in order[: n + 1]]
        assert amanda.is_enabled() == (not left or makers[left[-1]] is amanda.enabled)
    assert amanda.is_enabled()
