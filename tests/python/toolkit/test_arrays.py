"""The arrays of both frameworks answer the same, and torch's own functions are the oracle of numpy's."""

import math

import numpy as np
import pytest
import torch
from amanda.toolkit.arrays import array_in, arrays_in, arrays_of, of_numpy, of_torch
from amanda.toolkit.skips import Skips

DTYPES = [torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.bool]
VALUES = [[0.0, -1.5, 3.0], [math.pi, 100.0, -7.25]]


def pair(dtype):
    tensor = torch.tensor(VALUES).to(dtype)
    return tensor, tensor.numpy()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
def test_both_describe_an_array_alike(dtype):
    tensor, array = pair(dtype)
    for function in ("nbytes", "is_floating", "is_complex", "is_symbolic", "why_unreadable"):
        assert getattr(of_torch, function)(tensor) == getattr(of_numpy, function)(array), function
    assert of_torch.norm(tensor) == pytest.approx(of_numpy.norm(array), rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_hit_the_same_bits(dtype):
    for arrays, values in zip((of_torch, of_numpy), pair(dtype), strict=True):
        copied = arrays.copy(values)
        cells = arrays.as_integers(copied)
        taken = arrays.take(cells, [4, 1])
        arrays.put(cells, [4, 1], taken ^ 1)
        changed = (copied != values).reshape(-1)
        assert [i for i in range(6) if changed[i]] == [1, 4]
        arrays.put(cells, [4, 1], taken)
        assert bool((copied == values).all())


def test_a_complex_array_is_a_real_one_with_two_more():
    for scalar in (torch.tensor(1 + 2j), torch.tensor(1 - 2j).conj(), np.array(1 + 2j)):
        arrays = arrays_of(scalar)
        assert arrays.as_reals(scalar).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("arrays", [of_torch, of_numpy], ids=["torch", "numpy"])
def test_a_seed_decides_what_is_drawn(arrays):
    def drawn(seed):
        generator = arrays.generator(seed)
        uniform = arrays.uniform(generator, 200)
        assert bool(((uniform >= 0) & (uniform < 1)).all())
        return [
            *arrays.integers(generator, 10, 50),
            *arrays.distinct(generator, 9, 4),
            *uniform.tolist(),
            arrays.binomial(generator, 1000, 0.5),
        ]

    assert drawn(3) == drawn(3) != drawn(4)
    assert set(drawn(3)[:50]) == set(range(10))
    assert len(set(drawn(3)[50:54])) == 4


def test_what_is_an_array():
    tensor, array = pair(torch.float32)
    assert arrays_of(tensor) is of_torch
    assert arrays_of(torch.nn.Parameter(tensor)) is of_torch
    assert arrays_of(array) is of_numpy
    assert not any(map(arrays_of, [None, 1.0, "x", [tensor], np.float32(1)]))
    assert [*map(id, arrays_in([tensor, None, array]))] == [id(tensor), id(array)]
    assert array_in(array) is array
    assert array_in(3.0) is None


def test_strings_are_skipped_and_counted(caplog):
    skips = Skips("mine")
    assert skips.read(np.array(["a", "b"], object), lambda array, arrays: 1) is None
    assert skips.unreadable(np.array(["a", "b"]))
    assert skips.counts() == {"objects": 2}
    assert caplog.messages == ["[mine] skips what it can't read: an array of strings or other objects (said once)"]


def test_reading_an_array_prints_no_warning():
    array = np.array([np.finfo(np.float64).max] * 3)
    assert Skips("mine").read(array, lambda array, arrays: float(array.sum())) == math.inf
