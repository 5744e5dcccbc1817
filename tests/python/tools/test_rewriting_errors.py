"""SubgraphRewriting's messages: patterns and functions that it refuses."""

import re

import amanda
import pytest
import torch
from amanda.tools.rewriting import SubgraphRewriting
from rewritten_layers import LINEAR_GELU, Layer, gelu_of, never


@pytest.mark.parametrize(
    ("pattern", "error", "text"),
    [
        ([], ValueError, 'an empty pattern matches nothing; write a list such as ["linear", "gelu"]'),
        ({}, ValueError, 'an empty pattern matches nothing; write a list such as ["linear", "gelu"]'),
        ("linear", TypeError, 'a pattern is a list such as ["linear", "gelu"], or a dict, got \'linear\''),
        (3, TypeError, 'a pattern is a list such as ["linear", "gelu"], or a dict, got 3'),
        (["linear", 3], ValueError, "1 of the pattern has no operator's name: (3, 0)"),
        (["linear", ()], ValueError, "1 of the pattern has no operator's name: ((), 0)"),
        (["conv2D", "relu"], ValueError, "the pattern matches nothing: no operator 'conv2D'; did you mean 'conv2d'?"),
        (
            ["conv2d", "relu_"],
            ValueError,
            "'relu_' works in place, and other tensors see what it writes; end the pattern before it",
        ),
        (
            {"a": "linear", "b": "linear", "c": ("relu", "b")},
            ValueError,
            "the pattern is not connected: no later operator takes the result of 'a' (linear); the last one, 'c', must "
            "depend on all others",
        ),
        (
            {"a": "linear", "b": ("mul", "div")},
            ValueError,
            "'b' takes the result of 'div', which is no earlier operator of the pattern ('a'); None is an input from "
            'outside, and alternatives are a tuple of their own: (("mul", "div"), ...)',
        ),
    ],
)
def test_a_pattern_that_cannot_match_is_refused(says, pattern, error, text):
    with says(error, f"[rewriting] {text}"):
        SubgraphRewriting(pattern, never)


def test_a_function_that_cannot_take_the_operators_is_refused(says):
    with says(TypeError, "[rewriting] what replaces the pattern is a function, got 3"):
        SubgraphRewriting(LINEAR_GELU, 3)
    rewriting = SubgraphRewriting(LINEAR_GELU, never)
    with says(
        TypeError,
        "[rewriting] gelu_of cannot take 3 arguments, one for each operator of the pattern linear > mul > gelu",
    ):
        rewriting.add_rule(["linear", "mul", "gelu"], gelu_of)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            lambda y: y.double(),
            "returned torch.float64 [3, 5] on cpu; the program computes torch.float32 [3, 5] on cpu",
        ),
        (lambda y: y.t(), "returned torch.float32 [5, 3] on cpu; the program computes torch.float32 [3, 5] on cpu"),
        (lambda y: y.detach(), "returned a tensor without a gradient; what the program computes has one"),
        (lambda y: None, "returned NoneType; return a tensor, or NotImplemented to run what is written"),
    ],
    ids=["dtype", "shape", "gradient", "nothing"],
)
def test_a_result_that_is_not_what_the_program_computes_is_an_error(function, problem):
    layer, x = Layer(), torch.randn(3, 4)

    def wrong(linear, gelu):
        return function(gelu_of(linear, gelu))

    with amanda.apply(SubgraphRewriting(LINEAR_GELU, wrong)):
        layer(x)
        with pytest.raises(amanda.Error) as caught:
            layer(x)
    text = re.sub(r" \([\w.]+:\d+\)", "", str(caught.value))
    assert text.startswith(f"[rewriting] wrong, in place of aten::linear > aten::gelu, {problem}")


def test_a_result_in_the_memory_of_an_input_is_an_error():
    x, model = torch.randn(3), torch.nn.Sequential(Layer(lambda h, y: torch.neg(torch.neg(x))))
    with amanda.apply(SubgraphRewriting(["neg", "neg"], lambda inner, outer: inner.self.view(3))):
        model(torch.ones(4))
        with pytest.raises(
            amanda.Error, match=r"returned a tensor that shares memory with an input; return result\.clone"
        ):
            model(torch.ones(4))


def test_an_input_that_the_match_makes_is_no_attribute(says):
    rewriting, layer, x = SubgraphRewriting(LINEAR_GELU, lambda linear, gelu: gelu.self), Layer(), torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x)
        with says(
            AttributeError, "[rewriting] aten::gelu has no input 'self' from outside the match; it has approximate"
        ):
            layer(x)
