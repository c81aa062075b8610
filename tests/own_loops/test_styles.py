"""Loops in all styles equal one device, in weights and in what they report."""

import functools

import keras
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.own_loops import styles
from tfdist.strategies.horovod.backend import is_installed

_function = functools.partial(tf.function, autograph=False)


# Each differs in one point from a style that the default suite trains; the full suite has them.
VARIATIONS = {
    styles.KerasLossWrapped,
    styles.Accumulated,
    styles.BuiltLate,
    styles.SynchronizedNormalization,
    styles.InnerFunction,
    styles.Style,
    styles.TutorialWrapped,
    styles.OlderTutorial,
    styles.HorovodWrapped,
    styles.KerasLossAndScaledRegularization,
    styles.AverageAndPlainRegularization,
    styles.SynchronizedNormalizationByHand,
    styles.BuiltLateWrapped,
    styles.Wrapped,
    styles.Penalty,
    styles.Nets,
    styles.MetaLearning,
    styles.Sum,
}


def _styles():
    for style in styles.STYLES:
        marks = [pytest.mark.full] if style in VARIATIONS else []
        yield pytest.param(style, id=style.__name__, marks=marks)


@pytest.mark.parametrize("style", list(_styles()))
def test_loop_equals_one_device(style, strategy):
    expected = styles.run(style, tf.distribute.get_strategy(), function=False)
    assert styles.differences(styles.run(style, strategy), expected) == {}


@pytest.mark.parametrize(
    "style", [styles.KerasLoss, pytest.param(styles.Tutorial, marks=pytest.mark.full)]
)
def test_loop_that_is_no_function_equals_one_device(style, two_replicas):
    expected = styles.run(style, tf.distribute.get_strategy(), function=False)
    assert styles.differences(styles.run(style, two_replicas, function=False), expected) == {}


def test_a_variable_whose_initial_value_is_data_is_refused_inside_a_function(two_replicas):
    step = _function(lambda x: two_replicas.run(keras.Variable, args=(x,)))
    with pytest.raises(ValueError, match="does not depend on the function's data"):
        step(tf.ones((2,)))


@pytest.mark.skipif(not is_installed(), reason="make horovod")
def test_horovods_tape_is_refused_by_name(two_replicas):
    import horovod.tensorflow as hvd

    hvd.init()
    with two_replicas.scope():
        v = tf.Variable(2.0)

    def step():
        with tf.GradientTape() as tape:
            loss = v * v
        return hvd.DistributedGradientTape(tape).gradient(loss, [v])

    with pytest.raises(ValueError, match="remove `hvd.DistributedGradientTape`"):
        _function(lambda: two_replicas.run(step))()


def test_a_function_that_loops_over_the_data_equals_one_device(two_replicas):
    """As the tutorials do: the steps are in a loop of the graph, with the loss in the mean."""

    def train(strategy):
        with strategy.scope():
            loop = styles.KerasLoss()
            loop.optimizer.build(loop.model.trainable_variables)
        data = tf.data.Dataset.from_tensor_slices((styles.X, styles.Y)).batch(styles.BATCH)
        data = strategy.experimental_distribute_dataset(data)

        @tf.function
        def epoch():
            total = 0.0
            for x, y in data:
                losses = strategy.run(loop.train, args=(x, y))
                total += strategy.reduce("SUM", losses, axis=None)
            return total

        total = float(epoch())
        return {"weights": loop.weights, "losses": [total], "metrics": []}

    expected = train(tf.distribute.get_strategy())
    assert styles.differences(train(two_replicas), expected) == {}


def _gradient(loss_of, function=True, batch=4):
    """The gradient of `loss_of(x * v, v)` by `v`, summed over two replicas."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    with strategy.scope():
        v = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(x * v, v)
        return tape.gradient(loss, v)

    def distributed(x):
        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    data = tf.data.Dataset.from_tensors(tf.range(1.0, batch + 1.0)).unbatch().batch(batch)
    run = _function(distributed) if function else distributed
    (gradient,) = (float(run(x)) for x in strategy.experimental_distribute_dataset(data))
    return gradient


@_function
def _inner_mean(x):
    return tf.reduce_mean(x)


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        (lambda x, v: tf.reduce_mean(x), 2.0),
        (lambda x, v: tf.reduce_sum(x), 6.0),
        (lambda x, v: tf.reduce_mean(x) + tf.reduce_sum(x), 8.0),
        (lambda x, v: tf.reduce_sum(x) / 3.0 - v * v, -2.0),
        (lambda x, v: tf.reduce_mean(tf.stack([tf.reduce_mean(x), 3.0 * tf.reduce_mean(x)])), 4.0),
        (lambda x, v: sum([tf.reduce_mean(x), tf.stop_gradient(tf.reduce_sum(x))]), 2.0),
        (lambda x, v: tf.stop_gradient(tf.reduce_sum(x)) * tf.reduce_mean(x) * 0.0 + v, 1.0),
        (lambda x, v: v * tf.reduce_mean(tf.stop_gradient(x)), 4.0),
        (lambda x, v: _inner_mean(x) - 0.25 * tf.nn.l2_loss(1.0 * v), 1.5),
        (lambda x, v: tf.reduce_mean(tf.reduce_sum(tf.stack([x, x], 1), axis=1)), 4.0),
    ],
)
def test_kinds_of_losses_written_by_hand(loss_of, expected):
    assert _gradient(loss_of, batch=3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("loss_of", "message"),
    [
        (lambda x, v: tf.reduce_sum(x) / tf.reduce_sum(tf.cast(x > 3, tf.float32)), "RealDiv"),
        (lambda x, v: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32), "the result of Sum"),
        (lambda x, v: tf.reduce_sum(x / tf.reduce_sum(x)), "the result of Sum"),
        (lambda x, v: tf.sqrt(tf.reduce_mean(x)), "the result of Sqrt"),
        (lambda x, v: tf.reduce_mean(tf.boolean_mask(x, x > 3.0)), "the result of Mean"),
        (lambda x, v: (tf.reduce_mean(x) + tf.reduce_sum(x)) / v, "the result of RealDiv"),
        (lambda x, v: tf.reduce_sum(tf.reduce_mean(tf.stack([x, x], 1), axis=0)), "Sum"),
        (lambda x, v: tf.reduce_mean(x) / 2, "divided by 2, the number of replicas"),
        (lambda x, v: tf.reduce_mean(x) + v * v / 2, "regularization loss is divided by 2"),
    ],
)
def test_a_loss_that_cannot_be_told_apart_is_refused(loss_of, message):
    with pytest.raises(ValueError, match=message) as error:
        _gradient(loss_of, batch=6)
    assert "tfdist.scale_loss(" in str(error.value)


def test_a_loss_written_by_hand_is_refused_where_there_is_no_graph():
    with pytest.raises(ValueError, match="Without a `tf.function` around"):
        _gradient(lambda x, v: tf.reduce_mean(x), function=False)


def test_a_gradient_inside_an_inner_function_of_an_eager_step_is_refused(two_replicas):
    with two_replicas.scope():
        v = tf.Variable(2.0)

    @_function
    def inner():
        with tf.GradientTape() as tape:
            loss = v * v
        return tape.gradient(loss, v)

    with pytest.raises(ValueError, match="Put the `tf.function` around `strategy.run`"):
        two_replicas.run(lambda: inner())


def test_a_metric_of_a_keras_loss_times_replicas_is_refused(two_replicas):
    with two_replicas.scope():
        metric, loss = keras.metrics.Mean(), keras.losses.MeanSquaredError()

    def step(x):
        metric.update_state(loss(x, 2.0 * x) * two_replicas.num_replicas_in_sync)

    with pytest.raises(ValueError, match="A metric is given a Keras loss times 2"):
        _function(lambda x: two_replicas.run(step, args=(x,)))(tf.ones((4, 1)))


def test_applying_a_gradient_that_another_tape_recorded_is_refused(two_replicas):
    with two_replicas.scope():
        v = keras.Variable(2.0)
        optimizer = keras.optimizers.SGD()

    def step(x):
        with tf.GradientTape(), tf.GradientTape() as tape:
            gradient = tape.gradient(tf.reduce_mean(x * v), v)
        optimizer.apply([gradient], [v])

    with pytest.raises(ValueError, match="after the `with` blocks of all tapes"):
        _function(lambda x: two_replicas.run(step, args=(x,)))(tf.ones((4,)))


@pytest.mark.full
def test_a_jacobian_is_left_as_it_is(two_replicas):
    with two_replicas.scope():
        v = tf.Variable(2.0)

    def step(x):
        with tf.GradientTape() as tape:
            y = x * v
        return tape.jacobian(y, v)

    found = _function(lambda x: two_replicas.run(step, args=(x,)))(tf.constant([1.0, 3.0]))
    for jacobian in two_replicas.experimental_local_results(found):
        assert jacobian.numpy().tolist() == [1.0, 3.0]
