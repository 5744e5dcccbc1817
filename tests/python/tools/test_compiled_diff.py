"""CompiledDiff on planted faults of the compiler, each with a right twin."""

import amanda
import pytest
import torch
from amanda.tools.compiled_diff import CompiledDiff

aten = torch.ops.aten
pytestmark = pytest.mark.slow  # inductor compiles


@pytest.fixture(autouse=True)
def anew():
    """Others do not get code with a planted fault."""
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture
def lowerings(monkeypatch):
    from torch._inductor.lowering import lowerings

    return lambda op, other: monkeypatch.setitem(lowerings, op, lowerings[other])


def diff_of(function, *args, **options):
    diff = CompiledDiff(**options)
    with amanda.apply(diff):
        torch.compile(function)(*args)
    return diff


def line_of(function, offset):
    return f"test_compiled_diff.py:{function.__code__.co_firstlineno + offset}"


def waves(x):
    a = x.exp() + 1
    b = torch.sin(a)
    return b.tanh() * 2


X = torch.linspace(-1, 1, 40).reshape(5, 8)


def test_a_wrong_lowering_is_named(lowerings):
    lowerings(aten.sin.default, aten.cos.default)
    diff = diff_of(waves, X, close=True)
    (row,) = diff.rows()
    assert row.operators == (f"aten::sin ({line_of(waves, 2)})",)
    assert (row.direction, row.is_smallest, row.runs) == ("forward", True, 1)
    a = X.exp() + 1
    assert row.max_abs == pytest.approx(((a.cos().tanh() - a.sin().tanh()) * 2).abs().max().item(), rel=1e-4)
    assert row.layer.startswith("inductor's lowering")
    assert any("sin" in kernel for kernel in row.kernels)
    assert row.ulps > 1e5 > 10 > row.reference_ulps
    assert "eager is nearer to float64" in diff.answer()


def test_the_right_one_is_not(request):
    diff = diff_of(waves, X, close=True)
    assert diff.rows() == []
    assert diff.not_compared == []
    assert diff.summary == "no difference from eager mode in 1 graph of 1 compiled function, 1 run, forward"


def test_a_wrong_lowering_in_the_backward_pass_is_named(lowerings):
    lowerings(aten.cos.default, aten.exp.default)  # sin's gradient has the cosine
    diff = diff_of(waves, X.clone().requires_grad_(), close=True)
    (row,) = diff.rows()
    assert (row.direction, row.what) == ("backward", "gradient of l_x_")
    assert row.operators == (f"aten::sin ({line_of(waves, 2)})",)
    assert row.layer.startswith("inductor's lowering")


def test_a_wrong_decomposition_is_named(monkeypatch):
    from torch._inductor import decomposition

    def silu(x):
        return x * torch.sigmoid(x) + 0.25

    monkeypatch.setitem(decomposition.decompositions, aten.silu.default, silu)
    decomposition.fast_random_decomps.cache_clear()

    def function(x):
        y = torch.nn.functional.silu(x.cos())
        return y + 1

    try:
        (row,) = diff_of(function, X, close=True).rows()
    finally:
        decomposition.fast_random_decomps.cache_clear()
    assert row.operators == (f"aten::silu ({line_of(function, 1)})",)
    assert row.layer.startswith("a decomposition")
    assert row.max_abs == pytest.approx(0.25, rel=1e-4)


def mixed(x, c):
    z = torch.where(c, torch.full_like(x, 0.5), torch.full_like(x, -0.5))
    y = z.to(torch.float16) + x.to(torch.float16)
    return y, y.float().sum()


MIXED = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 10, (torch.arange(24) % 5 == 0).reshape(2, 3, 4)


def test_a_rounding_that_fusion_leaves_out_is_named_with_the_option_that_restores_it():
    diff = diff_of(mixed, *MIXED)
    (row,) = diff.rows()
    line = line_of(mixed, 2)
    assert row.operators == (f"aten::to ({line})", f"aten::add ({line})")
    assert "emulate_precision_casts=True" in row.removed_by
    assert row.ulps < row.reference_ulps
    assert "compiled is nearer to float64" in diff.answer()
    assert (row.what, row.dtype, row.elements) == ("output 0", "float16", row.elements)


def test_with_that_option_nothing_differs():
    diff = CompiledDiff()
    with amanda.apply(diff):
        torch.compile(mixed, options={"emulate_precision_casts": True})(*MIXED)
    assert diff.rows() == []


def test_random_numbers_are_no_difference(lowerings):
    def function(x):
        y = torch.nn.functional.dropout(x, 0.5)
        return torch.sin(y + 1)

    diff = diff_of(function, X, close=True)
    assert diff.rows() == []
    assert "graphs that draw random numbers with fallback_random=True" in diff.summary
    lowerings(aten.sin.default, aten.cos.default)
    torch._dynamo.reset()
    (row,) = diff_of(function, X, close=True).rows()
    assert row.operators == (f"aten::sin ({line_of(function, 2)})",)


def test_the_program_computes_what_it_computes_alone(lowerings):
    lowerings(aten.sin.default, aten.cos.default)

    def run(tools):
        torch._dynamo.reset()
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3))
        compiled = torch.compile(lambda x: torch.sin(model(x)))
        with amanda.apply(*tools):
            for _ in range(2):
                compiled(X).square().mean().backward()
        return [*model.state_dict().values(), *(one.grad for one in model.parameters()), torch.get_rng_state()]

    diff = CompiledDiff(close=True, seconds=0)  # the search has tests of its own
    alone, looked_at = run([amanda.Tool("nothing")]), run([diff])
    assert all(map(torch.equal, alone, looked_at))
    assert any("aten::sin" in one for row in diff.rows() for one in row.operators)
    assert max(row.runs for row in diff.rows()) == 2
