"""What a compiled function returns may be written to, and shares the memory that it shares without a tool."""

import amanda
import pytest
import torch
from compiling import Looks, apply
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def no_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def beside_its_view(x):
    y = x.sin()
    return y, y.view(-1)


def twice(x):
    y = x.sin()
    return y, y


def kept_for_the_gradient(x):
    y = x.cos()
    return y, y * y


PROGRAMS = {
    "a sum": lambda x: x.sin().sum(),
    "a view": lambda x: x.sin().view(-1),
    "a transposed view": lambda x: x.sin().t(),
    "a part": lambda x: x.sin()[:, ::2],
    "a view of the input": lambda x: x.view(-1),
    "a part of the input": lambda x: x[0],
    "the input": lambda x: (x, x.sin()),
    "parts": lambda x: x.sin().chunk(2),
    "beside its view": beside_its_view,
    "twice": twice,
    "detached": lambda x: (lambda y: (y, y.detach()))(x.sin()),
    "kept for the gradient": kept_for_the_gradient,
    "as it is": lambda x: (x * 1).to(torch.float32),
    "of a checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
}


def written_to(compiled, write_all):
    leaf = torch.arange(12.0).reshape(3, 4).requires_grad_()
    x = leaf * 1
    results = compiled(x)
    with amanda.disabled():
        results = results if isinstance(results, tuple | list) else (results,)
        strides = [result.stride() for result in results]
        for result in results if write_all else results[:1]:
            result.mul_(2)
        left = [value.tolist() for value in (*results, x)]
        loss = sum(result.sum() for result in results if result.requires_grad)
    try:
        loss.backward()
    except RuntimeError as error:  # a value that the gradient needs was written to
        return strides, left, str(error)
    return strides, left, leaf.grad.tolist()


@pytest.mark.parametrize("write_all", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_caller_may_write_to_it(name, write_all):
    compiled = torch.compile(PROGRAMS[name], backend="aot_eager")
    expected, looks = written_to(compiled, write_all), Looks()
    with apply(looks):
        assert written_to(compiled, write_all) == expected
    assert looks.backward or "input" in name or "modified by an inplace operation" in str(expected)


def test_a_view_that_is_returned_has_its_backward_operator():
    looks, x = Looks(), torch.ones(2, 2, requires_grad=True)
    with apply(looks):
        torch.compile(PROGRAMS["a view"], backend="aot_eager")(x).sum().backward()
    assert looks.backward["view"] == looks.backward["sin"] == 1


def test_one_that_shares_memory_has_not_and_is_counted():
    x = torch.ones(2, 2, requires_grad=True) * 1
    with apply(Looks(), coverage=True) as scope:
        torch.compile(PROGRAMS["a view of the input"], backend="aot_eager")(x)
    assert scope.coverage().row("autograd::ViewBackward0").skipped == {"compiled": 1}
