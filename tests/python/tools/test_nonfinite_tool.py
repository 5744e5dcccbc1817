"""NaNSentinel: planted faults are named, each once, and nothing else is; the program's results stay the same."""

import ctypes
import re
import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError, NonfiniteWarning
from torch.utils.checkpoint import checkpoint

X = torch.tensor([0.0, 1.0])


def sqrt_backward():
    (X.clone().requires_grad_().sqrt() * 0).sum().backward()


def overflow():
    return torch.full((3,), 60000.0, dtype=torch.half) * 2


def norm():
    return (X - X) / (X - X).square().sum().sqrt()


def masked():
    scores = torch.zeros(2, 3).masked_fill(torch.tensor([[True], [False]]), -torch.inf)
    return torch.softmax(scores, -1).sum()


def in_place():
    return (X - 1).add_(1).mul_(1).div_(X)


def into_an_old_result():
    old = torch.full((2,), 3.0)
    return torch.div(X, X, out=old)


def foreach():
    return torch._foreach_div([X, X + 1], [X, X])


def foreach_in_place():
    torch._foreach_div_([X + 1, X + 0], [X + 1, X])


def foreach_optimizer():
    weight = torch.nn.Parameter(X + 1)
    weight.grad = X * 1e30
    torch.optim.SGD([weight], 1e30, foreach=True).step()


def checkpointed():
    checkpoint(lambda v: v.sqrt() * 0, X.clone().requires_grad_(), use_reentrant=False).sum().backward()


FINITE = "in float64 the result is finite,"

# fault, options, operator, its backward operator, what is said to be the cause
FAULTS = [
    (lambda: torch.log(X) * X, {}, "aten::mul", "", "input self is infinite at 1 of 2 elements"),
    (lambda: torch.log(X) * X, {"inf": True}, "aten::log", "", "input self is zero"),
    (lambda: (X - 1).sqrt() + 1, {}, "aten::sqrt", "", "input self is negative"),
    (
        lambda: torch.exp(X * 120) - 1,
        {"inf": True},
        "aten::exp",
        "",
        f"{FINITE} as large as 1.304e+52; float32 ends at 3.403e+38",
    ),
    (sqrt_backward, {}, "aten::sqrt", "SqrtBackward0", "saved result is zero"),
    (
        overflow,
        {"inf": True},
        "aten::mul",
        "",
        f"{FINITE} as large as 1.2e+05; float16 ends at 6.55e+04",
    ),
    (norm, {}, "aten::div", "", "input other is zero"),
    (masked, {}, "aten::softmax", "", "row 0 is wholly masked"),
    (in_place, {}, "aten::div_", "", "input other is zero"),
    (into_an_old_result, {}, "aten::div", "", "input other is zero"),
    (foreach, {}, "aten::_foreach_div", "", ""),
    (foreach_in_place, {}, "aten::_foreach_div_", "", ""),
    (foreach_optimizer, {"inf": True}, "aten::_foreach_add_", "", ""),
    (checkpointed, {}, "aten::sqrt", "SqrtBackward0", ""),  # its hooks would recompute
]


@pytest.mark.parametrize("waits", [True, False], ids=["at once", "on a device"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__}{fault[2]}")
def test_a_planted_fault_has_one_producer(fault, waits):
    run, options, name, backward_op, cause = fault
    sentinel = NaNSentinel(action="warn", **options)
    sentinel._waits = waits
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonfiniteWarning)
        with amanda.apply(sentinel):
            run()
    (found,) = sentinel.findings()
    assert found.kind == "produced"
    assert (found.name.partition(".")[0], found.backward_op) == (name, backward_op)
    assert "test_nonfinite_tool.py:" in found.source or run is foreach_optimizer
    if waits:
        assert cause in found.cause


def test_the_error_leaves_the_models_call_with_the_place_and_the_operands():
    class Norm(torch.nn.Module):
        def forward(self, v):
            return v / v.std()

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), Norm(), torch.nn.Linear(3, 3))
    torch.nn.init.constant_(model[0].weight, 0.0)
    torch.nn.init.constant_(model[0].bias, 0.0)
    sentinel = NaNSentinel()
    with pytest.raises(NonfiniteError) as raised, amanda.apply(sentinel):
        model(torch.ones(2, 3))
    text = str(raised.value)
    assert re.match(r"\[nan\] aten::div produced the first NaN in 1 \(.*test_nonfinite_tool.py:\d+\), forward\n", text)
    assert "  return v / v.std()\n  output 0: float32 [2, 3] on cpu: 6 of 6 NaN\n" in text
    assert "input self: float32 [2, 3] on cpu: 6 of 6 zero, from 0 to 0" in text
    assert text.endswith("cause: input other is zero")
    assert raised.value.finding == sentinel.first
    with amanda.apply(NaNSentinel()):  # the process is clean
        assert model[0](torch.ones(1, 3)).tolist() == [[0.0, 0.0, 0.0]]


def test_a_nan_in_a_parameter_or_in_the_data_is_no_operators_fault():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[1].running_var[0] = torch.nan
    model.eval()
    held = r"the first NaN was in parameter '1.running_var'; aten::batch_norm"
    with pytest.raises(NonfiniteError, match=held), amanda.apply(NaNSentinel()):
        model(torch.ones(3, 2))
    data = torch.full((3, 2), torch.nan)
    given = "was in an input that no operator seen here produced; aten::linear"
    with pytest.raises(NonfiniteError, match=given), amanda.apply(NaNSentinel()):
        model(data)


@pytest.mark.parametrize("waits", [True, False], ids=["at once", "on a device"])
def test_what_backward_operators_have_saved_is_an_input_of_theirs(waits):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, torch.nan)
    sentinel = NaNSentinel(action="warn")
    sentinel._waits = waits
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        model(torch.ones(1, 2)).square().sum().backward()
    (found,) = sentinel.findings()
    assert (found.kind, found.name, found.backward_op) == ("given", "aten::linear", "")


def test_of_many_operands_those_that_are_not_finite_are_listed():
    parts = [torch.ones(2) for _ in range(40)]
    parts[17] = torch.tensor([1.0, torch.nan])
    with pytest.raises(NonfiniteError) as raised, amanda.apply(NaNSentinel()):
        torch.stack(parts)
    finding = raised.value.finding
    assert len(finding.inputs) == 40
    listed = [line for line in str(finding).split("\n") if "tensors[" in line]
    assert listed == ["  input tensors[17]: float32 [2] on cpu: 1 of 2 NaN, from 1 to 1"]
    assert "  and 39 more, without a NaN or an infinity" in str(finding)


def test_the_rest_is_counted_as_propagated():
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(record=True) as warned, amanda.apply(sentinel):
        warnings.simplefilter("always")
        for _ in range(3):
            torch.relu(X / X).sum() + 1
    assert [(one.category, "aten::div produced" in str(one.message)) for one in warned] == [(NonfiniteWarning, True)]
    (found,) = sentinel.findings()
    assert (sentinel.runs(found), sentinel.propagated) == (3, 9)
    with pytest.raises(NonfiniteError, match="aten::div produced"):
        sentinel.check()
    sentinel.reset()
    sentinel.check()
    assert sentinel.propagated == 0


@pytest.mark.parametrize(
    "allowed", [{"allow_ops": ["div"]}, {"allow_modules": ["*"]}, {"allow_lines": ["test_nonfinite_tool.py"]}]
)
def test_what_is_allowed_may_produce_some(allowed):
    model = torch.nn.Module()
    model.forward = lambda: X / X + 1
    sentinel = NaNSentinel(**allowed)
    with amanda.apply(sentinel):
        model()
    assert sentinel.findings() == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("size", [1, 7, 5000])
def test_each_position_of_each_dtype_is_read(dtype, size):
    finfo = torch.finfo(dtype)
    for value in (torch.nan, -torch.nan, torch.inf, -torch.inf, finfo.max, finfo.min, finfo.tiny, -0.0):
        for at in {0, size // 2, size - 1}:
            for strided in (False, True):
                source = torch.zeros(2 * size, dtype=dtype)[::2] if strided else torch.zeros(size, dtype=dtype)
                source[at] = value
                for inf in (False, True):
                    sentinel = NaNSentinel(inf=inf, action="warn")
                    with warnings.catch_warnings(), amanda.apply(sentinel):
                        warnings.simplefilter("ignore")
                        torch.clone(source)
                    expected = torch.isnan(source).any() or (inf and torch.isinf(source).any())
                    was_read = sentinel.first is not None or bool(sentinel.masks)  # -inf could be a mask
                    assert was_read == bool(expected), (value, at, strided, inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_finite_elements_whose_sum_is_not_are_finite(dtype):
    large = torch.full((5000,), torch.finfo(dtype).max, dtype=dtype)
    both = torch.zeros(5000, dtype=dtype)
    both[640], both[704] = torch.inf, -torch.inf
    with amanda.apply(NaNSentinel(inf=True)):
        large.clone()
    with pytest.raises(NonfiniteError, match="first infinity was in"), amanda.apply(NaNSentinel(inf=True)):
        both.clone()


# (base's shape, the view of it): neighbours in runs, none next to another, transposed, with a hole, one element
VIEWS = [
    ((5, 40), lambda v: v[:, :33]),
    ((5, 40), lambda v: v[:, ::2]),
    ((4, 5, 6), lambda v: v.permute(2, 0, 1)[1:]),
    ((3, 3000), lambda v: v.t()[::3]),
    ((2, 1, 700), lambda v: v.transpose(0, 2)[5:, :, :1]),
    ((2, 3, 4), lambda v: v[1, 2, 3]),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("inf", [False, True])
def test_each_element_of_a_view_is_read_and_nothing_beside_it(dtype, inf):
    generator = torch.Generator().manual_seed(0)
    sentinel = NaNSentinel(inf=inf, action="warn")
    cases = set()
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        for shape, view_of in VIEWS:
            for at in torch.randint(0, torch.Size(shape).numel(), (8,), generator=generator).tolist():
                for value in (torch.nan, torch.inf):
                    with amanda.disabled():
                        base = torch.zeros(shape, dtype=dtype)
                        base.view(-1)[at] = value
                        view = view_of(base)
                        expected = bool((torch.isnan(view).any() if not inf else ~torch.isfinite(view).all()).item())
                    sentinel.reset()
                    view.copy_(view)
                    assert (sentinel.first is not None) == expected, (shape, at, value)
                    cases.add(expected)
    assert cases == {True, False}


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_expanded_gradients_are_read(dim):
    x = torch.ones(3, 50, requires_grad=True)
    gradient = torch.zeros_like(x.sum() if dim is None else x.sum(dim)).detach()
    gradient.view(-1)[-1] = torch.nan
    told = r"SumBackward\d of aten::sum passed it on.*\n.*\n  grad_input 0: float32 \[3, 50\] .* NaN"
    with pytest.raises(NonfiniteError, match=told), amanda.apply(NaNSentinel()):
        (x.sum() if dim is None else x.sum(dim)).backward(gradient)


def test_memory_without_values_is_no_fault():
    garbage = NaNSentinel(action="raise")
    with amanda.apply(garbage):
        memory = torch.empty(4)
        ctypes.memset(memory.data_ptr(), 0xFF, 16)  # as what was there before could be: a NaN
        memory[:2].fill_(1.0)
        memory.select(0, 3).copy_(X[1])
        memory.clone()
    assert garbage.findings() == []


OVERFLOWS = torch.tensor([-300.0, 2.0], dtype=torch.half)

# What once was said to be the cause, and is none: operator, inputs, cause
UNDERFLOW = "float16 rounds what is less than 3e-08, such as an eps of 1e-8, to zero"
CAUSES = [
    (torch.pow, (OVERFLOWS, 3.0), f"{FINITE} as large as 2.7e+07; float16 ends at 6.55e+04"),
    (torch.pow, (torch.tensor([-2.0, 1.0]), 0.5), "input self is negative, and input exponent no integer"),
    (torch.pow, (X - 0, -1.0), "input self is zero, and input exponent negative"),
    (torch.log1p, (torch.tensor([-0.5, -2.0]),), "input self is less than -1"),
    (torch.log1p, (torch.tensor([-0.5, -1.0]),), "input self is -1"),
    (torch.reciprocal, (torch.tensor([-1.0, 0.0]),), "input self is zero"),
    (torch.acos, (torch.tensor([-1.5, 0.0]),), "input self is outside of [-1, 1]"),
    (torch.log, (torch.tensor([-1.0, 0.0]),), "input self is negative at 1 of 2 elements of the result"),
    (torch.xlogy, (torch.ones(2), torch.tensor([-1.0, 1.0])), "input other is negative"),
    (
        torch.nn.functional.kl_div,
        (torch.zeros(2, 2), torch.tensor([[0.5, 0.5], [-0.7, -0.7]]), None, None, "sum"),
        "input target is negative at 2 of 4 elements: logarithms of probabilities need log_target=True",
    ),
    (torch.linalg.vector_norm, (torch.full((4,), 6e4).half(),), f"{FINITE} as large as 1.2e+05"),
    (torch.nn.functional.linear, (OVERFLOWS[:1], OVERFLOWS[None, :1]), FINITE),
    (torch.div, (torch.tensor([6e4]).half(), torch.tensor([1e-4]).half()), FINITE),
    (torch.full, ((2,), torch.nan), ""),
    (torch.mean, (X[:0],), "input self has no elements"),
    (torch.std, (X[:1],), "input self has one element for each of the result"),
    (torch.var, (X[None] - 0, 0), "input self has one element for each of the result"),
    (torch.nn.functional.mse_loss, (X[:0], X[:0]), "input self has no elements"),
    (
        torch.nn.functional.cross_entropy,
        (torch.zeros(2, 3), torch.full((2,), -100)),
        "input target is -100, which is ignored, at all 2 elements",
    ),
    (
        torch.exp,
        (torch.tensor([1e4], dtype=torch.float64),),
        "input self is greater than 709.8, where exp of float64 ends",
    ),
    (torch.expm1, (torch.tensor([1e4]),), "input self is greater than 88.72, where expm1 of float32 ends"),
    (torch.addcdiv, (X, X + 1, torch.tensor([0.0, 1.0])), "input tensor2 is zero"),
    (torch.cosh, (torch.tensor([1e4], dtype=torch.float64),), ""),
    (torch.addcdiv, (X.half(), X.half(), torch.tensor([1e-8, 1]).half()), f"input tensor2 is zero; {UNDERFLOW}"),
    (torch.div, (X.half(), X.half() * 0 + 1e-8), f"input other is zero; {UNDERFLOW}"),
    (torch.log, (X.half() * 0 + 1e-8,), f"input self is zero; {UNDERFLOW}"),
    (torch.log, (X.bfloat16() * 0,), "input self is zero"),
    (torch._foreach_addcdiv, ([X, X], [X, X], [X + 1, X * 0]), "input tensor2 is zero"),
    (torch._foreach_sqrt, ([X, -X - 1],), "input self is negative"),
    (torch._foreach_div, ([X + 1, X + 1], [X + 1, X]), "input other is zero"),
]


@pytest.mark.parametrize(("operator", "inputs", "cause"), CAUSES)
def test_a_cause_is_what_computing_it_again_confirms(operator, inputs, cause):
    state = torch.get_rng_state()
    sentinel = NaNSentinel(action="warn", inf=True)
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        result = operator(*inputs)
    results = result if isinstance(result, (list, tuple)) else [result]
    assert not all(torch.isfinite(one).all() for one in results)
    (found,) = sentinel.findings()
    assert found.cause.startswith(cause)
    assert (bool(found.cause), UNDERFLOW in found.cause) == (bool(cause), UNDERFLOW in cause)
    assert torch.equal(state, torch.get_rng_state())


def twins(values):
    return torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, 3.0]))]).mul(values)


def ctc(scores):
    targets = torch.tensor([[1, 2, 3], [1, 1, 1]])  # equal neighbours need a blank between them: 5 steps
    lengths = torch.tensor([4, 4]), torch.tensor([3, 3])
    return torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, *lengths)


UNUSED = "the gradient that it got is zero there, and zero times infinity is NaN"
# A function, where it is differentiated, the node that makes what is not finite, and its cause
DERIVATIVES = [
    (lambda x: x.pow(0.5).sum(), torch.tensor([0.0, 1.0]), "PowBackward0", "saved self is zero"),
    (lambda x: (x ** torch.tensor([0.5, 2.0])).sum(), torch.tensor([0.0, 1.0]), "PowBackward1", "saved self is zero"),
    (lambda x: torch.linalg.svd(twins(x))[0].sum(), torch.tensor(2.0), "LinalgSvdBackward0",
     "saved S has equal values"),
    (lambda x: torch.linalg.eigh(twins(x))[1].sum(), torch.tensor(2.0), "LinalgEighBackward0",
     "saved eigenvalues has equal values"),
    (lambda x: x.atanh().sum(), torch.tensor([1.0, 0.0]), "AtanhBackward0", "saved self is 1 or -1"),
    (lambda x: torch.where(x > 0, x.sqrt(), 0.0).sum(), torch.tensor([0.0, 1.0]), "SqrtBackward0",
     "saved result is zero"),
    (ctc, torch.randn(4, 2, 5), "CtcLossBackward0",
     "the loss of 1 of 2 examples is infinite: the target is longer than its input allows"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "at", "node", "cause"), DERIVATIVES, ids=[one[2] for one in DERIVATIVES])
def test_the_cause_of_a_derivative(function, at, node, cause):
    x = at.clone().requires_grad_()
    sentinel = NaNSentinel(action="warn", inf=node != "CtcLossBackward0")
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        function(x).backward()
    assert not torch.isfinite(x.grad).all()
    found = next(one for one in sentinel.findings() if one.backward_op)
    assert (found.backward_op, found.kind) == (node, "produced")
    assert found.cause.startswith(cause)
    assert (UNUSED in str(found)) == (node == "SqrtBackward0")


def test_a_gradient_that_is_infinite_is_the_cause_itself():
    x = torch.tensor([0.0], requires_grad=True)
    with pytest.raises(NonfiniteError) as raised, amanda.apply(NaNSentinel()):
        (x.pow(2.0) * torch.inf).sum().backward()
    assert "saved self is zero" not in raised.value.finding.cause


def test_looking_for_a_cause_leaves_random_numbers_as_they_are():
    def run():
        torch.manual_seed(0)
        return torch.nn.functional.dropout(torch.full((64,), 60000.0, dtype=torch.half), 0.5), torch.rand(4)

    expected = run()
    sentinel = NaNSentinel(action="warn", inf=True)
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        found = run()
    assert all(map(torch.equal, found, expected))
    assert sentinel.first is not None


def test_an_infinite_input_leads_to_its_origin_or_says_what_does():
    large = torch.full((2, 2), 60000.0, dtype=torch.half)
    hint = "input self was infinite already: --inf, or NaNSentinel(inf=True), names the operator that made it so"
    for waits in (True, False):
        sentinel = NaNSentinel(action="warn")
        sentinel._waits = waits
        with warnings.catch_warnings(), amanda.apply(sentinel):
            warnings.simplefilter("ignore")
            twice = large * 2
            twice - twice
        (found,) = sentinel.findings()
        assert found.name == "aten::sub"
        assert hint not in str(found)
        assert (found.origin.name if waits else found.origin) == ("aten::mul" if waits else None)
    with pytest.raises(NonfiniteError) as raised, amanda.apply(NaNSentinel(inf=True)):
        twice = large * 2
    assert raised.value.finding.name == "aten::mul"


class Steep(torch.autograd.Function):
    """Its backward divides infinity by infinity, for large inputs."""

    @staticmethod
    def forward(ctx, x, is_right):
        ctx.save_for_backward(x)
        ctx.is_right = is_right
        return x.cosh().clamp(max=1e30).log()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        e = (2 * x).exp()
        return gradient * (x.tanh() if ctx.is_right else (e - 1) / (e + 1)), None


def test_the_backward_of_a_function_is_named():
    x = torch.tensor([1.0, 60.0], requires_grad=True)
    with amanda.apply(NaNSentinel()), pytest.raises(NonfiniteError) as raised:
        Steep.apply(x, False).sum().backward()
    assert "SteepBackward of autograd::Steep produced the first NaN" in str(raised.value)
    assert "  Steep.backward, a function of Python, computed it: operators inside it are not looked at" in str(
        raised.value
    )
    with amanda.apply(NaNSentinel()) as sentinel:
        Steep.apply(x, True).sum().backward()
    assert sentinel.findings() == []


def test_training_is_the_same_to_the_bit():
    def train():
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = layer(torch.randn(3, 2, 8)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([parameter.flatten() for parameter in layer.parameters()])

    expected = train()
    for waits in (True, False):
        sentinel = NaNSentinel(inf=True)
        sentinel._waits = waits
        with amanda.apply(sentinel):
            found = train()
        assert torch.equal(found, expected)
        assert sentinel.findings() == []


def test_what_is_finite_is_read_in_cpp_alone(monkeypatch):
    """Its cost is that of the C++ routine: Python would be called for each operator."""

    def fail(*arguments, **keywords):
        raise AssertionError("called")

    monkeypatch.setattr(NaNSentinel, "_look", fail)
    monkeypatch.setattr(NaNSentinel, "_on_changed", fail)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with amanda.apply(NaNSentinel(inf=True)):
        layer(torch.randn(3, 2, 8)).square().mean().backward()
        optimizer.step()
    with pytest.raises(AssertionError, match="called"), amanda.apply(NaNSentinel()):
        X / X


def test_flags_on_a_device_are_read_at_the_end_of_the_scope():
    sentinel = NaNSentinel()
    sentinel._waits = False
    told = r"aten::div produced .*\n.*\n  output 0: float32 \[2\] on cpu\n"
    with pytest.raises(NonfiniteError, match=told), amanda.apply(sentinel):
        X / X


def test_what_is_wrong_with_an_argument():
    with pytest.raises(ValueError, match=r"\[nan\] action= is \"raise\" or \"warn\", got 'stop'"):
        NaNSentinel(action="stop")
    with pytest.raises(TypeError, match=r"\[nan\] allow_ops= is a list of strings, got 'div'"):
        NaNSentinel(allow_ops="div")


def test_the_example_names_the_softmax_of_an_empty_text(run_example):
    printed = run_example("find_nan.py")
    assert re.match(
        r"\[nan\] aten::softmax produced the first NaN in blocks\.0 \(.*find_nan\.py:23\), forward; "
        r"rows 0 to 6 of \[2\] are wholly masked, by aten::masked_fill",
        printed,
    )
    assert "output 0: float32 [4, 7, 7] on cpu: 49 of 196 NaN" in printed, "those of one text of four"
