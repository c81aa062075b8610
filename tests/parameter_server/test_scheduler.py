"""Who does the next work item, and who waits; threads stand for the workers."""

import itertools
import threading

import pytest
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.chief.parts_scheduler import PartsScheduler
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
        kind = options.pop("kind", Scheduler)
        schedule = kind(workers, compute=compute, limits=limits, **(defaults | options))
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


class OnePart(Numbers):
    """One part of a batch, which each worker gets once."""

    def __init__(self):
        super().__init__()
        self.had = set()
        self.returned = []

    def take(self, worker):
        with self.lock:
            if worker in self.had:
                return None
            self.had.add(worker)
            return Batch(0, 0, None, index=0)

    def give_back(self, batch):
        self.returned.append(batch)


@pytest.fixture
def abandoned(run):
    """A run in which worker 1 still computes what worker 0 was faster with, and how it may end."""
    begun, end = threading.Event(), threading.Event()
    error, noted, source = [], [], OnePart()

    def compute(item, read):
        read(item)
        if item.worker == 1 and not end.is_set():
            begun.set()
            end.wait(SECONDS)
            for failure in error:
                raise failure
        elif item.worker == 0:
            assert begun.wait(SECONDS)

    back = threading.Event()

    def on_change(worker, failure):
        noted.append((worker, failure is None))
        back.set()

    options = {"source": source, "kind": PartsScheduler, "on_change": on_change, "back": back}
    schedule = run(2, compute, **options)
    item = schedule.next(lambda others: True, SECONDS)
    assert item.worker == 0
    assert schedule.abandon(item) == [1]
    schedule.release(item, (1, None))

    def finish(*errors):
        error.extend(errors)
        end.set()

    return schedule, source, finish, noted


def test_the_end_does_not_wait_for_what_nobody_needs(abandoned):
    schedule, source, finish, _ = abandoned
    assert schedule.next(lambda others: True, SECONDS) is None
    finish()
    schedule.close()
    assert source.returned == []


def test_what_nobody_needs_is_not_used(abandoned):
    schedule, _, finish, _ = abandoned
    finish()
    assert schedule.next(lambda others: True, SECONDS) is None
    assert schedule.next(lambda others: True, SECONDS) is None


def test_a_worker_that_is_lost_with_what_nobody_needs_is_lost(abandoned):
    schedule, source, finish, noted = abandoned
    finish(LostError(1))
    while len(noted) < 2:  # it is lost, and comes back
        schedule.next(lambda others: True, SECONDS)
    assert noted == [(1, False), (1, True)]
    assert source.returned == []
    assert schedule.next(lambda others: True, SECONDS) is None


def test_an_error_in_what_nobody_needs_names_the_worker(abandoned):
    schedule, _, finish, _ = abandoned
    finish(ValueError("of the step"))
    with pytest.raises(ValueError, match="of the step") as raised:
        while True:
            schedule.next(lambda others: True, SECONDS)
    assert raised.value.worker == 1


class TakenTooLate(Numbers):
    """Parts of batches; while worker 1 takes its first one, the update is made without it."""

    def __init__(self):
        super().__init__()
        self.makes_update = None
        self.parts = {0: [(0, 0), (1, 0)], 1: [(0, 1), (1, 1)]}

    def take(self, worker):
        if not self.parts[worker]:
            return None
        position, index = self.parts[worker].pop(0)
        if (worker, position) == (1, 0):
            assert self.makes_update.wait(SECONDS)
        return Batch(0, position, None, index=index)


def test_a_part_that_is_taken_too_late_is_not_begun(run):
    source, computed = TakenTooLate(), []
    source.makes_update = threading.Event()

    def compute(item, read):
        read(item)
        computed.append((item.worker, item.batches[0].position))

    schedule = run(2, compute, source=source, kind=PartsScheduler)
    item = schedule.next(lambda others: True, SECONDS)
    assert schedule.abandon(item, whole_batch=True) == []
    source.makes_update.set()
    schedule.release(item, (1, None))
    assert sorted(used(schedule)) == [0, 1]
    assert sorted(computed) == [(0, 0), (0, 1), (1, 1)]
