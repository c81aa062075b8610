"""Optimizers that look at whole variables: each variable belongs to one replica."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step.sharding.owners import Owned, largest_share, owners_of
from tfdist.step.sharding.to_owners import columns_of, from_owners, sums_of_own

_X = np.random.default_rng(0).normal(size=(26, 5)).astype("float32")
_Y = np.random.default_rng(1).normal(size=(26, 3)).astype("float32")
_WORDS = np.random.default_rng(2).integers(0, 11, (26, 4))


# --- who owns what, and how it travels ------------------------------------------------------------


def test_owners_have_about_as_much():
    assert owners_of([10, 10, 10, 10], 2) == [0, 1, 0, 1]
    assert owners_of([1, 1, 6, 2, 4], 2) == [0, 1, 0, 1, 1]
    assert owners_of([5], 3) == [0]
    generator = np.random.default_rng(3)
    for replicas in (2, 3, 8):
        sizes = generator.integers(1, 1000, 40).tolist()
        assert largest_share(sizes, replicas) <= 4 / 3 / replicas
    assert largest_share([8, 1, 1], 2) == 0.8


_SHAPES = {
    "alike": [(7, 3), (5,), (3, 7), (), (0, 4), (5,), (20,), (9,)],
    "one large": [(3,), (100, 4), (), (5, 2)],
    "one": [(6, 2)],
}


def _owned(name, replicas):
    dtypes = [tf.float64 if place == 2 else tf.float32 for place in range(len(_SHAPES[name]))]
    sizes = [int(np.prod(shape)) for shape in _SHAPES[name]]
    owners = owners_of(sizes, replicas)
    return {n: Owned(s, d, o) for n, (s, d, o) in enumerate(zip(_SHAPES[name], dtypes, owners))}


@pytest.mark.parametrize("largest", [None, 64])
@pytest.mark.parametrize("name", _SHAPES)
@pytest.mark.parametrize(
    "replicas",
    [pytest.param(2, marks=pytest.mark.full), 3, pytest.param(4, marks=pytest.mark.full)],
)
def test_sums_come_to_owners_and_values_from_them(replicas, name, largest):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    strategy.engine.largest_message = largest
    owned = _owned(name, replicas)
    generator = np.random.default_rng(1)
    given = [
        {p: generator.normal(size=o.shape).astype(o.dtype.as_numpy_dtype) for p, o in owned.items()}
        for _ in range(replicas)
    ]
    kinds = {column.is_filled_up for column in columns_of(owned, replicas, 2**20, largest)}
    assert True in kinds if name == "alike" else name != "one" or kinds == {replicas == 2}
    assert (False in kinds) == (replicas > 2)

    @tf.function
    def run():
        def step():
            own = int(tf.get_static_value(_id()))
            sums = sums_of_own({p: tf.constant(v) for p, v in given[own].items()}, owned, 2**20)
            assert set(sums) == {p for p, one in owned.items() if one.owner == own}
            return from_owners(sums, owned, 2**20)

        return strategy.run(step)

    found = run()
    assert set(found) == set(owned)
    for place in owned:
        total = sum(values[place] for values in given)
        for copy in strategy.experimental_local_results(found[place]):
            np.testing.assert_allclose(copy.numpy(), total, rtol=1e-5, atol=1e-6)


def _id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_no_more_bytes_than_needed(replicas):
    """Owners that have as much exchange as much as an all-reduce, others at most twice as much."""
    for sizes, most in (([1000] * 24, 1.0), ([100_000, 10, 10, 500], 2.0)):
        owners = owners_of(sizes, replicas)
        owned = {n: Owned((s,), tf.float32, o) for n, (s, o) in enumerate(zip(sizes, owners))}
        sent = 0.0  # elements that a replica sends in both exchanges, in a ring
        for column in columns_of(owned, replicas, 2**20, None):
            if column.is_filled_up:
                sent += 2 * (replicas - 1) * column.width
            else:
                sent += (2 * (replicas - 1) / replicas + 1) * sum(column.lengths)
        assert sent <= most * 2 * (replicas - 1) / replicas * sum(sizes) * 1.01


# --- training -------------------------------------------------------------------------------------


_OPTIMIZERS = keras.optimizers
_MAKE = {
    "Lamb": lambda: _OPTIMIZERS.Lamb(1e-2, weight_decay=0.01),
    "Lamb, global_clipnorm": lambda: _OPTIMIZERS.Lamb(1e-2, global_clipnorm=0.1),
    "Lamb, clipnorm": lambda: _OPTIMIZERS.Lamb(1e-2, clipnorm=0.1),
    "Adafactor": lambda: _OPTIMIZERS.Adafactor(1e-2),
    "Muon": lambda: _OPTIMIZERS.Muon(1e-2, global_clipnorm=0.1),
    "ScheduleFreeAdamW": lambda: _OPTIMIZERS.ScheduleFreeAdamW(1e-2),
    "loss scale": lambda: _OPTIMIZERS.LossScaleOptimizer(
        _OPTIMIZERS.Lamb(1e-2), initial_scale=64.0, dynamic_growth_steps=2
    ),
}


def _model():
    words, numbers = keras.Input((4,), dtype="int32"), keras.Input((5,))
    embedded = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(11, 3)(words))
    hidden = keras.layers.Concatenate()([embedded, keras.layers.Dense(7)(numbers)])
    outputs = keras.layers.Dense(3, kernel_constraint="max_norm")(hidden)
    return keras.Model([words, numbers], outputs)


def _narrow():
    """Two variables only, and means over rows and columns that have one element."""
    words, numbers = keras.Input((4,), dtype="int32"), keras.Input((5,))
    hidden = keras.layers.Dense(1, use_bias=False)(numbers)
    return keras.Model([words, numbers], keras.layers.Dense(3, use_bias=False)(hidden))


def _trained(make, devices, make_model=_model, **options):
    keras.utils.set_random_seed(7)
    strategy = tfdist.MirroredStrategy(DEVICES[:devices], **options)
    with strategy.scope():
        model = make_model()
        model.compile(make(), "mse")
        model.optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices(((_WORDS, _X), _Y)).batch(8)
    model.fit(data, epochs=2, verbose=0)
    return model


def _saved_state(model, path):
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects={"InTurn": InTurn})
    return [variable.numpy() for variable in loaded.optimizer.variables]


def _assert_equal(model, other, folder):
    assert len(model.get_weights()) == len(other.get_weights()) > 0
    for one, expected in zip(model.get_weights(), other.get_weights()):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
    local = model.distribute_strategy.experimental_local_results
    counts = [int(copy) for copy in local(model.optimizer.iterations.value)]
    assert counts == [int(other.optimizer.iterations)] * len(counts)
    state, expected_state = (
        _saved_state(m, folder / f"{name}.keras") for name, m in (("found", model), ("one", other))
    )
    for one, expected in zip(state, expected_state, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


def _cases():
    usual = [
        ("Lamb, global_clipnorm", 3, 1),
        ("Adafactor", 2, 1),
        ("Muon", 2, 1),
        ("ScheduleFreeAdamW", 2, 1),
        ("loss scale", 3, 2),
    ]
    every = [
        (name, replicas, steps) for name in _MAKE for replicas in (2, 3, 4) for steps in (1, 2)
    ]
    return [pytest.param(*case, marks=() if case in usual else pytest.mark.full) for case in every]


@pytest.mark.parametrize(("name", "replicas", "steps"), _cases())
def test_training_equals_one_device(name, replicas, steps, tmp_path):
    model = _trained(_MAKE[name], replicas, sharding="gradients", accumulation_steps=steps)
    _assert_equal(model, _trained(_MAKE[name], 1, accumulation_steps=steps), tmp_path)


class InTurn(keras.Model):
    """Each step trains one of two layers with one optimizer; the other has no gradients."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4, use_bias=False), keras.layers.Dense(3)
        self.build(None)

    def build(self, shape):
        self.first.build((None, 5))
        self.second.build((None, 4))
        self.built = True

    def call(self, inputs):
        return self.second(self.first(inputs[1]))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.optimizer.scale_loss(self.compute_loss(x, y, self(x, training=True)))
        for layer in (self.first, self.second):
            variables = layer.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def _scaled():
    return _OPTIMIZERS.Lamb(1e-2, global_clipnorm=0.1, loss_scale_factor=64.0)


@pytest.mark.parametrize("make", [_scaled, _MAKE["Adafactor"]])
def test_a_replica_without_gradients_counts_too(make, tmp_path):
    """At each update some of three replicas have nothing to do."""
    model = _trained(make, 3, InTurn, sharding="optimizer")
    _assert_equal(model, _trained(make, 1, InTurn), tmp_path)


@pytest.mark.parametrize("replicas", [2, 3])
def test_state_of_one_element_belongs_to_its_owner(replicas, tmp_path):
    """Also where one of the replicas owns nothing."""
    model = _trained(_MAKE["Adafactor"], replicas, _narrow, sharding="optimizer")
    _assert_equal(model, _trained(_MAKE["Adafactor"], 1, _narrow), tmp_path)


def test_each_replica_has_the_state_of_its_own_variables_only():
    model = _trained(_MAKE["Adafactor"], 3, sharding="optimizer")
    owned = model.optimizer.parts_of_state.owned
    assert len(owned) == 11  # a mean over rows and one over columns for each of three matrices
    local = model.distribute_strategy.experimental_local_results
    there = [[copy.numpy().size for copy in local(variable)] for variable in owned]
    for variable, sizes in zip(owned, there):
        assert sorted(sizes) == [0, 0, variable.shape.num_elements()]
    assert all(any(sizes) for sizes in zip(*there))
