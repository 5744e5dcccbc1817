"""CompiledDiff on graphs of all kinds, with backends that compile one function wrongly."""

import amanda
import pytest
import torch
from amanda.tools.compiled_diff import CompiledDiff

F = torch.nn.functional
X = torch.linspace(-1, 1, 40).reshape(5, 8)


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def backend(right=None, wrong=None):
    """A backend that runs graphs as they are, but for `wrong` in the place of `right`."""

    def compile(gm, inputs):
        for node in gm.graph.nodes:
            if right is not None and node.target == right:
                node.target = wrong
        gm.recompile()
        return gm.forward

    return compile


SIN_IS_COS = backend(torch.sin, torch.cos)


def diff_of(function, *args, compiled_by=SIN_IS_COS, **options):
    diff = CompiledDiff(**options)
    with amanda.apply(diff):
        torch.compile(function, backend=compiled_by)(*args)
    return diff


def names(diff):
    return [[one.partition(" ")[0] for one in row.operators] for row in diff.rows()]


def written_in_place(x):
    y = x.exp()
    z = torch.zeros_like(y)
    z[0] = torch.sin(y)[1]
    z.mul_(2)
    return z.relu() + 1


def of_parts(x):
    a, b = (x * 3).chunk(2, dim=-1)
    return torch.sin(a.tanh()) + b


def with_autocast(x):
    y = x.exp()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = torch.sin(y @ y.T)
    return z.float() * 2


def with_no_grad(x):
    with torch.no_grad():
        y = torch.sin(x + 1)
    return y * x


def of_sizes(x):
    return torch.sin(x).reshape(x.shape[0] * 2, -1).sum(0) / x.shape[1]


@pytest.mark.parametrize(
    ("function", "together"),
    [
        # one unit: from the first use of z to its last write
        (written_in_place, {"aten::sin"}),
        (of_parts, {"aten::sin"}),
        (with_autocast, {"aten::sin"}),
        (with_no_grad, {"aten::sin"}),
        (of_sizes, {"aten::sin"}),
    ],
)
def test_the_operator_that_is_compiled_wrongly_is_named(function, together):
    diff = diff_of(function, X.clone().requires_grad_(), backward=False)
    assert diff.not_compared == []
    (found,) = names(diff)
    assert together <= set(found)
    if function is written_in_place:
        assert "aten::exp" not in found
        assert "aten::relu" not in found
    else:
        assert set(found) == together
    right = diff_of(function, X.clone().requires_grad_(), compiled_by=backend())
    assert right.rows() == []
    assert right.not_compared == []


def test_a_gradient_that_is_wrong_is_named():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return torch.sin(x)

        @staticmethod
        def backward(context, gradient):
            return gradient * 0.5

    def wrong(x):
        return Wrong.apply(x)

    def function(x):
        return torch.sin(x * 2).square()

    diff = diff_of(function, X.clone().requires_grad_(), compiled_by=backend(torch.sin, wrong))
    (row,) = diff.rows()
    assert (row.direction, row.what) == ("backward", "gradient of l_x_")
    assert [one.partition(" ")[0] for one in row.operators] == ["aten::sin"]
    assert diff.summary.endswith("1 run, forward and backward")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.sin(self.head(self.norm(x)))


def test_the_running_statistics_are_compared_and_stay_the_programs_own():
    def other_momentum(x, mean, var, weight, bias, training, momentum, eps):
        return F.batch_norm(x, mean, var, weight, bias, training, momentum * 2, eps)

    states = []
    for tools in ([], [CompiledDiff()]):
        torch.manual_seed(0)
        net = Net()
        with amanda.apply(*tools, amanda.Tool("nothing")):
            compiled = torch.compile(net, backend=backend(F.batch_norm, other_momentum))
            compiled(X).square().mean().backward()
        states.append([*net.state_dict().values(), *(one.grad for one in net.parameters())])
    assert all(map(torch.equal, *states))
    (row,) = tools[0].rows()
    assert row.what.endswith("running_mean_ after it") or row.what.endswith("running_var_ after it")
    (operator,) = row.operators
    assert operator.startswith("aten::batch_norm (norm, ")


def test_each_run_and_each_graph_has_its_numbers():
    def function(x):
        y = torch.cos(x)
        torch._dynamo.graph_break()
        return torch.sin(y * 2)

    diff = CompiledDiff()
    compiled = torch.compile(function, backend=SIN_IS_COS)
    with amanda.apply(diff):
        compiled(torch.full((2,), torch.pi / 8))  # where sine and cosine are not far apart
        compiled(torch.zeros(2))
    (row,) = diff.rows()
    assert (row.graph, row.runs, row.first_run) == (1, 2, 0)
    two = torch.tensor(2.0)
    assert row.max_abs == pytest.approx((two.sin() - two.cos()).item())
    assert diff.summary == "1 difference from eager mode in 2 graphs of 1 compiled function, 4 runs, forward"


def test_shapes_that_change_are_compared_in_the_same_graph():
    diff = CompiledDiff()
    compiled = torch.compile(of_sizes, backend=SIN_IS_COS, dynamic=True)
    with amanda.apply(diff):
        for rows in (4, 6):
            compiled(torch.ones(rows, 8))
    (row,) = diff.rows()
    assert (row.runs, diff.not_compared) == (2, [])


def test_only_values_that_are_finite_in_one_run_count():
    def root(x):
        return torch.sqrt(x.abs()) * 2

    wrong = backend(torch.sqrt, torch.log)
    zero = torch.zeros(2, 3)
    (row,) = diff_of(root, zero, compiled_by=wrong, only_nonfinite=True).rows()
    assert row.note == "6 elements are finite in eager mode only"
    assert row.max_abs is None
    assert [one.partition(" ")[0] for one in row.operators] == ["aten::sqrt"]
    assert diff_of(root, zero + 2, compiled_by=wrong, only_nonfinite=True).rows() == []
    assert diff_of(torch.log, -zero - 1, compiled_by=backend(), only_nonfinite=True).rows() == [], "NaN in both"


def test_what_was_not_compared_is_said_and_is_no_agreement():
    def function(x):
        return F.dropout(x, 0.5) + 1

    diff = diff_of(function, X)
    assert diff.rows() == []
    (text,) = diff.not_compared
    assert text.startswith("1 run of ")
    assert "it draws random numbers, and the backend " in text
    assert diff.summary.startswith("no difference from eager mode in what was compared: 1 graph")
    nothing = CompiledDiff()
    with amanda.apply(nothing):
        torch.sin(X)
    assert nothing.summary == "no compiled function ran, and nothing was compared"


def test_the_random_state_and_the_results_are_those_without_the_tool():
    def function(x):
        return torch.sin(F.dropout(x, 0.5))

    results = []
    for tools in ([], [CompiledDiff()]):
        torch._dynamo.reset()
        torch.manual_seed(5)
        with amanda.apply(*tools, amanda.Tool("nothing")):
            results.append((torch.compile(function, backend=SIN_IS_COS)(X), torch.get_rng_state()))
    assert all(map(torch.equal, *results))


def test_a_search_that_ends_early_says_so():
    def function(x):
        for _ in range(20):
            x = torch.sin(x) + 0.1
        return x

    diff = diff_of(function, X, seconds=0)
    (row,) = diff.rows()
    assert not row.is_smallest
    assert "these operators differ when compiled as one, and a part of them may, too" in diff.answer()


def test_tolerances():
    def function(x):
        return torch.sin(x)

    slightly = backend(torch.sin, lambda x: torch.sin(x) * (1 + 1e-6))
    assert diff_of(function, X, compiled_by=slightly).differs
    assert not diff_of(function, X, compiled_by=slightly, close=True).differs
    assert not diff_of(function, X, compiled_by=slightly, rtol=1e-5).differs
    with pytest.raises(ValueError, match=r"\[compiled_diff\] seconds= is the time for a search, 0 or more, got -1"):
        CompiledDiff(seconds=-1)
