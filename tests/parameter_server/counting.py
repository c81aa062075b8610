"""A model whose weights tell what was trained on, by whom, and how stale it was.

What the strategy reports of itself is not used: the numbers are read where updates are made.
"""

import keras
import numpy as np
import tensorflow as tf

SAMPLES = 96
BATCHES = 24
_UPDATES = 65536


class Recorder(keras.optimizers.SGD):
    """Adds up what "gradients" of `Counting` say, and notes it by the number of the update."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            (clock,) = (v.value for v in variables if v.shape[0] == 2)
            with tf.distribute.get_strategy().extended.colocate_vars_with(clock):
                self._add_histories()

    def _add_histories(self):
        for name in ("staleness", "worker", "rate"):
            setattr(self, name, self.add_variable((_UPDATES,), name=name))

    def update_step(self, gradient, variable, learning_rate):
        if variable.shape[0] == 2:  # the clock
            read, worker = tf.unstack(gradient)
            now = tf.convert_to_tensor(variable)[0]
            index = tf.cast(now, tf.int32)[None, None]
            noted = (now - read, worker, tf.cast(learning_rate, tf.float32))
            for history, value in zip((self.staleness, self.worker, self.rate), noted):
                before = tf.convert_to_tensor(history.value)
                history.assign(tf.tensor_scatter_nd_update(before, index, [value]))
            gradient = tf.constant([1.0, 0.0])
        variable.assign_add(gradient)


class Counting(keras.Model):
    """Trains on the numbers of samples.

    Args:
        pauses: the seconds that a step takes, by worker; a variable, so that it can change.
    """

    def __init__(self, pauses):
        super().__init__()
        self.seen = self.add_weight(shape=(SAMPLES,), name="seen", initializer="zeros")
        self.clock = self.add_weight(shape=(2,), name="clock", initializer="zeros")
        self.pauses = self.add_weight(
            shape=(len(pauses),),
            name="pauses",
            trainable=False,
            initializer=lambda shape, dtype: tf.constant(pauses, dtype),
        )
        self.counted = keras.metrics.Sum(name="counted")

    def train_step(self, data):
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        pause = sleep(tf.gather(tf.convert_to_tensor(self.pauses), worker))
        self.check(data, worker)
        seen = tf.reduce_sum(tf.one_hot(data, SAMPLES), axis=0) + pause
        read = tf.stack([tf.convert_to_tensor(self.clock)[0], tf.cast(worker, tf.float32)])
        self.optimizer.apply([seen, read], [self.seen, self.clock])
        self.counted.update_state(tf.ones_like(data))
        return self.get_metrics_result()

    def check(self, data, worker):
        """Where tests let a step fail."""

    def facts(self):
        """What happened, for JSON."""
        recorder, updates = self.optimizer.unwrap(), int(self.clock[0])
        return {
            "updates": updates,
            "iterations": int(recorder.iterations),
            "seen": np.asarray(self.seen).astype(int).tolist(),
            "staleness": np.asarray(recorder.staleness)[:updates].astype(int).tolist(),
            "workers": np.asarray(recorder.worker)[:updates].astype(int).tolist(),
            "rates": np.asarray(recorder.rate)[:updates].tolist(),
        }


def sleep(seconds):
    """Zero, after that time; in a function, and without work for the processor."""
    spec = tf.TensorSpec([], tf.int64)
    slow = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)),
        sleep_microseconds=tf.cast(seconds * 1e6, tf.int64),
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
    )
    dataset = tf.data.experimental.from_variant(slow, spec)
    return tf.cast(dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b), tf.float32)
