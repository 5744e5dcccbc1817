"""ErrorInjection's faults: bits and values of every dtype, and how they are drawn."""

import collections
import itertools
import math

import amanda
import pytest
import torch
from amanda.research.error_injection import BitFlip, ErrorInjection, Fault, RandomValue, StuckAt
from amanda.research.error_injection.elements import Elements
from amanda.toolkit.arrays import of_numpy, of_torch
from equal_tensors import same
from faulty_network import faults_of, network

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
