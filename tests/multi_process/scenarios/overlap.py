"""Whether sums of gradients arrive while the backward pass goes on, and updates begin after it."""

import threading

import keras
import numpy as np
import tensorflow as tf

# Seconds after which a backward pass that waits for a sum goes on without.
PATIENCE = 20


def sums_within_the_backward_pass(here):
    """Names the last layers' variables whose sums came before the first layer's gradient.

    Also names those whose updates had begun before it, and all whose updates began.
    """
    return _in_the_backward_pass(here.make(bucket_bytes=150))


def parts_within_the_backward_pass(here):
    """The same of the parts of sums in sharded training."""
    return _in_the_backward_pass(here.make(bucket_bytes=150, sharding="optimizer"))


def _in_the_backward_pass(strategy):
    model = _model(strategy)
    arrived, updated = [], []
    for _ in range(3):
        _events.clear()
        model.fit(np.ones((8, 8)), np.ones((8, 4)), 8, verbose=0)
        arrived.append(sorted(_events.arrived_before))
        updated.append((sorted(_events.updated_before), sorted(_events.updated)))
    return {"arrived": arrived, "updated": updated}


class _Events:
    """What happens in a step, in its order.

    Attributes:
        arrived: paths of variables whose gradients are summed.
        arrived_before: those that were there before the first layer had its gradient.
        updated: names of variables whose updates have begun.
        updated_before: those that had begun before the first layer had its gradient.
    """

    def __init__(self):
        self._changed = threading.Condition()
        self.clear()

    def clear(self):
        self.arrived: set[str] = set()
        self.arrived_before: set[str] = set()
        self.updated: set[str] = set()
        self.updated_before: set[str] = set()

    def note_arrived(self, path):
        with self._changed:
            self.arrived.add(path)
            self._changed.notify()

    def note_updated(self, path):
        self.updated.add(path)

    def wait_in_backward_pass(self):
        with self._changed:
            self._changed.wait_for(lambda: len(self.arrived) == 4, PATIENCE)
            self.arrived_before, self.updated_before = set(self.arrived), set(self.updated)


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
        with tf.control_dependencies(None):  # what is noted of sums is not a part of the update
            noted = [
                _beside(total, lambda path=variable.path: _events.note_arrived(path))
                for total, variable in zip(grads, trainable_variables)
            ]
        super().apply(noted, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        rate = _beside(learning_rate, lambda: _events.note_updated(variable.name))
        super().update_step(gradient, variable, rate)


def _model(strategy):
    with strategy.scope():
        layers = [_FirstLayer(8, use_bias=False), keras.layers.Dense(8), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers], name="net")
        model.compile(NotingSGD(0.1), "mse")
        # Before anything is noted: sharded training tries copies of an optimizer first.
        model.optimizer.build(model.trainable_variables)
    return model
