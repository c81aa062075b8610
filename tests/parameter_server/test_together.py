"""Small variables that are updated together are updated as one by one."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server import partitions
from tfdist.parameter_server.together import ELEMENTWISE, applying
from tfdist.step.sharding.elementwise import check_elementwise

OPTIMIZERS = [
    keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    keras.optimizers.RMSprop(0.01, centered=True, momentum=0.5, clipvalue=0.3),
    keras.optimizers.Adam(0.01, amsgrad=True, use_ema=True, ema_overwrite_frequency=2),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 10), weight_decay=0.1),
    keras.optimizers.Adamax(0.01),
    keras.optimizers.Adagrad(0.1),
    keras.optimizers.Adadelta(0.5),
    keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.1),
    keras.optimizers.Lion(0.01),
]
_LARGE = partitions.SMALL_BYTES // 4 + 1


@pytest.fixture(autouse=True, scope="module")
def _hooks():
    compat.install()


class ByNorm(keras.optimizers.Adam):
    """Moves each variable by one unit."""

    def update_step(self, gradient, variable, learning_rate):
        norm = keras.ops.sqrt(keras.ops.sum(keras.ops.square(gradient)))
        super().update_step(gradient / norm, variable, learning_rate)


def _variables():
    """Two dtypes, a large one, and one with sparse gradients."""
    random = np.random.default_rng(0)
    shapes = [(3, 4), (4,), (2, 3, 2), (_LARGE,), (6, 2), (5,)]
    dtypes = ["float32"] * 5 + ["float64"]
    constraints = [None, keras.constraints.NonNeg(), *[None] * 4]
    return [
        keras.Variable(random.normal(size=s), dtype=d, constraint=c, name="weight")
        for s, d, c in zip(shapes, dtypes, constraints)
    ]


def _gradients(number, variables):
    """Also none for the third one, in the second update."""
    random = np.random.default_rng(number)
    found = [tf.constant(random.normal(size=v.shape), v.dtype) for v in variables]
    found[4] = tf.IndexedSlices(found[4][:3], tf.constant([4, 1, 4]), tf.constant([6, 2]))
    if number == 1:
        found[2] = None
    return found


def _trained(kind, config, context):
    """The weights and the optimizer's state after three updates, and the last update's graph."""
    variables = _variables()
    optimizer = kind.from_config(config)
    optimizer.build(variables)
    for number in range(3):
        given = [(g, v) for g, v in zip(_gradients(number, variables), variables) if g is not None]
        update = tf.function(functools.partial(_apply, optimizer, given, context), autograph=False)
        update()
    values = [variable.numpy() for variable in (*variables, *optimizer.variables)]
    return values, update.get_concrete_function().graph


def _apply(optimizer, given, context):
    with compat.applying_reduced_gradients(), context():
        optimizer.apply([gradient for gradient, _ in given], [variable for _, variable in given])


def _together():
    return applying(tf.constant(1.0))


def _vectors(graph):
    """The sizes of the vectors that were divided again."""
    splits = [o for o in graph.get_operations() if o.type == "SplitV"]
    return [operation.inputs[0].shape.num_elements() for operation in splits]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_small_variables_together_equal_each_by_itself(optimizer):
    arguments = type(optimizer), optimizer.get_config()
    expected, alone = _trained(*arguments, contextlib.nullcontext)
    found, graph = _trained(*arguments, _together)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-6)
    assert set(_vectors(graph)) == {3 * 4 + 4 + 2 * 3 * 2}
    assert not _vectors(alone)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_only_optimizers_that_treat_each_element_for_itself_do_so(optimizer):
    assert type(optimizer) in ELEMENTWISE
    check_elementwise(optimizer)


@pytest.mark.parametrize("kind", [ByNorm, keras.optimizers.Nadam, keras.optimizers.Lamb])
def test_other_optimizers_update_each_variable_by_itself(kind):
    expected, _ = _trained(kind, kind().get_config(), contextlib.nullcontext)
    found, graph = _trained(kind, kind().get_config(), _together)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert not _vectors(graph)


def test_every_optimizer_of_the_list_is_tried():
    assert {type(optimizer) for optimizer in OPTIMIZERS} == ELEMENTWISE
