"""What XLA compiles of a step with `jit_compile=True`, and what it must not change."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdist
from tests.devices import DEVICES
from tests.log_messages import log_messages

_MUST, _WHERE_POSSIBLE = "_XlaMustCompile", "_XlaCompile"
_RANDOM = np.random.default_rng(3)
X, Y = (_RANDOM.normal(size=(33, n)).astype("float32") for n in (4, 2))


class Stepping(keras.Model):
    """A model with a step of its own; the subclasses say what follows the update."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.compute_loss(y=y, y_pred=self(x)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": self.after_the_update()}

    def after_the_update(self):
        return self.optimizer.learning_rate + 0.0


class Clipping(Stepping):
    def after_the_update(self):
        for variable in self.trainable_variables:
            variable.assign(keras.ops.clip(variable, -0.1, 0.1))
        return 0.0


class Overwriting(Stepping):
    """Writes a weight without reading it: the update must not come after that."""

    def after_the_update(self):
        self.dense.bias.assign(keras.ops.ones((2,)))
        return 0.0


class Counting(Stepping):
    def after_the_update(self):
        return keras.ops.cast(self.optimizer.iterations, "float32")


class Building(keras.Model):
    def compile(self, optimizer, loss, jit_compile):
        super().compile(jit_compile=jit_compile)
        self.own = keras.optimizers.SGD(0.1)

    def train_step(self, data):
        x, y = data
        if not self.own.built:
            self.own.build(self.trainable_variables)
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, self(x, training=True))
        variables = self.trainable_variables
        self.own.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def building():
    """A built model, whose step builds an optimizer of its own."""
    inputs = keras.Input((4,))
    return Building(inputs, layers.Dense(2)(inputs))


class Meeting(Stepping):
    """Exchanges a value by itself."""

    def call(self, x):
        context = tf.distribute.get_replica_context()
        return super().call(x) * (context.all_reduce("sum", tf.ones(())) / 2.0)


def _synchronized():
    inputs = keras.Input((4,))
    hidden = layers.BatchNormalization(synchronized=True)(layers.Dense(8)(inputs))
    return keras.Model(inputs, layers.Dense(2)(hidden))


def _compiled(make=Stepping, jit_compile=True):
    keras.utils.set_random_seed(5)
    model = make()
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit_compile)
    return model


def _marks(strategy, model):
    """How many operations of a train step have each of XLA's marks."""

    @tf.function(autograph=False)
    def step(batch):
        return strategy.run(model.train_step, (batch,))

    operations = step.get_concrete_function((X[:16], Y[:16])).graph.get_operations()
    names = [operation.node_def.attr.keys() for operation in operations]
    found = {mark: sum(mark in name for name in names) for mark in (_MUST, _WHERE_POSSIBLE)}
    updates = [op for op in operations if op.type == "ResourceApplyAdam" or "Assign" in op.type]
    assert updates, "the update is outside of what XLA must compile"
    return found


def _trained(model, epochs=2):
    history = model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights(), history.history


def _assert_equals_one_device(strategy, make, jit_compile=True):
    expected, expected_history = _trained(_compiled(make, jit_compile))
    with strategy.scope():
        model = _compiled(make, jit_compile)
    found, history = _trained(model)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)


def test_each_replica_calls_one_function_that_xla_must_compile(strategy):
    with strategy.scope():
        model = _compiled()
    assert model.jit_compile
    with log_messages() as messages:
        model.fit(X[:16], Y[:16], verbose=0)
    assert not any("in parts" in message for message in messages)
    replicas = strategy.num_replicas_in_sync
    assert _marks(strategy, model) == {_MUST: replicas, _WHERE_POSSIBLE: 0}


@pytest.mark.parametrize("jit_compile", [False, "auto"])
def test_nothing_is_compiled_otherwise(two_replicas, jit_compile):
    with two_replicas.scope():
        model = _compiled(jit_compile=jit_compile)
    model.fit(X[:16], Y[:16], verbose=0)
    assert _marks(two_replicas, model) == {_MUST: 0, _WHERE_POSSIBLE: 0}


@pytest.mark.parametrize("make", [Clipping, Overwriting, Counting, Meeting])
def test_a_step_that_needs_the_others_before_its_end_is_compiled_in_parts(two_replicas, make):
    with two_replicas.scope():
        model = _compiled(make)
    model.fit(X[:16], Y[:16], verbose=0)
    marks = _marks(two_replicas, model)
    assert marks[_MUST] == 0
    assert marks[_WHERE_POSSIBLE] > 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Clipping, r"\(the step uses \S+kernel after its update\)"),
        (Counting, r"\(the step uses \S+iteration after its update\)"),
        (Meeting, r"\(the replicas meet in it\)"),
        (_synchronized, r"\(it has synchronized layers\)"),
    ],
)
def test_that_a_step_is_compiled_in_parts_is_said_once_with_the_reason(two_replicas, make, reason):
    with two_replicas.scope():
        model = _compiled(make)
    with log_messages() as messages:
        model.fit(X[:16], Y[:16], verbose=0)
        model.fit(X[:8], Y[:8], batch_size=8, verbose=0)  # traces again
    (message,) = [message for message in messages if "in parts" in message]
    assert re.search(f"XLA compiles `train_step` .* in parts.*{reason}", message)


@pytest.mark.parametrize("make", [Stepping, Clipping, Overwriting, Counting, building])
def test_what_a_step_does_after_its_update_comes_after_it(two_replicas, make):
    _assert_equals_one_device(two_replicas, make)


def _two_replicas():
    return tfdist.MirroredStrategy(DEVICES[:2])


class Texts(Stepping):
    """Computes with text, which XLA cannot."""

    def compute_loss(self, **arguments):
        text = tf.strings.as_string(tf.reduce_mean(arguments["y_pred"]))
        loss = super().compute_loss(**arguments)
        with tf.control_dependencies([text]):
            return loss * 1.0


@pytest.mark.parametrize("scope", [tf.distribute.get_strategy, _two_replicas])
def test_what_xla_cannot_compile_raises_the_error_of_one_device(scope):
    with scope().scope():
        model = _compiled(Texts)
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations.*AsString"):
        model.fit(X[:16], Y[:16], verbose=0)


def _dropping():
    inputs = keras.Input((4,))
    hidden = layers.Dropout(0.5, seed=1)(layers.Dense(8)(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.GaussianNoise(0.1)(hidden)))


def test_random_numbers_are_drawn_as_often_as_on_one_device(two_replicas):
    def seeds(model):
        _trained(model)
        return [
            s.state.numpy().tolist() for x in model.layers for s in vars(x).values() if _draws(s)
        ]

    expected = seeds(_compiled(_dropping))
    with two_replicas.scope():
        model = _compiled(_dropping)
    assert seeds(model) == expected != []


def _draws(value):
    return isinstance(value, keras.random.SeedGenerator)


def test_moving_statistics_and_sparse_gradients_are_compiled_as_a_whole(two_replicas):
    def make():
        inputs = keras.Input((), dtype="int32")
        rows = layers.Embedding(7, 4)(inputs)
        return keras.Model(inputs, layers.Dense(2)(layers.BatchNormalization()(rows)))

    x = np.arange(32) % 7
    found = []
    for jit_compile in (True, False):
        with two_replicas.scope():
            model = _compiled(make, jit_compile)
        with pytest.warns(UserWarning, match="BatchNormalization without"):
            model.fit(x, Y[:32], batch_size=16, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    assert np.abs(model.layers[2].moving_mean.numpy()).max() > 0


class Places(layers.Layer):
    """Looks up the same rows for all samples."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:])

    def call(self, x):
        return x + keras.ops.take(self.table, keras.ops.arange(4), axis=0)


@pytest.mark.parametrize(("optimizer", "is_whole"), [("sgd", True), ("adam", False)])
def test_rows_that_are_alike_matter_where_an_optimizer_counts_them(
    two_replicas, optimizer, is_whole
):
    found = []
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), Places(), layers.Dense(2)])
            model.compile(optimizer, "mse", jit_compile=True)
        with log_messages() as messages:
            found.append(_trained(model)[0])
    assert any("are the same for all samples" in message for message in messages) != is_whole
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_shares_that_move_are_refused():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], balance=True)
    with strategy.scope():
        with pytest.raises(ValueError, match="balance=True.*Received: jit_compile=True"):
            _compiled()
        model = _compiled(jit_compile=False)
        model.jit_compile = True  # as may be done after `compile`
    with pytest.raises(ValueError, match="balance=True.*Received: jit_compile=True"):
        model.fit(X, Y, verbose=0)


def test_a_loop_that_xla_must_compile_is_refused(two_replicas):
    with two_replicas.scope():
        model = _compiled()

    @tf.function(jit_compile=True)
    def step(batch):
        return two_replicas.run(model.train_step, (batch,))

    with pytest.raises(ValueError, match="XLA cannot compile the exchange.*Received"):
        step((X[:16], Y[:16]))
