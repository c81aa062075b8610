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


def moments(function, apart=()):
    """The moments of `function` of 250 numbers; `apart` are types of operations."""
    results, graph = traced(function, tf.TensorSpec([KB]))
    walk = Walk(graph, [tensor.op for tensor in results])
    return walk.moments([o for o in graph.get_operations() if o.type in apart])


def peak(function):
    """The most bytes of `function` of 250 numbers."""
    return max(others for others, _ in moments(function))


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


def test_some_bytes_are_counted_apart():
    def chain(x):
        return tf.cos(tf.sin(x))

    assert moments(chain, {"Sin"}) == ((1000, 1000),)
    assert moments(chain, {"Sin", "Cos"}) == ((0, 2000),)


def test_a_moment_with_less_of_both_is_left_out():
    def wide_then_long(x):
        wide = tf.tile(tf.sin(x), [3])
        return tf.cos(tf.cos(wide[:KB]))

    assert moments(wide_then_long, {"Cos"}) == ((4000, 0), (1000, 1000), (0, 2000))


def test_tensors_of_unknown_size_are_counted():
    def masked(x):
        return tf.identity(tf.sin(tf.boolean_mask(x, x > 0)))

    results, graph = traced(masked, tf.TensorSpec([KB]))
    walk = Walk(graph, [tensor.op for tensor in results])
    assert walk.unknown == 2  # what the mask leaves, and its sines
    results, graph = traced(lambda x: tf.sin(tf.reshape(x, [-1])), tf.TensorSpec([KB]))
    assert Walk(graph, [tensor.op for tensor in results]).unknown == 0


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
    walk = Walk(graph, [tensor.op for tensor in results], shapes)
    most = max(others for others, _ in walk.moments())
    # At least the states of all turns, and not one kernel for each turn.
    states = 4 * 16 * steps
    assert states < most < 8 * states + 10_000
