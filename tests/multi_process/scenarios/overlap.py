"""Whether sums of gradients arrive while the backward pass goes on."""

import threading

import keras
import numpy as np
import tensorflow as tf

# Seconds after which a backward pass that waits for a sum goes on without.
PATIENCE = 20


def sums_within_the_backward_pass(here):
    """Names the last layers' variables whose sums came before the first layer's gradient."""
    model = _model(here.make(bucket_bytes=150))
    seen = []
    for _ in range(3):
        _events.arrived.clear()
        model.fit(np.ones((8, 8)), np.ones((8, 4)), 8, verbose=0)
        seen.append(sorted(_events.before_the_first_layer))
    return {"arrived": seen}


class _Events:
    """What happens in a step, in its order.

    Attributes:
        arrived: paths of variables whose gradients are summed.
        before_the_first_layer: those that were there before the first layer had its gradient.
    """

    def __init__(self):
        self.arrived: set[str] = set()
        self.before_the_first_layer: set[str] = set()
        self._changed = threading.Condition()

    def note_arrived(self, path):
        with self._changed:
            self.arrived.add(path)
            self._changed.notify()

    def wait_in_backward_pass(self):
        with self._changed:
            self._changed.wait_for(lambda: len(self.arrived) == 4, PATIENCE)
            self.before_the_first_layer = set(self.arrived)


_events = _Events()


def _beside(tensor, function):
    """`tensor`, after `function` was called; TensorFlow does not put these calls in an order."""

    def called(value):
        function()
        return value

    same = tf.numpy_function(called, [tensor], tensor.dtype, stateful=False)
    return tf.ensure_shape(same, tensor.shape)


@tf.custom_gradient
def _with_slow_gradient(kernel):
    return tf.identity(kernel), lambda upstream: _beside(upstream, _events.wait_in_backward_pass)


class _FirstLayer(keras.layers.Dense):
    def call(self, inputs):
        return inputs @ _with_slow_gradient(tf.convert_to_tensor(self.kernel))


class NotingSGD(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        noted = [
            _beside(total, lambda path=variable.path: _events.note_arrived(path))
            for total, variable in zip(grads, trainable_variables)
        ]
        super().apply(noted, trainable_variables)


def _model(strategy):
    with strategy.scope():
        layers = [_FirstLayer(8, use_bias=False), keras.layers.Dense(8), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers], name="net")
        model.compile(NotingSGD(0.1), "mse")
    return model
