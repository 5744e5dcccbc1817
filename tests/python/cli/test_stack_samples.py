"""StackSamples: the line that a sample names is the one that ran."""

import inspect
import sys
import time
import zlib

import pytest
from amanda.cli.stack_samples import PYTHON, StackSamples

DATA = bytes(20_000)


def joined():
    return len(" ".join(str(number) for number in range(20_000)))


def lets_others_run():
    zlib.crc32(DATA)  # outside of Python's lock, as operators


def test_time_is_not_that_of_the_next_line_that_lets_others_run():
    samples, seconds, end = StackSamples(), [0.0, 0.0], time.thread_time() + 1.0
    with samples:
        while time.thread_time() < end:
            for number, function in enumerate((joined, lets_others_run)):
                begin = time.perf_counter()
                function()
                seconds[number] += time.perf_counter() - begin
    assert seconds[0] > 3 * seconds[1]
    largest = samples.parts([])[0]
    _, first = inspect.getsourcelines(joined)
    assert (largest.what, largest.line) == (PYTHON, f"{__file__}:{first + 1}")


@pytest.mark.parametrize("others", [None, 0.002, 0.0001])
def test_the_time_after_which_python_switches_is_put_back(others):
    before = sys.getswitchinterval()
    try:
        if others is not None:
            sys.setswitchinterval(others)
        expected = sys.getswitchinterval()
        with StackSamples():
            assert sys.getswitchinterval() <= expected
        assert sys.getswitchinterval() == expected
        with StackSamples():
            sys.setswitchinterval(0.003)
        assert sys.getswitchinterval() == pytest.approx(0.003)
    finally:
        sys.setswitchinterval(before)
