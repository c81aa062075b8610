"""What `tfdist.memory.estimate` says that replicas keep is what they do keep."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compat, memory
from tfdist.step.sharding.parts import Parts

REPLICAS = 2


def strategy_with(sharding, **options):
    return tfdist.MirroredStrategy(DEVICES[:REPLICAS], sharding=sharding, **options)


def held(strategy, variables):
    """The bytes that the first replica has of some `tf.Variable`s."""
    first = (strategy.experimental_local_results(variable)[0] for variable in variables)
    return sum(one.shape.num_elements() * one.dtype.size for one in first)


class Constant(keras.layers.Layer):
    """Has a matrix that is never trained, as layers with statistics do."""

    def build(self, shape):
        self.matrix = self.add_weight((shape[-1], 300), name="matrix", trainable=False)

    def call(self, x):
        return x @ self.matrix


def frozen_after():
    layer = keras.layers.Dense(300)
    layer.build((None, 300))
    layer.trainable = False
    return layer


def with_lora():
    layer = keras.layers.Dense(300)
    layer.build((None, 300))
    layer.enable_lora(2)
    return layer


def normalization():
    return keras.layers.BatchNormalization(trainable=False)


@pytest.mark.parametrize(
    ("make", "divided"),
    [
        (frozen_after, True),
        (lambda: keras.layers.Dense(300, trainable=False), True),
        (with_lora, True),
        (Constant, False),
        (lambda: Constant(trainable=False), False),
        (normalization, False),
    ],
    ids=["frozen", "made frozen", "lora", "constant", "frozen constant", "normalization"],
)
def test_weights_that_are_not_trained(make, divided):
    def model():
        layers = [make(), keras.layers.Dense(4, use_bias=False)]
        model = keras.Sequential([keras.Input((300,)), *layers])
        model.compile("sgd", "mse")
        return model

    outside = model()
    strategy = strategy_with("parameters")
    with strategy.scope():
        inside = model()
    kept = held(strategy, map(compat.stored, inside.variables))
    whole = sum(4 * np.prod(variable.shape) for variable in outside.variables)
    assert (kept < 0.6 * whole) == divided
    for one in (outside, inside):
        found = memory.estimate(one, 8, "parameters", REPLICAS)
        assert found.parameters == kept
        assert memory.estimate(one, 8, "optimizer", REPLICAS).parameters == whole
        # The kernel of the layer is gathered like others.
        assert (found.exchange >= 4 * 300 * 300) == divided


# Parts are filled up by a row of the first two, and by an element of a bias.
SHAPES = [(3, 5000), (15, 4000), (4, 7)]


def filled_up(optimizer="adam"):
    inputs = [keras.Input((size,)) for size, _ in SHAPES]
    layers = [keras.layers.Dense(units) for _, units in SHAPES]
    outputs = [layer(one) for layer, one in zip(layers, inputs, strict=True)]
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, ["mse"] * len(SHAPES))
    return model


def for_kernels():
    momentum, plain = keras.optimizers.SGD(momentum=0.9), keras.optimizers.SGD()
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(plain, {".*kernel": momentum})
    )


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.Adam, lambda: keras.optimizers.SGD(use_ema=True), for_kernels],
    ids=["Adam", "average", "momentum of kernels"],
)
def test_slots_for_parts_that_are_filled_up(sharding, optimizer):
    strategy = strategy_with(sharding)
    with strategy.scope():
        model = filled_up(optimizer())
        model.optimizer.build(model.trainable_variables)
    kept = held(strategy, model.optimizer.parts_of_state.owned)
    outside = filled_up(optimizer())
    assert memory.estimate(outside, 8, sharding, REPLICAS).slots == kept
    assert memory.estimate(outside, 8).slots < REPLICAS * kept


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_gradients_that_are_accumulated_as_parts(sharding):
    strategy = strategy_with(sharding, accumulation_steps=2)
    with strategy.scope():
        model = filled_up()
        model.optimizer.build(model.trainable_variables)
    one, two = (
        memory.estimate(filled_up(), 8, sharding, REPLICAS, accumulation_steps=steps).gradients
        for steps in (1, 2)
    )
    assert two - one == held(strategy, model.optimizer.accumulator.sums)


def test_gradients_of_weights_in_parts_are_parts():
    model = filled_up()
    kernels = sum(4 * Parts.of(tf.TensorSpec(shape), REPLICAS).length for shape in SHAPES)
    biases = sum(4 * units for _, units in SHAPES)
    assert memory.estimate(model, 8, "parameters", REPLICAS).gradients == kernels + biases


class SomeOutputs(keras.Model):
    """Returns what `outputs` makes of its first result."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs_of = outputs
        self.dense = keras.layers.Dense(30)
        self.dense.build((None, 6))
        self.built = True

    def call(self, x):
        return self.outputs_of(self.dense(x))


def estimated(outputs):
    model = SomeOutputs(outputs)
    model.compile("adam", "mse")
    return memory.estimate(model, 8, inputs=np.ones((1, 6), "float32"))


@pytest.mark.parametrize(
    "outputs",
    [
        lambda y: {"y": y, "nothing": None},
        lambda y: (y, tf.argmax(y, -1), tf.as_string(y)),
    ],
    ids=["None", "integers and strings"],
)
def test_outputs_without_a_loss_count_nothing(outputs):
    found, alone = estimated(outputs), estimated(lambda y: y)
    assert found.gradients == alone.gradients == 4 * (6 * 30 + 30)
    assert found.activations >= alone.activations


def test_a_model_needs_an_output_for_a_loss():
    with pytest.raises(ValueError, match=r"by its outputs of floating.*Received: .*\['int64'\]"):
        estimated(lambda y: {"y": tf.argmax(y, -1), "nothing": None})
