"""The most bytes that a traced function takes at a time, counted by hand."""

import keras
import pytest
import tensorflow as tf

from tfdist.memory.liveness import Walk

KB = 250  # float32 numbers


def walk(function, *sizes):
    """The walk through `function`, which gets tensors of so many numbers."""
    results = []

    @tf.function(autograph=False)
    def traced(*given):
        results.extend(tf.nest.flatten(function(*given)))
        return results[0]

    specs = [tf.TensorSpec([size], tf.float32) for size in sizes]
    graph = traced.get_concrete_function(*specs).graph
    return Walk(graph, results)


def test_a_chain_has_two_tensors_at_a_time():
    def chain(x):
        for _ in range(5):
            x = tf.sin(x)
        return x

    assert walk(chain, KB).peak_bytes() == 2000


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
    assert walk(kept, KB).peak_bytes() == 6000


def test_another_shape_takes_no_bytes():
    def shaped(x):
        y = tf.sin(x)
        return tf.identity(tf.reshape(y, [10, 25])), tf.expand_dims(y, 0)

    assert walk(shaped, KB).peak_bytes() == 1000


def test_what_nobody_needs_does_not_count():
    def wasteful(x):
        tf.tile(x, [100])
        return tf.sin(x)

    assert walk(wasteful, KB).peak_bytes() == 1000


def test_results_exist_until_the_end_and_count_as_often_as_asked():
    def several(x):
        return [tf.sin(x), tf.cos(x), tf.tan(x)]

    walked = walk(several, KB)
    assert walked.peak_bytes() == 3000
    assert walked.peak_bytes(1.5) == 4500


def test_constants_and_inputs_do_not_count():
    assert walk(lambda x: x + tf.ones([KB]), KB).peak_bytes() == 1000


@pytest.mark.parametrize("steps", [5, 50])
def test_a_loop_keeps_values_for_each_turn(steps):
    layer = keras.layers.SimpleRNN(16)
    layer.build((8, steps, 4))
    weights = [weight.value for weight in layer.trainable_weights]
    results = []

    @tf.function(autograph=False)
    def traced(x):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(layer(x))
        results.extend(tape.gradient(total, weights))
        return total

    graph = traced.get_concrete_function(tf.TensorSpec([8, steps, 4])).graph
    shapes = {tuple(weight.shape) for weight in weights}
    peak = Walk(graph, results, shapes).peak_bytes()
    # At least the states of all turns, and not one kernel for each turn.
    states = 4 * 8 * 16 * steps
    assert states < peak < 8 * states + 10_000
