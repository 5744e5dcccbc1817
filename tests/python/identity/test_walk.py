"""The walk that compares frames with those of the walk before finds what a walk without memory finds."""

import functools
import gc
import threading

import pytest
import torch
from amanda import _torch
from random_frames import Program


class Pass(torch.nn.Module):
    """Without state: its death is no new epoch, and another module may get its address."""

    def forward(self, call):
        return call()


class Keep(Pass):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))


def paths(modes=(True, True, False)):
    """The raw path here: twice by the comparing walk, and by one of Python's public functions."""
    found = []
    for direct in modes:
        _torch.walk_frames_directly(direct)
        found.append(_torch.raw_place((), ())[1])
    return found


def run(seed, checks):
    Program.check_until(checks, seed, paths, [Pass(), Keep(), Keep()], Pass)


@pytest.fixture(autouse=True)
def direct():
    yield
    _torch.walk_frames_directly(True)


@pytest.mark.parametrize("seed", range(3))
def test_in_any_program_it_finds_what_a_walk_without_memory_finds(seed):
    run(seed, 2000)


def test_on_several_threads():
    failed = []

    def work(seed):
        try:
            run(seed, 500)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_every_frame_is_compared():
    def here(depth, line):
        if depth == 0:
            return paths((True,))[0]
        if line == depth:
            return here(depth - 1, line)
        return here(depth - 1, line)

    depth = 20
    found = [here(depth, line) for line in [*range(depth + 1), *range(depth + 1)]]
    assert len(set(found[: depth + 1])) == depth + 1
    assert found[: depth + 1] == found[depth + 1 :]


def test_every_module_is_compared():
    modules = [Keep() for _ in range(3)]

    def path(outer, inner):
        return outer(lambda: inner(lambda: paths((True,))[0]))

    pairs = [(outer, inner) for outer in modules for inner in modules]
    found = [path(*pair) for pair in [*pairs, *pairs]]
    assert len(set(found[: len(pairs)])) == len(pairs)
    assert found[: len(pairs)] == found[len(pairs) :]


def test_a_module_with_submodules_is_told_from_a_plain_one_that_had_its_address():
    part, found, graves = Keep(), {False: set(), True: set()}, set()

    def walk(has_part):
        module = Pass()
        if has_part:
            module._modules["part"] = part
        else:
            assert _torch.watch(module, plain=True)  # as when its place is named
        epoch, path = module(lambda: _torch.raw_place((), ()))
        grave = (id(module), epoch)  # paths are compared within one epoch only
        if has_part and grave not in graves:
            return  # nothing watches it here, so a plain one at its address later has the same path
        graves.add(grave)
        found[has_part].add((*grave, path))

    gc.collect()  # the death of an object that another test left would start a new epoch
    for has_part in [False, True] * 20:
        walk(has_part)
    assert found[True]  # or this tests nothing
    assert not found[False] & found[True]


def test_deep_recursion():
    def at(depth):
        return paths() if depth == 0 else at(depth - 1)

    for depth in (2, 700, 5, 701, 700):
        again, same, plain = at(depth)
        assert again == same == plain


def test_frames_that_have_returned_are_forgotten():
    walk = functools.partial(_torch.raw_place, (), ())

    def within():
        return walk()

    found = [
        call()[1] for call in (walk, within, walk, within)
    ]  # one instruction: without a Python frame inside, and with
    assert found[0] == found[2] != found[1] == found[3]
