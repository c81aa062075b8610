"""The most bytes that a traced function takes at a time, counted by hand."""

import keras
import pytest
import tensorflow as tf

from tfdist.memory.liveness import Walk

KB = 250  # float32 numbers


def traced(function, *specs):
    """The results of `function` in a graph, and the graph."""
    results = []

    @tf.function(autograph=False)
    def kept(*given):
        results.extend(tf.nest.flatten(function(*given)))
        return results[0]

    return results, kept.get_concrete_function(*specs).graph


def peak(function, scales=None):
    """The most bytes of `function` of 250 numbers."""
    results, graph = traced(function, tf.TensorSpec([KB]))
    walk = Walk(graph, [tensor.op for tensor in results])
    return walk.peak_bytes(scales and {o: f for o in graph.get_operations() for f in scales(o)})


def test_a_chain_has_two_tensors_at_a_time():
    def chain(x):
        for _ in range(5):
            x = tf.sin(x)
        return x

    assert peak(chain) == 2000


def test_what_is_needed_later_stays():
    def kept(x):
        every = [x]
        for _ in range(5):
            every.append(tf.sin(every[-1]))
        total = every[-1]
        for value in reversed(every[1:-1]):
            total = tf.cos(total) * value
        return total

    # All five sines, and a cosine; then products take the place of sines.
    assert peak(kept) == 6000


def test_another_shape_takes_no_bytes():
    def shaped(x):
        y = tf.sin(x)
        return tf.identity(tf.reshape(y, [10, 25])), tf.expand_dims(y, 0)

    assert peak(shaped) == 1000


def test_what_nobody_needs_does_not_count():
    def wasteful(x):
        tf.tile(x, [100])
        return tf.sin(x)

    assert peak(wasteful) == 1000


def test_some_bytes_count_more_than_once():
    def chain(x):
        return tf.cos(tf.sin(x))

    assert peak(chain, lambda o: [1.5] if o.type == "Sin" else []) == 2500
    assert peak(chain, lambda o: [0.5]) == 1000


def test_constants_and_inputs_do_not_count():
    assert peak(lambda x: x + tf.ones([KB])) == 1000


@pytest.mark.parametrize("steps", [5, 50])
def test_a_loop_keeps_values_for_each_turn(steps):
    layer = keras.layers.SimpleRNN(16)
    layer.build((1, steps, 4))
    weights = [weight.value for weight in layer.trainable_weights]

    def gradients(x):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(x))
        return tape.gradient(total, weights)

    results, graph = traced(gradients, tf.TensorSpec([1, steps, 4]))
    shapes = {tuple(weight.shape) for weight in weights}
    most = Walk(graph, [tensor.op for tensor in results], shapes).peak_bytes()
    # At least the states of all turns, and not one kernel for each turn.
    states = 4 * 16 * steps
    assert states < most < 8 * states + 10_000
