"""What is computed in C++, against torch's own reductions: of any dtype and layout, on one thread and on several."""

import itertools
import math
import threading

import amanda
import pytest
import torch
from amanda.tools.gradients import GradientStatistics
from amanda.tools.statistics import OpStatistics

FLOATING = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]
OTHERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool, torch.complex64]
SPECIAL = {
    "plain": [],
    "nan": [math.nan],
    "infinities": [math.inf, -math.inf, -0.0],
    "nothing finite": None,
}


def test_the_reduction_is_torchs(subtests):
    torch.manual_seed(0)
    for dtype, special, (name, form) in itertools.product(FLOATING, SPECIAL, FORMS.items()):
        values = torch.randn(3, 5, 7, 2, dtype=torch.float64) * 3 + 5
        values[0, 0] = 0
        if SPECIAL[special] is None:
            values.fill_(math.nan)
        elif SPECIAL[special]:
            values.flatten()[: len(SPECIAL[special])] = torch.tensor(SPECIAL[special], dtype=torch.float64)
        if dtype.itemsize == 1 and form is _negative:
            continue  # torch has no kernel for it
        with subtests.test(dtype=dtype, special=special, form=name):
            _check(form(values.to(dtype)))


def test_elements_and_zeros_of_other_types(subtests):
    for dtype, (name, form) in itertools.product(OTHERS, FORMS.items()):
        if dtype in (torch.bool, torch.uint16) and form is _negative:
            continue
        with subtests.test(dtype=dtype, form=name):
            x = form((torch.arange(210) % 3).view(3, 5, 7, 2).to(dtype))
            row = _statistics_of(x)
            assert (row.elements, row.zeros) == (x.numel(), int((x == 0).sum()))
            assert (row.min, row.max, row.mean, row.std, row.nans, row.infs) == (None, None, None, None, 0, 0)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 2047, 2048, 2049, 100_003])
def test_sizes_around_a_block(size):
    _check(torch.randn(size) * 1e-3 + 1e3)


def test_values_whose_sum_is_too_large():
    row = _statistics_of(torch.full((3,), 1.5e308, dtype=torch.float64))
    assert (row.min, row.max, row.mean, row.std) == (1.5e308, 1.5e308, 1.5e308, 0)
    assert (row.nans, row.infs) == (0, 0)


def test_a_tensor_whose_memory_was_freed_is_skipped():
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    row = _statistics_of(x)
    assert (row.calls, row.elements, row.skipped) == (1, 0, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_the_norms_of_gradients_are_torchs(dtype):
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype).requires_grad_()
    arriving = [torch.randn(5, 6).to(dtype), torch.full((5, 6), math.nan).to(dtype), torch.zeros(5, 6).to(dtype)]
    found = []
    for gradient in [*arriving, arriving[0].t().contiguous().t(), torch.ones((), dtype=dtype).expand(5, 6)]:
        statistics = GradientStatistics()
        with amanda.apply(statistics):
            x.t().backward(gradient)
        (row,) = (row for row in statistics.rows() if (row.backward_op, row.side) == ("TBackward0", "grad_output"))
        expected = torch.linalg.vector_norm(gradient, dtype=torch.complex128 if dtype.is_complex else torch.float64)
        assert row.last == pytest.approx(expected.item(), rel=1e-12, nan_ok=True)
        assert row.nonfinite == (not math.isfinite(expected))
        found.append(row.last)
    assert found[0] == pytest.approx(found[3], rel=1e-12)


def test_threads_lose_no_element_and_no_gradient():
    statistics, gradients = OpStatistics(), GradientStatistics()
    start = threading.Barrier(4)

    def work(value):
        x = torch.full((8,), value, requires_grad=True)
        start.wait()
        with amanda.apply(statistics, gradients):
            for _ in range(50):
                (x * 2).sum().backward()

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = {row.name: row for row in statistics.rows("op") if row.output == 0}
    assert (rows["aten::mul"].calls, rows["aten::mul"].elements) == (200, 1600)
    assert (rows["aten::mul"].min, rows["aten::mul"].max, rows["aten::mul"].mean) == (0, 6, 3)
    into = [row for row in gradients.rows("op") if (row.backward_op, row.side) == ("MulBackward0", "grad_output")]
    assert sum(row.calls for row in into) == 200
    assert [row.mean for row in into] == pytest.approx([math.sqrt(8)] * len(into))


def test_rows_are_in_the_order_of_the_first_runs_whatever_reads_them():
    statistics = OpStatistics()

    def program():
        x = torch.ones(3)
        torch.eye(2).to_sparse().abs()
        torch.vmap(torch.exp)(x)
        torch.sin(x)

    for _ in range(2):
        with amanda.apply(statistics):
            program()
        names = [row.name for row in statistics.rows()]
        assert [name for name in names if name in ("aten::ones", "aten::abs", "aten::exp", "aten::sin")] == [
            "aten::ones",
            "aten::abs",
            "aten::exp",
            "aten::sin",
        ]
        statistics.reset()
        assert statistics.rows() == []


def test_an_operator_that_is_read_here_and_there_has_one_row():
    statistics = OpStatistics()
    with amanda.apply(statistics):
        for x in (torch.ones(3), torch.eye(2).to_sparse(), torch.zeros(2), torch.ones(2, device="meta")):
            x.abs()
    (row,) = (row for row in statistics.rows() if row.name == "aten::abs")
    assert (row.calls, row.elements, row.zeros, row.skipped, row.mean) == (4, 5, 2, 2, 0.6)


# ---- plumbing --------------------------------------------------------------------------------------------------------


def _negative(x):
    return torch._neg_view(x)


FORMS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "strided": lambda x: x[::2, 1:, ::3],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:, :1].expand(3, 4, 7, 2),
    "one": lambda x: x[1, 2, 3, 1],
    "empty": lambda x: x[:0],
    "negative": _negative,
}


def _statistics_of(x):
    statistics = OpStatistics()
    with amanda.apply(statistics):
        x.detach()
    (row,) = statistics.rows()
    return row


def _check(x):
    row, values = _statistics_of(x), x.double()
    finite = values[values.isfinite()]
    assert (row.elements, row.zeros) == (x.numel(), int((values == 0).sum()))
    assert (row.nans, row.infs) == (int(values.isnan().sum()), int(values.isinf().sum()))
    if finite.numel() == 0:
        assert (row.min, row.max, row.mean, row.std) == (None, None, None, None)
        return
    variance, mean = torch.var_mean(finite, correction=0)
    assert (row.min, row.max) == (finite.min().item(), finite.max().item())
    assert row.mean == pytest.approx(mean.item(), rel=1e-12, abs=1e-15)
    assert row.std == pytest.approx(variance.sqrt().item(), rel=1e-10, abs=1e-15)
