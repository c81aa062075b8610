"""Files of sharded training have Keras' layout, and are read by every kind of training."""

from unittest import mock

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.sharding import rank

_X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
_Y = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
# Kinds of training, by replicas and sharding.
_KINDS = [
    (1, None),
    (2, None),
    (2, "optimizer"),
    (3, "gradients"),
    (4, "optimizer"),
    (3, "parameters"),
]


def _usual(*usual, of):
    """Parameters of which the default suite has `usual` only."""
    return [pytest.param(*one, marks=() if one in usual else pytest.mark.full) for one in of]


def _strategy(replicas, sharding, steps=1):
    return tfdist.MirroredStrategy(DEVICES[:replicas], sharding=sharding, accumulation_steps=steps)


def _model(strategy, optimizer=lambda: keras.optimizers.AdamW(1e-2, use_ema=True)):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(7, activation="tanh")(inputs)
        hidden = keras.layers.Reshape((7, 1))(hidden)
        hidden = keras.layers.Conv1D(2, 3, activation="tanh")(hidden)
        outputs = keras.layers.Dense(3)(keras.layers.Flatten()(hidden))
        model = keras.Model(inputs, outputs)
        model.compile(optimizer(), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def _fit(model, epochs=1, steps=None):
    model.fit(_X, _Y, batch_size=6, epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0)


def _state(model):
    return [variable.numpy() for variable in model.optimizer.variables]


def _assert_equal(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def reference():
    """The weights and the optimizer's state after one epoch, and after two."""
    model = _model(_strategy(1, None))
    found = []
    for _ in range(2):
        _fit(model)
        found.append((model.get_weights(), _state(model)))
    return found


@pytest.mark.parametrize(
    ("replicas", "sharding", "whole"),
    _usual(
        (3, "gradients", True),
        of=[(*kind, whole) for kind in _KINDS[2:] for whole in (True, False)],
    ),
)
def test_training_goes_on_in_every_other_kind(replicas, sharding, whole, tmp_path, reference):
    path = str(tmp_path / ("saved.keras" if whole else "saved.weights.h5"))
    model = _model(_strategy(replicas, sharding))
    _fit(model)
    (model.save if whole else model.save_weights)(path)
    alone = keras.models.load_model(path) if whole else _model(_strategy(1, None))
    if not whole:
        alone.load_weights(path)
    _assert_equal(alone.get_weights(), reference[0][0])
    _assert_equal(_state(alone), reference[0][1])
    for others in ((1, None), (2, None), (4, "optimizer"), (3, "gradients"), (4, "parameters")):
        strategy = _strategy(*others)
        if whole:
            with strategy.scope():
                other = keras.models.load_model(path)
        else:
            other = _model(strategy)
            other.load_weights(path)
        _fit(other)
        _assert_equal(other.get_weights(), reference[1][0])
        other.save(tmp_path / "again.keras")
        _assert_equal(_state(keras.models.load_model(tmp_path / "again.keras")), reference[1][1])


def _several_in_one():
    matrices = keras.optimizers.Adam(1e-2, name="of_matrices")
    others = keras.optimizers.SGD(1e-2, momentum=0.9, name="of_others")
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.MultiOptimizer(lambda v: matrices if len(v.shape) == 2 else others),
        initial_scale=8.0,
    )


@pytest.mark.parametrize(
    "sharding", [pytest.param("optimizer", marks=pytest.mark.full), "parameters"]
)
def test_optimizers_inside_of_several_are_saved_whole_too(sharding, tmp_path):
    """Keras also saves each of them by itself, if loss scaling is around them."""
    path, states = tmp_path / "saved.weights.h5", []
    for replicas, given in ((1, None), (2, sharding)):
        model = _model(_strategy(replicas, given), _several_in_one)
        _fit(model)
        model.save_weights(path)
        for into in ((1, None), (2, sharding)):
            other = _model(_strategy(*into), _several_in_one)
            other.load_weights(path)
            other.save_weights(tmp_path / "again.weights.h5")
            alone = _model(_strategy(1, None), _several_in_one)
            alone.load_weights(tmp_path / "again.weights.h5")
            states.append(_state(alone))
    for state in states[1:]:
        _assert_equal(state, states[0])


@pytest.mark.parametrize(("replicas", "sharding"), _usual((3, "parameters"), of=_KINDS[2:]))
def test_files_of_other_kinds_are_read(replicas, sharding, tmp_path, reference):
    first = _model(_strategy(2, None))
    _fit(first)
    first.save(tmp_path / "saved.keras")
    with _strategy(replicas, sharding).scope():
        model = keras.models.load_model(tmp_path / "saved.keras")
    sizes = [np.size(value) for value in _state(model)]
    assert sum(sizes) < sum(np.size(value) for value in _state(first))
    _fit(model)
    _assert_equal(model.get_weights(), reference[1][0])


@pytest.mark.parametrize(
    ("writer", "reader"),
    _usual(
        ((3, "gradients"), (2, "optimizer")),
        ((2, None), (3, "parameters")),
        of=[
            (writer, reader)
            for writer in ((2, "optimizer"), (3, "gradients"), (3, "parameters"), (2, None))
            for reader in _KINDS
        ],
    ),
)
def test_accumulated_gradients_go_on(writer, reader, tmp_path):
    plain = _model(_strategy(1, None, steps=3))
    _fit(plain, epochs=2)  # eight micro-batches: two updates, and two that wait
    model = _model(_strategy(*writer, steps=3))
    _fit(model)
    model.save(tmp_path / "saved.keras")
    with _strategy(*reader, steps=3).scope():
        other = keras.models.load_model(tmp_path / "saved.keras")
    assert int(other.optimizer.accumulator.micro_step.numpy()) == 1
    _fit(other)
    _assert_equal(other.get_weights(), plain.get_weights())


def _whole():
    return keras.optimizers.Adafactor(1e-2, global_clipnorm=0.5)


@pytest.mark.parametrize(
    ("writer", "reader"),
    _usual(
        ((3, "gradients"), (2, "optimizer")),
        of=[(w, r) for w in _KINDS[1:5] for r in _KINDS[:5]],
    ),
)
def test_the_state_of_whole_variables_goes_on(writer, reader, tmp_path):
    plain = _model(_strategy(1, None), _whole)
    _fit(plain)
    first = _state(plain)
    _fit(plain)
    model = _model(_strategy(*writer), _whole)
    _fit(model)
    model.save(tmp_path / "saved.keras")
    _assert_equal(_state(keras.models.load_model(tmp_path / "saved.keras")), first)
    with _strategy(*reader).scope():
        other = keras.models.load_model(tmp_path / "saved.keras")
    _fit(other)
    _assert_equal(other.get_weights(), plain.get_weights())
    other.save_weights(tmp_path / "again.weights.h5")
    alone = _model(_strategy(1, None), _whole)
    alone.load_weights(tmp_path / "again.weights.h5")
    _assert_equal(_state(alone), _state(plain))


def test_only_parts_of_accumulated_gradients_exist():
    sizes = {}
    for sharding in ("optimizer", "gradients"):
        model = _model(_strategy(4, sharding, steps=2))
        _fit(model, steps=1)
        sizes[sharding] = sum(v.shape.num_elements() for v in model.optimizer.accumulator.sums)
    assert sizes["gradients"] < sizes["optimizer"] / 2


def test_a_loss_scale_is_saved(tmp_path):
    def scaled():
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(1e-2), initial_scale=64.0, dynamic_growth_steps=3
        )

    plain = _model(_strategy(1, None), scaled)
    model = _model(_strategy(3, "optimizer"), scaled)
    for one in (plain, model):
        _fit(one)
    model.save(tmp_path / "saved.keras")
    _assert_equal(_state(keras.models.load_model(tmp_path / "saved.keras")), _state(plain))


def _with_head(strategy, units):
    with strategy.scope():
        layers = [keras.layers.Dense(6, name="body"), keras.layers.Dense(units, name="head")]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("units", [6, 4])
def test_a_file_of_other_shapes_changes_nothing(units, tmp_path):
    other = _with_head(_strategy(1, None), units)
    for variable in other.optimizer.variables:
        variable.assign(np.ones(variable.shape))
    other.save_weights(tmp_path / "saved.weights.h5")
    model = _with_head(_strategy(2, "optimizer"), 7)
    before = _state(model)
    with pytest.warns(UserWarning, match="could not be loaded"):
        model.load_weights(tmp_path / "saved.weights.h5", skip_mismatch=True)
    for one, now in zip(before, _state(model), strict=True):
        np.testing.assert_array_equal(one, now)


def test_constraints_leave_weights_without_gradients_alone():
    class Unused(keras.layers.Layer):
        def build(self, shape):
            self.unused = self.add_weight((3, 4), "ones", constraint="max_norm", name="unused")

        def call(self, inputs):
            return inputs

    found = []
    for kind in ((1, None), (2, "optimizer")):
        keras.utils.set_random_seed(3)
        with _strategy(*kind).scope():
            model = keras.Sequential([keras.Input((5,)), Unused(), keras.layers.Dense(3)])
            average = {"use_ema": True, "ema_overwrite_frequency": 2}
            model.compile(keras.optimizers.SGD(1e-2, **average), "mse")
        with pytest.warns(UserWarning, match="Gradients do not exist"):
            _fit(model)
        found.append(model.get_weights())
    _assert_equal(*found)


def test_a_file_without_optimizer_state_is_read_with_a_warning(tmp_path):
    plain = _model(_strategy(1, None))
    keras.Model(plain.inputs, plain.outputs).save_weights(tmp_path / "saved.weights.h5")
    model = _model(_strategy(2, "optimizer"))
    _fit(model)
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        model.load_weights(tmp_path / "saved.weights.h5")


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_few_whole_variables_are_in_memory_while_a_model_is_saved(sharding, tmp_path):
    peak, largest = rank.peak_of_saving(_strategy(2, sharding), tmp_path / "a.weights.h5")
    assert largest < peak < 4 * largest  # of 8 weights, and 16 slots


@pytest.mark.parametrize("sharding", ["optimizer", "parameters"])
def test_tensorboard_sees_whole_weights(sharding, tmp_path):
    model, alone = (
        _model(_strategy(*kind), keras.optimizers.SGD) for kind in ((2, sharding), (1, None))
    )
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)
    write, seen = board.summary.histogram, {}

    def note(name, values, **options):
        seen[name] = np.asarray(values)
        return write(name, values, **options)

    with mock.patch.object(board.summary, "histogram", note):
        model.fit(_X, _Y, batch_size=6, shuffle=False, verbose=0, callbacks=[board])
    _fit(alone)
    found = [seen[f"{variable.path}/histogram"] for variable in model.trainable_variables]
    _assert_equal(found, [variable.numpy() for variable in alone.trainable_variables])
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_a_summary_has_whole_weights():
    texts = []
    for kind in ((1, None), (2, "parameters")):
        keras.backend.clear_session()  # so that layers have the same names
        model = _model(_strategy(*kind))
        model = keras.Model(model.inputs, model.outputs)  # without the optimizer, which has parts
        model.summary(print_fn=lambda text, **options: texts.append(text))
    assert len(texts) == 2
    assert "Total params" in texts[0]
    assert texts[1] == texts[0]
