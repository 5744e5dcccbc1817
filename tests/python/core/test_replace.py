"""replace_op: another function in place of an operator."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import weakref

import amanda
import pytest
import torch
from faithful import RunOriginal
from repository import ROOT
from torch.autograd import gradcheck, gradgradcheck

X = torch.tensor([-1.0, 2.0])


class Replace(amanda.Tool):
    """Calls routine(*inputs, op) in place of each operator of `ops`."""

    def __init__(self, routine, ops="relu", name=None, **options):
        super().__init__(name)
        self.routine, self.options = routine, options
        self.add_inst_for_op(self.analyse, ops=ops)

    def analyse(self, context):
        context.replace_op(self.routine, op=context.op, **self.options)


def identity(*inputs, op):
    return op(*inputs)


def test_the_replacements_value_is_the_result():
    with amanda.apply(Replace(lambda x, op: x * 3)):
        assert torch.relu(X).tolist() == [-3.0, 6.0]
    assert torch.relu(X).tolist() == [0.0, 2.0]


def test_the_original_can_be_called_as_often_as_one_likes():
    with amanda.apply(Replace(lambda x, op: op(x) + op(-x))):
        assert torch.relu(X).tolist() == [1.0, 2.0]


def test_a_replacement_may_get_some_inputs_only(replace):
    with amanda.apply(replace("add", lambda other: other * 10, ["other"])):
        assert torch.add(X, torch.ones(2)).tolist() == [10.0, 10.0]
    with amanda.apply(replace("relu", lambda: torch.ones(2), [])):
        assert torch.relu(X).tolist() == [1.0, 1.0]


def test_before_actions_feed_it_and_after_actions_see_its_result(before, after):
    with amanda.apply(before("relu", lambda x: x + 1), Replace(lambda x, op: x * 10), after("relu", lambda y: y + 0.5)):
        assert torch.relu(X).tolist() == [0.5, 30.5]


def test_its_own_operators_are_not_seen(recorder):
    watcher = recorder()
    with amanda.apply(watcher, Replace(lambda x, op: torch.sin(op(x)))):
        torch.relu(X)
    assert watcher.ran == ["relu"]


def test_its_result_may_have_another_shape():
    with amanda.apply(Replace(lambda x, op: op(x)[:1])):
        assert torch.relu(X).shape == (1,)


CALLS = {
    "gt": lambda x: torch.gt(x, 0),  # another dtype than its input
    "argmax": lambda x: x.argmax(),
    "frexp": lambda x: torch.frexp(x),  # more results than inputs
    "linalg_slogdet": lambda x: torch.linalg.slogdet(torch.eye(2)),
    "max": lambda x: torch.max(x, 0),
    "topk": lambda x: x.topk(1),
    "item": lambda x: x[0].item(),
    "equal": lambda x: torch.equal(x, x),
    "ones": lambda x: torch.ones(3),  # no tensor comes in
    "ones_like": lambda x: torch.ones_like(x),  # keyword-only arguments
    "add": lambda x: torch.add(x, x, alpha=3),
    "sum": lambda x: x.sum(),
    "_foreach_add": lambda x: torch._foreach_add([x, x], 1.0),  # a list comes out
    "rand": lambda x: torch.rand(2, generator=torch.Generator().manual_seed(3)),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1]), torch.eye(2)),
    "index": lambda x: x[torch.tensor([1])],
    "stft": lambda x: torch.stft(torch.ones(32), 8, window=torch.ones(8), return_complex=True),
    "einsum": lambda x: torch.einsum("i,j->ij", x, x),
    "histogram": lambda x: torch.histogram(x, 2),
    "to": lambda x: x.to(torch.float64),
    "contiguous": lambda x: torch.ones(2, 3).T.contiguous(),
    "split": lambda x: x.split(1),
    "_assert_async": lambda x: torch._assert_async(torch.tensor(True)),  # nothing comes out
}


@pytest.mark.parametrize("name", CALLS)
def test_calling_the_original_gives_the_originals_result(name):
    def flat(result):
        return [
            part.tolist() if isinstance(part, torch.Tensor) else part
            for part in torch.utils._pytree.tree_leaves(result)
        ]

    tool = Replace(identity, ops=name, allow_view=True)
    with amanda.apply(tool) as scope:
        got = CALLS[name](X)
    assert scope.cache_info().misses == 1
    expected = CALLS[name](X)
    assert type(got) is type(expected)
    assert flat(got) == flat(expected)


def test_an_rnn_is_one_operator_to_replace():
    rnn, x = torch.nn.RNN(2, 3, num_layers=2), torch.randn(4, 1, 2)
    expected = rnn(x)
    with amanda.apply(Replace(identity, ops="rnn_tanh")):
        got = rnn(x)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_flow_through_a_replacement():
    a, b = X.clone().requires_grad_(), X.clone().requires_grad_()
    with amanda.apply(Replace(lambda x, op: torch.sigmoid(x) * op(x))):
        torch.relu(a).sum().backward()
    (torch.sigmoid(b) * torch.relu(b)).sum().backward()
    assert torch.equal(a.grad, b.grad)


def test_a_replacement_runs_in_the_programs_gradient_mode():
    modes = []
    x = X.clone().requires_grad_()

    def routine(x, op):
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return op(x)

    with amanda.apply(Replace(routine)):
        assert torch.relu(x).requires_grad
        with torch.no_grad():
            assert not torch.relu(x).requires_grad
        with torch.inference_mode():
            assert torch.relu(x).is_inference()
    assert modes == [(True, False), (False, False), (False, True)]


def test_a_replacement_has_first_and_second_derivatives():
    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    with amanda.apply(Replace(lambda x, op: x.sin() * x)):
        assert gradcheck(lambda x: torch.relu(x * 2), (x,))
        assert gradgradcheck(lambda x: torch.relu(x * 2), (x,))


def test_autocast_applies_to_a_replacement():
    x, w = torch.ones(2, 2), torch.ones(2, 2)
    with amanda.apply(Replace(lambda x, w, b, op: x @ w.t(), ops="linear")), torch.autocast("cpu"):
        assert torch.nn.functional.linear(x, w).dtype == torch.bfloat16


# ---- two replacements ------------------------------------------------------------------------------------------------


def test_a_dependents_replacement_wraps_the_others():
    inner, outer = Replace(lambda x, op: op(x) + 1), Replace(lambda x, op: op(x) * 10)
    outer.depends_on(inner)
    with amanda.apply(outer):
        for _ in range(2):
            assert torch.relu(X).tolist() == [10.0, 30.0]


def test_a_wrapped_replacement_can_be_called_more_than_once():
    inner, outer = Replace(lambda x, op: op(x) + 1), Replace(lambda x, op: op(x) - op(-x))
    outer.depends_on(inner)
    with amanda.apply(outer):
        assert torch.relu(X).tolist() == [-1.0, 2.0]


def test_wrapping_goes_three_deep_and_across_scopes():
    a, b, c = (Replace(lambda x, op, n=n: op(x) * 10 + n) for n in (1, 2, 3))
    b.depends_on(a)
    c.depends_on(b)
    with amanda.apply(a), amanda.apply(c):
        assert torch.relu(X).tolist() == [123.0, 2123.0]


def test_two_replacements_without_a_dependency_are_refused(says):
    a, b = Replace(lambda x, op: x, name="a"), Replace(lambda x, op: x, name="b")
    text = "[plan] 'a' and 'b' both replace aten::relu; let one depend on the other: b.depends_on(a)"
    with says(amanda.Error, text), amanda.apply(a, b):
        torch.relu(X)
    with says(amanda.Error, text), amanda.apply(a), amanda.apply(b):
        torch.relu(X)


def test_one_tool_replaces_an_operator_once(says):
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda c: (c.replace_op(print), c.replace_op(print)), ops="relu")
    text = "[plan] 'tool' replaces aten::relu twice; remove() the first replacement"
    with says(amanda.Error, text), amanda.apply(tool):
        torch.relu(X)


# ---- misuse ----------------------------------------------------------------------------------------------------------


def replaced(ops, result, call):
    def routine(*inputs):
        return result

    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda c: c.replace_op(routine), ops=ops)
    with amanda.apply(tool):
        return call()


def relu():
    return torch.relu(X)


def maximum():
    return torch.max(torch.eye(2), 1)


@pytest.mark.parametrize(
    ("ops", "result", "call", "text"),
    [
        ("relu", None, relu, "it returned None; a replacement returns the operator's result"),
        ("relu", 3, relu, "result 0: got int where Tensor is needed"),
        ("relu", (X, X), relu, "result 0: got tuple where Tensor is needed"),
        ("max", X, maximum, "it returned one value where the operator has 2 results; return a tuple of them"),
        ("max", (X, X, X), maximum, "it returned 3 values where the operator has 2 results; return a tuple of them"),
        ("max", (X, "s"), maximum, "result 1: got str where Tensor is needed"),
        ("max", (X, None), maximum, "result 1: got None where Tensor is needed"),
    ],
)
def test_a_malformed_result_is_refused(ops, result, call, text, says):
    with says(amanda.Error, f"[action] tool: routine replacing aten::{ops}: {text}"):
        replaced(ops, result, call)


def test_a_replacement_that_mutates_its_input_is_refused(says, replace):
    def routine(x):
        return x.mul_(2)

    text = (
        "it changed input 0 (self) in place, and that stays changed; return a new tensor instead, or call "
        "context.may_mutate() at analysis"
    )
    with says(amanda.Error, f"[action] tool: routine replacing aten::relu: {text}"):
        with amanda.apply(replace("relu", routine)):
            torch.relu(torch.ones(1))


# ---- by itself: whatever the original can return ---------------------------------------------------------------------


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("grad", [False, True])
def test_a_tensor_becomes_a_subclass(grad):
    x = torch.ones(2, requires_grad=grad)
    with amanda.apply(RunOriginal()):
        parameter = torch.nn.Parameter(x)
        part = x.as_subclass(Subclass)
        made = Subclass([1.0, 2.0])
        sized = Subclass(2, 3)
    assert (type(parameter), parameter.data_ptr()) == (torch.nn.Parameter, x.data_ptr())
    assert (type(part), part.data_ptr(), part.requires_grad) == (Subclass, x.data_ptr(), grad)
    assert (type(made), made.tolist(), type(sized)) == (Subclass, [1.0, 2.0], Subclass)


def test_a_parameter_trains_that_was_made_of_a_replaced_detach():
    with amanda.apply(RunOriginal()):
        layer = torch.nn.Linear(2, 1)
        layer.weight = torch.nn.Parameter(torch.ones(1, 2))
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 1.0]]


def test_undefined_results_are_none_and_stay_undefined():
    arguments = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    rest = [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
    expected = torch.ops.aten.convolution_backward(*arguments, *rest)
    with amanda.apply(RunOriginal()):
        got = torch.ops.aten.convolution_backward(*arguments, *rest)
    assert expected[1] is got[1] is None
    assert torch.equal(expected[0], got[0])


def test_symbolic_types_take_plain_values():
    with amanda.apply(RunOriginal()):
        assert torch.ops.aten.sym_is_contiguous(torch.ones(2, 2)) is True


def test_what_the_routine_does_to_the_result_is_not_lost():
    """The result of the original is put back as it was only if it still is what it was."""

    def changed(op, x):
        y = op(x)
        y.mul_(3)
        return y

    def hooked(op, x):
        y = op(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y

    def named(op, x):
        y = op(x)
        y.name_of_mine = "y"
        return y

    for routine in (changed, hooked, named):
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda c, routine=routine: c.replace_op(lambda v: routine(c.op, v)), ops="sin")
        x = torch.zeros(2, requires_grad=True)
        with amanda.apply(tool):
            y = torch.sin(x)
        y.sum().backward()
        assert x.grad.tolist() == ([1.0, 1.0] if routine is named else [3.0, 3.0])
        assert getattr(y, "name_of_mine", None) == ("y" if routine is named else None)


def test_a_result_keeps_its_graph_inside_the_routine():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(lambda x: c.op(x) * c.op(x)), ops="sin")
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(tool):
        torch.sin(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().sin() * x.detach().cos())


def test_a_replacement_in_forward_mode():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(lambda x: c.op(x) * 2), ops="sin")
    with amanda.apply(tool):
        _, tangent = torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.ones(2),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.sin(torch.autograd.forward_ad.make_dual(torch.zeros(2), torch.ones(2)))
            other = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert tangent.tolist() == other.tolist() == [2.0, 2.0]


def test_results_are_let_go_of():
    references = []

    def routine(x, op):
        y = op(x)
        references.append(weakref.ref(y))
        return torch.zeros(2)

    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(routine, op=c.op), ops="sin")
    with amanda.apply(tool):
        torch.sin(torch.ones(2))
        assert references[0]() is None


@pytest.mark.slow  # 600 operators
def test_the_page_on_limitations_lists_what_cant_be_replaced():
    names = {"__name__": "replacements", "__file__": str(ROOT / "scripts" / "replacements.py")}
    exec((ROOT / "scripts" / "replacements.py").read_text(), names)
    kept, failed = names["refused"]()
    assert not failed
    page = (ROOT / "docs" / "limitations.md").read_text()
    assert names["rewritten"](page, kept) == page, "run: python scripts/replacements.py"
