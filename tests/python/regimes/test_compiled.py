"""Functions compiled with torch.compile, before a scope and inside it."""

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_are_unharmed(backend, recorder):
    torch._dynamo.reset()
    function = torch.compile(lambda x: (torch.relu(x) * 2).sum(), backend=backend)
    x = X.clone().requires_grad_()
    with amanda.apply(recorder()):
        for _ in range(2):  # compiles, then runs
            y = function(x)
            x.grad = None
            y.backward()
            assert (y.item(), x.grad.tolist()) == (4.0, [0.0, 2.0])
    assert function(X).item() == 4.0
    torch._dynamo.reset()


def test_a_function_compiled_before_is_unharmed(recorder):
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.relu(x) + 1, backend="eager")
    assert function(X).tolist() == [1.0, 3.0]
    with amanda.apply(recorder()):
        assert function(X).tolist() == [1.0, 3.0]
    assert function(X).tolist() == [1.0, 3.0]
    torch._dynamo.reset()
