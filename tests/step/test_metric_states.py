"""On a replica without samples, metrics count nothing: also those that would count a NaN."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step import metric_states, replica
from tfdist.step.weighting import Share

full = pytest.mark.full
BATCH = 12
X = np.random.default_rng(0).normal(size=(BATCH + 9, 3)).astype("float32")


class BatchMean(keras.metrics.Metric):
    """Adds the mean of each batch, and counts the batch."""

    def __init__(self, name="batch_mean"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(y_pred))
        self.count.assign_add(1.0)

    def result(self):
        return self.total / self.count


def _expected(samples, replicas):
    """The mean over the batches' parts that have samples; the model adds up the features."""
    means = []
    for start in range(0, samples, BATCH):
        batch = X[start : min(start + BATCH, samples)].sum(axis=1)
        length = -(-len(batch) // replicas)
        parts = (batch[place : place + length] for place in range(0, len(batch), length))
        means += [part.mean() for part in parts]
    return np.mean(means)


def _ones(strategy, make=keras.Sequential, metrics=lambda: [BatchMean()], **options):
    """A model that adds up the features, and does not learn."""
    with strategy.scope():
        model = make([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics(), **options)
    return model


def _fit(model, samples):
    x = X[:samples]
    options = {"validation_data": (x, x[:, :1]), "validation_batch_size": BATCH}
    history = model.fit(x, x[:, :1], batch_size=BATCH, shuffle=False, verbose=0, **options).history
    return {name: values[-1] for name, values in history.items()}


@pytest.mark.parametrize("last", [1, 5, *(pytest.param(n, marks=full) for n in (2, 3, 6, 9))])
def test_a_last_batch_that_leaves_replicas_empty_gives_no_nan(last):
    strategy = tfdist.MirroredStrategy(DEVICES)
    logs = _fit(_ones(strategy), BATCH + last)
    expected = pytest.approx(_expected(BATCH + last, 4), rel=1e-5)
    assert logs["batch_mean"] == expected
    assert logs["val_batch_mean"] == expected


@pytest.mark.parametrize("option", ["run_eagerly", "jit_compile"])
def test_eager_and_compiled_steps_give_no_nan(two_replicas, option):
    logs = _fit(_ones(two_replicas, **{option: True}), BATCH + 1)
    expected = pytest.approx(_expected(BATCH + 1, 2), rel=1e-5)
    assert logs["batch_mean"] == expected
    assert logs["val_batch_mean"] == expected


class OwnStep(keras.Sequential):
    """Has metrics of the epoch and of the latest batch."""

    def __init__(self, layers):
        super().__init__(layers)
        self.of_epoch = BatchMean("of_epoch")
        self.of_batch = BatchMean("of_batch")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.optimizer.scale_loss(self.compute_loss(y=y, y_pred=y_pred))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.of_epoch.update_state(y, y_pred)
        self.of_batch.reset_state()
        self.of_batch.update_state(y, y_pred)
        return {"loss": loss}


@pytest.mark.parametrize("option", [{}, {"run_eagerly": True}, {"jit_compile": True}])
def test_metrics_of_a_step_of_ones_own_count_nothing_and_begin_anew(two_replicas, option):
    model = _ones(two_replicas, OwnStep, metrics=lambda: None, **option)
    x = X[: BATCH + 1]
    model.fit(x, x[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
    assert float(model.of_epoch.result()) == pytest.approx(_expected(BATCH + 1, 2), rel=1e-5)
    assert float(model.of_epoch.count.numpy()) == 3.0
    # What the second replica had counted of the batch before is gone.
    assert float(model.of_batch.count.numpy()) == 1.0
    assert float(model.of_batch.result()) == pytest.approx(X[BATCH].sum(), rel=1e-5)


def test_a_loop_of_ones_own_gives_no_nan(two_replicas):
    with two_replicas.scope():
        metric = BatchMean()
    step = tf.function(lambda x: two_replicas.run(metric.update_state, args=(None, x)))
    data = tf.data.Dataset.from_tensor_slices(X[: BATCH + 1].sum(axis=1)).batch(BATCH)
    for batch in two_replicas.experimental_distribute_dataset(data):
        step(batch)
    assert float(metric.result()) == pytest.approx(_expected(BATCH + 1, 2), rel=1e-5)


def _step(nonempty, is_eager=False):
    given = None if nonempty is None else tf.constant(nonempty)
    share = Share(0.5, given)
    return replica.publish(replica.ReplicaStep(0, 2, share, own_loop=False, is_eager=is_eager))


def _counter(value, dtype="float32"):
    return keras.Variable(value, dtype=dtype, trainable=False, synchronization="on_read")


def test_it_costs_nothing_where_all_replicas_have_samples():
    counter, value = _counter([1.0, 2.0]), tf.constant([3.0, 4.0])
    assert metric_states.unless_empty(counter, value) is value
    with _step(None):
        assert metric_states.unless_empty(counter, value) is value


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_variables_of_all_kinds_stay_what_they_are(dtype):
    for nonempty, expected in ((0.0, [1, 0]), (1.0, [1, 1])):
        counter = _counter(np.array([1, 0]), dtype)
        with _step(nonempty):
            counter.assign(tf.cast([1, 1], dtype))
        assert tf.cast(counter.value, tf.int32).numpy().tolist() == expected


def test_python_numbers_may_be_assigned():
    counter = _counter(2.5)
    with _step(0.0):
        counter.assign(7)
        assert counter.numpy() == 2.5
        counter.assign(0)
    assert counter.numpy() == 0.0


def test_other_variables_are_assigned_to_as_always():
    variable = keras.Variable(1.0)
    with _step(0.0):
        variable.assign(2.0)
    assert variable.numpy() == 2.0


def test_a_value_of_another_shape_is_refused_as_on_one_device():
    counter = _counter([1.0, 2.0])
    with _step(0.0), pytest.raises(ValueError, match="shape of the target variable"):
        counter.assign(tf.constant(3.0))


def test_a_function_in_an_eager_step_does_not_keep_that_a_part_was_empty():
    """TensorFlow would trace it once, with the first batch, for batches of all sizes."""
    counter = _counter(1.0)
    count = tf.function(lambda: counter.assign_add(1.0))
    with _step(0.0, is_eager=True):
        count()
    with _step(1.0, is_eager=True):
        count()
    assert counter.numpy() == 3.0
