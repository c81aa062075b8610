"""DistributedOptimizer by itself: custom training loops, configuration, settings."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(35, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * 2.0).astype("float32")


def _model():
    keras.utils.set_random_seed(2)
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )


def _batches(batch_size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


_MSE = keras.losses.MeanSquaredError()


def _keras_loss(model, x, y):
    return _MSE(y, model(x, training=True))


def _raw_loss(model, x, y):
    return tfdist.scale_loss(tf.reduce_mean(tf.square(y - model(x, training=True))))


def _tutorial_loss(model, x, y):
    """The idiom of TensorFlow's tutorial: a fixed global batch size divides the sum."""
    losses = tf.reduce_mean(tf.square(y - model(x, training=True)), axis=-1)
    return tf.nn.compute_average_loss(losses, global_batch_size=8)


def _custom_loop(strategy, make_optimizer, loss, function="outer", epochs=2):
    """Trains as TensorFlow's tutorial for custom loops does."""
    with strategy.scope():
        model = _model()
        optimizer = make_optimizer()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(model, x, y)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
        return value

    replica_step = tf.function(step) if function == "inner" else step

    def distributed_step(x, y):
        return strategy.run(replica_step, args=(x, y))

    if function == "outer":
        distributed_step = tf.function(distributed_step)
    losses = []
    for _ in range(epochs):
        for x, y in strategy.experimental_distribute_dataset(_batches()):
            per_replica = distributed_step(x, y)
            losses.append(float(strategy.reduce("SUM", per_replica, axis=None)))
    return model.get_weights(), losses


def _one_device(make_optimizer, fixed_batch_size=None):
    model, optimizer = _model(), make_optimizer()
    losses = []
    for _ in range(2):
        for x, y in _batches():
            with tf.GradientTape() as tape:
                squares = tf.reduce_mean(tf.square(y - model(x, training=True)), axis=-1)
                if fixed_batch_size:
                    value = tf.reduce_sum(squares) / fixed_batch_size
                else:
                    value = tf.reduce_mean(squares)
            optimizer.apply(
                tape.gradient(value, model.trainable_variables), model.trainable_variables
            )
            losses.append(float(value))
    return model.get_weights(), losses


def _assert_equal(ours, theirs):
    for a, b in zip(ours[0], theirs[0]):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=0)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


def _clipped():
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5)


@pytest.mark.parametrize(
    ("loss", "function"),
    [
        (_keras_loss, "outer"),
        (_raw_loss, "none"),
        pytest.param(_keras_loss, "inner", marks=pytest.mark.full),
        pytest.param(_keras_loss, "none", marks=pytest.mark.full),
        pytest.param(_raw_loss, "inner", marks=pytest.mark.full),
        pytest.param(_raw_loss, "outer", marks=pytest.mark.full),
    ],
)
def test_custom_loop_equals_one_device_with_a_short_last_batch(loss, function, strategy):
    ours = _custom_loop(strategy, lambda: tfdist.DistributedOptimizer(_clipped()), loss, function)
    _assert_equal(ours, _one_device(_clipped))


@pytest.mark.full
def test_custom_loop_that_divides_by_the_global_batch_size_itself(strategy):
    def make():
        return tfdist.DistributedOptimizer(_clipped())

    ours = _custom_loop(strategy, make, _tutorial_loss)
    _assert_equal(ours, _one_device(_clipped, fixed_batch_size=8))


def test_plain_optimizer_in_a_custom_loop_works_as_with_tf_distribute(strategy):
    def make():
        return keras.optimizers.SGD(0.05)

    _assert_equal(_custom_loop(strategy, make, _keras_loss), _one_device(make))


@pytest.mark.parametrize("options", [{"accumulation_steps": 2}, {}])
def test_plain_optimizer_that_would_come_out_wrong_is_refused(options):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
    make = (lambda: keras.optimizers.SGD(0.1)) if options else _clipped
    with pytest.raises(ValueError, match="not wrapped.*tfdist.DistributedOptimizer"):
        _custom_loop(strategy, make, _keras_loss)


def test_optimizer_hidden_from_the_model_is_refused(two_replicas):
    class Hidden(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)
            self.parts = {"optimizer": keras.optimizers.SGD(0.1)}

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(data[1] - self(data[0])))
            variables = self.trainable_variables
            self.parts["optimizer"].apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    with two_replicas.scope():
        model = Hidden()
        model.compile()
    with pytest.raises(ValueError, match="attributes of the model"):
        model.fit(X, Y, verbose=0)


def test_under_tensorflows_own_strategy_gradients_are_summed():
    strategy = tf.distribute.MirroredStrategy(
        DEVICES[:2], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        variable = keras.Variable([1.0, 2.0])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0, global_clipnorm=1.0))
        optimizer.build([variable])

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.constant([3.0, 4.0])], [variable]))

    step()
    np.testing.assert_allclose(variable.numpy(), [1.0 - 0.6, 2.0 - 0.8], atol=1e-6)


def test_without_a_strategy_it_accumulates_on_one_device():
    variable = keras.Variable([0.0])
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)
    for gradient in (1.0, 3.0):
        assert variable.numpy() == [0.0]
        optimizer.apply([tf.constant([gradient])], [variable])
    np.testing.assert_array_equal(variable.numpy(), [-2.0])


def test_configuration_round_trip():
    optimizer = tfdist.DistributedOptimizer(
        keras.optimizers.AdamW(0.3, weight_decay=0.2), accumulation_steps=3, bucket_bytes=77
    )
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == optimizer.get_config()
    assert again.options.accumulation_steps == 3
    assert isinstance(again.unwrap(), keras.optimizers.AdamW)


def test_settings_of_the_inner_optimizer_are_read_and_set_through_the_wrapper():
    inner = keras.optimizers.Adam(0.5, beta_1=0.8, clipnorm=2.0)
    optimizer = tfdist.DistributedOptimizer(inner)
    assert optimizer.beta_1 == 0.8 and optimizer.clipnorm == 2.0 and not optimizer.use_ema
    optimizer.beta_1, optimizer.clipnorm, optimizer.learning_rate = 0.7, 1.0, 0.25
    assert inner.beta_1 == 0.7 and inner.clipnorm == 1.0
    assert float(inner.learning_rate.numpy()) == 0.25
    with pytest.raises(AttributeError, match="no_such_setting"):
        optimizer.no_such_setting  # noqa: B018


class _HasTheWrappersNames(keras.optimizers.SGD):
    """An optimizer of a user's with methods and settings that are called as the wrapper's are."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.options = self.accumulator = self.compression_state = self.gradient_monitor = "own"
        self._loss_scale = self._path = "own"

    def update_step(self, gradient, variable, learning_rate):
        self._update(gradient, variable, learning_rate)

    def _update(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * keras.ops.cast(learning_rate, variable.dtype))


def test_an_inner_optimizer_keeps_attributes_that_the_wrapper_has_too():
    variable, inner = keras.Variable([1.0]), _HasTheWrappersNames(0.5)
    before = dict(vars(inner))
    optimizer = tfdist.DistributedOptimizer(inner, accumulation_steps=2)
    for _ in range(2):
        optimizer.apply([tf.constant([1.0])], [variable])
    np.testing.assert_array_equal(variable.numpy(), [0.5])
    own = [name for name, value in before.items() if isinstance(value, str) and value == "own"]
    assert len(own) == 6
    assert {name: vars(inner)[name] for name in own} == dict.fromkeys(own, "own")
    assert "_update" not in vars(inner)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([None], "No gradients provided"),
        ([1.0, 2.0], "2 gradients for 1 variables"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradients, message):
    variable = keras.Variable(0.0)
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
    optimizer.build([variable])
    values = [None if g is None else tf.constant(g) for g in gradients]
    with pytest.raises(ValueError, match=message):
        optimizer.apply(values, [variable])


def test_unknown_variable_is_refused():
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
    optimizer.build([keras.Variable(0.0)])
    with pytest.raises(ValueError, match="unknown ones: .*stranger"):
        optimizer.apply([tf.constant(1.0)], [keras.Variable(0.0, name="stranger")])


def _without_variables(strategy, model, optimizer):
    """Trains as `_custom_loop` does; `apply` gets the gradients alone."""

    def step(x, y):
        with tf.GradientTape() as tape:
            value = _keras_loss(model, x, y)
        optimizer.apply(tape.gradient(value, model.trainable_variables))

    train = tf.function(lambda x, y: strategy.run(step, args=(x, y)))
    for _ in range(2):
        for x, y in strategy.experimental_distribute_dataset(_batches()):
            train(x, y)
    return model.get_weights()


def test_a_built_optimizer_is_applied_to_its_own_variables(two_replicas):
    with two_replicas.scope():
        model, optimizer = _model(), tfdist.DistributedOptimizer(_clipped())
    with pytest.raises(ValueError, match="(?s)Call `optimizer.build.*Received: an apply of"):
        _without_variables(two_replicas, model, optimizer)
    with two_replicas.scope():
        optimizer.build(model.trainable_variables)
    ours = _without_variables(two_replicas, model, optimizer)
    for a, b in zip(ours, _one_device(_clipped)[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=0)


def test_apply_in_cross_replica_context_is_refused(two_replicas):
    with two_replicas.scope():
        variable = keras.Variable(0.0)
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="cross-replica context"):
            optimizer.apply([tf.constant(1.0)], [variable])


def test_applying_twice_in_a_step_while_accumulating_is_refused():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=2)

    def make():
        return tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))

    def twice(model, x, y):
        loss = _keras_loss(model, x, y)
        optimizer = tf.distribute.get_strategy().twice
        for variable in model.trainable_variables[:2]:
            optimizer.apply([tf.zeros(variable.shape)], [variable])
        return loss

    with strategy.scope():
        strategy.twice = make()
        model = _model()
        strategy.twice.build(model.trainable_variables)

    def step(x, y):
        return twice(model, x, y)

    with pytest.raises(ValueError, match="once per step.*Received: a second apply"):
        for x, y in strategy.experimental_distribute_dataset(_batches()):
            strategy.run(step, args=(x, y))
