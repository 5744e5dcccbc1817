"""Scopes: where tools apply, and for how long."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import gc
import threading
import weakref

import amanda
import pytest
import torch
from amanda.driver import registry
from amanda.driver.identity import roots

X = torch.tensor([-1.0, 2.0])


def test_a_scope_has_an_end(recorder):
    tool = recorder()
    with amanda.apply(tool):
        torch.relu(X)
    torch.sin(X)
    assert tool.ran == ["relu"]


def test_entering_the_same_scope_again_reuses_its_analyses(recorder):
    tool = recorder(ops="relu")
    scope = amanda.apply(tool)
    for _ in range(3):
        with scope:
            torch.relu(X)
    assert (tool.analysed, tool.ran) == (["relu"], ["relu"] * 3)


def test_a_new_apply_starts_fresh(recorder):
    tool = recorder(ops="relu")
    for _ in range(3):
        with amanda.apply(tool):
            torch.relu(X)
    assert tool.analysed == ["relu"] * 3


def test_inner_tools_run_after_outer_ones(recorder):
    trace = []
    inner, outer = recorder("inner", ops="relu", trace=trace), recorder("outer", ops="relu", trace=trace)
    with amanda.apply(outer), amanda.apply(inner):
        torch.relu(X)
    assert " ".join(trace) == "outer:relu? inner:relu? outer:relu< inner:relu< outer:relu> inner:relu>"


def test_a_tool_already_active_runs_once(recorder):
    tool = recorder(ops="relu")
    scope = amanda.apply(tool)
    with scope, amanda.apply(tool), scope:
        torch.relu(X)
    assert tool.ran == ["relu"]


def test_opening_an_inner_scope_re_analyses_nothing(recorder):
    outer, inner = recorder(ops="relu"), recorder(ops="relu")
    with amanda.apply(outer):
        for _ in range(3):
            with amanda.apply(inner):
                torch.relu(X)
            torch.relu(X)
    assert len(outer.analysed) == 2  # two places
    assert len(inner.analysed) == 3  # three new applies of one place
    assert len(outer.ran) == 6


def test_scopes_may_be_left_in_any_order(recorder):
    first, second = recorder(ops=["relu", "sin", "cos"]), recorder(ops=["relu", "sin", "cos"])
    a, b = amanda.apply(first), amanda.apply(second)
    a.__enter__()
    b.__enter__()
    torch.relu(X)
    a.__exit__(None, None, None)
    torch.sin(X)
    b.__exit__(None, None, None)
    torch.cos(X)
    assert (first.ran, second.ran) == (["relu"], ["relu", "sin"])


def test_a_scope_decorates_a_function(recorder):
    tool = recorder(ops="relu")

    @amanda.apply(tool)
    def forward(x, *, twice=False):
        """Says what it does."""
        return torch.relu(x) * (2 if twice else 1)

    assert (forward.__name__, forward.__doc__) == ("forward", "Says what it does.")
    for _ in range(2):
        assert forward(X, twice=True).tolist() == [0.0, 4.0]
    assert (tool.analysed, tool.ran) == (["relu"], ["relu"] * 2)


def test_a_decorated_function_may_call_itself(recorder):
    tool = recorder(ops="relu")

    @amanda.apply(tool)
    def descend(n):
        torch.relu(X)
        return descend(n - 1) if n else None

    descend(3)
    assert len(tool.ran) == 4


def test_with_gives_the_scope(recorder):
    scope = amanda.apply(recorder())
    with scope as entered:
        assert entered is scope


def test_an_empty_scope_is_one():
    with pytest.warns(UserWarning, match=r"^\[scope\] apply\(\) without tools"), amanda.apply():
        assert torch.relu(X).tolist() == [0.0, 2.0]


# ---- the cache -------------------------------------------------------------------------------------------------------


def test_cache_info_counts(recorder):
    tool = recorder(ops="relu")
    with amanda.apply(tool) as scope:
        for _ in range(3):
            torch.relu(X)
    info = scope.cache_info()
    assert (info.hits, info.misses, info.currsize) == (2, 1, 1)
    assert repr(info) == f"CacheInfo(hits=2, misses=1, maxsize={info.maxsize}, currsize=1)"


def test_cache_clear_forgets_all_or_one(recorder):
    tool = recorder(ops=["relu", "sin"])
    with amanda.apply(tool) as scope:
        for step in range(3):
            torch.relu(X)
            torch.sin(X)
            if step == 0:
                scope.cache_clear(tool.contexts[0].op_id)
            if step == 1:
                scope.cache_clear()
                assert scope.cache_info().currsize == 0
    assert tool.analysed == ["relu", "sin", "relu", "relu", "sin"]
    assert len(tool.ran) == 6


def test_iterations_need_no_more_records(recorder):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with amanda.apply(recorder()) as scope:
        sizes = []
        for _ in range(5):
            model(X)
            sizes.append(scope.cache_info().currsize)
    assert sizes == [2] * 5


# ---- lifecycle hooks -------------------------------------------------------------------------------------------------


class Lifecycle(amanda.Tool):
    def __init__(self, name, events, fails=None):
        super().__init__(name)
        self.events, self.fails = events, fails

    def on_enter(self):
        self.events.append(f"{self.name} on")
        if self.fails == "enter":
            raise ValueError("no entry")

    def on_exit(self, error):
        self.events.append(f"{self.name} off {error!r}")
        if self.fails == "exit":
            raise ValueError("no exit")


def test_tools_are_told_of_the_scope():
    events = []
    with amanda.apply(Lifecycle("a", events), Lifecycle("b", events)):
        events.append("body")
    assert events == ["a on", "b on", "body", "b off None", "a off None"]


def test_tools_are_told_of_the_error_that_leaves_the_scope():
    events, error = [], KeyError("k")
    with pytest.raises(KeyError), amanda.apply(Lifecycle("a", events)):
        raise error
    assert events == ["a on", "a off KeyError('k')"]


def test_a_tool_already_active_is_told_once():
    events = []
    tool = Lifecycle("a", events)
    with amanda.apply(tool), amanda.apply(tool):
        events.append("body")
    assert events == ["a on", "body", "a off None"]


def test_a_failing_on_enter_closes_what_was_opened(recorder):
    events, watcher = [], recorder()
    with pytest.raises(ValueError, match="no entry"):
        with amanda.apply(watcher, Lifecycle("a", events), Lifecycle("b", events, "enter")):
            events.append("body")
    torch.relu(X)
    assert events == ["a on", "b on", "a off ValueError('no entry')"]
    assert watcher.ran == []


def test_a_failing_on_exit_lets_the_others_know(recorder):
    events, watcher = [], recorder()
    with pytest.raises(ValueError, match="no exit"):
        with amanda.apply(watcher, Lifecycle("a", events), Lifecycle("b", events, "exit")):
            events.append("body")
    torch.relu(X)
    assert events == ["a on", "b on", "body", "b off None", "a off None"]
    assert watcher.ran == []


# ---- threads ---------------------------------------------------------------------------------------------------------


def in_thread(function):
    """Runs it on another thread, and raises here what it raises there."""
    errors = []

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_other_threads_are_untouched(recorder):
    tool = recorder()
    with amanda.apply(tool):
        in_thread(lambda: torch.relu(X))
    assert tool.ran == []


def test_one_scope_may_be_open_on_several_threads(recorder):
    tool = recorder(ops="relu")
    scope = amanda.apply(tool)

    def work():
        for _ in range(100):
            with scope:
                torch.relu(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(tool.analysed), len(tool.ran)) == (1, 400)


NOT_HERE = "[scope] this scope was not entered on this thread; leave it where it was entered"


def test_leaving_on_another_thread_raises(recorder, says):
    scope = amanda.apply(recorder())
    with scope, says(amanda.Error, NOT_HERE):
        in_thread(lambda: scope.__exit__(None, None, None))


def test_leaving_without_entering_raises(recorder, says):
    scope = amanda.apply(recorder())
    with scope:
        pass
    with says(amanda.Error, NOT_HERE):
        scope.__exit__(None, None, None)


# ---- garbage ---------------------------------------------------------------------------------------------------------


class Thing:
    pass


class Cyclic(amanda.Tool):
    """Refers to itself in every way a tool can."""

    def __init__(self):
        super().__init__()
        self.me, self.thing = self, Thing()
        self.add_inst_for_op(self.analyse)

    def analyse(self, context):
        context["tool"] = self
        context["context"] = context
        context.insert_before_op(self.routine, tool=self, thing=self.thing, context=context)

    def routine(self, *inputs, **kwargs):
        pass


def test_a_tool_is_collected():
    tool = Cyclic()
    dead = weakref.ref(tool)
    del tool
    gc.collect()
    assert dead() is None


def test_a_tool_is_collected_with_its_scope_and_all_that_they_hold():
    tool = Cyclic()
    scope = tool.scope = amanda.apply(tool)
    with scope:
        torch.relu(X)
    dead = [weakref.ref(tool), weakref.ref(scope), weakref.ref(tool.thing)]
    del tool, scope
    gc.collect()
    assert [ref() for ref in dead] == [None] * 3


def test_a_scope_gives_back_what_its_actions_hold_without_the_collector(before):
    thing = Thing()
    dead = weakref.ref(thing)
    with amanda.apply(before("relu", lambda thing: None, [], thing=thing)) as scope:
        torch.relu(X)
    scope.cache_clear()
    tool_holds = gc.get_referrers(thing)
    del thing, scope, tool_holds
    gc.collect()
    assert dead() is None


def test_operands_are_not_kept():
    x = torch.ones(3)
    dead = weakref.ref(x)
    looker = amanda.Tool()
    looker.add_inst_for_op(lambda context: context.update(count=len(context.inputs)))
    with amanda.apply(looker):
        torch.relu(x)
        del x
        assert dead() is None


# ---- misuse ----------------------------------------------------------------------------------------------------------


def test_apply_takes_tools(says):
    with says(
        TypeError,
        "[scope] apply takes tools, got 3; a tool is an object of a class in amanda.tools, "
        "or of your own, which derives from amanda.Tool",
    ):
        amanda.apply(3)


def test_a_class_in_place_of_a_tool_is_recognised(says):
    text = "[scope] apply takes tools, got <class 'amanda.core.tool.Tool'>; did you mean Tool()?"
    with says(TypeError, text):
        amanda.apply(amanda.Tool)


def test_on_error_has_two_values(says):
    with says(ValueError, '[scope] on_error is "raise" or "disable", got \'ignore\''):
        amanda.apply(on_error="ignore")


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="has no option on_eror=; did you mean on_error="):
        amanda.apply(on_eror="raise")


async def coroutine():
    pass


def generator():
    yield


async def async_generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
def test_a_function_that_suspends_itself_is_not_decorated(function, says):
    text = (
        f"[scope] {function.__name__} suspends itself, and other code would run in its scope; use `with scope:` inside "
        "it, around code that does not suspend"
    )
    with says(TypeError, text):
        amanda.apply(amanda.Tool())(function)


def test_only_functions_are_decorated(says):
    with says(TypeError, "[scope] a scope decorates functions, got 3"):
        amanda.apply(amanda.Tool())(3)


def test_cache_clear_takes_an_operator_id(says):
    with says(TypeError, "[scope] cache_clear takes an operator's id, such as context.op_id, got 'relu'"):
        amanda.apply(amanda.Tool()).cache_clear("relu")


def test_64_tools_are_the_most(says):
    tools = [amanda.Tool() for _ in range(65)]
    text = "[scope] more than 64 tools are active on this thread; leave a scope first"
    with says(amanda.Error, text), amanda.apply(*tools):
        pass
    with amanda.apply(*tools[:64]):
        torch.relu(X)


# ---- what fails while a scope is entered or left ---------------------------------------------------------------------


class Fails(amanda.Tool):
    """Fails in the hook that it is told, and notes all of them."""

    def __init__(self, hook=None):
        super().__init__()
        self.hook, self.told = hook, []
        self.add_inst_for_op(lambda context: self.told.append(context.op.__name__), ops=["sin", "cos"])

    def note(self, hook):
        self.told.append(hook)
        if hook == self.hook:
            raise ValueError(hook)

    def on_enter(self):
        self.note("on_enter")

    def on_exit(self, error):
        self.note("on_exit")


def patched():
    """What a scope puts in the place of something of PyTorch's."""
    return torch.autograd.variable.Variable._execution_engine, torch.autograd.function._SingleLevelFunction.apply


@pytest.mark.parametrize("coverage", [False, True])
def test_entering_that_fails_is_taken_back(coverage):
    before, first, second = patched(), Fails(), Fails("on_enter")
    scope = amanda.apply(first, second, coverage=coverage)
    for _ in range(2):
        with pytest.raises(ValueError, match="on_enter"), scope:
            pass
        torch.sin(X)
        assert patched() == before
    assert first.told == ["on_enter", "on_exit"] * 2
    with pytest.raises(amanda.Error, match="was not entered on this thread"):
        scope.__exit__(None, None, None)


class Driver:
    """Takes part in entering and leaving alone."""

    def __init__(self, enter=lambda: None, leave=lambda: None):
        self.enter, self.leave = enter, leave


@pytest.mark.parametrize("where", ["begin", "again", "counter", "roots"])
def test_entering_is_taken_back_whatever_fails(where, monkeypatch):
    before, tool = patched(), Fails()
    scope = amanda.apply(tool, coverage=True)

    def fail(*_):
        raise ValueError(where)

    with monkeypatch.context() as patch:
        if where == "begin":
            patch.setattr(registry, "_loaded", [*registry.loaded(), Driver(enter=fail)])
        elif where == "again":
            patch.setattr(registry, "_loaded", [Driver(enter=fail, leave=fail)])
        elif where == "counter":
            patch.setattr(
                scope, "_counters", [type("CoverageCounter", (), {"open": fail, "close": lambda self: None})()]
            )
        else:
            patch.setattr(roots, "enter", fail)
        with pytest.raises(ValueError, match=where), scope:
            pass
        torch.sin(X)
    assert patched() == before
    assert tool.told == ["on_enter", "on_exit"]
    with scope:
        torch.cos(X)
    assert tool.told == ["on_enter", "on_exit", "on_enter", "cos", "on_exit"]
    assert patched() == before


@pytest.mark.parametrize("where", ["on_exit", "counter", "end"])
def test_leaving_goes_through_whatever_fails(where, monkeypatch):
    before, tool, other = patched(), Fails("on_exit" if where == "on_exit" else None), Fails()
    scope = amanda.apply(other, tool, coverage=True)

    def fail(*_):
        raise ValueError(where)

    with monkeypatch.context() as patch:
        if where == "counter":
            patch.setattr(
                scope, "_counters", [type("CoverageCounter", (), {"close": fail, "open": lambda self: None})()]
            )
        elif where == "end":
            patch.setattr(registry, "_loaded", [*registry.loaded(), Driver(leave=fail)])
        with pytest.raises(ValueError, match=where), scope:
            torch.sin(X)
    torch.cos(X)
    assert patched() == before
    assert other.told == ["on_enter", "sin", "on_exit"]


# ---- registrations on a tool of an open scope ------------------------------------------------------------------------


def test_registrations_on_an_open_tool_fill_no_memory(forked_python):
    out = forked_python("""
        import amanda, resource, torch
        x = torch.ones(2)
        tool = amanda.Tool()
        with amanda.apply(tool):
            torch.relu(x)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for i in range(3000):
                tool.add_inst_for_op(print, ops=f"amanda_test::operator_{i}")
            torch.relu(x)
            print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    assert int(out) < 50  # MiB; it was 569


@pytest.mark.parametrize("ops", ["sin", ["sin", "cos"], None])
def test_a_registration_on_another_thread_takes_effect(ops):
    tool, seen = amanda.Tool(), []
    tool.add_inst_for_op(lambda context: None, ops="relu")
    with amanda.apply(tool):
        torch.relu(X)
        torch.sin(X)
        register = threading.Thread(
            target=lambda: tool.add_inst_for_op(lambda context: seen.append(context.op.__name__), ops=ops)
        )
        register.start()
        register.join()
        torch.sin(X)
        torch.cos(X)
        torch.ops.aten.xlogy(X.abs(), X.abs())
    assert seen == {"sin": ["sin"], "None": ["sin", "cos", "abs", "abs", "xlogy"]}.get(str(ops), ["sin", "cos"])
