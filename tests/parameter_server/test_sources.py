"""Sources hand out each batch once, also when batches come back."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.parameter_server.data import parts_source
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.parameter_server.data.sharded_source import ShardedSource


class Following:
    """A batch that a worker has not sent yet."""

    def __init__(self, value, error):
        self.value, self.error = value, error

    def get_value(self):
        if self.error is not None:
            raise self.error
        return self.value


class Numbers:
    """Parts of the numbers up to `total`; those of a shard are `shard`, `shard + count`, ..."""

    length_is_known = False

    def __init__(self, count=2, total=8, in_turn=True):
        self.count, self.in_turn = count, in_turn
        self.total = total
        self.opened = []
        self.error = None

    def open(self, worker, shard, skip, number):
        self.opened.append((worker, shard, skip))
        return iter(range(shard + skip * self.count, self.total, self.count))

    def has(self, shard, position):
        return position * self.count + shard < self.total if self.length_is_known else None

    def next(self, iterator):
        if self.error is not None:
            raise self.error
        return next(iterator)

    def following(self, iterator):
        value = next(iterator, None)
        return value is not None, Following(value, self.error)

    def leave(self, worker):
        pass


@pytest.fixture(params=[False, True], autouse=True)
def length_is_known(request, monkeypatch):
    monkeypatch.setattr(Numbers, "length_is_known", request.param)


def taken(source, worker, most=100):
    """What a worker gets until there is no more for it."""
    found = []
    while len(found) < most and (batch := source.take(worker)) is not None:
        found.append(batch.data)
    return found


def test_a_batch_that_a_lost_worker_did_not_send_goes_to_another():
    shards = Numbers()
    source = ShardedSource(shards, 1)
    assert taken(source, 0, 2) == [0, 2]
    shards.error = RuntimeError("the worker is lost")
    with pytest.raises(RuntimeError, match="lost"):
        source.take(0)
    shards.error = None
    source.leave(0)
    assert taken(source, 1) == [1, 3, 5, 7, 4, 6]


def test_the_last_batch_of_a_part_may_come_back_after_its_end():
    source = ShardedSource(Numbers(total=4), 1)
    source.take(0)
    last = source.take(0)
    assert taken(source, 1) == [1, 3]
    assert source.take(0) is None
    source.give_back(last)
    assert taken(source, 1) == [2]


@pytest.mark.parametrize("batches", [6, 7])
def test_workers_have_the_same_share_of_an_epoch_of_endless_data(batches):
    source = ShardedSource(Numbers(total=10**9), 1)
    assert source.begin(0, batches) is source
    assert taken(source, 0) == [*range(0, batches, 2)]
    assert source.begin(0, 1).take(0) is None, "another run of the same epoch"
    assert taken(source, 1) == [*range(1, batches, 2)]
    source.begin(1, batches)
    both = taken(source, 0) + taken(source, 1)
    assert sorted(both) == [*range(batches, 2 * batches)]


def test_the_share_of_a_lost_worker_goes_to_others_until_it_is_back():
    shards = Numbers(total=10**9)
    source = ShardedSource(shards, 1).begin(0, 8)
    batch = source.take(0)
    source.give_back(batch)
    source.leave(0)
    assert taken(source, 1) == [1, 3, 5, 7, 0, 2, 4, 6]
    assert source.take(0) is None
    source.begin(1, 4)
    assert taken(source, 0) == [8, 10]
    assert shards.opened[-1] == (0, 0, 4), "on the worker that reads it now"
    assert taken(source, 1) == [9, 11]


def test_parts_that_users_make_need_not_have_the_same_share():
    source = ShardedSource(Numbers(total=10, in_turn=False), 1).begin(0, 4)
    assert source.is_shared
    assert taken(source, 0) == [0, 2, 4, 6, 8]
    assert not ShardedSource(Numbers(), 1).is_shared


@pytest.fixture
def parts(monkeypatch):
    """Three global batches of 4 samples in 2 parts."""
    monkeypatch.setattr(parts_source, "CHIEF", "/device:CPU:0")
    batches = iter(tf.data.Dataset.range(12).batch(4))
    return PartsSource(batches, 2).open()


def numbers(batches):
    return [(batch.number, np.array(batch.data).tolist()) for batch in batches]


def test_a_global_batch_that_was_not_used_is_offered_again_in_the_next_run(parts):
    parts.take(0), parts.take(1)
    parts.advance()
    early, other = parts.take(0), parts.take(1)
    parts.give_back(other)
    parts.close()
    assert parts.take(0) is None
    parts.open()
    parts.give_back(early)  # of the run before: it is there already
    again = [parts.take(0), parts.take(1)]
    assert numbers(again) == [(0, [4, 5]), (0, [6, 7])]
    parts.advance()
    assert numbers([parts.take(1), parts.take(0)]) == [(1, [8, 9]), (1, [10, 11])]
    parts.advance()
    assert parts.take(0) is None


def test_a_global_batch_that_was_used_is_not_offered_again(parts):
    parts.take(0), parts.take(1)
    parts.advance()
    parts.close()
    parts.open()
    assert numbers([parts.take(0), parts.take(1)]) == [(0, [4, 5]), (0, [6, 7])]
