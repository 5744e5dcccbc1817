"""SubgraphRewriting's patterns: graphs of operators that match, and those that do not."""

import copy
import re
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.rewriting import SubgraphRewriting
from equal_tensors import same
from rewritten_layers import LINEAR_GELU, counts, fused, never

# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_a_result_that_two_operators_of_the_match_take():
    def written(x, weight):
        h = x @ weight
        return h * torch.sigmoid(h * 2)

    def function(h, doubled, gate, product):
        return F.silu(h.self @ h.other * doubled.other) / doubled.other

    pattern = {"h": "matmul", "d": ("mul", "h"), "g": ("sigmoid", "d"), "p": ("mul", "h", "g")}
    found, expected, rewriting = trained_layer(written, pattern, function)
    torch.testing.assert_close(found, expected)
    assert counts(rewriting) == [(1, 0)]


def trained_layer(written, pattern, function, runs=2):
    """Output and gradients of the last run with the tool, and without."""
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    rewriting = SubgraphRewriting(pattern, function)
    with amanda.apply(rewriting):
        for _ in range(runs):
            y = written(x, weight)
            found = [y, *torch.autograd.grad(y.square().sum(), [x, weight])]
    y = written(x, weight)
    return found, [y, *torch.autograd.grad(y.square().sum(), [x, weight])], rewriting


def test_none_is_an_input_from_outside_and_alternatives_are_a_tuple():
    pattern = {"product": ("matmul",), "scaled": (("mul", "div"), "product"), "sum": ("add", None, "scaled")}

    def function(product, scaled, total):
        assert sorted(vars(total)) == ["alpha", "op", "self"]
        assert scaled.op.__name__ == "div"
        return torch.addmm(total.self, product.self, product.other, alpha=1 / float(scaled.other))

    for order, runs in ((lambda bias, y: bias + y, [(1, 0)]), (lambda bias, y: y + bias, [])):

        def written(x, weight, order=order):
            return order(torch.ones(5), x @ weight / 4)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if not runs else "error", amanda.UnmatchedFilterWarning)
            found, expected, rewriting = trained_layer(written, pattern, function)
        torch.testing.assert_close(found, expected)
        assert counts(rewriting) == runs


def test_a_view_inside_a_match():
    def function(product, turned, made):
        return torch.relu(product.other.t() @ product.self.t())

    found, expected, rewriting = trained_layer(lambda x, w: torch.relu((x @ w).t()), ["matmul", "t", "relu"], function)
    torch.testing.assert_close(found, expected)
    assert counts(rewriting) == [(1, 0)]


def test_earlier_rules_go_first_and_no_operator_is_in_two_matches():
    ran = []
    rewriting = SubgraphRewriting(["relu", "sin", "relu"], lambda *_: ran.append("long") or torch.ones(2))
    rewriting.add_rule(["sin", "relu"], lambda *_: ran.append("short") or torch.ones(2))
    rewriting.add_rule(["neg"], lambda _: ran.append("single") or torch.ones(2))

    def program(x):
        return torch.relu(torch.sin(torch.relu(x))), torch.neg(torch.relu(torch.sin(x)))

    with amanda.apply(rewriting):
        for _ in range(2):
            program(torch.randn(2))
    assert ran == ["long", "short", "single"]
    assert [row.name for row in rewriting.rows()] == [
        "aten::relu > aten::sin > aten::relu",
        "aten::sin > aten::relu",
        "aten::neg",
    ]


# ---- what is no match ------------------------------------------------------------------------------------------------


LAYER = torch.nn.Linear(4, 4)

NOT_LINEAR = "is not linear, or is in another match, writes in place or returns several values"


@pytest.mark.parametrize(
    ("written", "pattern", "why"),
    [
        (lambda x: F.gelu(h := LAYER(x)) + h, LINEAR_GELU, "the result of aten::linear also goes to aten::add"),
        (lambda x: F.gelu(LAYER(x).add_(1)), LINEAR_GELU, f"aten::add_ {NOT_LINEAR}"),
        (lambda x: (h := LAYER(x), h.mul_(2), F.gelu(h))[2], LINEAR_GELU, f"aten::mul_ {NOT_LINEAR}"),
        (lambda x: F.gelu(LAYER(x).t()), LINEAR_GELU, f"aten::t {NOT_LINEAR}"),
        (lambda x: LAYER(F.gelu(x)), LINEAR_GELU, f"self {NOT_LINEAR}"),
        (lambda x: (h := LAYER(x)) * h, ["linear", "mul"], "the result of aten::linear also goes to aten::mul"),
        (torch.sin, LINEAR_GELU, "no gelu ran"),
    ],
    ids=["used twice", "in place", "written to", "in between", "other way round", "twice in one", "absent"],
)
def test_what_matches_nothing_runs_as_written_and_warns(written, pattern, why):
    x, rewriting = torch.randn(3, 4), SubgraphRewriting(pattern, never)
    with pytest.warns(amanda.UnmatchedFilterWarning) as caught:  # noqa: SIM117 -- it is given when the scope is left
        with amanda.apply(rewriting):
            found = [written(x) for _ in range(3)]
    same(found, [written(x)] * 3)
    (warning,) = caught
    text = re.sub(r" \([^)]*\)", "", str(warning.message))
    assert (text, warning.filename) == (
        f"[rewriting] the pattern {' > '.join(pattern)} matched nothing that ran: {why}",
        __file__,
    )
    assert rewriting.rows() == []
    with amanda.apply(rewriting):
        written(x)  # it warns once


def test_a_view_of_an_outside_tensor_is_not_skipped():
    x, rewriting = torch.randn(2, 3), SubgraphRewriting(["t", "t"], never)
    with amanda.apply(rewriting):
        for _ in range(3):
            x.t().t().add_(1)
    assert counts(rewriting) == [(0, 2)]


def test_a_name_of_the_pattern_elsewhere_costs_nothing_after_its_second_run():
    rewriting = SubgraphRewriting(LINEAR_GELU, fused)
    model, scope = torch.nn.Sequential(LAYER, copy.deepcopy(LAYER), torch.nn.GELU()), amanda.apply(rewriting)
    with scope:
        for _ in range(3):
            model(torch.ones(2, 4))
    described = [(row.operator, row.module_path) for row in scope.describe().rows()]
    assert described == [("aten::linear", "1"), ("aten::gelu", "2")]
