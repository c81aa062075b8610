"""The backward pass with weights in parts: what layers and steps may do to it."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step.sharding import gathered_again

_X = np.random.default_rng(0).normal(size=(26, 6)).astype("float32")
_Y = np.eye(3, dtype="float32")[np.random.default_rng(1).integers(0, 3, 26)]


def _compiled(outputs, optimizer=None, loss="mse"):
    """A model of which `outputs` makes the outputs."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, outputs(inputs))
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss)
    return model


def _large():
    return keras.initializers.RandomNormal(stddev=30.0, seed=1)


class SoftmaxOfTensorFlow(keras.layers.Layer):
    """A softmax that Keras finds in the graph."""

    def build(self, shape):
        self.kernel = self.add_weight((6, 3), _large(), name="kernel")

    def call(self, inputs):
        return tf.nn.softmax(inputs @ self.kernel)


def _probabilities():
    dense = keras.layers.Dense(3, activation="softmax", kernel_initializer=_large())
    return _compiled(dense, loss="categorical_crossentropy")


def _probabilities_of_tensorflow():
    return _compiled(SoftmaxOfTensorFlow(), loss="categorical_crossentropy")


class Two(keras.layers.Layer):
    """Two outputs, each with a weight of its own."""

    def build(self, shape):
        self.first = self.add_weight((6, 3), "glorot_uniform", name="first")
        self.second = self.add_weight((6, 3), "glorot_uniform", name="second")

    def call(self, inputs):
        return inputs @ self.first, tf.sqrt(tf.abs(inputs @ self.second) * 0.0)


def _unused_output():
    decays = keras.optimizers.AdamW(0.05, weight_decay=0.5)
    return _compiled(lambda inputs: Two()(inputs)[0], decays)


def _weights_set_by_a_layer():
    def outputs(inputs):
        return keras.layers.Dense(3)(
            keras.layers.SpectralNormalization(keras.layers.Dense(5))(inputs)
        )

    return _compiled(outputs)


class ComputedAgain(keras.layers.Layer):
    """Computes its output again in the backward pass."""

    def build(self, shape):
        self.kernel = self.add_weight((6, 3), "glorot_uniform", name="kernel")

    def call(self, inputs):
        return tf.recompute_grad(lambda x: tf.tanh(x @ tf.convert_to_tensor(self.kernel)))(inputs)


class ReadTwice(keras.layers.Layer):
    """Multiplies by a weight, and looks up some of its rows."""

    def build(self, shape):
        self.kernel = self.add_weight((6, 3), "glorot_uniform", name="kernel")

    def call(self, inputs):
        rows = tf.gather(tf.convert_to_tensor(self.kernel), [0, 4, 4])
        return inputs @ self.kernel + tf.reduce_sum(rows**2, axis=0)


def _read_twice():
    return _compiled(lambda inputs: ReadTwice()(keras.layers.Dense(6)(inputs)))


def _table(inputs):
    numbers = keras.ops.cast(inputs > 0, "int32")
    return keras.layers.Embedding(6, 4)(2 * numbers + 1)


def _looked_up():
    return _compiled(lambda inputs: keras.layers.Dense(3)(keras.layers.Flatten()(_table(inputs))))


def _computed_again():
    layer = ComputedAgain()
    return _compiled(lambda inputs: layer(keras.layers.Dense(6)(inputs)))


def _computed_again_eagerly():
    model = _computed_again()
    model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
    return model


class InTurn(keras.Model):
    """Updates a layer before it takes the gradient through this layer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(6), keras.layers.Dense(3, activation="tanh")
        self.first.build((None, 6))
        self.last.build((None, 6))
        self.built = True

    def call(self, inputs):
        return self.last(self.first(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(x)
            one, other = self.compute_loss(x, y, outputs), self.compute_loss(x, -y, outputs)
        self._update(self.optimizer, tape, one, self.last)
        self._update(self.second, tape, other, self.first)
        return {"loss": one}

    def _update(self, optimizer, tape, loss, layer):
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)


def _updates_in_turn():
    model = InTurn()
    model.second = keras.optimizers.SGD(0.5)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


@pytest.mark.parametrize(
    "build",
    [
        _probabilities,
        _probabilities_of_tensorflow,
        _unused_output,
        _weights_set_by_a_layer,
        _updates_in_turn,
        _read_twice,
        _looked_up,
        _computed_again,
        _computed_again_eagerly,
    ],
)
@pytest.mark.parametrize("there", [0, gathered_again.LAYERS_THERE])
def test_the_result_is_that_of_one_device(there, build, monkeypatch):
    monkeypatch.setattr(gathered_again, "LAYERS_THERE", there)  # most models here have two layers
    _check(build, "parameters")


@pytest.mark.parametrize("build", [_computed_again, _computed_again_eagerly])
def test_layers_may_be_computed_again_with_whole_weights(build):
    _check(build, None)


def _check(build, sharding):
    found = _fit(build, tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding))
    expected = _fit(build)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    for one, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def _fit(build, strategy=None):
    keras.utils.set_random_seed(5)
    if strategy is None:
        model = build()
    else:
        with strategy.scope():
            model = build()
    history = model.fit(_X, _Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


_FORWARD, _BY_INPUT, _BY_WEIGHT = "product", "gradient by the input", "gradient by the weight"


def _product(operation):
    """The number of the layer that an operation is a product of, and which one; else None."""
    if operation.type != "MatMul":
        return None
    kind = _FORWARD
    if "gradient_tape" in operation.name:
        kind = _BY_INPUT if operation.get_attr("transpose_b") else _BY_WEIGHT
    return int(re.search(r"layer_(\d)", operation.name).group(1)), kind


def _layers_before(operation, *kinds):
    """The numbers of the layers of whose products of these kinds an operation waits for one."""
    todo, seen, found = [operation], set(), set()
    while todo:
        one = todo.pop()
        if one.name in seen:
            continue
        seen.add(one.name)
        product = _product(one)
        if product is not None and product[1] in kinds:
            found.add(product[0])
        todo += [tensor.op for tensor in one.inputs] + list(one.control_inputs)
    return found


def _graph(model, strategy, spec):
    """The graph of a step, without its update."""

    @tf.function
    def train(x):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            return tape.gradient(loss, model.trainable_variables)

        return strategy.run(step, args=(x,))

    return train.get_concrete_function(spec).graph


class Tied(keras.Model):
    """A table that is looked up, and that the outputs are multiplied by."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.ReversibleEmbedding(50, 4)
        self.table.build(())
        self.built = True

    def call(self, inputs):
        return self.table(self.table(inputs), reverse=True)


def _multiplied():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(50, use_bias=False)])


def _multiplied_early():
    """A kernel with two layers behind it that are read, too."""
    behind = [keras.layers.Dense(units, use_bias=False) for units in (7, 5)]
    return keras.Sequential([_multiplied(), *behind])


def _only_looked_up():
    return keras.Sequential([keras.Input((3,)), keras.layers.Embedding(50, 4)])


def _looked_up_in_half_precision():
    table = keras.layers.Embedding(50, 4, dtype="mixed_bfloat16")
    return keras.Sequential([keras.Input((3,)), table])


def _both():
    return keras.Sequential([keras.Input((6,)), ReadTwice()])


@pytest.mark.parametrize(
    ("build", "spec", "times"),
    [
        (_multiplied, tf.TensorSpec([4, 3]), 1),  # it is there when the backward pass begins
        (_multiplied_early, tf.TensorSpec([4, 3]), 2),
        (_only_looked_up, tf.TensorSpec([4, 3], tf.int32), 1),
        (_looked_up_in_half_precision, tf.TensorSpec([4, 3], tf.int32), 1),
        (_both, tf.TensorSpec([4, 6]), 1),
        (Tied, tf.TensorSpec([4, 3], tf.int32), 2),
    ],
)
def test_a_weight_is_gathered_for_each_pass_that_needs_it(build, spec, times):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding="parameters")
    with strategy.scope():
        model = build()
    weight = model.trainable_variables[0]
    graph = _graph(model, strategy, spec)
    sizes = [
        operation.outputs[0].shape.num_elements()
        for operation in graph.get_operations()
        if operation.type == "ConcatV2"
    ]
    assert sizes.count(weight.parts.length * 2) == 2 * times


_LAYERS = 6


def _step_of_a_chain():
    """A traced step that updates a chain of layers."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding="parameters")
    with strategy.scope():
        layers = [keras.layers.Dense(6, use_bias=False, name=f"layer_{n}") for n in range(_LAYERS)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
        optimizer.build(model.trainable_variables)

    @tf.function
    def train(x):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))

        strategy.run(step, args=(x,))

    return train.get_concrete_function(tf.TensorSpec([4, 6]))


def _products(step, kind):
    """The products of this kind, and the numbers of their layers."""
    found = [(operation, _product(operation)) for operation in step.graph.get_operations()]
    return [(one, product[0]) for one, product in found if product and product[1] == kind]


def test_weights_travel_while_the_layer_before_computes():
    step = _step_of_a_chain()
    products = _products(step, _FORWARD)
    assert len(products) == 2 * _LAYERS
    for operation, number in products:
        weight = _layers_before(operation.inputs[1].op, _FORWARD)
        assert weight == set(range(number - 1))


def test_weights_travel_again_while_the_layer_behind_computes_its_gradients():
    step = _step_of_a_chain()
    products = _products(step, _BY_INPUT)
    assert len(products) == 2 * (_LAYERS - 1)  # nobody asks for the gradient by the data
    for operation, number in products:
        weight = operation.inputs[1].op
        # Not for the layer behind: the weight travels meanwhile. But for those behind that one, so
        # that there are whole weights of two layers at a time, and gradients of three.
        done = _layers_before(weight, _BY_INPUT, _BY_WEIGHT)
        assert done == set(range(number + 2, _LAYERS))
        if number + 3 < _LAYERS:
            assert number + 3 in _layers_before(weight, _BY_WEIGHT)
