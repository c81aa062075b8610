"""The offset of two clocks, from when operations began and ended by both."""

import pathlib
import random
import time

import numpy as np
import pytest

from tfdist.engines.clocks import Clock, clock_of, clocks_of, machine_number
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

    def __init__(self, ahead, is_one_machine=False):
        super().__init__()
        self.sums, self._ahead, self._is_one_machine = 0, ahead, is_one_machine

    def sum_of(self, make):
        make()
        time.sleep(0.01 if self.sums < 20 else 0)  # the try in which a rank was lost
        self.sums += 1
        return make()

    def all_gather(self, row):
        machine, *times = row
        other = [machine + (not self._is_one_machine), *(np.array(times) + self._ahead)]
        return np.array([row, other])


@pytest.mark.parametrize("ahead", [0, 5 * _MS, -3_000 * _MS])
def test_sums_of_a_group_are_operations_too_even_if_they_are_repeated(ahead):
    group = Group(ahead)
    first, other = clocks_of(ReplicaContextEngine(group), 1.0)
    assert first == Clock(0.0, 0.0) and group.sums == 20
    assert 0 < other.error_seconds < 0.005
    assert abs(other.offset_seconds - ahead / 1e9) <= other.error_seconds


def test_a_group_sums_until_the_error_is_small_or_time_is_over(monkeypatch):
    group = Group(0)
    monkeypatch.setattr("tfdist.engines.clocks._MOST_SECONDS", 0.5)
    clocks_of(ReplicaContextEngine(group), -1.0)
    assert group.sums > 20 and group.sums % 20 == 0


def test_the_processes_of_a_machine_have_one_clock():
    group = Group(0, is_one_machine=True)
    assert clocks_of(ReplicaContextEngine(group), 1e-9) == 2 * [Clock(0.0, 0.0)]
    assert group.sums == 20


def test_a_copied_machine_whose_clock_was_set_since_is_another_one():
    _, other = clocks_of(ReplicaContextEngine(Group(_MS * 50, is_one_machine=True)), 1.0)
    assert other.offset_seconds == pytest.approx(0.05, abs=other.error_seconds)


def test_a_machine_has_one_number_and_is_alone_where_it_does_not_say_who_it_is(monkeypatch):
    assert machine_number() == machine_number() < 2**63
    monkeypatch.setattr("tfdist.engines.clocks._BOOT", pathlib.Path("/proc/none"))
    assert machine_number() != machine_number()
