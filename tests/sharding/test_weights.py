"""Weights of which each replica keeps a part: how they are made, read and gathered."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compat
from tfdist.step.sharding import gathered_again
from tfdist.step.sharding.parts import Parts


def _strategy(replicas=2, **options):
    return tfdist.MirroredStrategy(DEVICES[:replicas], sharding="parameters", **options)


def _layers():
    keras.utils.set_random_seed(5)
    return [
        keras.layers.Embedding(10, 6),
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.EinsumDense("abc,cd->abd", (None, 4)),
        keras.layers.Conv1D(3, 2, kernel_initializer="orthogonal"),
    ]


def _model(layers=_layers):
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers()])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


@pytest.mark.parametrize("replicas", [2, 3])
def test_first_values_are_those_of_one_device(replicas):
    expected = _model().get_weights()
    with _strategy(replicas).scope():
        model = _model()
    for found, one in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, one)


def test_matrices_are_in_parts_and_look_whole():
    with _strategy().scope():
        model = _model()
    divided = [v for v in model.variables if compat.is_sharded(v)]
    assert [v.path.split("/")[-1] for v in divided] == ["embeddings", "kernel", "kernel", "kernel"]
    for variable in divided:
        kept = compat.stored(variable).shape.num_elements()
        assert kept <= (np.prod(variable.shape) + np.prod(variable.shape[1:])) / 2
    plain = _model()
    assert model.count_params() == plain.count_params()
    assert [tuple(v.shape) for v in model.variables] == [tuple(v.shape) for v in plain.variables]


def test_a_part_does_not_keep_the_whole_weight_in_memory():
    with _strategy().scope():
        dense = keras.layers.Dense(3)
        dense.build((None, 4))
    (first, second) = compat.stored(dense.kernel).values
    ends = [first.numpy()[-1, -1], second.numpy()[0, 0]]
    whole = dense.kernel.numpy()
    assert ends == [whole[1, -1], whole[2, 0]]
    value = tf.constant(np.ones((64, 64), "float32"))
    kept = Parts.of(tf.TensorSpec((64, 64)), 2).kept_part(value, 1)
    block, own = (np.asarray(memoryview(tensor)) for tensor in (value, kept))
    assert not np.shares_memory(block, own)


def _dense_layers():
    keras.utils.set_random_seed(5)
    return [keras.layers.Embedding(10, 6), *[keras.layers.Dense(6) for _ in range(3)]]


@pytest.mark.parametrize(("there", "products_of_each"), [(0, [1] * 12), (2, [1] * 4 + [2] * 4)])
def test_the_backward_pass_does_not_use_weights_of_the_forward_pass(
    there, products_of_each, monkeypatch
):
    monkeypatch.setattr(gathered_again, "LAYERS_THERE", there)
    with _strategy().scope():
        model = keras.Sequential([keras.Input((7,), dtype="int32"), *_dense_layers()])
        model.compile("sgd", "mse")
    x = np.zeros((8, 7), "int32")
    strategy = model.distribute_strategy
    found = []

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            begun = compat.operations_so_far()
            gradients = tape.gradient(loss, model.trainable_variables)
            found.append(begun)
            return [tf.convert_to_tensor(g) for g in gradients]

        return strategy.run(replica, args=(x,))

    operations = step.get_concrete_function(x).graph.get_operations()
    number = {operation: place for place, operation in enumerate(operations)}
    products = [o for o in operations if o.type == "MatMul"]
    assert len(products) == 2 * 3 * 3
    gathered = {}  # the operations that made the weights, by those that use them
    for product in products:
        for tensor in product.inputs:
            source = tensor.op
            while source.type in ("Identity", "IdentityN", "Reshape"):
                place = tensor.value_index if source.type == "IdentityN" else 0
                tensor = source.inputs[place]
                source = tensor.op
            if source.type == "ConcatV2":
                gathered.setdefault(source, []).append(number[product])
    # Each weight is gathered twice by each replica, and each time for one product. Those that are
    # still there are gathered once, for two products.
    assert sorted(map(len, gathered.values())) == products_of_each


class Two(keras.layers.Layer):
    """Two layers that add losses of the batch to a list in Python."""

    def __init__(self):
        super().__init__()
        self.inner = [keras.layers.Dense(6, activity_regularizer="l2") for _ in range(2)]

    def build(self, shape):
        for layer in self.inner:
            layer.build((None, 6))

    def call(self, inputs):
        for layer in self.inner:
            inputs = layer(inputs)
        self.add_loss(0.1 * keras.ops.mean(inputs))
        return inputs


def _fit(strategy=None, build=None):
    keras.utils.set_random_seed(5)
    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            model = build()
    x = np.random.default_rng(0).integers(0, 10, (26, 7))
    y = np.random.default_rng(1).normal(size=(26, 7, 6)).astype("float32")
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


def test_losses_of_layers_are_those_of_one_replica():
    def build():
        layers = [keras.layers.Embedding(10, 6), Two()]
        model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model

    _assert_same(_fit(_strategy(), build), _fit(None, build))


def _assert_same(found, expected):
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def _with_loop():
    """A weight that is read in a loop, and in a condition."""

    class Loop(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight((6, 6), "glorot_uniform", name="kernel")

        def call(self, inputs):
            repeated = tf.while_loop(
                lambda n, x: n < 3, lambda n, x: (n + 1, tf.tanh(x @ self.kernel)), (0, inputs)
            )[1]
            some = tf.reduce_sum(inputs) > 0.0
            return tf.cond(some, lambda: repeated @ self.kernel, lambda: repeated - inputs)

    layers = [keras.layers.Embedding(10, 6), keras.layers.LSTM(6, return_sequences=True), Loop()]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def _shared():
    """A layer that is called twice, and a table that is also the last matrix."""

    class Tied(keras.layers.Layer):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def call(self, inputs):
            return inputs @ keras.ops.transpose(self.table.embeddings)[:, :6]

    numbers = keras.Input((7,), dtype="int32")
    table = keras.layers.Embedding(10, 6)
    dense = keras.layers.Dense(6, activation="gelu", kernel_regularizer="l2")
    outputs = Tied(table)(dense(dense(table(numbers))))
    model = keras.Model(numbers, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("build", [_with_loop, _shared])
def test_weights_may_be_read_anywhere(build):
    _assert_same(_fit(_strategy(), build), _fit(None, build))


class Penalized(keras.Model):
    """Punishes the gradient by the input, which takes a gradient of a gradient."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(10, 6, trainable=False)
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.last = keras.layers.Dense(6)
        self.build((None, 7))

    def build(self, shape):
        self.table.build(shape)
        self.hidden.build((None, 7, 6))
        self.last.build((None, 7, 6))
        self.built = True

    def call(self, inputs):
        return self.last(self.hidden(self.table(inputs)))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as outer:
            embedded = self.table(x)
            with tf.GradientTape() as tape:
                tape.watch(embedded)
                outputs = self.last(self.hidden(embedded))
                value = tf.reduce_sum(outputs**2)
            slope = tape.gradient(value, embedded)
            loss = self.compute_loss(x, y, outputs)
            loss += 0.1 * tf.reduce_mean(tf.reduce_mean(slope**2, axis=(1, 2)))
            scaled = self.optimizer.scale_loss(loss)
        gradients = outer.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_gradients_of_gradients_are_those_of_one_device():
    def build():
        model = Penalized()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    found, expected = _fit(_strategy(), build)[0], _fit(None, build)[0]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
