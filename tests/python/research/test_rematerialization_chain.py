"""Rematerialization evicts and recomputes a chain as a simulation of the paper does."""

import amanda
import pytest
import torch
from amanda.research.rematerialization import Rematerialization
from budget_runs import total

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


class Chain:
    """y[i] = sin(y[i-1]), forward and backward, in units of one y: what must be evicted and run again.

    Written from the paper: it knows the order of allocations in such a program, and nothing of the tool.
    """

    def __init__(self, length, budget, heuristic):
        self.budget, self.heuristic = budget, heuristic
        self.alive, self.last_use, self.evicted, self.saved = set(), {}, set(), set()
        self.others = self.clock = self.evictions = self.recomputed = 0
        for i in range(1, length + 1):  # y[0] is a leaf, from before
            self.compute(i)
            self.saved.add(i - 1)
        self.others += 1  # the result stays with the program
        self.alive.discard(length)
        for i in reversed(range(length)):
            self.clock += 1
            self.last_use[i] = self.clock
            self.rebuild(i)
            self.allocate(in_use={i})  # cos(y)
            self.others += 1
            self.allocate(in_use={i})  # times the gradient
            self.others += 1 - (1 if i == length - 1 else 2)  # the first incoming gradient is a number, expanded
            self.saved.discard(i)
            self.alive.discard(i)
            self.evicted.discard(i)

    def compute(self, i):
        self.allocate(in_use={i - 1})
        self.clock += 1
        self.last_use[i - 1] = self.last_use[i] = self.clock
        self.alive.add(i)
        self.evicted.discard(i)

    def rebuild(self, i):
        first = i
        while first > 0 and first not in self.alive:
            first -= 1
        for j in range(first + 1, i + 1):
            self.compute(j)
            self.recomputed += 1

    def allocate(self, in_use):
        while len(self.alive) + self.others + 1 > self.budget:
            victim = min(self.alive - in_use, key=self.score)
            self.alive.remove(victim)
            self.evicted.add(victim)
            self.evictions += 1

    def score(self, i):
        staleness = self.clock - self.last_use[i] + 1
        around = 0
        for step in (-1, 1):
            j = i + step
            while j in self.evicted:
                around, j = around + 1, j + step
        return {
            "dtr": (1 + around) / staleness,
            "dtr_local": 1 / staleness,
            "lru": 1 / staleness,
            "msps": None,
            "size": None,
        }[self.heuristic]


@pytest.mark.parametrize("heuristic", ["dtr", "dtr_local", "lru"])
@pytest.mark.parametrize(("length", "budget"), [(8, 6), (12, 8), (24, 8), (24, 12), (40, 10)])
def test_a_chain_is_evicted_and_recomputed_as_simulated(length, budget, heuristic):
    expected = Chain(length, budget, heuristic)
    size = 4096
    tool = Rematerialization(budget * size + 256, heuristic, costs="equal")  # and room for the sum
    x = torch.linspace(0, 1, size // 4, requires_grad=True)
    with amanda.apply(tool):
        y = x
        for _ in range(length):
            y = y.sin()
        y.sum().backward()
    assert expected.recomputed > 0
    assert (total(tool, "evicted"), total(tool, "recomputed")) == (expected.evictions, expected.recomputed)


def test_a_long_chain_is_rebuilt():
    def chain(x):
        y = x
        for _ in range(2000):
            y = y * 1.001
        return y.sin().sum()  # saves the last one, which is computed from all others

    x, other = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    chain(other).backward()
    tool = Rematerialization(1, "lru")
    with pytest.raises(amanda.Error, match="too small"), amanda.apply(tool):
        chain(x).backward()
    assert torch.equal(x.grad, other.grad)
    assert total(tool, "recomputed") == 2000
