"""What the strategies do around Keras' steps, beyond the equivalence table."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(19, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def _model(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"], **options)
    return model


def test_every_replica_works_on_its_own_part_of_train_on_batch():
    strategy = tfdist.MirroredStrategy(DEVICES[:3])
    seen = []

    class Spy(keras.layers.Layer):
        def call(self, x):
            seen.append(x.shape[0])
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), Spy(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(X[:8], Y[:8])
    seen.clear()
    model.train_on_batch(X[:8], Y[:8])
    assert seen == [3, 3, 2]
    seen.clear()
    model.test_on_batch(X[:7], Y[:7])
    model.predict_on_batch(X[:4])
    assert seen == [3, 3, 1, 2, 2, 0]


def test_logs_of_every_batch_are_those_of_one_device(strategy):
    def logs_of(model):
        collected = []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: collected.append(dict(logs))
        )
        model.fit(X, Y, batch_size=7, shuffle=False, verbose=0, callbacks=[callback])
        return collected

    keras.utils.set_random_seed(0)
    expected = logs_of(_model(tfdist.MirroredStrategy(DEVICES[:1])))
    keras.utils.set_random_seed(0)
    for ours, theirs in zip(logs_of(_model(strategy)), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_user_code_may_reduce_values_as_with_tf_distribute(strategy):
    replicas = strategy.num_replicas_in_sync

    def step():
        context = tf.distribute.get_replica_context()
        return {"value": tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0}

    values = strategy.run(step)
    total = replicas * (replicas + 1) / 2
    assert float(strategy.reduce("SUM", values["value"], axis=None)) == total
    assert float(strategy.reduce("MEAN", values["value"], axis=None)) == total / replicas


def test_tensors_in_a_custom_loop_go_to_every_replica_whole(strategy):
    sizes = strategy.run(lambda x: tf.shape(x)[0], args=(tf.zeros((6, 2)),))
    assert [int(size) for size in strategy.experimental_local_results(sizes)] == [
        6
    ] * strategy.num_replicas_in_sync


def test_random_seed_outside_a_step_is_untouched(two_replicas):
    generator = keras.random.SeedGenerator(4)
    with two_replicas.scope():
        inside = keras.random.SeedGenerator(4)
        assert inside.next().numpy().tolist() == generator.next().numpy().tolist()


@pytest.mark.full
def test_several_strategies_live_in_one_process():
    models = [_model(tfdist.MirroredStrategy(DEVICES[:n])) for n in (2, 3, 4, 2)]
    for model in models + models[:1]:
        model.fit(X, Y, verbose=0)
    assert [int(model.optimizer.iterations.numpy()) for model in models] == [2, 1, 1, 1]


def test_compiling_again_starts_a_new_optimizer(two_replicas):
    model = _model(two_replicas)
    model.fit(X, Y, verbose=0)
    with two_replicas.scope():
        model.compile(keras.optimizers.Adam(), "mse")
    model.fit(X, Y, verbose=0)
    assert isinstance(two_replicas.unwrap(model), keras.optimizers.Adam)
    assert model.optimizer.iterations.numpy() == 1


@pytest.mark.full
def test_compiling_again_with_the_models_optimizer_keeps_it(two_replicas):
    model = _model(two_replicas)
    model.fit(X, Y, verbose=0)
    with two_replicas.scope():
        model.compile(model.optimizer, "mse")
    model.fit(X, Y, verbose=0)
    assert model.optimizer.iterations.numpy() == 2


def test_wrapper_around_the_users_optimizer_with_mixed_precision(two_replicas):
    """Keras puts its loss scaling outside what the user wrapped; it belongs inside."""
    with two_replicas.scope():
        keras.config.set_dtype_policy("mixed_float16")
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype="float32")])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1), accumulation_steps=2)
        model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, tfdist.DistributedOptimizer)
    assert isinstance(model.optimizer.unwrap(), keras.optimizers.LossScaleOptimizer)
    assert model.optimizer.options.accumulation_steps == 2
    model.fit(X, Y, batch_size=5, verbose=0)
    assert model.optimizer.iterations.numpy() == 2


def test_training_gives_no_warnings_of_ours(strategy):
    model = _model(strategy)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        model.fit(X, Y, verbose=0, validation_data=(X, Y))


def test_generator_gives_every_batch_once(two_replicas):
    given = []

    def batches():
        for start in range(0, 1000, 4):
            given.append(start)
            yield X[:4], Y[:4] * 0.0 + start

    class Labels(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="labels")
            self.total = self.add_weight(name="total", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(keras.ops.sum(y_true))

        def result(self):
            return self.total + 0.0

    with two_replicas.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Labels()])
    history = model.fit(batches(), steps_per_epoch=5, epochs=2, verbose=0).history
    assert history["labels"] == [4 * (0 + 4 + 8 + 12 + 16), 4 * (20 + 24 + 28 + 32 + 36)]


def test_own_step_with_synchronized_batch_normalization_is_told_to_scale_its_loss(two_replicas):
    class Own(keras.Sequential):
        scale = False

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
                if self.scale:
                    loss = self.optimizer.scale_loss(loss)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    def fit(scale):
        with two_replicas.scope():
            layers = [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
            model = Own([keras.Input((3,)), *layers])
            model.scale = scale
            model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)

    with pytest.warns(UserWarning, match="scale_loss.*Received: train_step"):
        fit(scale=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        fit(scale=True)


def test_layers_are_warned_of_once_for_each_compile(two_replicas):
    with two_replicas.scope():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
    for _ in range(2):
        model.compile("sgd", "mse", run_eagerly=True)
        with pytest.warns(UserWarning, match="normalizes each replica's part") as seen:
            for _ in range(2):
                model.fit(X, Y, batch_size=10, verbose=0)
        assert sum("normalizes each" in str(one.message) for one in seen) == 1


def test_stateful_layers_are_refused(two_replicas):
    with two_replicas.scope():
        model = keras.Sequential(
            [keras.Input(batch_shape=(4, 5, 3)), keras.layers.LSTM(2, stateful=True)]
        )
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="stateful recurrent layer.*Received: layers \\['lstm"):
        model.fit(np.zeros((4, 5, 3)), np.zeros((4, 2)), batch_size=4, verbose=0)


def test_activity_regularizers_are_refused_where_they_are_sums(two_replicas, monkeypatch):
    with two_replicas.scope():
        layer = keras.layers.Dense(1, activity_regularizer="l2", name="regularized")
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile("sgd", "mse")
    monkeypatch.setattr(keras, "__version__", "3.13.2")
    with pytest.raises(ValueError, match="3.14 or later.*Received: layers .'regularized'"):
        model.fit(X, Y, verbose=0)


def test_float8_is_refused(two_replicas):
    with two_replicas.scope():
        variable = keras.Variable(1.0)
        variable.overwrite_with_gradient = True
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="float8 training is not supported.*Received"):
            optimizer.build([variable])


def test_data_sets_from_a_function_are_the_replicas_own(two_replicas):
    def own_part(context):
        assert context.num_replicas_in_sync == 2
        return tf.data.Dataset.from_tensor_slices((X[:10], Y[:10])).batch(3)

    keras.utils.set_random_seed(0)
    model = _model(two_replicas)
    data = two_replicas.distribute_datasets_from_function(own_part)
    model.fit(data, epochs=1, verbose=0)
    keras.utils.set_random_seed(0)
    expected = _model(tfdist.MirroredStrategy(DEVICES[:1]))
    expected.fit(X[:10], Y[:10], batch_size=6, shuffle=False, verbose=0)
    for ours, theirs in zip(model.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


class Trained(TensorFlowTrainer, keras.layers.Layer):
    """A layer with Keras' trainer, which is no `keras.Model`, as in Keras' own tests."""

    def __init__(self):
        keras.layers.Layer.__init__(self)
        TensorFlowTrainer.__init__(self)
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(3)

    def call(self, x):
        return self.first(x[0]) + self.second(x[1])


def _train_layer():
    keras.utils.set_random_seed(0)
    layer = Trained()
    layer.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x, y = [X, X[::-1]], X[:, :3]
    logs = list(layer.fit(x, y, batch_size=13, shuffle=False, verbose=0).history.values())
    logs += [layer.evaluate(x, y, batch_size=13, verbose=0)]
    logs += [layer.train_on_batch([X[:5], X[:5]], y[:5]), layer.test_on_batch([X[:4]] * 2, y[:4])]
    outputs = [layer.predict(x, batch_size=13, verbose=0), layer.predict_on_batch([X[:3], X[:3]])]
    weights = [variable.numpy() for variable in layer.variables]
    return [np.ravel(log) for log in logs] + outputs + weights


def test_a_layer_that_is_a_trainer_is_trained_like_a_model(strategy):
    expected = _train_layer()
    with strategy.scope():
        found = _train_layer()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_layer_that_was_adapted_outside_of_the_scope_is_named(two_replicas):
    layer = keras.layers.Normalization(name="scaled")
    layer.adapt(X)
    with two_replicas.scope():
        model = keras.Sequential([keras.Input((3,)), keras.Sequential([layer])])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="the layer 'scaled' and call its `adapt` inside"):
        model.fit(X, Y, verbose=0)


def test_a_layer_can_be_adapted_in_the_scope(two_replicas):
    outputs = []
    for scope in (contextlib.nullcontext(), two_replicas.scope()):
        with scope:
            layer = keras.layers.Normalization()
            layer.adapt(X)
            model = keras.Sequential([keras.Input((3,)), layer])
        outputs.append(model.predict(X, verbose=0))
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-6)


def test_ragged_batches_with_a_loss_that_is_a_python_number(two_replicas):
    class Doubled(keras.Model):
        def call(self, x):
            return x * 2

    tokens = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0]])
    with two_replicas.scope():
        model = keras.Sequential([Doubled()])
        model.compile("adam", lambda y, y_pred: 0)
    model.fit(tokens, tokens, batch_size=2, verbose=0)
    assert model.predict(tokens, verbose=0).to_list() == [[2.0], [4.0, 6.0], [8.0]]
