"""amanda.root on functions: where the call paths of operators outside models begin."""

import contextlib
import functools
import gc
import inspect
import pickle
import weakref

import amanda
import pytest
import torch
from amanda import _torch
from amanda.driver.identity import roots
from callers import Ids, Model, X, ids, ids_by_caller, loss, unrooted
from repository import ROOT
from torch import nn

# ---- a function ------------------------------------------------------------------------------------------------------


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
        import callers as t
        def other_caller():
            def and_deeper():
                t.loss()
            and_deeper()
        print(t.ids(other_caller if sys.argv[2] == "other" else t.loss))
    """
    folder = ROOT / "tests" / "python" / "support"
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


# ---- mistakes --------------------------------------------------------------------------------------------------------


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
