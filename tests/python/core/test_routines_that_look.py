"""Which routines certainly return nothing: beside those a graph stays as it is."""

import functools
import warnings

import pytest
from amanda.core.routine_checks import returns_nothing


def falls_off_its_end(x):
    x += 1


def returns_early(x):
    if x:
        return
    print(x)


def returns_none_in_words(x):
    return None


def raises(x):
    raise ValueError(x)


def only_sometimes_a_value(x):
    if x:
        return x
    return None


def none_or_a_value(x):
    return None if x else x


def the_value_of_a_call(x):
    return print(x)


def yields(x):
    yield x


def returns_in_finally():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python 3.14 warns of it
        exec("def defined(x):\n  try: print(x)\n  finally: return x", namespace := {})
    return namespace["defined"]


class Callable:
    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        self.value = x

    def gives(self, x):
        return self.value


def inner_function_returns(x):
    def inner():
        return x

    inner()


@pytest.mark.parametrize(
    "routine",
    [
        falls_off_its_end,
        returns_early,
        returns_none_in_words,
        raises,
        inner_function_returns,
        functools.partial(functools.partial(returns_early), 1),
        Callable(1),
        Callable(1).__call__,
        lambda x: None,
    ],
)
def test_it_is_certain(routine):
    assert returns_nothing(routine)


@pytest.mark.parametrize(
    "routine",
    [
        only_sometimes_a_value,
        none_or_a_value,
        the_value_of_a_call,
        yields,
        returns_in_finally(),
        functools.partial(the_value_of_a_call),
        Callable(1).gives,
        Callable,
        [].append,
        print,
        lambda x: x,
    ],
)
def test_it_is_not_certain(routine):
    assert not returns_nothing(routine)
