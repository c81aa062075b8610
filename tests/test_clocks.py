"""The offset of two clocks, from when operations began and ended by both."""

import random
import time

import numpy as np
import pytest

from tfdist.engines.clocks import Clock, clock_of, clocks_of
from tfdist.engines.processes import OneProcess
from tfdist.engines.replica_context import ReplicaContextEngine

_MS = 1_000_000


def operations(offset, count=20, seed=0):
    """Operations of two processes, as both clocks see them: none ends before both have begun."""
    chance = random.Random(seed)
    own, others, now = [], [], 10_000 * _MS
    for _ in range(count):
        begun = [now + chance.randrange(3 * _MS) for _ in range(2)]
        ended = [max(begun) + 100_000 + chance.randrange(2 * _MS) for _ in range(2)]
        own.append((begun[0], ended[0]))
        others.append((begun[1] + offset, ended[1] + offset))
        now = max(ended)
    return own, others


def test_the_true_offset_is_within_the_error():
    for seed, offset in enumerate((0, 5 * _MS, -3_000 * _MS, 86_400_000 * _MS)):
        clock = clock_of(*operations(offset, seed=seed))
        assert abs(clock.offset_seconds - offset / 1e9) <= clock.error_seconds < 0.003


def test_more_operations_leave_a_smaller_error():
    few, many = (clock_of(*operations(0, count)).error_seconds for count in (1, 50))
    assert many < few / 2


class Group(OneProcess):
    """Two processes of a group: this one, and one whose clock is ahead; a loss repeats each sum."""

    may_change = True

    def __init__(self, ahead):
        super().__init__()
        self.sums, self._ahead = 0, ahead

    def sum_of(self, make):
        make()
        time.sleep(0.01 if self.sums < 20 else 0)  # the try in which a rank was lost
        self.sums += 1
        return make()

    def all_gather(self, row):
        return np.array([row, np.array(row) + self._ahead])


@pytest.mark.parametrize("ahead", [0, 5 * _MS, -3_000 * _MS])
def test_sums_of_a_group_are_operations_too_even_if_they_are_repeated(ahead):
    group = Group(ahead)
    first, other = clocks_of(ReplicaContextEngine(group), 1.0)
    assert first == Clock(0.0, 0.0) and group.sums == 20
    assert abs(other.offset_seconds - ahead / 1e9) <= other.error_seconds < 0.005


def test_a_group_sums_until_the_error_is_small_or_there_were_many_sums():
    group = Group(0)
    clocks_of(ReplicaContextEngine(group), -1.0)
    assert group.sums == 400
