"""Flat variables: vectors in the place of small variables."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.parameter_server.test_together import OPTIMIZERS
from tfdist import compat
from tfdist.parameter_server.flat import NONE, FlatVariables, StillUsed
from tfdist.parameter_server.packing import joined
from tfdist.parameter_server.snapshots.variables import MadeVariables
from tfdist.parameter_server.together import applying, lists_to_flatten, vectors_of
from tfdist.step.update import WholeVariables

SHAPES = [(3, 4), (4,), (), (2, 3, 2)]


@pytest.fixture(autouse=True, scope="module")
def _hooks():
    compat.install()


def _variables():
    random = np.random.default_rng(0)
    values = [random.normal(size=shape).astype("float32") for shape in SHAPES]
    return [keras.Variable(value, name=f"v{value.ndim}") for value in values]


def _trained(optimizer, is_flat, is_packed):
    """The weights and the optimizer's state after three updates, and the last one's operations."""
    variables = _variables()
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.use_ema = False  # it needs each variable by itself
    if optimizer.weight_decay:
        optimizer.exclude_from_weight_decay(var_names=["v1"])
    optimizer.build(variables)
    flat = FlatVariables(lists_to_flatten(optimizer)) if is_flat else NONE
    flat.fill()
    random = np.random.default_rng(1)
    for _ in range(3):
        gradients = [tf.constant(random.normal(size=shape), "float32") for shape in SHAPES]
        update = tf.function(
            functools.partial(_update, optimizer, variables, flat, is_packed), autograph=False
        )
        traced = update.get_concrete_function(gradients)
        flat.check(traced.graph.external_captures)
        traced(*gradients)
    before = [variable.numpy() for variable in variables]
    flat.write_back()
    values = [variable.numpy() for variable in (*variables, *optimizer.variables)]
    return before, values, [operation.type for operation in traced.graph.get_operations()]


def _update(optimizer, variables, flat, is_packed, gradients):
    packed = {"0,1,2,3": joined(gradients)}
    vectors = vectors_of(packed, gradients) if is_packed else {}
    with applying(tf.constant(1.0), flat, vectors):
        WholeVariables(optimizer).apply(gradients, variables)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_flat_variables_get_the_bits_of_the_variables(optimizer, is_packed):
    _, expected, apart = _trained(optimizer, is_flat=False, is_packed=False)
    before, found, together = _trained(optimizer, is_flat=True, is_packed=is_packed)
    for value, start in zip(before, _variables()):
        np.testing.assert_array_equal(value, start.numpy())
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert together.count("ReadVariableOp") < apart.count("ReadVariableOp")
    # The one that packs the gradients. Where they were clipped, the vector is another one.
    clips = any((optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm))
    leaves_out = optimizer.weight_decay is not None  # some variables, by one operation more
    assert together.count("ConcatV2") - leaves_out == (1 if is_packed and not clips else 2)


def test_what_needs_each_variable_by_itself_has_no_flat_ones():
    bounded = _variables()
    bounded[0].constraint = keras.constraints.NonNeg()
    for optimizer, variables in (
        (keras.optimizers.Adam(use_ema=True), _variables()),
        (keras.optimizers.Lamb(), _variables()),
        (keras.optimizers.Adam(), bounded),
        (keras.optimizers.Adam(), _variables()[:1]),
    ):
        optimizer.build(variables)
        assert lists_to_flatten(optimizer) == []
    assert lists_to_flatten(keras.optimizers.Adam()) == []


def test_a_variable_is_in_one_vector_at_most():
    one, two, three, four = _variables()
    for lists, sizes in (
        ([[one, two, three], [two, three]], []),
        ([[one, two], [two, one], [three, four]], [13]),
        ([[one, two], [one, two]], [16]),
    ):
        assert [vector.shape[0] for vector in FlatVariables(lists).vectors] == sizes


def test_a_variable_with_gradients_in_several_vectors_has_none_of_them():
    gradients = [tf.constant(float(number)) for number in range(4)]
    packed = {"0,1": tf.constant([0.0, 1.0]), "2,3": tf.constant([2.0, 3.0]), "1": tf.constant(1.0)}
    assert [*vectors_of(packed, gradients)] == [(id(gradients[2]), id(gradients[3]))]


def test_values_are_the_vectors_where_all_of_one_follow_each_other():
    variables = _variables()
    flat = FlatVariables([variables[1:3]])
    flat.fill()
    flat.vectors[0].assign(np.arange(5.0))
    found = [value.numpy().tolist() for value in flat.values(variables)]
    assert found == [variables[0].numpy().tolist(), [0, 1, 2, 3, 4], variables[3].numpy().tolist()]
    assert [value.shape for value in flat.values(variables[:2])] == [SHAPES[0], SHAPES[1]]
    assert [value.shape for value in flat.values(variables[2:])] == [SHAPES[2], SHAPES[3]]


def test_a_graph_that_uses_a_variable_itself_is_refused():
    variables = _variables()
    flat = FlatVariables([variables[1:3]])

    def captures(*used):
        return tf.function(lambda: [v.value + 1.0 for v in used]).get_concrete_function().graph

    flat.check(captures(variables[0], variables[3]).external_captures)
    with pytest.raises(StillUsed, match=f"uses {variables[2].path} itself"):
        flat.check(captures(variables[0], variables[2]).external_captures)


def test_variables_that_are_known_are_no_new_ones():
    made, variables = MadeVariables(), [tf.Variable(float(number)) for number in range(3)]
    made.note(variables[:2])
    made.note(variables)
    assert made.number == 3
    assert made.in_use() == variables
