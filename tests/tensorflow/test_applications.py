"""ResNet-50 under a tool that looks at every convolution, forward and backward: not one bit differs."""

from __future__ import annotations

from collections.abc import Callable

import amanda
import applications
import keras
import pytest
from looking import Look
from real_programs import Program, without_optimizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("make", [pytest.param(each, id=each.__name__) for each in applications.PROGRAMS])
def test_a_model_trains_alike_in_a_scope_and_after_it(make: Callable[[], Program]) -> None:
    keras.utils.set_random_seed(0)
    program = make()
    look = Look(ops="Conv2D")
    with without_optimizer():
        vanilla = program.run()
        with amanda.apply(look):
            inside = program.run()
        after = program.run()
    assert inside.keys() == vanilla.keys()
    assert [name for name in vanilla if inside[name].tobytes() != vanilla[name].tobytes()] == []
    assert [name for name in vanilla if after[name].tobytes() != vanilla[name].tobytes()] == []
    for count in (look.count["Conv2D"], look.backward["Conv2DBackpropFilter"], look.backward["Conv2DBackpropInput"]):
        assert count == 3 * 53  # v1 optimizers wait for all gradients of an operator, also for that of the image
