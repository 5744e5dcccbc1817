"""What stands in front of PyTorch's own Python functions takes, returns and raises what they do."""

import inspect
import pickle
import threading

import amanda
import pytest
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k=2, *, shift=0):
        ctx.k = k
        return x * k + shift

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * ctx.k, *[gradient if needed else None for needed in ctx.needs_input_grad[1:]])


class ScaleLate(torch.autograd.Function):
    @staticmethod
    def forward(x, k=2):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.k, None


CALLS = {
    "a keyword": lambda x, w: Scale.apply(x, k=3),
    "only keywords": lambda x, w: Scale.apply(k=4, x=x),
    "a keyword-only one": lambda x, w: Scale.apply(x, shift=1),
    "a tensor by keyword": lambda x, w: Scale.apply(x, k=w),
    "a late context": lambda x, w: ScaleLate.apply(x, k=3),
    "a function's own name for it": lambda x, w: Scale.apply(x, cls=3),
    "no such keyword": lambda x, w: Scale.apply(x, q=3),
    "torch.func": lambda x, w: torch.func.grad(lambda v: ScaleLate.apply(v, k=3).sum())(x),
}


def outcome(call):
    """All that a call leaves behind: result, graph, gradients; or its error."""
    x, w = torch.ones(2, requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
    try:
        result = call(x, w)
        nodes = result.grad_fn and [node and type(node).__name__ for node, _ in result.grad_fn.next_functions]
        if result.requires_grad:
            result.sum().backward()
    except Exception as error:
        return type(error), str(error)
    return result.tolist(), nodes, x.grad is not None and x.grad.tolist(), w.grad is not None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_function_takes_keywords_as_it_does_without_a_scope(call):
    expected, here = outcome(call), []
    with amanda.apply(amanda.Tool()):
        here.append(outcome(call))
        thread = threading.Thread(target=lambda: here.append(outcome(call)))
        thread.start()
        thread.join()
    assert here == [expected, expected]


def test_a_tensor_given_by_keyword_is_an_input_of_the_backward_operator():
    seen, tool = [], amanda.Tool()
    tool.add_inst_for_op(
        lambda c: seen.append((c.op.name, c.backward_op.__name__, c.inputs[1])), ops="Scale", backward=True
    )
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    with amanda.apply(tool):
        Scale.apply(torch.ones(2, requires_grad=True), k=w).sum().backward()
    assert seen[0][:2] == ("autograd::Scale", "ScaleBackward")
    assert seen[0][2] is w


def test_what_describes_a_function_is_the_same_in_a_scope():
    base = torch.autograd.function._SingleLevelFunction

    def described():
        backward = torch.utils.checkpoint.CheckpointFunction.backward
        with pytest.raises(ValueError, match="no signature found"):
            inspect.signature(base.apply)
        return [
            inspect.signature(Scale.apply),
            inspect.signature(backward),
            base.apply.__name__,
            pickle.dumps(Scale.apply),
            pickle.dumps(backward),
            pickle.dumps(torch.utils.checkpoint._run_fn_with_dynamo_disabled),
        ]

    expected = described()
    with amanda.apply(amanda.Tool()):
        assert described() == expected


def test_inference_mode_is_left_by_keywords_too():
    mode = torch.inference_mode()
    mode.__enter__()
    assert mode.__exit__(exc_type=None, exc_value=None, traceback=None) is None
    assert not torch.is_inference_mode_enabled()
