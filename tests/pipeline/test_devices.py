"""Where the weights, slots and operations of stages are, and what files hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.devices import DEVICES
from tfdist import pipeline
from tfdist.pipeline import cutting

_NAMES = ("one", "two", "three", "four")
X, Y = np.ones((8, 6), "float32"), np.ones((8, 2), "float32")


def _model():
    layers = [keras.layers.Dense(6, "tanh", name=name) for name in _NAMES[:-1]]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2, name="four")])


def _piped(plain, devices=DEVICES[:2], **options):
    model = pipeline.stages(plain, devices, **options)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def _device(name):
    return tf.DeviceSpec.from_string(name).to_string()[-len("CPU:0") :]


def test_weights_and_slots_are_on_the_device_of_their_stage():
    model = _piped(_model(), cuts=["four"])
    model.fit(X, Y, verbose=0)
    places = {weight.path: _device(weight.value.device) for weight in model.weights}
    assert {path for path, device in places.items() if device == "CPU:1"} == {
        "four/kernel",
        "four/bias",
    }
    slots = model.optimizer.variables[2:]  # after the number of updates and the learning rate
    assert len(slots) == 2 * len(places)
    for slot in slots:
        layer = slot.path.split("/")[-1].split("_")[0]
        assert _device(slot.value.device) == ("CPU:1" if layer == "four" else "CPU:0"), slot.path


def test_both_passes_of_a_stage_are_on_its_device():
    model = _piped(_model(), cuts=["three"], micro_batches=3)
    model.optimizer.build(model.trainable_variables)
    graph = tf.function(model.train_step).get_concrete_function((tf.constant(X), tf.constant(Y)))
    found = {}
    for operation in graph.graph.get_operations():
        if operation.type == "MatMul":
            name = next(name for name in _NAMES if name in operation.name)
            found.setdefault((name, _device(operation.device)), []).append(operation)
    # Of each layer and micro-batch: the output, the gradient of the kernel, and of the input.
    assert {place: len(of) for place, of in found.items()} == {
        ("one", "CPU:0"): 9,
        ("two", "CPU:0"): 9,
        ("three", "CPU:1"): 9,
        ("four", "CPU:1"): 9,
    }


def _products(graph, is_one):
    """The products of a graph that are of a kind, by their layers and micro-batches."""
    found, counts = {}, dict.fromkeys(_NAMES, 0)
    for operation in graph.get_operations():
        if operation.type == "MatMul" and is_one(operation):
            name = next(name for name in _NAMES if name in operation.name)
            found[operation.name] = name, counts[name]
            counts[name] += 1
    return found


def _waits_for(operation, products):
    """Those of `products` that an operation needs."""
    todo, seen = [operation], set()
    while todo:
        one = todo.pop()
        before = {tensor.op for tensor in one.inputs} | set(one.control_inputs)
        todo += before - seen
        seen |= before
    return {products[one.name] for one in seen if one.name in products}


def test_a_stage_waits_for_no_other_micro_batch():
    model = _piped(_model(), cuts=["three"], micro_batches=3)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step).get_concrete_function((tf.constant(X), tf.constant(Y)))
    forward = _products(
        step.graph, lambda o: not (o.get_attr("transpose_a") or o.get_attr("transpose_b"))
    )
    backward = _products(step.graph, lambda o: o.get_attr("transpose_b"))
    for products, order in ((forward, _NAMES), (backward, _NAMES[::-1])):
        assert len(products) >= 3 * 3
        for name, (layer, micro_batch) in products.items():
            before = order[: order.index(layer)]
            found = _waits_for(step.graph.get_operation_by_name(name), products)
            assert found == {(other, micro_batch) for other in before}


def test_files_are_those_of_the_plain_model(tmp_path):
    plain = _model()
    model = _piped(plain)
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    plain.load_weights(tmp_path / "model.weights.h5")
    assert type(loaded) is keras.Sequential
    for other in (loaded, plain):
        for first, second in zip(model.get_weights(), other.get_weights()):
            np.testing.assert_array_equal(first, second)
    assert loaded.optimizer.iterations.numpy() == 1
    again = _piped(_model())
    again.load_weights(tmp_path / "model.weights.h5")
    assert _device(again.weights[-1].value.device) == "CPU:1"
    for other in (model, loaded):  # training goes on from the same optimizer
        other.fit(X, Y, verbose=0)
    for first, second in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_allclose(first, second, atol=1e-6)


def test_what_is_handed_in_is_left_as_it_was():
    plain = _model()
    before = plain.get_weights()
    _piped(plain).fit(X, Y, verbose=0)
    for first, second in zip(before, plain.get_weights()):
        np.testing.assert_array_equal(first, second)
    assert all(_device(weight.value.device) == "CPU:0" for weight in plain.weights)


@pytest.mark.parametrize(
    ("weights", "stages", "cuts"),
    [
        ([5, 5, 5, 5], 2, [2]),
        ([5, 5, 5, 5], 4, [1, 2, 3]),
        ([100, 1, 1, 1], 2, [1]),
        ([1, 1, 1, 100], 2, [3]),
        ([0, 0, 0, 0, 0, 0], 3, [2, 4]),
        ([7], 1, []),
    ],
)
def test_stages_have_about_equally_many_parameters(weights, stages, cuts):
    assert cutting.balanced(weights, stages) == cuts


def test_mixed_precision_and_loss_scaling_go_through_stages():
    keras.utils.set_random_seed(2)
    plain = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "tanh", dtype="mixed_float16"),
            keras.layers.Dense(2, dtype="mixed_float16"),
        ]
    )
    piped = pipeline.stages(plain, DEVICES[:2])
    for model in (plain, piped):
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0)
    for first, second in zip(plain.get_weights(), piped.get_weights()):
        np.testing.assert_allclose(first, second, atol=2e-3)
    slot = next(v for v in piped.optimizer.inner_optimizer.variables if v.shape == (8, 2))
    assert _device(slot.value.device) == "CPU:1"
