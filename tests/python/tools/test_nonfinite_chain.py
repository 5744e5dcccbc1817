"""NaNSentinel: from a NaN back to the operator with which it began, by default."""

import itertools
import math
import warnings

import amanda
import numpy as np
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel
from torch.nn import functional as F

ONE_HOT = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def log_of_a_softmax():
    probabilities = torch.softmax(torch.tensor([[0.0, 200.0], [0.0, 1.0]]), 1)  # the first is zero
    return (ONE_HOT[[1, 0]] * -torch.log(probabilities)).sum(1).mean()


def log_of_a_sigmoid():
    probability = torch.sigmoid(torch.tensor([-200.0, 1.0]))
    label = torch.tensor([0.0, 1.0])
    return -(label * torch.log(probability) + (1 - label) * torch.log(1 - probability)).mean()


def log_of_one_minus_a_sigmoid():
    probability = torch.sigmoid(torch.tensor([40.0, 1.0]))
    label = torch.ones(2)
    return -(label * probability.log() + (1 - label) * (1 - probability).log()).mean()


def softmax_by_hand():
    scores = torch.tensor([100.0, 1.0]).exp()
    return scores / scores.sum()


def free_energy():
    hidden = torch.tensor([[200.0, 1.0]]).exp().add(1).log().sum(1)
    return hidden - hidden


def softplus_by_hand():
    x = leaf(200.0, 1.0)
    torch.log(1 + torch.exp(x)).sum().backward()


def division_by_a_zero_norm():
    x = leaf([0.0, 0.0], [3.0, 4.0])
    return (x / x.norm(dim=1, keepdim=True)).sum()


def division_by_a_zero_spread():
    x = torch.full((4,), 3.0)
    return (x - x.mean()) / x.std()


def one_by_a_zero_spread():
    x = torch.full((4,), 3.0)
    scale = 1 / x.var()
    return (x - x.mean()) * scale


def root_at_zero():
    x = leaf(0.0, 1.0)
    ((x * x).sqrt() + 1).sum().backward()


def power_at_zero():
    x = leaf(0.0, 4.0)
    (x.square() ** 0.5).sum().backward()


def power_that_overflows():
    x = torch.tensor([1e20, 2.0]) ** 2
    return x / x


def half_precision():
    x = torch.full((2, 2), 300.0, dtype=torch.half)
    return (x * x).softmax(-1)


def difference_of_sums():
    x = torch.full((4,), 2e38)
    return x.sum() - x.cumsum(0)[-1]


def arc_cosine():
    x = leaf(1.0, 0.5)
    (torch.acos(x).sin() * 0).sum().backward()


def reciprocal_root():
    x = torch.zeros(3)
    return x * torch.rsqrt(x)


# program, the operator with which it began, its backward operator, where it was noticed, the cause
KINDS = [
    (log_of_a_softmax, "aten::log", "", "aten::mul", "input self is zero"),
    (log_of_a_sigmoid, "aten::log", "", "aten::mul", "input self is zero"),
    (log_of_one_minus_a_sigmoid, "aten::log", "", "aten::mul", "input self is zero"),
    (softmax_by_hand, "aten::exp", "", "aten::div", "in float64 the result is finite, as large as 2.688e+43"),
    (free_energy, "aten::exp", "", "aten::sub", "in float64 the result is finite, as large as 7.226e+86"),
    (softplus_by_hand, "aten::exp", "", "aten::exp", "in float64 the result is finite, as large as 7.226e+86"),
    (division_by_a_zero_norm, "aten::div", "", "aten::div", "input other is zero"),
    (division_by_a_zero_spread, "aten::div", "", "aten::div", "input other is zero"),
    (one_by_a_zero_spread, "aten::reciprocal", "", "aten::mul", "input self is zero"),
    (root_at_zero, "aten::sqrt", "SqrtBackward0", "aten::mul", "saved result is zero"),
    (power_at_zero, "aten::pow", "PowBackward0", "aten::square", ""),
    (power_that_overflows, "aten::pow", "", "aten::div", "in float64 the result is finite, as large as 1e+40"),
    (half_precision, "aten::mul", "", "aten::softmax", "in float64 the result is finite, as large as 9e+04"),
    (difference_of_sums, "aten::sum", "", "aten::sub", "in float64 the result is finite, as large as 8e+38"),
    (arc_cosine, "aten::acos", "AcosBackward0", "aten::acos", "saved self is 1 or -1"),
    (reciprocal_root, "aten::rsqrt", "", "aten::mul", "input self is zero"),
]


def found_in(program, **options):
    sentinel = NaNSentinel(action="warn", **options)
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        program()
    return sentinel.findings()


@pytest.mark.parametrize(("program", "name", "backward_op", "noticed", "cause"), KINDS)
def test_the_operator_with_which_it_began_is_named(program, name, backward_op, noticed, cause):
    first = found_in(program)[0]
    assert (first.origin.name, first.origin.backward_op, first.name) == (name, backward_op, noticed)
    assert first.origin.cause.startswith(cause)
    assert first.origin.source.partition(":")[0].endswith("test_nonfinite_chain.py")
    if len(first.chain) > 1:
        assert f"; it began in {first.origin.place}" in str(first).partition("\n")[0]


def test_each_link_has_the_operand_the_line_and_the_elements():
    (found,) = found_in(log_of_a_softmax)
    assert [(link.name, link.carrier, link.result) for link in found.chain] == [
        ("aten::log", "", "-inf at [0, 0], 1 of 4 elements"),
        ("aten::neg", "input self", "inf at [0, 0], 1 of 4 elements"),
        ("aten::mul", "input other", "NaN at [0, 0], 1 of 4 elements"),
    ]
    first, second, third = str(found).splitlines()[-3:]
    line = log_of_a_softmax.__code__.co_firstlineno + 2
    assert first.startswith("    aten::log (")
    assert f"test_nonfinite_chain.py:{line}), forward: -inf at [0, 0]" in first
    assert first.endswith("; input self is zero")
    assert ", forward, given input self: inf at [0, 0], 1 of 4 elements" in second
    assert third.startswith("    aten::mul (")


def test_elements_that_stay_the_same_are_not_told_again():
    (found,) = found_in(lambda: (torch.zeros(3).log() + 1) * 0)
    first, second, third = str(found).splitlines()[-3:]
    assert first.endswith("forward: -inf at all 3 elements; input self is zero")
    assert second.endswith("forward, given input self: the same")
    assert third.endswith("forward, given input self: NaN at all 3 elements")


def test_modules_are_named_on_the_way():
    class Log(torch.nn.Module):
        def forward(self, x):
            return x.log()

    class Weigh(torch.nn.Module):
        def forward(self, x):
            return x * 0

    (found,) = found_in(
        lambda: torch.nn.Sequential(torch.nn.ReLU(), Log(), torch.nn.Tanhshrink(), Weigh())(-torch.ones(2))
    )
    assert [link.module_path for link in found.chain] == ["1", "2", "3"]
    assert found.origin.place.startswith("aten::log in 1 (")


def test_a_view_leads_to_the_operator_that_wrote_there():
    memory = torch.zeros(4, 4)

    def program():
        memory[0].copy_(torch.full((4,), 1e30) * 1e30)
        memory[2].copy_(torch.ones(4) / 0)
        rows = memory.t()[:, 2]
        return rows - rows

    (found,) = found_in(program)
    assert [link.name for link in found.chain] == ["aten::div", "aten::copy_", "aten::sub"]


def test_an_operator_that_overwrites_its_operand_is_a_link():
    def program():
        x = torch.full((2, 3), 1e30)
        x[1].mul_(1e30)
        x.add_(1)
        return x.sub_(x)

    (found,) = found_in(program)
    assert [(link.name, link.carrier.partition(" and ")[0]) for link in found.chain] == [
        ("aten::mul_", ""),
        ("aten::add_", "input self"),
        ("aten::sub_", "input self"),
    ]
    assert found.chain[1].result == "inf at [1, :], 3 of 6 elements"


def test_a_sum_of_gradients_leads_to_what_was_added():
    """Autograd adds them up between operators, in memory that no operator writes."""

    def program():
        x = leaf(1e-30, 1e-30)
        y = x * 1
        (y.view(2, 1).mul(1e20).mul(1e20).sum() - (y * 1e25 * 1e20).sum()).backward()

    (found,) = found_in(program)
    assert (found.kind, found.name, found.backward_op) == ("given", "aten::mul", "MulBackward0")
    assert found.chain[-1].carrier == "grad_output 0, a sum of gradients"
    assert (found.origin.backward_op, found.origin.result) == ("MulBackward0", "inf at all 2 elements")


def test_what_was_given_from_outside_begins_the_chain():
    weight = torch.nn.Parameter(torch.tensor([torch.inf, 1.0]))
    (found,) = found_in(lambda: (weight + 1) * 0)
    assert found.kind == "produced"
    assert (found.origin.name, found.origin.held) == ("aten::add", "an input that no operator seen here produced")
    assert "; it began in an input that no operator seen here produced, given to aten::add (" in str(found)


def test_a_long_chain_keeps_its_ends():
    def program():
        x = torch.zeros(1).log()
        for _ in range(100):
            x = x + 1
        return x * 0

    (found,) = found_in(program)
    assert len(found.chain) == 16
    assert (found.chain[0].name, found.chain[-1].name, found.left_out) == ("aten::log", "aten::mul", 86)
    assert "\n    ... 86 more\n" in str(found)


def test_memory_that_is_free_again_tells_nothing():
    def program():
        for _ in range(50):
            torch.zeros(64).log()  # infinities that nothing reads
            torch.ones(64).exp()
        x = torch.ones(64) * 1e38
        return x * 10 * 0

    (found,) = found_in(program)
    assert [link.name for link in found.chain] == ["aten::mul", "aten::mul"]


def test_outside_of_a_scope_nobody_sees_what_is_written():
    memory, sentinel = torch.zeros(2), NaNSentinel(action="warn")
    with amanda.apply(sentinel):
        memory.log_()
    memory.fill_(torch.inf)
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        memory - memory
    assert sentinel.first.origin.held == "an input that no operator seen here produced"


def test_an_infinity_alone_is_no_finding_and_told():
    sentinel = NaNSentinel()
    with amanda.apply(sentinel):
        (1 / torch.zeros(3).exp().sub(1)).sum().neg()
    assert [(link.name, link.cause) for link in sentinel.infinities] == [("aten::reciprocal", "input self is zero")]
    told = (
        "no NaN was produced, in 7 results of 7 operators; infinities, which do not count, began in aten::reciprocal ("
    )
    assert sentinel.answer().startswith(told)
    assert sentinel.answer().endswith("), forward: input self is zero")
    with amanda.apply(sentinel):
        torch.zeros(3).log()
    assert sentinel.answer().endswith("), forward: input self is zero and 1 other")
    sentinel.reset()
    assert sentinel.infinities == []


def indices_of(text):
    """The elements that a description names, as numpy selects them."""
    return eval(f"np.s_{text}", {"np": np})


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (np.s_[3:8, :], "[3:8, :]"),
        (np.s_[0, 2], "[0, 2]"),
        (np.s_[:4, 5:], "[:4, 5:]"),
        (np.s_[8:, 0], "[8:, 0]"),
    ],
)
def test_a_block_of_elements_is_told_as_numpy_selects_it(block, text):
    values = np.ones((10, 7))
    values[block] = 0
    (found,) = found_in(lambda: torch.from_numpy(values).log() * 0)
    where = found.origin.result.removeprefix("-inf at ").rpartition(", ")[0]
    assert where == text
    with np.errstate(divide="ignore"):
        expected = np.isinf(np.log(values.astype(np.float64)))
    named = np.zeros_like(expected)
    named[indices_of(where)] = True
    assert (named == expected).all()
    assert found.origin.result.endswith(f", {expected.sum()} of 70 elements")


def test_scattered_elements_are_listed_up_to_a_bound():
    values = torch.ones(10, 7)
    for i in range(7):
        values[i, (3 * i) % 7] = 0
    (found,) = found_in(lambda: values.log() * 0)
    listed = "[0, 0], [1, 3], [2, 6], [3, 2] and 3 more in [0:7, 0:7]"
    assert found.origin.result == f"-inf at {listed}, 7 of 70 elements"
    assert math.isclose(torch.isinf(values.log()).sum(), 7)


DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.half, torch.bfloat16, torch.complex32, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inf", [False, True])
def test_elements_of_each_dtype_are_told(dtype, inf):
    values = torch.ones(3, 4, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    values[1, 2:] = torch.nan
    (found,) = found_in(lambda: values.to(dtype).clone(), inf=inf)
    assert found.chain[-1].result == "NaN at [1, 2:], 2 of 12 elements"


class Node(torch.nn.Module):
    """An operator of a random program, on what others gave."""

    def __init__(self, kind, inputs):
        super().__init__()
        self.kind, self.inputs = kind, inputs

    def forward(self, values):
        one, two = (values[i] for i in self.inputs)
        match self.kind:
            case "log" | "exp" | "neg" | "reciprocal":
                return getattr(torch, self.kind)(one.abs())
            case "view":
                return one.view(4, 6)[1:3, ::2].t().reshape(2, 3).repeat(2, 2)
            case "in place":
                memory = one.clone()
                memory.view(-1)[6:12].mul_(two.reshape(-1)[6:12])
                return memory
            case _:
                return getattr(torch, self.kind)(one, two)


KINDS_OF_NODES = ["log", "exp", "neg", "reciprocal", "view", "in place", "add", "sub", "mul"]


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_of_a_random_program_is_a_way_through_it(seed):
    """Each operator got the value from the one before, and the first one had finite operands."""
    random = np.random.default_rng(seed)
    inputs = [torch.from_numpy(random.integers(-2, 3, size=(4, 6)).astype(np.float32) * 30) for _ in range(2)]
    nodes = torch.nn.ModuleList(
        Node(random.choice(KINDS_OF_NODES), random.integers(0, 2 + i, 2).tolist()) for i in range(16)
    )

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes = nodes

        def forward(self, *values):
            values = list(values)
            for node in self.nodes:
                values.append(node(values))
            return values

    program, kept = Program(), []
    findings = found_in(lambda: kept.append(program(*inputs)))
    with np.errstate(all="ignore"):
        finite = [bool(np.isfinite(value.numpy()).all()) for value in kept[0]]
    assert bool(findings) == any(np.isnan(value.numpy()).any() for value in kept[0])
    for found in findings:
        places = [2 + int(link.module_path.split(".")[1]) for link in found.chain]
        assert not any(finite[place] for place in places)
        first = nodes[places[0] - 2]
        if found.chain[0].name not in ("aten::mul_", "aten::mul"):  # its operands may be a part of a value
            assert all(finite[i] for i in first.inputs[: 1 if first.kind in UNARY else 2])
        for before, place in itertools.pairwise(places):
            assert before == place or before in nodes[place - 2].inputs


UNARY = {"log", "exp", "neg", "reciprocal"}


def test_training_with_infinities_is_the_same_to_the_bit():
    def train():
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(8, 2)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        mask = torch.full((5, 5), -torch.inf).triu(1)
        for _ in range(2):
            x = torch.randn(5, 3, 8)
            loss = layer(x, x, x, attn_mask=mask)[0].square().mean() + F.softmax(x[0].log(), -1).nan_to_num().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([parameter.flatten() for parameter in layer.parameters()])

    expected, found = train(), []
    for inf in (False, True):
        found.clear()
        found_in(lambda: found.append(train()), inf=inf)
        assert torch.equal(found[0], expected)


ROW, SQUARE, CUBE = torch.full((4,), 3e4), torch.full((4, 4), 3e4), torch.full((2, 4, 4), 3e4)
ADDING = {
    "addmm": (SQUARE, SQUARE),
    "addmv": (SQUARE, ROW),
    "addr": (ROW, ROW),
    "addbmm": (CUBE, CUBE),
    "baddbmm": (CUBE, CUBE),
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("name", ADDING)
def test_what_is_multiplied_by_a_beta_of_zero_is_not_read(name, garbage, in_place):
    operands = [one.to(torch.bfloat16) * 1e20 for one in ADDING[name]]
    into = torch.full({"addmv": (4,), "baddbmm": (2, 4, 4)}.get(name, (4, 4)), garbage, dtype=torch.bfloat16)
    multiply = getattr(torch.Tensor, f"{name}_" if in_place else name)
    (finding,) = found_in(lambda: multiply(into, *operands, beta=0).mul(0))
    assert (finding.origin.name, finding.origin.held) == (f"aten::{name}{'_' * in_place}", "")
    assert in_place or finding.origin.cause.startswith("in float64 the result is finite, as large as ")


@pytest.mark.parametrize("name", ADDING)
def test_with_another_beta_it_is_read(name):
    into = torch.full({"addmv": (4,), "baddbmm": (2, 4, 4)}.get(name, (4, 4)), math.nan)
    (finding,) = found_in(lambda: getattr(into, name)(*ADDING[name], beta=0.5))
    assert finding.kind == "given"
    assert finding.origin.held == "an input that no operator seen here produced"
