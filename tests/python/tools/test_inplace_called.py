"""InplaceErrors: operators of libraries are named with the line of the program that called them."""

import amanda
import pytest
import torch
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder

LIBRARY = "/usr/lib/python3/dist-packages/cache.py"
SOURCE = """
import torch
def exponential(x):
    return x.exp()
def clear(x):
    return x.zero_()
def joined(cache, x):
    return torch.cat([cache, x])
def summed(x):
    return x.sum()
"""
library = {}
exec(compile(SOURCE, LIBRARY, "exec"), library)

WRITTEN = """
x = torch.ones(3, requires_grad=True)
y = exponential(x)
clear(y)
y.sum().backward()
"""
REFUSED = """
x = torch.ones(3, requires_grad=True)
clear(x)
"""
CARRIED = """
cache = torch.ones(3, requires_grad=True)
for _ in range(2):
    cache = joined(cache, cache.exp())
    summed(cache * cache).backward()
"""


def text_of(program, tool):
    with pytest.raises(RuntimeError), amanda.apply(tool):
        exec(compile(program, "program.py", "exec"), {"torch": torch, **library})
    (found,) = tool.findings()
    return str(found)


def test_the_operator_that_saved_and_the_one_that_wrote():
    head, write, remedy = text_of(WRITTEN, InplaceErrors()).splitlines()
    assert head.startswith("aten::exp (cache.py:4, called at program.py:3) saved its output 0")
    assert write.startswith("  aten::zero_ (cache.py:6, called at program.py:4) wrote to it: ")
    assert "called at program.py:4) wrote to it" in text_of(WRITTEN, WriteRecorder())
    assert remedy.endswith("in cache.py:6")


def test_a_write_that_is_refused():
    text = text_of(REFUSED, InplaceErrors())
    assert text.startswith("aten::zero_ (cache.py:6, called at program.py:3) was to write to its 'self'")


def test_what_connects_two_passes():
    _, since, _ = text_of(CARRIED, InplaceErrors()).splitlines()
    cat = "aten::cat (cache.py:8, called at program.py:4)"
    assert since == f"  since, {cat} uses the result of {cat}"


def test_operators_of_the_program_have_one_line():
    text = text_of(WRITTEN.replace("exponential(x)", "x.exp()").replace("clear(y)", "y.zero_()"), InplaceErrors())
    assert "aten::exp (program.py:3) saved" in text
    assert "called at" not in text
