"""Who does the next work item, and who waits; threads stand for the workers."""

import itertools
import threading

import pytest
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.chief.scheduler import Scheduler
from tfdist.parameter_server.chief.turns import Limits
from tfdist.parameter_server.data.batch import Batch
from tfdist.staleness import SSP

SECONDS = 20  # until a test gives up
SLACK = 1


class LostError(tf.errors.UnavailableError):
    """As TensorFlow raises it."""

    def __init__(self, worker):
        super().__init__(None, None, f"Connection reset: /job:worker/replica:0/task:{worker}")


class Numbers:
    """Batches without end; counts those that are with workers."""

    on_workers = False

    def __init__(self):
        self.lock = threading.Lock()
        self.position = 0
        self.held = 0
        self.most_held = 0

    def take(self, worker):
        with self.lock:
            self.position += 1
            self.held += 1
            self.most_held = max(self.held, self.most_held)
            return Batch(0, self.position, None)

    def give_back(self, batch):
        with self.lock:
            self.held -= 1

    def leave(self, worker):
        pass

    def close(self):
        pass


@pytest.fixture
def run(monkeypatch):
    """Starts schedulers whose workers are threads; all end with the test."""
    started, threads, backs = [], [], []

    def run_on_workers(back, work, workers):
        """A worker that is lost begins anew when `back` is set."""
        backs.append(back)

        def whole_life(worker):
            while True:
                try:
                    return work(worker, "")
                except LostError:
                    assert back.wait(SECONDS)

        for worker in range(workers):
            threads.append(threading.Thread(target=whole_life, args=[worker]))
            threads[-1].start()

    monkeypatch.setattr(compat, "run_on_workers", run_on_workers)

    def run(workers, compute, back=None, **options):
        limits = Limits(
            may_start=options.pop("may_start", lambda ahead, under_way: True),
            budget=options.pop("budget", None),
            per_item=1,
            first_item=1,
            max_pending=options.pop("max_pending", workers),
        )
        defaults = {
            "source": Numbers(),
            "lost": set(),
            "on_change": lambda worker, error: None,
            "on_wait": lambda worker: None,
        }
        schedule = Scheduler(workers, compute=compute, limits=limits, **(defaults | options))
        started.append(schedule)
        schedule.start(back or threading.Event(), (0, None))
        return schedule

    yield run
    for schedule, back in zip(started, backs):
        schedule.close()
        back.set()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def used(schedule, count=None, may_use=lambda others: True):
    """The workers of the next work items, which are used."""
    workers = []
    while (count is None or len(workers) < count) and (item := schedule.next(may_use, SECONDS)):
        workers.append(item.worker)
        schedule.release(item, (0, None))
    return workers


def longest_alone(workers, worker):
    """How many work items `worker` has done at most while no other did one."""
    return max(len(list(items)) for one, items in itertools.groupby(workers) if one == worker)


def test_a_worker_that_is_back_is_level_with_the_slowest(run):
    """Worker 0 is lost after a work item, and is back when the others have done 30 each."""
    back, noted = threading.Event(), {"lost": threading.Event(), "back": threading.Event()}

    def compute(item, read):
        read(item)
        if item.worker == 0 and item.number >= 3 and not noted["lost"].is_set():
            raise LostError(0)

    def on_change(worker, error):
        noted["back" if error is None else "lost"].set()

    may_start = SSP(SLACK).may_start
    schedule = run(3, compute, back, may_start=may_start, budget=120, on_change=on_change)
    while not noted["lost"].is_set():
        used(schedule, 1)
    used(schedule, 60)
    back.set()
    assert noted["back"].wait(SECONDS)
    assert longest_alone(used(schedule), 0) <= 2 * (SLACK + 1)


def test_a_worker_that_gets_data_again_is_level_with_the_slowest(run):
    """Worker 0 finds none after some work, until worker 2 is lost and gives its batch back."""
    is_due = threading.Event()

    class Shards(Numbers):
        returned = False

        def take(self, worker):
            ended = worker == 0 and self.position > 6 and not self.returned
            return None if ended else super().take(worker)

        def give_back(self, batch):
            self.returned = True

    def compute(item, read):
        read(item)
        if item.worker == 2 and is_due.is_set():
            raise LostError(2)

    schedule = run(3, compute, source=Shards(), may_start=SSP(SLACK).may_start, budget=120)
    used(schedule, 60)
    is_due.set()
    assert longest_alone(used(schedule), 0) <= 2 * (SLACK + 1)


def test_a_step_that_is_held_back_counts_as_one_wait(run):
    """The result of worker 0 is there, but that of worker 1 has to be used first."""
    both_read, waited = threading.Barrier(2), threading.Event()
    waits = []

    def compute(item, read):
        read(item)
        both_read.wait(SECONDS)
        if item.worker == 1:
            waited.wait(SECONDS / 4)

    def on_wait(worker):
        waits.append(worker)
        waited.set()

    schedule = run(2, compute, budget=2, on_wait=on_wait)

    def may_use(others):
        return all(other.worker == 0 for other in others)

    assert used(schedule, may_use=may_use) == [1, 0]
    assert waits == [0]


def test_a_worker_starts_when_it_is_to_ask_again_and_may(run):
    waits, may, computed = threading.Event(), threading.Event(), threading.Event()
    schedule = run(
        1,
        lambda item, read: computed.set(),
        may_start=lambda ahead, under_way: may.is_set(),
        on_wait=lambda worker: waits.set(),
    )
    assert waits.wait(SECONDS)
    may.set()
    schedule.ask_again()
    assert computed.wait(SECONDS / 4)


@pytest.mark.parametrize("most", [2, 9])
def test_no_more_steps_are_under_way_than_may_be(run, most):
    """Nor than there are workers: each has one at a time."""
    source, workers = Numbers(), 4
    all_begun = threading.Barrier(min(most, workers))

    def compute(item, read):
        read(item)
        if item.number < all_begun.parties:
            all_begun.wait(SECONDS)

    schedule = run(workers, compute, source=source, budget=100, max_pending=most)
    for _ in range(100):
        item = schedule.next(lambda others: True, SECONDS)
        source.give_back(None)
        schedule.release(item, (0, None))
    assert schedule.next(lambda others: True, SECONDS) is None
    assert source.most_held == all_begun.parties
