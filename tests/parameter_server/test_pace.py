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


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.5), (2, 1.0), (4, 1.0)])
def test_a_call_takes_half_a_second_or_with_several_workers_a_second(workers, seconds):
    updates = after_calls([0.0625] * workers).size(0, 1000)
    assert updates * 0.0625 == pytest.approx(seconds, rel=0.2)


def test_no_call_should_take_more_than_a_second_or_have_more_updates_than_are_noted():
    assert after_calls([0.05] * 16).size(0, 10_000) == pytest.approx(20, abs=1)
    assert after_calls([0.05] * 16).size(0, None) == pytest.approx(10, abs=1)
    assert after_calls([0.001] * 16).size(0, 10_000) == MOST
    assert after_calls([100.0] * 4).size(0, 1000) == 1


def epoch(batches, seconds, shares):
    """The calls of an epoch, and how long a worker waits for the last one."""
    pace, workers = after_calls(seconds), len(seconds)
    pace.shares = shares
    ready = [(0.0, worker) for worker in range(workers)]
    own = [batches if shares else len(range(worker, batches, workers)) for worker in range(workers)]
    calls, left, ends = 0, batches, [0.0] * workers
    while ready and left:
        now, worker = heapq.heappop(ready)
        size = min(pace.size(worker, left), own[worker])
        assert size <= left
        if not size:
            continue
        left -= size
        own[worker] -= 0 if shares else size
        calls += 1
        ends[worker] = now + size * seconds[worker]
        heapq.heappush(ready, (ends[worker], worker))
    assert not left
    return calls, max(ends) - min(ends)


@pytest.mark.parametrize("shares", [True, False])
def test_near_the_end_of_an_epoch_workers_end_together_after_few_calls(shares):
    for workers in (1, 2, 4, 8):
        calls, waits = epoch(1000, [0.02] * workers, shares)
        assert waits <= 0.25
        each = max(1000 / MOST, 1000 * 0.02 / min(workers * 0.5, 1.0))
        assert calls <= each + (14 if shares else 3) * workers
    assert epoch(8, [10.0] * 4, shares) == (8, 0)


@pytest.mark.parametrize("slow", [0.03, 0.06, 0.2])
def test_nobody_waits_long_for_a_slow_worker_with_whom_all_share_the_data(slow):
    for batches in (300, 1000, 1001):
        _, waits = epoch(batches, [0.02, 0.02, 0.02, slow], True)
        assert waits <= 0.1 + slow
