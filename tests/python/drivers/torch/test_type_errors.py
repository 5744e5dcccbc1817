"""A TypeError of a tool arrives, also where PyTorch answers one with NotImplemented."""

import functools
import itertools
import operator

import amanda
import pytest
import torch

BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split()  # noqa: SIM905
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
INTEGERS = {"and_", "or_", "xor", "lshift", "rshift"}

ROUTES = {
    "in": lambda x, y: x in [y],
    "not in": lambda x, y: x not in (y,),
    "a tensor contains": lambda x, y: y in x,
    "index": lambda x, y: [y].index(x),
    "count": lambda x, y: [y].count(x),
    "remove": lambda x, y: [y].remove(x),
    "tuples": lambda x, y: (x,) == (y,),
    "match": lambda x, y: _match(x, y),
    "sum": lambda x, y: sum([x, y]),
    "reduce": lambda x, y: functools.reduce(operator.add, [x, y]),
    "accumulate": lambda x, y: list(itertools.accumulate([x, y])),
    "map": lambda x, y: list(map(operator.mul, [x], [y])),
    "max": lambda x, y: max([x, y]),
    "sorted": lambda x, y: sorted([x, y]),
    "pow": lambda x, y: pow(x, y),
    "a number to the power": lambda x, y: 2**x,
    "a number minus": lambda x, y: 1 - x,
    "a number over": lambda x, y: 1 / x,
    "a number over, floored": lambda x, y: 1 // x,
    "a number modulo": lambda x, y: 5 % x,
    "a method": lambda x, y: x.__add__(y),
    "a reflected method": lambda x, y: x.__rpow__(2),
    "an iadd": lambda x, y: operator.iadd(x, y),
    "a product": lambda x, y: operator.matmul(x, y),
}


def _match(x, y):
    class Values:
        value = y

    match x:
        case Values.value:
            return True
    return False


def operands(name):
    if name in INTEGERS:
        return torch.tensor([1, 2]), torch.tensor([3, 4])
    return torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


def careless(nested=False, ops=None):
    def fail(*inputs):
        return len(3)

    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: context.insert_before_op(fail), nested=nested, ops=ops)
    return tool


def check(call, *arguments, tool=None):
    """The tool's error arrives: as its own, or as the cause of what tells of it."""
    with pytest.raises((TypeError, RuntimeError)) as caught, amanda.apply(tool or careless()):
        call(*arguments)
    text = "object of type 'int' has no len()"
    error = caught.value
    if type(error) is not TypeError:
        assert (type(error), str(error)) == (RuntimeError, "TypeError: " + text)
        assert error.__notes__ == error.__cause__.__notes__
        error = error.__cause__
    assert (type(error), str(error)) == (TypeError, text)
    assert error.__notes__[0].startswith("[amanda] in tool 'careless': fail before aten::")


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators(name):
    x, y = operands(name)
    check(getattr(operator, name), x, y)
    check(getattr(operator, "i" + name.removesuffix("_")), x, y)
    if name != "matmul":
        check(getattr(operator, name), x, 2)
        check(getattr(operator, name), 2, x)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name):
    x, y = operands(name)
    check(getattr(operator, name), x, y)
    check(getattr(operator, name), x, 1.0)


@pytest.mark.parametrize("call", ROUTES.values(), ids=ROUTES)
def test_whoever_calls_the_operator(call):
    check(call, *operands(""))


@pytest.mark.parametrize("point", ["analysis", "insert_before_op", "insert_after_op", "replace_op"])
def test_wherever_the_tool_raises_it(point):
    def fail(*operands):
        return len(3)

    tool = amanda.Tool("careless")
    tool.add_inst_for_op(fail if point == "analysis" else lambda context: getattr(context, point)(fail))
    x, y = operands("")
    with pytest.raises(RuntimeError, match="TypeError: object of type 'int' has no len") as caught, amanda.apply(tool):
        assert x not in [y]
    assert type(caught.value.__cause__) is TypeError
    with amanda.apply(tool, on_error="disable"):
        assert sum([x, y]).tolist() == [4.0, 6.0]


def test_an_operator_inside_the_one_that_answers():
    matrix = torch.eye(2)
    for call in (operator.matmul, lambda x, y: x @ y, lambda x, y: functools.reduce(operator.matmul, [x, y])):
        check(call, matrix, matrix, tool=careless(ops="mm"))


def test_a_function_is_left_as_it_is():
    for call in (torch.add, torch.mm, torch.relu, torch.pow, torch.Tensor.add, lambda x, *_: x.relu()):
        with pytest.raises(TypeError, match="has no len"), amanda.apply(careless()):
            call(torch.eye(2)) if call is torch.relu else call(torch.eye(2), torch.eye(2))


def test_the_operator_s_own_type_error_is_answered_as_without_a_tool():
    """Under a replacement by itself, too: Python tries the other operand."""

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise TypeError("not mine")

    class Other:
        def __radd__(self, other):
            return "other"

        def __torch_function__(self, *_):
            return NotImplemented

    wrapped = torch.ones(2).as_subclass(Wrapped)
    assert wrapped + Other() == "other"

    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: c.replace_op(lambda *a, op, **k: op(*a, **k), op=c.op), ops="add")
    with pytest.raises(TypeError, match="unsupported operand"):
        wrapped + wrapped
    with amanda.apply(tool), pytest.raises(TypeError, match="unsupported operand"):
        wrapped + wrapped
