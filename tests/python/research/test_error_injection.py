"""ErrorInjection: the same faults by hand, on values, gradients and whole trainings; and how faults are drawn.

Equal means torch.equal, on every tensor.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import collections
import concurrent.futures
import contextlib
import copy
import itertools
import math

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.error_injection import BitFlip, ErrorInjection, Fault, RandomValue, StuckAt
from amanda.research.error_injection.elements import Elements
from amanda.toolkit.arrays import of_numpy, of_torch
from by_hand import StraightThrough
from tool_regimes import REGIMES, in_regime
from torch.utils.checkpoint import checkpoint

INTEGERS = {2: torch.int16, 4: torch.int32}


# ---- oracles ---------------------------------------------------------------------------------------------------------


def flipped(tensor, index, bit):
    """A copy with one bit inverted."""
    copied = tensor.detach().clone()
    cells = copied.view(INTEGERS[copied.dtype.itemsize])
    cells[index] = cells[index] ^ (1 << bit)
    return copied


def flip(tensor, index, bit):
    """The same in a program, as hardware does it: what is computed from the value is wrong, the gradient passes."""
    return StraightThrough.apply(tensor, lambda x: flipped(x, index, bit))


class Network(torch.nn.Module):
    """Two layers of each kind; `faulty` is called with every value that the test hits by hand."""

    def __init__(self, faulty=lambda name, value: value):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3)
        self.fc = torch.nn.Linear(4 * 16, 5)
        self.faulty = faulty

    def forward(self, x):
        x = self.layer("conv", F.conv2d, x).relu().flatten(1)
        return self.layer("fc", F.linear, x)

    def layer(self, name, function, x):
        weight, bias = self.get_submodule(name).parameters()
        x, weight = self.faulty(f"{name} input", x), self.faulty(f"{name} weight", weight)
        return self.faulty(f"{name} output", function(x, weight, bias))


def network(faulty=lambda name, value: value):
    torch.manual_seed(0)
    return Network(faulty)


def train(model, steps, call=None):
    """Losses and outputs of some steps, then parameters and gradients."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        y = (model if call is None else call)(torch.randn(3, 2, 6, 6, generator=generator))
        loss = y.float().square().mean()
        loss.backward()
        optimizer.step()
        found += [y.detach(), loss.detach()]
    return found + [p for parameter in model.parameters() for p in (parameter, parameter.grad)]


def same(found, expected):
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


WHERE = {
    "conv output": ("conv2d", {"at": "output"}, (2, 3, 2, 1)),
    "conv input": ("conv2d", {"at": "input"}, (0, 1, 5, 5)),
    "conv weight": ("conv2d", {"at": "weight"}, (3, 0, 2, 1)),
    "fc output": ("linear", {"at": "output"}, (1, 4)),
    "fc input": ("linear", {"at": "input", "position": "input"}, (2, 63)),
    "fc weight": ("linear", {"at": "input", "position": 1}, (0, 17)),
}
each_place = pytest.mark.parametrize("name", WHERE)


# ---- values and gradients --------------------------------------------------------------------------------------------


@each_place
def test_twenty_steps_of_training_are_those_of_the_same_faults_by_hand(name):
    ops, options, index = WHERE[name]
    by_hand = network(lambda at, value: flip(value, index, 22) if at == name else value)
    tool, model = ErrorInjection(BitFlip(22), ops=ops, index=index, **options), network()
    with amanda.apply(tool):
        found = train(model, 20)
    same(found, train(by_hand, 20))
    assert not torch.equal(found[0], train(network(), 1)[0])
    assert [(row.faults, row.executions) for row in tool.rows("id")] == [(20, 20)]


@pytest.mark.parametrize("regime", REGIMES)
@each_place
def test_in_every_regime_faults_are_those_by_hand(regime, name):
    ops, options, index = WHERE[name]

    def by_hand(at, value):
        return flip(value, index, 5 if value.dtype == torch.bfloat16 else 22) if at == name else value

    model, reference = network(), network(by_hand)
    # Autocast casts inside an operator: its weight and its first input are what the program passes.
    casts = regime == "autocast" and name in ("conv output", "fc output", "fc input")
    tool = ErrorInjection(BitFlip(5 if casts else 22), ops=ops, index=index, **options)
    with contextlib.nullcontext(reference) if regime == "compiled code" else in_regime(regime, reference) as call:
        expected = train(reference, 3, call)
    with in_regime(regime, model) as call, amanda.apply(tool):
        found = train(model, 3, call)
    same(found, expected)
    recomputed = regime == "checkpointing" and name != "fc output"  # nobody needs that one again
    assert tool.faults == (6 if recomputed else 3)


def test_a_recomputed_region_is_executed_again():
    tool, model = ErrorInjection(BitFlip(0), ops="conv2d"), network()
    with amanda.apply(tool):
        checkpoint(model, torch.randn(3, 2, 6, 6), use_reentrant=False).sum().backward()
    assert [row.execution for row in tool.rows()] == [0, 1]


GRADIENTS = {
    "output": ({"at": "grad_output", "backward_op": "ConvolutionBackward0"}, (2, 3, 0, 1)),
    "input": ({"at": "grad_input", "backward_op": "Convolution*", "position": 0}, (0, 1, 5, 5)),
    "weight": ({"at": "grad_input", "backward_op": "ConvolutionBackward0", "position": 1}, (3, 1, 2, 1)),
    "bias": ({"at": "grad_input", "backward_op": "ConvolutionBackward0", "position": 2}, (3,)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_faults_in_gradients_are_those_of_hooks(name):
    options, index = GRADIENTS[name]

    def gradients(conv, hooked):
        torch.manual_seed(2)
        found = []
        for _ in range(3):
            x = torch.randn(3, 2, 6, 6, requires_grad=True)
            inner = x * 2
            y = conv(inner)
            values = {"output": y, "input": inner, "weight": conv.weight, "bias": conv.bias}
            if hooked:
                hook = values[name].register_hook(lambda gradient: flipped(gradient, index, 30))
            conv.zero_grad()
            y.square().sum().backward()
            if hooked:
                hook.remove()
            found += [y.detach(), x.grad, conv.weight.grad, conv.bias.grad]
        return found

    conv = torch.nn.Conv2d(2, 4, 3)
    tool = ErrorInjection(BitFlip(30), ops="conv2d", index=index, **options)
    with amanda.apply(tool):
        found = gradients(conv, hooked=False)
    same(found, gradients(conv, hooked=True))
    assert [(row.backward_op, row.execution) for row in tool.rows()] == [
        ("ConvolutionBackward0", execution) for execution in range(3)
    ]


def test_a_gradient_that_is_accumulated_can_be_hit():
    layer, x = torch.nn.Linear(3, 2, bias=False), torch.ones(1, 3)
    tool = ErrorInjection(StuckAt(7.0), ops="linear", index=(1, 2), at="grad_output", backward_op="AccumulateGrad")
    with amanda.apply(tool):
        layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1, 1], [1, 1, 7]]


def test_only_some_executions_are_hit_forward_and_backward():
    x = torch.zeros(4, requires_grad=True)
    forward = ErrorInjection(StuckAt(1.0), ops="neg", index=(0,), execution=2)
    backward = ErrorInjection(
        StuckAt(5.0), ops="neg", index=(1,), execution=range(1, 3), at="grad_output", backward_op="NegBackward0"
    )
    with amanda.apply(forward, backward):
        results = [torch.neg(x) for _ in range(4)]
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in results]
    assert [y[0].item() for y in results] == [0, 0, 1, 0]
    assert [gradient[1].item() for gradient in gradients] == [-1, -5, -5, -1]
    assert [row.execution for row in forward.rows() + backward.rows()] == [2, 1, 2]
    assert [row.executions for row in forward.rows("id") + backward.rows("id")] == [4, 4]


# ---- faults ----------------------------------------------------------------------------------------------------------


def bits_of(tensor):
    """Each element as an unsigned integer, from its bytes."""
    width = tensor.dtype.itemsize
    data = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOATS + WHOLE, ids=str)
def test_every_bit_of_every_dtype_can_be_flipped_and_stuck(dtype):
    x = (torch.randn(2, 3) * 50).to(dtype)
    (_, before, *_) = bits_of(x)
    for bit in range(8 * dtype.itemsize):
        for fault, expected in [
            (BitFlip(bit), before ^ (1 << bit)),
            (StuckAt(1, bit), before | (1 << bit)),
            (StuckAt(0, bit), before & ~(1 << bit)),
        ]:
            tool = ErrorInjection(fault, ops="clone", index=(0, 1))
            with amanda.apply(tool):
                y = x.clone()
            assert bits_of(y) == [bits_of(x)[0], expected, *bits_of(x)[2:]], (fault, bit)
            assert y.dtype == dtype
            (row,) = tool.rows()
            assert (row.bit, row.index, row.before) == (bit, (0, 1), x[0, 1].item())


def test_truth_values_and_complex_numbers_have_bits():
    with amanda.apply(ErrorInjection(BitFlip(), ops="logical_not", index=[(0,), (1,)])):
        assert torch.logical_not(torch.tensor([True, False, True])).tolist() == [True, False, False]
    x = torch.tensor([1 + 2j, 3 - 4j])
    tool = ErrorInjection(BitFlip(31), ops="clone", index=(1, 1))
    with amanda.apply(tool):
        assert x.clone().tolist() == [1 + 2j, 3 + 4j]
        assert x.conj().clone().tolist() == [1 - 2j, 3 - 4j]
    assert tool.rows("op")[0].elements == 2 * 4


def test_a_conjugate_is_hit_as_it_reads():
    tool = ErrorInjection(StuckAt(0.0), ops="abs", at="input", index=(1, 1))
    with amanda.apply(tool):
        assert torch.tensor([3 + 4j, 5 - 2j]).conj().abs().tolist() == [5, 5]
    assert tool.rows()[0].before == 2


def test_indices_count_from_the_end_too():
    tool = ErrorInjection(StuckAt(1.0), ops="clone", index=[(0, -1), (-1, 0)])
    with amanda.apply(tool):
        assert torch.zeros(2, 3).clone().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert [row.index for row in tool.rows()] == [(0, 2), (1, 0)]


def test_a_value_is_stuck():
    x = torch.randn(5)
    for fault, dtype in [(StuckAt(0.0), torch.float32), (StuckAt(math.nan), torch.float32), (StuckAt(3), torch.int32)]:
        with amanda.apply(ErrorInjection(fault, ops="clone", index=(-1,))):
            y = x.to(dtype).clone()
        assert torch.equal(y[:4], x.to(dtype)[:4])
        assert y[4].item() == fault.value or math.isnan(fault.value)


def test_random_values_are_uniform_over_their_range():
    def drawn(fault, dtype):
        with amanda.apply(ErrorInjection(fault, ops="clone", rate=1.0)):
            return torch.zeros(20_000, dtype=dtype).clone()

    values = drawn(RandomValue(-2.0, 6.0), torch.float32).double()
    assert (values >= -2).all()
    assert (values < 6).all()
    sigma = 8 / math.sqrt(12 * 20_000)
    assert abs(values.mean() - 2) < 5 * sigma
    counts = collections.Counter(drawn(RandomValue(-1, 3), torch.int16).tolist())
    assert set(counts) == {-1, 0, 1, 2}
    assert all(abs(count - 5000) < 5 * math.sqrt(20_000 * 0.25 * 0.75) for count in counts.values())


def test_random_bits_are_uniform_over_those_asked_for():
    for bits, known in [(None, range(32)), (range(23, 31), range(23, 31)), ([3, 7], [3, 7]), (5, [5])]:
        tool = ErrorInjection(BitFlip(bits), ops="clone", rate=1.0)
        with amanda.apply(tool):
            torch.ones(6400).clone()
        counts = collections.Counter(row.bit for row in tool.rows())
        share = 1 / len(known)
        assert set(counts) == set(known)
        assert all(abs(n - 6400 * share) <= 5 * math.sqrt(6400 * share * (1 - share)) for n in counts.values())


def test_a_fault_of_ones_own():
    class Double(Fault):
        def corrupt(self, values, generator):
            return values * 2, [None] * len(values)

    with amanda.apply(ErrorInjection(Double(), ops="clone", rate=1.0)):
        assert torch.tensor([1.0, 2.0]).clone().tolist() == [2.0, 4.0]


# ---- what is drawn ---------------------------------------------------------------------------------------------------


both_frameworks = pytest.mark.parametrize("arrays", [of_torch, of_numpy], ids=["torch", "numpy"])


@both_frameworks
@pytest.mark.parametrize(("rate", "size", "runs"), [(1e-3, 10_000, 100), (0.3, 1000, 20), (1e-9, 10**9, 400)])
def test_the_number_of_faults_is_binomial(arrays, rate, size, runs):
    generator, elements = arrays.generator(3), Elements(None, None, rate)
    counts = [len(elements.draw((size,), arrays, generator, "")) for _ in range(runs)]
    deviation = math.sqrt(size * rate * (1 - rate))
    assert abs(sum(counts) - size * rate * runs) < 5 * deviation * math.sqrt(runs)
    spread = math.sqrt(sum((count - size * rate) ** 2 for count in counts) / runs)
    assert 0.6 * deviation < spread < 1.4 * deviation


def test_a_rate_of_zero_hits_nothing_and_of_one_everything():
    x = torch.zeros(3, 4)
    with amanda.apply(ErrorInjection(StuckAt(1.0), ops="clone", rate=0.0)):
        assert x.clone().sum() == 0
    with amanda.apply(ErrorInjection(StuckAt(1.0), ops="clone", rate=1)):
        assert x.clone().sum() == 12


@both_frameworks
@pytest.mark.parametrize(("count", "size"), [(1, 6), (2, 9), (2, 5), (3, 3), (4, 2)])
def test_every_choice_of_elements_is_equally_likely(arrays, count, size):
    generator, elements, runs = arrays.generator(4), Elements(None, count, None), 3600
    seen = collections.Counter(tuple(sorted(elements.draw((size,), arrays, generator, ""))) for _ in range(runs))
    choices = list(itertools.combinations(range(size), min(count, size)))
    assert set(seen) == set(choices)
    share = 1 / len(choices)
    assert all(abs(n - runs * share) <= 5 * math.sqrt(runs * share * (1 - share)) for n in seen.values())


def faults_of(model, x, **options):
    tool = ErrorInjection(BitFlip(), **options)
    with amanda.apply(tool):
        model(x)
    return [(row.name, row.index, row.bit) for row in tool.rows()]


def test_the_seed_decides():
    x = torch.randn(3, 2, 6, 6)
    first = faults_of(network(), x, count=3, seed=5)
    assert len(first) == 6
    assert faults_of(network(), x, count=3, seed=5) == first
    assert faults_of(network(), x, count=3, seed=6) != first


def test_the_programs_random_numbers_stay_as_they_are():
    def program():
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 4), torch.nn.Dropout())
        model(torch.ones(2, 4)).sum().backward()
        return torch.get_rng_state()

    expected = program()
    with amanda.apply(ErrorInjection(RandomValue(0, 1), rate=0.5)):
        assert torch.equal(program(), expected)


def test_permanent_faults_stay_until_a_reset():
    tool = ErrorInjection(RandomValue(-1, 1), ops="clone", count=3, permanent=True)

    def hits():
        with amanda.apply(tool):
            found = []
            for _ in range(3):
                found.append(torch.zeros(5, 40).clone())
            found.append(torch.zeros(7, 40).clone())  # another place
        return found

    first, second = hits(), hits()
    same(first, second)
    same(first[:1] * 3, first[:3])
    assert first[0].count_nonzero() == 3
    tool.reset()
    same(hits(), first)
    transient = ErrorInjection(RandomValue(-1, 1), ops="clone", count=3)
    with amanda.apply(transient):
        assert not torch.equal(*(torch.zeros(5, 40).clone() for _ in range(2)))


# ---- where -----------------------------------------------------------------------------------------------------------


def test_rows_are_what_was_done():
    model, x = network(), torch.randn(3, 2, 6, 6)
    captured = []
    look = amanda.Tool("look")
    look.add_inst_for_op(lambda c: c.insert_after_op(captured.append), ops=["conv2d", "linear"])
    tool = ErrorInjection(BitFlip(range(16, 23)), count=4, seed=3)
    with amanda.apply(look, tool):
        model(x)
    clean = dict(zip(("aten::conv2d", "aten::linear"), captured, strict=True))
    for row in tool.rows():
        assert row.before == clean[row.name][row.index].item()
        assert row.after == flipped(clean[row.name], row.index, row.bit)[row.index].item()
        assert (row.faults, row.execution, row.position) == (1, 0, 0)
        assert row.source.split(":")[0].endswith("test_error_injection.py")
    assert len(tool.rows()) == 8
    assert [(row.name, row.faults, row.executions, row.elements) for row in tool.rows("op")] == [
        ("aten::conv2d", 4, 1, 3 * 4 * 16),
        ("aten::linear", 4, 1, 15),
    ]


def test_operators_are_selected_by_name_module_and_context():
    x = torch.randn(3, 2, 6, 6)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1), torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1)))

    def modules(**options):
        tool = ErrorInjection(BitFlip(0), **options)
        with amanda.apply(tool):
            model(x)
        return [row.name for row in tool.rows("module")]

    assert modules() == ["0", "1.0"]
    assert modules(modules="1") == ["1.0"]
    assert modules(where=lambda context: context.module_path == "0") == ["0"]
    assert modules(ops="linear") == []


def test_gradients_are_selected_by_module_and_context_and_counted_from_0_after_a_reset():
    model, x = torch.nn.Sequential(*(torch.nn.Conv2d(2, 2, 1) for _ in range(2))), torch.randn(3, 2, 6, 6)
    for selected in ({"modules": "1"}, {"where": lambda context: context.module_path == "1"}):
        tool = ErrorInjection(
            BitFlip(0), ops="conv2d", at="grad_output", backward_op="ConvolutionBackward0", execution=1, **selected
        )
        for _ in range(2):
            with amanda.apply(tool):
                for _ in range(2):
                    model(x).sum().backward()
            assert [(row.module_path, row.execution) for row in tool.rows()] == [("1", 1)]
            tool.reset()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.eye(4))

    def forward(self, x):
        q = x @ self.qkv
        return q @ q.transpose(-1, -2)


def test_the_weight_of_a_product_is_the_factor_that_is_a_parameter():
    model, x = Attention(), torch.ones(2, 4)
    tool = ErrorInjection(StuckAt(3.0), at="weight", index=(0, 1))
    with amanda.apply(tool):
        y = model(x)
    weight = torch.eye(4)
    weight[0, 1] = 3
    q = x @ weight
    assert torch.equal(y, q @ q.T)
    assert torch.equal(model.qkv, torch.eye(4))
    assert [row.position for row in tool.rows()] == ["other"]


def test_of_two_parameters_the_right_one_is_the_weight():
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = (torch.nn.Parameter(torch.eye(2)) for _ in range(2))

        def forward(self):
            return self.left @ self.right

    tool = ErrorInjection(BitFlip(0), at="weight")
    with amanda.apply(tool):
        Product()()
    assert [row.position for row in tool.rows()] == ["other"]


def test_a_layer_called_twice_is_hit_twice():
    layer, x = torch.nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    twice, mask = torch.nn.Sequential(layer, layer), torch.tensor([0.0, 1.0])
    for execution, expected in [(None, layer(layer(x) * mask) * mask), (0, layer(layer(x) * mask))]:
        tool = ErrorInjection(StuckAt(0.0), index=(0, 0), execution=execution)
        for _ in range(2):
            with amanda.apply(tool):
                assert torch.equal(twice(x), expected)
            tool.reset()  # from here on executions count from 0 again
    with (
        amanda.apply(ErrorInjection(StuckAt(2.0), index=(0, 0))),
        amanda.apply(ErrorInjection(StuckAt(3.0), index=(0, 1))),
    ):
        assert layer(x).tolist() == [[2.0, 3.0]]


def test_in_place_operators_layouts_scalars_and_empty_tensors_are_hit_as_they_are():
    with amanda.apply(ErrorInjection(StuckAt(9.0), ops=["relu_", "clone"], count=1)):
        x = torch.zeros(1, 3, 4, 5)
        assert x.relu_() is x
        assert x.sum() == 9
        strided = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert strided.clone().stride() == strided.stride()
        assert strided.clone().sum() == 9
        assert torch.zeros(()).clone() == 9
        assert torch.zeros(0).clone().shape == (0,)
        assert torch.zeros(1).expand(4).clone().sum() == 9


def test_views_are_not_hit():
    x = torch.zeros(2, 3)
    tool = ErrorInjection(StuckAt(1.0), ops=None, rate=1.0)
    with amanda.apply(tool):
        total = x.view(3, 2).t().unsqueeze(0).chunk(2, 1)[0].sum()
    assert total == 1  # of the sum alone
    assert {row.name for row in tool.rows("op")} == {"aten::sum"}


def test_what_cannot_be_read_and_what_is_not_there_is_not_hit():
    tool = ErrorInjection(StuckAt(1.0), ops=["to_sparse", "linear"], at="output")
    bias = ErrorInjection(StuckAt(1.0), ops="linear", at="input", position="bias")
    with amanda.apply(tool, bias):
        torch.ones(2).to_sparse()
        F.linear(torch.ones(1, 2), torch.ones(2, 2))
    assert tool.skipped == {"sparse": 1}
    assert tool.faults == 1
    assert bias.rows("id") == []


def test_gradients_of_torch_func_pass_a_fault():
    layer, x = torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(1, 2)
    with amanda.apply(ErrorInjection(StuckAt(5.0), ops="linear", index=(0, 0))):
        found = torch.func.grad(lambda x: layer(x).square().sum())(x)
    y = layer(x)
    y[0, 0] = 5
    torch.testing.assert_close(found, 2 * y @ layer.weight)


def test_rows_are_bounded_and_counts_are_not():
    tool = ErrorInjection(StuckAt(1.0), ops="clone", rate=1.0, max_rows=5)
    with amanda.apply(tool):
        torch.zeros(4).clone()
        torch.zeros(4).clone()
    assert (len(tool.rows()), tool.dropped, tool.faults) == (5, 3, 8)
    assert [row.faults for row in tool.rows("op")] == [8]
    assert str(tool.table().caption) == "3 more faults were injected"
    assert tool.table("op").caption is None


def test_threads_share_a_tool():
    tool = ErrorInjection(StuckAt(1.0), ops="clone", count=2, max_rows=10**6)

    def work(_):
        with amanda.apply(tool):
            return sum(torch.zeros(50).clone().sum().item() for _ in range(100))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 800
    assert tool.faults == len(tool.rows()) == 800


def test_copies_of_a_model_have_equal_faults():
    model, x = network(), torch.randn(3, 2, 6, 6)
    assert faults_of(copy.deepcopy(model), x) == faults_of(model, x)


# ---- mistakes --------------------------------------------------------------------------------------------------------

BIT = "[error_injection] bit= is the number of a bit, or several; 0 is the lowest; got "
NODE = (
    '[error_injection] backward_op= names the autograd node for at="grad_output" and at="grad_input", such as '
    '"ConvolutionBackward0"; the results of GradientStatistics list them; got at='
)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BitFlip(-1), BIT + "-1"),
        (lambda: BitFlip([]), BIT + "[]"),
        (lambda: StuckAt(1, bit=[3, -2]), BIT + "[3, -2]"),
        (lambda: StuckAt(2, bit=3), "[error_injection] a bit is stuck at 0 or 1, got 2"),
        (lambda: RandomValue(1, 1), "[error_injection] a range from 1 to 1 has no values: low < high"),
        (
            lambda: ErrorInjection(BitFlip(), rate=1.5),
            "[error_injection] rate= is the probability of a fault per element, 0 to 1; got 1.5",
        ),
        (
            lambda: ErrorInjection(BitFlip(), count=0),
            "[error_injection] count= is how many elements to hit, 1 or more; got 0",
        ),
        (
            lambda: ErrorInjection(BitFlip(), count=1, rate=0.1),
            "[error_injection] give one of index=, count= and rate=; got None, 1, 0.1",
        ),
        (
            lambda: ErrorInjection(BitFlip(), index=[3, 4]),
            "[error_injection] index= is a tuple of integers, or a list of such; got [3, 4]",
        ),
        (
            lambda: ErrorInjection(BitFlip(), at="bias"),
            "[error_injection] at= is output, input, weight, grad_output, grad_input; got 'bias'",
        ),
        (lambda: ErrorInjection(BitFlip(), at="grad_input"), NODE + "'grad_input', None"),
        (lambda: ErrorInjection(BitFlip(), backward_op="MulBackward0"), NODE + "'output', 'MulBackward0'"),
    ],
)
def test_a_wrong_value_is_refused_at_once(says, make, text):
    with says(ValueError, text):
        make()


def test_a_wrong_type_is_refused_at_once(says):
    with says(TypeError, "[error_injection] a fault is a BitFlip, a StuckAt or a RandomValue, got 30"):
        ErrorInjection(30)
    with says(TypeError, "[error_injection] where= takes a function of an operator's context, got 'conv'"):
        ErrorInjection(BitFlip(), where="conv")
    with says(TypeError, "[error_injection] execution= is a number or a range of numbers, got 'x'"):
        ErrorInjection(BitFlip(), execution="x")
    with says(NotImplementedError, "[error_injection] Fault has no corrupt"):
        with amanda.apply(ErrorInjection(Fault(), ops="clone")):
            torch.ones(2).clone()


@pytest.mark.parametrize(
    ("fault", "options", "text"),
    [
        (BitFlip(32), {}, "[error_injection] a float32 has no bit 32: its bits are 0 to 31"),
        (
            BitFlip(0),
            {"index": (0, 2)},
            "[error_injection] output 0 of aten::linear has the shape (1, 2), and no element (0, 2)",
        ),
        (
            BitFlip(0),
            {"index": (0,), "at": "grad_output", "backward_op": "AddmmBackward0"},
            "[error_injection] grad_output 0 of AddmmBackward0 has the shape (1, 2), and no element (0,)",
        ),
        (
            BitFlip(0),
            {"at": "weight", "ops": "relu"},
            "[error_injection] which input of aten::relu is its weight is not known; name it by position=",
        ),
    ],
)
def test_what_an_operator_does_not_have_is_refused_when_it_runs(says, fault, options, text):
    with says(amanda.Error, text):
        with amanda.apply(ErrorInjection(fault, **options)):
            torch.nn.Linear(3, 2)(torch.ones(1, 3)).relu().sum().backward()


def test_several_samples_at_once_are_left_alone_and_counted(caplog):
    layer, x, injection = torch.nn.Linear(2, 2), torch.randn(3, 2), ErrorInjection(BitFlip())
    with amanda.apply(injection):
        found = torch.vmap(layer)(x)
        torch.vmap(torch.func.grad(lambda x: layer(x).sum()))(x)
        assert injection.faults == 0
        layer(x)
    assert torch.equal(found, torch.vmap(layer)(x))
    assert (injection.faults, injection.skipped) == (1, {"transformed": 2})
    assert [one.reason for one in injection.evidence().unseen] == ["transformed"]
    assert "a tensor inside a transformation of torch.func, such as vmap" in caplog.text


def test_what_samples_share_under_vmap_is_hit():
    layer, x, injection = (
        torch.nn.Linear(2, 2),
        torch.randn(3, 2),
        ErrorInjection(StuckAt(7.0), at="weight", index=(0, 1)),
    )
    with amanda.apply(injection):
        found = torch.vmap(layer)(x)
    with torch.no_grad():
        layer.weight[0, 1] = 7.0
    torch.testing.assert_close(found, layer(x))
    assert (injection.faults, injection.skipped) == (1, {})
