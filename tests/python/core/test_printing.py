"""What tools, scopes, contexts and switches print as, wherever they are printed."""

import re
import threading

import amanda
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.pruning import MagnitudePruning

X = torch.tensor([-1.0, 2.0])


class Count(amanda.Tool):
    pass


# ---- tools -----------------------------------------------------------------------------------------------------------


def look(context):
    pass


def test_a_tool_prints_what_it_asks_for_and_what_it_builds_on():
    tool = Count()
    assert repr(tool) == "<Count: no analyses>"
    tool.add_inst_for_op(look, ops="linear")
    assert repr(tool) == "<Count: 1 forward analysis (linear)>"
    tool.add_inst_for_op(look, ops=["conv?d", "add.Tensor"], require_outputs=True)
    tool.add_inst_for_op(look, backward=True)
    tool.depends_on(amanda.Tool("names"), Count())
    assert repr(tool) == (
        "<Count: 2 forward analyses (linear; conv?d, add.Tensor with outputs); "
        "1 backward analysis (every operator); depends on names, Count>"
    )


def test_a_tool_prints_the_name_that_it_was_given():
    tool = Count("mine")
    tool.add_inst_for_op(look, ops=amanda.ON_DEMAND, nested=True)
    assert repr(tool) == "<Count 'mine': 1 forward analysis (on demand nested)>"


def test_what_several_routines_ask_for_is_printed_once():
    tool = Count()
    tool.add_inst_for_op(look, ops="relu")
    tool.add_inst_for_op(look, ops="relu")
    assert repr(tool) == "<Count: 2 forward analyses (relu)>"


def test_a_long_list_of_operators_is_cut():
    begins = r"\(linear, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d and \d\d more; "
    assert re.search(begins, repr(MagnitudePruning(0.5)))


def test_a_refused_routine_is_not_printed():
    tool = Count()
    with pytest.raises(ValueError):
        tool.add_inst_for_op(look, ops="")
    assert repr(tool) == "<Count: no analyses>"


def test_a_native_tool_prints_that_it_is_one():
    tool = Flops()
    assert re.fullmatch(r"<Flops( '.*')?: written in C\+\+; depends on flops.compiled>", repr(tool))
    tool.add_inst_for_op(look, ops="relu")
    assert repr(tool).endswith(": written in C++; 1 forward analysis (relu); depends on flops.compiled>")


def test_a_tool_that_is_not_made_yet_prints_why():
    class Early(amanda.Tool):
        def __init__(self):
            self.text = repr(self)

    assert Early().text == "<Early: super().__init__() was not called>"


# ---- scopes ----------------------------------------------------------------------------------------------------------


def test_a_scope_prints_its_tools_whether_it_is_entered_and_its_cache(recorder):
    scope = amanda.apply(recorder(ops="relu"), Count("mine"))
    nothing = "known operators: 0, analyses: 0, cache hits: 0"
    assert repr(scope) == f"<amanda.Scope of Recorder, mine; not entered; {nothing}>"
    with scope:
        assert repr(scope) == f"<amanda.Scope of Recorder, mine; entered on this thread; {nothing}>"
        with scope:
            assert "; entered 2 times on this thread; " in repr(scope)
        for _ in range(3):
            torch.relu(X)
    known = "known operators: 1, analyses: 1, cache hits: 2"
    assert repr(scope) == f"<amanda.Scope of Recorder, mine; not entered; {known}>"


def test_a_scope_prints_that_another_thread_has_entered_it():
    scope, texts = amanda.apply(amanda.Tool()), []
    with scope:
        thread = threading.Thread(target=lambda: texts.append(repr(scope)))
        thread.start()
        thread.join()
    assert texts[0].startswith("<amanda.Scope of Tool; entered on other threads; ")


def test_a_scope_can_be_printed_by_an_analysis_and_by_a_routine():
    texts, tool = [], amanda.Tool()

    def analyse(context):
        texts.append(repr(scope))
        context.insert_before_op(lambda: texts.append(repr(scope)), inputs=[])

    tool.add_inst_for_op(analyse, ops="relu")
    scope = amanda.apply(tool)
    with scope:
        torch.relu(X)
    assert len(texts) == 2
    assert all(text.startswith("<amanda.Scope of Tool; entered on this thread; ") for text in texts)


def test_a_scope_that_could_not_be_made_prints():
    assert repr(amanda.Scope.__new__(amanda.Scope)) == "<amanda.Scope: not made>"


# ---- contexts --------------------------------------------------------------------------------------------------------


class Printing(amanda.Tool):
    """Prints contexts while they are analysed, and keeps them."""

    def __init__(self, **options):
        super().__init__()
        self.texts, self.contexts = [], []
        self.add_inst_for_op(self.analyse, **options)

    def analyse(self, context):
        context["mask"] = torch.ones(1000)
        self.texts.append(repr(context))
        self.contexts.append(context)


def test_a_context_prints_operator_module_line_and_keys():
    tool, model = Printing(ops="linear"), torch.nn.Sequential(torch.nn.Linear(2, 2))
    with amanda.apply(tool):
        model(X)
        line = "test_printing.py:" + str(
            test_a_context_prints_operator_module_line_and_keys.__code__.co_firstlineno + 3
        )
    (text,) = tool.texts
    assert re.fullmatch(rf"<amanda\.OpContext aten::linear in 0 at \S*{line}; keys: 'mask'>", text), text


def test_a_context_prints_without_module_and_keys():
    texts, tool = [], amanda.Tool()
    tool.add_inst_for_op(lambda context: texts.append(repr(context)), ops="add")
    with amanda.apply(tool):
        X + 1
    assert re.fullmatch(r"<amanda\.OpContext aten::add\.Tensor at \S+; no keys>", texts[0])


def test_a_backward_context_prints_both_operators():
    tool = Printing(ops="sin", backward=True)
    scope = amanda.apply(tool)
    with scope:
        torch.sin(X.clone().requires_grad_()).sum().backward()
    assert tool.texts[0].startswith("<amanda.OpContext SinBackward0 of aten::sin at ")
    assert repr(tool.contexts[0]) == "<amanda.OpContext SinBackward0 of aten::sin; keys: 'mask'>"


def test_a_context_prints_after_its_analysis_and_after_its_scope():
    tool = Printing(ops="relu")
    scope = amanda.apply(tool)
    with scope:
        torch.relu(X)
    (context,) = tool.contexts
    assert repr(context) == "<amanda.OpContext aten::relu; keys: 'mask'>"
    scope.cache_clear()
    assert repr(context) == "<amanda.OpContext forgotten by its scope; keys: 'mask'>"
    assert str(context) == repr(context)


def test_keys_that_cannot_be_printed_do_no_harm():
    class Key:
        def __repr__(self):
            raise ValueError

    tool = Printing(ops="relu")
    with amanda.apply(tool):
        torch.relu(X)
        (context,) = tool.contexts
        context.clear()
        context[Key()], context["x" * 1000], context[3] = 1, 2, 3
        text = repr(context)
    assert re.fullmatch(r"<amanda\.OpContext aten::relu; keys: <Key instance at \w+>, 'x+\.\.\.x+', 3>", text)


def test_a_context_without_anything_prints():
    context = amanda.OpContext.__new__(amanda.OpContext)
    assert repr(context) == "<amanda.OpContext forgotten by its scope; no keys>"


# ---- switches --------------------------------------------------------------------------------------------------------


def test_a_switch_prints_what_it_turns():
    assert repr(amanda.disabled()) == "<amanda switch: instrumentation off>"
    assert repr(amanda.cache_enabled()) == "<amanda switch: cache on>"
