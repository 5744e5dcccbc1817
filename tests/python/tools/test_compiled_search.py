"""The search for the smallest set of units that differs, on sets that are known."""

import math

import pytest
from amanda.tools.compiled_diff.search import Search


def differing(*sets):
    """score of units: of each (set, score) that is a part of them, the largest."""
    asked = []

    def score(units):
        asked.append(units)
        return max((size for members, size in sets if set(members) <= set(units)), default=0.0)

    return score, asked


@pytest.mark.parametrize("members", [(0,), (99,), (3, 4), (10, 50, 90), (0, 99)])
def test_the_planted_set_is_found(members):
    score, asked = differing((members, 1.0))
    found = Search(100, score, seconds=60).smallest(1.0)
    assert (found.units, found.is_cut) == (members, False)
    assert len(set(asked)) == len(asked), "no set is compiled twice"
    assert len(asked) < 120


def test_rounding_before_the_fault_is_not_taken_for_it():
    score, _ = differing(((1,), 1e-7), ((2,), 3e-7), ((40, 41), 0.3))
    assert Search(64, score, seconds=60).smallest(0.3).units == (40, 41)
    score, _ = differing(((1,), 1e-7), ((2,), 3e-7))
    assert Search(64, score, seconds=60).smallest(3e-7).units == (1,), "of nearly the same size: the first"


def test_a_fault_that_later_units_amplify_is_found_by_its_smaller_score():
    def score(units):
        return (100.0 if 9 in units and 3 in units else 0.01) if 3 in units else 0.0

    assert Search(10, score, seconds=60).smallest(100.0).units == (3, 9)

    def spread(units):  # only the whole is off by much
        return 100.0 if len(units) == 10 else 0.01 if 3 in units else 0.0

    assert Search(10, spread, seconds=60).smallest(100.0).units == (3,)


def test_infinities_are_looked_for_first():
    score, _ = differing(((1,), 0.5), ((7,), math.inf))
    assert Search(8, score, seconds=60).smallest(math.inf).units == (7,)


def test_the_smallest_set_so_far_is_given_when_the_time_is_over():
    times = iter(range(1000))
    score, asked = differing(((5, 6), 1.0))
    found = Search(64, score, seconds=3, clock=lambda: next(times)).smallest(1.0)
    assert found.is_cut
    assert {5, 6} <= set(found.units) < set(range(64))
    assert len(asked) == 3
