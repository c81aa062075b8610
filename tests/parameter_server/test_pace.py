"""How many updates a call has: simulated workers, without TensorFlow's processes."""

import heapq

import pytest

from tfdist.parameter_server.own_updates.ledger import MOST
from tfdist.parameter_server.own_updates.pace import Pace


def after_calls(seconds):
    """The pace once all workers have made some calls; an update of a worker takes `seconds[w]`."""
    pace = Pace(len(seconds))
    for _ in range(20):
        for worker, of_worker in enumerate(seconds):
            updates = pace.size(worker, None)
            pace.note(worker, updates, updates * of_worker)
    return pace


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_of_all_calls_one_ends_every_half_second(workers):
    updates = after_calls([0.125] * workers).size(0, None)
    assert updates * 0.125 / workers == pytest.approx(0.5, rel=0.3)


def test_no_call_takes_longer_than_two_seconds_or_has_more_updates_than_are_noted():
    assert after_calls([0.1] * 16).size(0, None) == pytest.approx(20, abs=1)
    assert after_calls([0.001] * 16).size(0, None) == MOST
    assert after_calls([100.0] * 4).size(0, None) == 1


def epoch(batches, seconds):
    """The calls of an epoch, and how long a worker waits for the last one."""
    pace = after_calls(seconds)
    ready = [(0.0, worker) for worker in range(len(seconds))]
    calls, left, ends = 0, batches, [0.0] * len(seconds)
    while left:
        now, worker = heapq.heappop(ready)
        size = pace.size(worker, left)
        assert 1 <= size <= left
        left -= size
        calls += 1
        ends[worker] = now + size * seconds[worker]
        heapq.heappush(ready, (ends[worker], worker))
    return calls, max(ends) - min(ends)


def test_near_the_end_of_an_epoch_workers_end_together_after_few_calls():
    for workers in (1, 2, 4, 8):
        calls, waits = epoch(1000, [0.02] * workers)
        assert waits <= 0.25
        half_seconds = 1000 * 0.02 / workers / 0.5
        assert calls <= max(1000 / MOST, half_seconds) + 6 * workers
    assert epoch(8, [10.0] * 4) == (8, 0)


@pytest.mark.parametrize("slow", [0.03, 0.06, 0.2])
def test_nobody_waits_long_for_a_slow_worker(slow):
    for batches in (300, 1000, 1001):
        _, waits = epoch(batches, [0.02, 0.02, 0.02, slow])
        assert waits <= 0.1 + slow
