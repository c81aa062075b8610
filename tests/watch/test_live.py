"""What a rank tells `tfdist run --watch`: also in short epochs, and while it validates."""

import types

import pytest

from tfdist.callbacks import live
from tfdist.step.parts import Sums
from tfdist.watch import status

CALL, BETWEEN, COMPUTE, EXCHANGE, SAMPLES = 0.03, 0.01, 0.02, 0.005, 8


class Rank:
    """A rank that trains on a clock of its own, and what it tells."""

    def __init__(self, monkeypatch, epochs, steps):
        self.now, self.sums, self.told = 100.0, Sums(0.0, 0.0, 0.0, 0.0, 0.0), []
        clock = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(live, "time", clock)
        monkeypatch.setattr(status, "write", self._write)
        parts = types.SimpleNamespace(read=lambda: self.sums)
        strategy = types.SimpleNamespace(
            measure_parts=lambda model: parts,
            stop_parts=lambda model: None,
            processes=types.SimpleNamespace(rank=1, is_alone=False),
        )
        self.steps = steps
        self.live = live.Live("folder")
        self.live.set_model(types.SimpleNamespace(distribute_strategy=strategy))
        self.live.set_params({"epochs": epochs, "steps": steps})

    def _write(self, folder, statuses):
        (own,) = statuses
        self.told.append((self.now, own))

    def epoch(self, number, first_call=CALL, tests=0):
        self.live.on_epoch_begin(number)
        for batch in range(self.steps):
            self.now += BETWEEN
            self.live.on_train_batch_begin(batch)
            self.now += CALL if batch else first_call
            more = (COMPUTE, EXCHANGE, 0.0, SAMPLES, 1.0)
            self.sums = Sums(*(a + b for a, b in zip(self.sums, more)))
            self.live.on_train_batch_end(batch)
        for batch in range(tests):
            self.now += 0.2
            self.live.on_test_batch_end(batch)
        self.live.on_epoch_end(number)


def assert_rates(own):
    seconds = BETWEEN + CALL
    assert own.samples == pytest.approx(SAMPLES / seconds)
    assert own.data == pytest.approx((CALL - COMPUTE - EXCHANGE) / seconds)
    assert own.others == pytest.approx(EXCHANGE / seconds)


def test_epochs_of_two_short_steps_are_told(monkeypatch):
    rank = Rank(monkeypatch, epochs=50, steps=2)
    rank.live.on_train_begin()
    for number in range(50):
        rank.epoch(number)
    rank.live.on_train_end()
    assert len(rank.told) == 8  # in 4 seconds, and at the end
    assert rank.told[-1][0] == rank.now and rank.told[-1][1][2:6] == (50, 2, 50, 2)
    for _, own in rank.told:
        assert own.name == "rank 1" and own.memory > 0
        assert_rates(own)


def test_a_long_first_call_is_told_without_rates(monkeypatch):
    rank = Rank(monkeypatch, epochs=3, steps=2)
    rank.live.on_train_begin()
    rank.epoch(0, first_call=30.0)
    (_, own), *more = rank.told
    assert own[2:] == (1, 1, 3, 2, None, None, None, own.memory) and not more
    rank.epoch(1, first_call=30.0)
    assert rank.told[-1][1][2:4] == (2, 1)
    assert_rates(rank.told[-1][1])


def test_a_rank_that_validates_is_not_silent(monkeypatch):
    rank = Rank(monkeypatch, epochs=2, steps=20)
    rank.live.on_train_begin()
    rank.epoch(0, tests=100)
    rank.live.on_train_end()
    times = [time for time, _ in rank.told]
    assert 20 <= len(times) < 50 and times[-1] == rank.now
    assert max(b - a for a, b in zip(times, times[1:])) < 2 * status.SECONDS
    for _, own in rank.told[2:]:
        assert own[2:4] == (1, 20)
        assert_rates(own)


def test_short_trainings_are_told_at_their_end(monkeypatch):
    rank = Rank(monkeypatch, epochs=1, steps=2)
    rank.live.on_train_begin()
    rank.epoch(0)
    assert not rank.told
    rank.live.on_train_end()
    ((_, own),) = rank.told
    assert own.step == 2
    assert_rates(own)


def test_evaluation_alone_tells_nothing(monkeypatch):
    rank = Rank(monkeypatch, epochs=1, steps=2)
    monkeypatch.setattr(status, "SECONDS", 0.0)
    rank.live.on_test_batch_end(0)
    assert not rank.told
