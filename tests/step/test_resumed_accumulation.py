"""What replicas accumulate for their compressors survives an interruption, each for itself."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.multi_process import layers

BATCH = 6  # eight batches per epoch


def _model(replicas, choice=None, steps=3, optimizer="adam", **options):
    choice = layers.choice(layers.ACCUMULATED) if choice is None else choice
    strategy = tfdist.MirroredStrategy(
        DEVICES[:replicas], compression=choice, accumulation_steps=steps, **options
    )
    return layers.model(strategy, layers.ACCUMULATED, optimizer)


def _fit(model, **options):
    layers.fit(model, batch=BATCH, **options)
    return model


def _assert_same(model, expected):
    for ours, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    rows, wanted = (m.optimizer.compression_state._local_rows() for m in (model, expected))
    assert rows.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_array_equal(rows[key], value)


@pytest.mark.full
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("way", ["backup", "model"])
def test_a_resumed_training_equals_an_uninterrupted_one(way, replicas, tmp_path):
    whole = _fit(_model(replicas))
    if way == "model":
        first = _fit(_model(replicas), last=2)
        assert int(first.optimizer.accumulator.micro_step.numpy()) == 1
        first.save(tmp_path / "model.keras")
        with first.distribute_strategy.scope():
            resumed = keras.models.load_model(tmp_path / "model.keras")
        _fit(resumed, first=2)
    else:
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
        _fit(_model(replicas), last=2, callbacks=(backup,))
        resumed = _fit(_model(replicas), callbacks=(backup,))
    _assert_same(resumed, whole)


# One process of pytest-xdist trains the model.
shares_model = pytest.mark.xdist_group("resumed accumulation")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of two replicas after eight batches of three per update, and its file."""
    model = _fit(_model(2), last=1)
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return model, path


def _load(path, replicas, choice=None, **options):
    choice = layers.choice(layers.ACCUMULATED) if choice is None else choice
    strategy = tfdist.MirroredStrategy(
        DEVICES[:replicas], compression=choice, accumulation_steps=3, **options
    )
    with strategy.scope():
        return keras.models.load_model(path)


def _waiting(model):
    """What each replica has accumulated, by variable."""
    rows = model.optimizer.accumulator._local_rows()
    assert rows
    return rows


@shares_model
@pytest.mark.parametrize("bucket_bytes", [1000, 2**22])
def test_each_replica_gets_its_own_part_back(saved, bucket_bytes):
    model, path = saved
    loaded = _load(path, 2, bucket_bytes=bucket_bytes)
    assert int(loaded.optimizer.accumulator.micro_step.numpy()) == 2
    for key, rows in _waiting(model).items():
        assert not np.array_equal(rows[0], rows[1])
        np.testing.assert_array_equal(_waiting(loaded)[key], rows)


@pytest.mark.full
@shares_model
@pytest.mark.parametrize("replicas", [1, 3])
def test_other_replicas_get_equal_parts_of_the_sum(saved, replicas):
    model, path = saved
    loaded = _load(path, replicas)
    for key, rows in _waiting(model).items():
        parts = _waiting(loaded)[key]
        assert len(parts) == replicas
        np.testing.assert_array_equal(parts[0], parts[-1])
        np.testing.assert_allclose(parts.sum(0), rows.sum(0), atol=1e-6)


@shares_model
def test_one_device_without_tfdist_reads_the_weights(saved):
    model, path = saved
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _store(model):
    store = {}
    model.optimizer.accumulator.save_own_variables(store)
    return store


def test_without_compression_a_file_has_the_sum_and_only_while_something_waits():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(12)])
        model.compile("sgd", "mse")
    _fit(model, last=1)
    store = _store(model)
    assert store.keys() == {"micro_step", "0", "1"}
    for key, rows in _waiting(model).items():
        np.testing.assert_allclose(store[key], rows.sum(0), atol=1e-6)
    layers.fit(model, last=1, batch=48)  # the third micro-batch
    assert _store(model).keys() == {"micro_step"}


@pytest.mark.full
@shares_model
def test_a_file_of_sums_is_divided_equally_as_before(saved):
    """The layout of files that were written before each replica's part was saved."""
    model, path = saved
    sums = {key: rows.sum(0) for key, rows in _waiting(model).items()}
    loaded = _load(path, 2)
    loaded.optimizer.accumulator.load_own_variables({"micro_step": np.int64(1), **sums})
    assert int(loaded.optimizer.accumulator.micro_step.numpy()) == 1
    for key, rows in _waiting(loaded).items():
        np.testing.assert_array_equal(rows, np.stack([sums[key] / 2] * 2))
    residuals = model.optimizer.compression_state._local_rows()
    loaded.optimizer.compression_state.start_anew()
    loaded.optimizer.compression_state.load_own_variables(residuals)  # one array per variable
    for key, rows in loaded.optimizer.compression_state._local_rows().items():
        np.testing.assert_array_equal(rows, residuals[key])


@shares_model
def test_a_file_in_which_nothing_waits_leaves_nothing_of_before(saved):
    _, path = saved
    for store in ({}, {"micro_step": np.int64(0)}):
        loaded = _load(path, 2)
        loaded.optimizer.accumulator.load_own_variables(store)
        assert int(loaded.optimizer.accumulator.micro_step.numpy()) == 0
        assert not any(rows.any() for rows in _waiting(loaded).values())


@shares_model
def test_gradients_of_another_model_are_refused(saved):
    _, path = saved
    loaded = _load(path, 2)
    with pytest.raises(ValueError, match="belong to another model. Received: gradients of 1 var"):
        loaded.optimizer.accumulator.load_own_variables({"micro_step": np.int64(1), "0.0": [1.0]})
