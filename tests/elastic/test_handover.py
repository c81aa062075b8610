"""What a rank that joins gets of the callbacks of another one."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.elastic.handover import Belongings


class Callback:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Other(Callback):
    pass


def handed_over(given, taken):
    source, target = Belongings(), Belongings()
    source.objects, target.objects = given, taken
    target.take(source.given())


def test_arrays_and_fractions_are_handed_over():
    best = [np.ones(2), np.zeros((2, 3))]
    given = Callback(best=best, loss=0.5, seen=tf.constant([1.0]), table={"a": 2.5})
    taken = Callback(best=None, loss=0.1, seen=tf.constant([9.0]), table={})
    handed_over([given], [taken])
    assert all((a == b).all() for a, b in zip(taken.best, best))
    assert (taken.loss, taken.table) == (0.5, {"a": 2.5})
    assert isinstance(taken.seen, tf.Tensor)
    assert taken.seen.numpy() == [1.0]


@pytest.mark.parametrize("own", [3, True, "path", open, [1, 2], {"verbose": 1}, [np.array(["a"])]])
def test_what_a_rank_has_for_itself_it_keeps(own):
    taken = Callback(own=own)
    handed_over([Callback(own=["another", 0.5])], [taken])
    handed_over([Callback(own=type(own)())] if own is not open else [Callback(own=print)], [taken])
    assert taken.own is own


def test_lists_and_dicts_stay_the_same_objects():
    losses, table = [0.5], {"a": 0.5}
    taken = Callback(losses=losses, table=table)
    handed_over([Callback(losses=[0.1, 0.2], table={"b": 0.3})], [taken])
    assert taken.losses is losses
    assert taken.table is table
    assert (losses, table) == ([0.1, 0.2], {"b": 0.3})


def test_objects_are_matched_by_class_and_order():
    taken = [Callback(x=0.0), Other(x=0.0), Callback(x=0.0)]
    handed_over([Other(x=3.5), Callback(x=1.5), Callback(x=2.5)], taken)
    assert [one.x for one in taken] == [1.5, 3.5, 2.5]


def test_where_numbers_of_objects_differ_each_keeps_its_own():
    taken = [Callback(x=0.0), Other(x=0.0)]
    handed_over([Callback(x=1.5), Callback(x=2.5), Other(x=3.5)], taken)
    assert [one.x for one in taken] == [0.0, 3.5]
