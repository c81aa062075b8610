"""Large gradients are computed before what else needs the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.step import backward

IN, HIDDEN, OUT = 6, 5, 4
HIDDEN_KERNEL_BYTES = HIDDEN * OUT * 4


def _step(at_least, middle=tf.identity):
    """A traced step of two dense layers, which returns the gradients of their kernels."""
    first, second = tf.Variable(tf.ones((IN, HIDDEN))), tf.Variable(tf.ones((HIDDEN, OUT)))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(middle(tf.tanh(x @ first)) @ second))
        gradients = tape.gradient(loss, [first, second])
        backward.compute_first([*gradients, None], at_least)
        return gradients

    return step


def _waiting(graph):
    """Pairs of products of a backward pass, of which the second waits for the first."""
    return [
        (first.outputs[0].shape.as_list(), other.outputs[0].shape.as_list())
        for other in graph.get_operations()
        for first in other.control_inputs
        if first.type == other.type == "MatMul"
    ]


X = np.linspace(-1, 1, 3 * IN, dtype="float32").reshape(3, IN)


def test_gradient_of_a_large_variable_comes_before_that_of_the_input():
    step = _step(HIDDEN_KERNEL_BYTES)
    assert _waiting(step.get_concrete_function(X).graph) == [([HIDDEN, OUT], [3, HIDDEN])]


def test_small_variables_are_left_alone():
    step = _step(HIDDEN_KERNEL_BYTES + 1)
    assert _waiting(step.get_concrete_function(X).graph) == []


def test_a_gradient_in_another_form_is_found():
    dense = keras.layers.Dense(OUT, use_bias=False)
    dense.build((None, 2, IN))  # a product of reshaped sequences

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.exp(dense(x)))
        of_input, of_kernel = tape.gradient(loss, [x, dense.kernel.value])
        backward.compute_first([tf.cast(of_kernel, tf.float64)], 1)
        return of_input, of_kernel

    graph = step.get_concrete_function(tf.ones((3, 2, IN))).graph
    assert _waiting(graph) == [([IN, OUT], [6, IN])]


def test_gradients_stay_the_same():
    for changed, same in zip(_step(1)(X), _step(10**9)(X), strict=True):
        np.testing.assert_array_equal(changed, same)


def test_nothing_happens_without_a_graph():
    backward.compute_first([tf.ones((100, 100))], 1)


def _called(value, stateful):
    same = tf.numpy_function(np.copy, [value], value.dtype, stateful=stateful)
    return tf.ensure_shape(same, value.shape)


@pytest.mark.parametrize("stateful", [True, False])
def test_stateful_operations_keep_their_order(stateful):
    """TensorFlow makes the second call wait for the first, which must not wait for the second."""

    @tf.custom_gradient
    def product(x, kernel):
        def gradient(upstream):
            of_input = _called(upstream @ tf.transpose(kernel), stateful)
            return of_input, _called(tf.transpose(x), stateful) @ upstream

        return x @ kernel, gradient

    kernel = tf.Variable(tf.ones((IN, OUT)))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.exp(product(x, kernel)))
        of_input, of_kernel = tape.gradient(loss, [x, kernel])
        backward.compute_first([of_kernel], 1)
        return of_input, of_kernel

    graph = step.get_concrete_function(tf.constant(X)).graph
    assert _waiting(graph) == ([] if stateful else [([IN, OUT], [3, IN])])
    upstream = np.exp(X.sum(axis=1, keepdims=True))
    of_input, of_kernel = step(tf.constant(X))
    np.testing.assert_allclose(of_input, np.repeat(OUT * upstream, IN, axis=1), rtol=1e-5)
    np.testing.assert_allclose(of_kernel, np.repeat(X.T @ upstream, OUT, axis=1), rtol=1e-5)


def test_gradients_from_outside_of_the_function_are_left_alone():
    known = tf.ones((IN, OUT))

    @tf.function(autograph=False)
    def step(x):
        product = x @ known
        there = tf.cond(
            tf.reduce_any(x > 0),
            lambda: backward.compute_first([known, product, x @ known], 1) or product,
            lambda: product,
        )
        return there

    np.testing.assert_array_equal(step(X), X @ known)


def test_optimizer_orders_what_is_as_large_as_a_bucket():
    strategy = tfdist.Strategy("mirrored", devices=["CPU:0", "CPU:1"], bucket_bytes=IN * HIDDEN * 4)
    with strategy.scope():
        layers = [keras.layers.Dense(IN), keras.layers.Dense(HIDDEN), keras.layers.Dense(OUT)]
        model = keras.Sequential([keras.Input((IN,)), *layers])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x):
        def replica_step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)

        strategy.run(replica_step, args=(x,))

    of_each_replica = [([IN, HIDDEN], [3, IN])] * 2
    assert _waiting(step.get_concrete_function(X).graph) == of_each_replica
