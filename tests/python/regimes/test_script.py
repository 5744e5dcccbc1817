"""TorchScript is opaque, and unharmed."""

import amanda
import pytest
import torch

X = torch.tensor([-1.0, 2.0])


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_scripted_and_traced_functions_are_unharmed(recorder):
    def program(x):
        return torch.relu(x) + 1

    with amanda.apply(recorder()):
        scripted, traced = torch.jit.script(program), torch.jit.trace(program, (X,))
        for function in (scripted, traced):
            for _ in range(3):
                assert function(X).tolist() == [1.0, 3.0]
