"""A trace has the sizes of the gradients, and their order in the backward pass."""

import keras
import pytest
import tensorflow as tf

from tfdist.plan import tracing
from tfdist.step.tables import Tables

layers = keras.layers


def traced(*stack, batch=4, optimizer=None):
    model = keras.Sequential(list(stack))
    return tracing.trace(model, tracing.specs_of(model, batch), batch, optimizer)


def test_the_last_layer_is_there_first():
    workload = traced(keras.Input((64,)), *(layers.Dense(64, use_bias=False) for _ in range(4)))
    ready = [variable.ready for variable in workload.variables]
    assert ready == sorted(ready, reverse=True)
    # Each layer's backward pass has two products, the first layer's one: 7 in all.
    assert ready == pytest.approx([1.0, 6 / 7, 4 / 7, 2 / 7], abs=0.15)
    assert workload.forward == pytest.approx(4 / 11, abs=0.05)
    assert workload.trained_bytes == 4 * 64 * 64 * 4


def operations(function, *shapes):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    return tf.function(function).get_concrete_function(*specs).graph.get_operations()


@pytest.mark.parametrize(
    ("kind", "function", "shapes", "multiplications"),
    [
        ("MatMul", tf.matmul, [(3, 5), (5, 7)], 3 * 5 * 7),
        ("MatMul", lambda a, b: tf.matmul(a, b, transpose_a=True), [(5, 3), (5, 7)], 3 * 5 * 7),
        ("BatchMatMulV2", tf.matmul, [(2, 3, 5), (2, 5, 7)], 2 * 3 * 5 * 7),
        ("Einsum", lambda a, b: tf.einsum("abc,cd->abd", a, b), [(2, 3, 5), (5, 7)], 210),
        ("Conv2D", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), [(1, 8, 8, 2), (3, 3, 2, 4)], 4608),
    ],
)
def test_products_cost_their_multiplications(kind, function, shapes, multiplications):
    (found,) = [op for op in operations(function, *shapes) if op.type == kind]
    assert tracing._work(found) == 2 * multiplications


def test_gradients_of_a_convolution_cost_what_it_does():
    def gradients(x, kernel):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
        return tape.gradient(y, [x, kernel])

    found = operations(gradients, (1, 8, 8, 2), (3, 3, 2, 4))
    work = [tracing._work(op) for op in found if op.type.startswith("Conv2DBackprop")]
    assert work == [2 * 4608] * 2


def test_embeddings_have_rows():
    stack = keras.Input((6,), dtype="int32"), layers.Embedding(100, 8), layers.Flatten()
    workload = traced(*stack, optimizer=keras.optimizers.SGD(momentum=0.9))
    (table,) = workload.variables
    assert (table.rows, table.nbytes, workload.tables) == (24, 3200, Tables.SUMS)
    assert traced(*stack, optimizer=keras.optimizers.Adam()).tables is Tables.SQUARES
    assert traced(*stack).tables is Tables.NONE


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("adam", 2), (None, 1)])
def test_what_the_optimizer_keeps(optimizer, copies):
    chosen = optimizer and keras.optimizers.get(optimizer)
    workload = traced(keras.Input((8,)), layers.Dense(4), optimizer=chosen)
    assert workload.slot_bytes == copies * workload.trained_bytes
    assert chosen is None or not chosen.built


def test_what_is_not_trained_only_takes_memory():
    frozen = layers.Dense(4, trainable=False)
    workload = traced(keras.Input((8,)), frozen, layers.BatchNormalization(), layers.Dense(2))
    assert workload.frozen_bytes == 4 * (8 * 4 + 4 + 2 * 4)
    assert workload.trained_bytes == 4 * (2 * 4 + 4 * 2 + 2)


def test_activations_are_at_least_what_the_backward_pass_reads():
    stack = keras.Input((8,)), layers.Dense(32, "relu"), layers.Dense(16), layers.Dense(2)
    # The outputs of the first two layers; after "relu", not before.
    kept = 4 * 4096 * (32 + 16)
    assert kept < traced(*stack, batch=4096).activation_bytes < 3 * kept


def test_logits_count_though_no_gradient_of_their_mean_needs_them():
    logits = 4 * 1024 * 5000
    found = traced(keras.Input((8,)), layers.Dense(5000), batch=1024)
    assert found.activation_bytes > 2 * logits


def test_a_model_that_trains_nothing_is_refused():
    with pytest.raises(ValueError, match="no variable that is trained.*Received: model='"):
        traced(keras.Input((8,)), layers.Dense(4, trainable=False))


def test_a_model_with_several_inputs_is_given_all_of_them():
    a, b = keras.Input((3,), name="a"), keras.Input((5,), name="b")
    joined = layers.Dense(2)(layers.Concatenate()([a, b]))
    model = keras.Model({"a": a, "b": b}, joined)
    inputs = tracing.random_inputs(tracing.specs_of(model, 4))
    assert {name: tensor.shape[1] for name, tensor in inputs.items()} == {"a": 3, "b": 5}
    assert len(tracing.trace(model, inputs, 4, None).variables) == 2


def test_inputs_of_any_size_are_refused():
    model = keras.Sequential([keras.Input((None, 3)), layers.Dense(2)])
    with pytest.raises(ValueError, match=r"size. Give a script.*Received: .* shapes \[\(4, None"):
        tracing.specs_of(model, 4)
    with pytest.raises(ValueError, match="does not state the shapes of its inputs. Give a script"):
        tracing.specs_of(keras.Model(name="own"), 4)
