"""What Horovod has under way: so many bytes, and no graph is kept for it."""

import gc

import tensorflow as tf

from tfdist.strategies.horovod import under_way


def test_what_is_under_way_keeps_no_graph():
    graphs = under_way.of_graphs()
    graph = tf.Graph()
    with graph.as_default():
        one = under_way.of(graphs)
        one.before(tf.zeros([2]))
        one.add(tf.zeros([2], name="result"))
    assert len(graphs) == 1
    del graph, one
    gc.collect()
    assert not graphs


def test_only_so_many_bytes_are_under_way(monkeypatch):
    monkeypatch.setattr(under_way, "_MOST_BYTES", 24)
    with tf.Graph().as_default():
        one, waits = under_way.UnderWay(), []
        for number in range(5):
            waits.append([operation.name for operation in one.before(tf.zeros([2]))])
            one.add(tf.zeros([2], name=f"result{number}"))
    assert waits == [[], [], [], ["result0"], ["result1"]]
