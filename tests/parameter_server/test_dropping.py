"""Which parts of a global batch are begun and used, where an update does not wait for all."""

import collections
import math

import pytest
import tensorflow as tf

from tfdist.parameter_server.data import parts_source
from tfdist.parameter_server.data.dropping import Dropping
from tfdist.parameter_server.data.parts_source import PartsSource


@pytest.fixture
def source(monkeypatch, clock):
    """Makes sources of numbered samples."""
    monkeypatch.setattr(parts_source, "CHIEF", "/device:CPU:0")

    def make(samples=12, batch=4, parts=4, drop=1, epoch=0):
        batches = iter(tf.data.Dataset.range(samples).batch(batch))
        return PartsSource(batches, parts, drop=drop).open(epoch=epoch)

    return make


def used(source, *workers):
    """Lets workers take a part each, and uses these."""
    taken = [source.take(worker) for worker in workers]
    assert all(map(source.accept, taken, workers))
    return taken


@pytest.fixture
def measured(clock):
    """Workers 0 to 2 take 1 second for a part, worker 3 takes 5; all have begun with another."""
    found = Dropping(1)
    for worker, seconds in enumerate((1.0, 1.0, 1.0, 5.0)):
        found.begin(worker, worker)
        clock.now += seconds
        found.end(worker)
    found.begin_batch()
    for worker in range(4):
        found.begin(worker, worker)
    return found


def test_a_worker_begins_one_part_of_each_batch_in_any_case(measured):
    measured.begin_batch()
    assert measured.delay(3, missing=3, under_way={0, 1, 2}) == 0


def test_nobody_begins_more_than_is_needed(measured, clock):
    clock.now += 0.9
    measured.end(0)
    assert measured.delay(0, missing=2, under_way={1, 2}) == pytest.approx(0.6)
    assert measured.delay(0, missing=3, under_way={1, 2}) == 0, "two are too few"


def test_who_is_slow_is_not_relied_on(measured, clock):
    clock.now += 0.9
    measured.end(0)
    assert measured.delay(0, missing=3, under_way={1, 2, 3}) == 0


def test_who_is_late_is_not_relied_on(measured, clock):
    clock.now += 1.4
    measured.end(0)
    measured.end(1)
    assert 0 < measured.delay(0, missing=1, under_way={2}) < 0.2
    clock.now += 0.2
    assert measured.delay(0, missing=1, under_way={2}) == 0


def test_nobody_begins_when_the_update_is_about_to_be_made(measured):
    measured.begin_batch()
    assert measured.delay(3, missing=0, under_way={0}) == math.inf


def test_all_but_one_part_are_enough(source):
    parts = source()
    used(parts, 0, 1)
    assert not parts.is_complete()
    used(parts, 2)
    assert parts.is_complete()
    assert parts.advance() == 1


def test_a_late_part_is_not_used_in_a_later_step(source):
    parts = source()
    late = parts.take(3)
    used(parts, 0, 1, 2)
    assert parts.advance() == 1
    again = used(parts, 0, 1)
    assert {part.position for part in again} == {1}
    assert not parts.accept(late, 3)
    assert not parts.is_complete(), "the late part does not count"
    present = parts.take(3)
    assert present.position == 1, "the late worker goes on with the present batch"
    assert parts.accept(present, 3)
    assert parts.is_complete()


def test_what_was_not_used_is_offered_again_in_the_next_run_but_not_what_was_dropped(source):
    parts = source()
    dropped = parts.take(3)
    used(parts, 0, 1, 2)
    parts.advance()
    used(parts, 0, 1)
    parts.close()
    parts.open()
    parts.give_back(dropped)
    again = [parts.take(worker) for worker in range(4)]
    assert sorted((part.position, part.index) for part in again) == [(1, i) for i in range(4)]
    assert all(parts.accept(again[worker], worker) for worker in range(2))
    assert not parts.is_complete()
    assert parts.accept(again[2], 2)
    assert parts.is_complete()


def test_the_part_of_a_lost_worker_is_computed_by_another_if_it_is_needed(source, clock):
    parts = source(drop=1)
    first = [parts.take(worker) for worker in range(4)]
    clock.now += 1
    assert all(parts.accept(first[worker], worker) for worker in (0, 1))
    for worker in (2, 3):  # two are lost, and one may be dropped
        parts.give_back(first[worker])
        parts.leave(worker)
    again = parts.take(0)
    assert again is not None and again.index in (first[2].index, first[3].index)
    assert parts.accept(again, 0)
    assert parts.is_complete()


def test_parts_without_samples_do_not_count(source):
    parts = source(samples=6)
    used(parts, 0, 1, 2)
    parts.advance()
    (only,) = used(parts, 0)  # of two parts with samples and two without
    assert only.data.numpy().tolist() in ([4], [5])
    assert parts.is_complete()
    assert parts.advance() == 1


def test_the_only_part_with_samples_is_waited_for(source):
    parts = source(samples=5)
    used(parts, 0, 1, 2)
    parts.advance()
    taken = parts.take(3)
    assert not parts.is_complete()
    assert taken.data.numpy().tolist() == [4]
    assert parts.accept(taken, 3)
    assert parts.is_complete()
    assert parts.advance() == 0


@pytest.mark.parametrize("goes_on", [False, True], ids=["new data", "data that go on"])
def test_other_samples_come_last_in_each_batch_and_epoch(goes_on, source):
    last, parts = collections.defaultdict(list), None
    for epoch in range(4):
        if parts is None or not goes_on:
            parts = source(samples=48, epoch=epoch)
        else:
            parts.open(epoch=epoch)
        for batch in range(3):
            taken = [parts.take(worker).index for worker in range(4)]
            assert sorted(taken) == [0, 1, 2, 3]
            last[batch].append(taken[-1])
            for worker, index in enumerate(taken[:3]):
                assert parts.accept(_part(parts, index), worker)
            parts.advance()
    assert [sorted(of_batch) for of_batch in last.values()] == [[0, 1, 2, 3]] * 3


def _part(source, index):
    return next(part for part in source._present if part.index == index)
