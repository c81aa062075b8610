"""The optimizer's state on the host: virtual CPUs stand for GPUs, the first one for the host."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compat
from tfdist.step.sharding.offload import check_offload, host_of

_X = np.random.default_rng(0).normal(size=(26, 5)).astype("float32")
_Y = np.random.default_rng(1).normal(size=(26, 3)).astype("float32")


def _model(strategy, make):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(make(), "mse")
    return model


def _fit(model, epochs=2):
    model.fit(_X, _Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def _offloading(replicas, sharding, **options):
    devices = DEVICES[1 : 1 + replicas]
    return tfdist.MirroredStrategy(devices, sharding=sharding, offload="optimizer", **options)


def _adam():
    return keras.optimizers.AdamW(1e-2, global_clipnorm=0.1, use_ema=True)


def _lamb():
    return keras.optimizers.Lamb(1e-2, global_clipnorm=0.1)


@pytest.mark.parametrize(
    ("make", "replicas", "sharding", "steps"),
    [
        (_adam, 1, "optimizer", 1),
        pytest.param(_adam, 2, "gradients", 2, marks=pytest.mark.full),
        (_adam, 2, "parameters", 1),
        pytest.param(_lamb, 1, "optimizer", 2, marks=pytest.mark.full),
        (_lamb, 2, "optimizer", 1),
    ],
)
def test_training_equals_one_device(make, replicas, sharding, steps, tmp_path):
    model = _model(_offloading(replicas, sharding, accumulation_steps=steps), make)
    alone = _model(tfdist.MirroredStrategy(DEVICES[:1], accumulation_steps=steps), make)
    for one in (model, alone):
        _fit(one)
    for one, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
    local = model.distribute_strategy.experimental_local_results
    slots = model.optimizer.parts_of_state.owned
    assert len(slots) >= 8
    assert {copy.device[-5:] for slot in slots for copy in local(slot)} == {"CPU:0"}
    weights = [copy for v in model.weights for copy in local(compat.stored(v))]
    assert {copy.device[-5:] for copy in weights} == {f"CPU:{n}" for n in range(1, replicas + 1)}
    model.save(tmp_path / "saved.keras")
    state = [
        v.numpy() for v in keras.models.load_model(tmp_path / "saved.keras").optimizer.variables
    ]
    for one, expected in zip(state, alone.optimizer.variables, strict=True):
        np.testing.assert_allclose(one, expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_pieces_are_on_the_host(sharding):
    model = _model(_offloading(2, sharding), _adam)
    strategy = model.distribute_strategy
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    pieces = [own for own in model.optimizer._update._own if type(own) is compat.PartVariable]
    # Weights in parts are kept where the replicas compute; biases are whole there.
    assert len(pieces) == {"optimizer": 4, "parameters": 2}[sharding]
    copies = [c for piece in pieces for c in strategy.experimental_local_results(piece.value)]
    assert len(copies) == 2 * len(pieces)
    assert {copy.device[-5:] for copy in copies} == {"CPU:0"}


def test_the_update_runs_on_the_host():
    strategy = _offloading(2, "optimizer")
    model = _model(strategy, _adam)
    variables = model.trainable_variables
    with strategy.scope():
        model.optimizer.build(variables)

    @tf.function
    def train():
        def step():
            gradients = [tf.ones(variable.shape) for variable in variables]
            model.optimizer.apply(gradients, variables)

        strategy.run(step)

    operations = train.get_concrete_function().graph.get_operations()
    roots = [operation.device[-5:] for operation in operations if operation.type == "Sqrt"]
    assert len(roots) >= 2 * len(variables)
    # Those that clip, one for a replica, are on the replicas' devices.
    assert len([device for device in roots if device != "CPU:0"]) <= 2


@pytest.mark.parametrize(
    ("devices", "options", "received"),
    [
        (DEVICES[1:3], {"offload": "optimizer"}, "offload='optimizer', sharding=None"),
        (DEVICES[1:3], {"offload": "all", "sharding": "optimizer"}, "offload='all'"),
        (DEVICES[:2], {"offload": "optimizer", "sharding": "optimizer"}, "a replica on .*CPU:0"),
    ],
)
def test_what_offload_does_not_go_with_is_refused(devices, options, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        tfdist.MirroredStrategy(devices, **options)


def test_several_processes_and_xla_are_refused():
    assert host_of("/job:worker/replica:0/task:3/device:GPU:1").endswith("task:3/device:CPU:0")
    assert host_of("/job:worker/replica:0/task:3/device:GPU:1").endswith("task:3/device:CPU:0")
    options = tfdist.Options(sharding="optimizer", offload="optimizer")
    with pytest.raises(ValueError, match="Received: offload='optimizer' with 2 processes"):
        check_offload(options, ["/device:GPU:0"], 2)
    with _offloading(1, "optimizer").scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        with pytest.raises(ValueError, match="jit_compile=True, offload='optimizer'"):
            model.compile("adam", "mse", jit_compile=True)
