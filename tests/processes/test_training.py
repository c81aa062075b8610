"""Training in one process writes whole files only, and goes on from a whole backup."""

import contextlib
import json
import os
import pathlib
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
WRITTEN = ["SHA256SUMS", "latest.weights.h5", "training_metadata.json"]


def make(units=1, strategy=None):
    """A small model; of one device without tfdist if `strategy` is False."""
    keras.utils.set_random_seed(1)
    if strategy is None:
        strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        layers = [keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model, epochs, *callbacks):
    return model.fit(X, Y, 4, epochs, shuffle=False, verbose=0, callbacks=callbacks).epoch


def backup(folder, **options):
    return keras.callbacks.BackupAndRestore(folder, **{"delete_checkpoint": False} | options)


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(folder)) for path in paths)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def expected():
    """The weights after four epochs that nothing interrupts."""
    model = make()
    fit(model, 4)
    return model.get_weights()


def assert_weights(model, expected):
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


@contextlib.contextmanager
def full_disk(size):
    """No file can have more than `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_backups_are_whole_and_load_without_tfdist(tmp_path):
    model = make()
    fit(model, 2, backup(tmp_path))
    assert files(tmp_path) == sorted([*WRITTEN, *(f"previous/{name}" for name in WRITTEN)])
    plain = make(strategy=False)
    assert fit(plain, 3, backup(tmp_path)) == [2]
    plain = make(strategy=False)
    plain.load_weights(tmp_path / "previous" / "latest.weights.h5")


@pytest.mark.full
def test_a_damaged_backup_is_named_and_the_one_before_is_used(tmp_path, expected):
    fit(make(), 3, backup(tmp_path))
    flip(tmp_path / "latest.weights.h5")
    model = make()
    with pytest.warns(UserWarning, match=r"latest.weights.h5 has the SHA-256 checksum \w+, exp"):
        assert fit(model, 4, backup(tmp_path)) == [2, 3]
    assert_weights(model, expected)
    assert "damaged/latest.weights.h5" in files(tmp_path)


def test_nothing_is_trained_when_no_backup_is_whole(tmp_path):
    fit(make(), 2, backup(tmp_path))
    (tmp_path / "training_metadata.json").write_text("")
    flip(tmp_path / "previous" / "latest.weights.h5")
    model = make()
    before = model.get_weights()
    callback = backup(tmp_path)
    with pytest.raises(ValueError, match="Delete the folder to start anew.*training_metadata.json"):
        fit(model, 4, callback)
    assert_weights(model, before)
    assert callback.backup_dir == tmp_path


@pytest.mark.full
@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
def test_backups_of_keras_alone_are_used(tmp_path, double):
    plain = make(strategy=False)
    fit(plain, 2, backup(tmp_path, double_checkpoint=double))
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    model = make(strategy=strategy)
    assert fit(model, 4, backup(tmp_path)) == [2, 3]
    fit(plain, 2)
    assert_weights(model, plain.get_weights())
    assert "previous/SHA256SUMS" in files(tmp_path)


@pytest.mark.full
def test_keras_double_checkpoint_needs_no_files_of_its_own(tmp_path, expected):
    fit(make(), 3, backup(tmp_path, double_checkpoint=True))
    assert not list(tmp_path.glob("*.bkp"))
    os.truncate(tmp_path / "latest.weights.h5", 96)
    model = make()
    with pytest.warns(UserWarning, match="latest.weights.h5"):
        assert fit(model, 4, backup(tmp_path, double_checkpoint=True)) == [2, 3]
    assert_weights(model, expected)


class Stop(keras.callbacks.Callback):
    """Ends a training with an error, behind the callback that writes the backup."""

    def __init__(self, at):
        super().__init__()
        self.at = at
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.at:
            raise RuntimeError("stopped")

    def on_epoch_end(self, epoch, logs=None):
        if self.at == f"epoch {epoch}":
            raise RuntimeError("stopped")


@pytest.mark.parametrize(
    ("at", "frequency", "resumed"),
    [
        pytest.param("epoch 1", "epoch", 2, marks=pytest.mark.full),
        (14, 3, 1),
        pytest.param(12, "epoch", 1, marks=pytest.mark.full),
    ],
)
def test_a_backup_is_there_when_another_callback_fails(tmp_path, at, frequency, resumed, request):
    callback = backup(tmp_path, save_freq=frequency)
    with pytest.raises(RuntimeError, match="stopped"):
        fit(make(), 4, callback, Stop(at))
    assert callback.backup_dir == tmp_path
    assert not (tmp_path / ".incomplete").exists()
    model = make()
    assert fit(model, 4, backup(tmp_path))[0] == resumed
    if frequency == "epoch":
        assert_weights(model, request.getfixturevalue("expected"))


@pytest.mark.full
def test_a_backup_in_an_epoch_that_was_resumed_has_its_number(tmp_path):
    """Keras alone writes 0 until the first epoch ends; a second start would begin anew."""
    with pytest.raises(RuntimeError, match="stopped"):
        fit(make(), 4, backup(tmp_path, save_freq=3), Stop(20))  # in the third epoch
    with pytest.raises(RuntimeError, match="stopped"):
        fit(make(), 4, backup(tmp_path, save_freq=3), Stop(4))  # in the same one
    assert json.loads((tmp_path / "training_metadata.json").read_text())["epoch"] == 2
    assert fit(make(), 4, backup(tmp_path)) == [2, 3]


@pytest.mark.full
def test_backups_are_removed_at_the_end_and_other_files_stay(tmp_path):
    callback = backup(tmp_path / "alone", delete_checkpoint=True)
    fit(make(), 2, callback)
    assert not (tmp_path / "alone").exists()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "notes.txt").write_text("mine")
    shared = backup(tmp_path / "shared", delete_checkpoint=True)
    fit(make(), 2, shared)
    assert files(tmp_path) == ["shared/notes.txt"]
    assert shared.delete_checkpoint is True


@pytest.mark.full
def test_the_end_of_training_leaves_a_link_to_the_folder(tmp_path):
    """Python's `rmtree` refuses links (and mounted folders): an error after all was removed."""
    (tmp_path / "far").mkdir()
    link = tmp_path / "backup"
    link.symlink_to(tmp_path / "far")
    callback = backup(link, delete_checkpoint=True)
    assert fit(make(), 2, callback) == [0, 1]
    assert link.is_symlink()
    assert files(tmp_path) == []
    assert callback.delete_checkpoint is True


@pytest.mark.full
def test_one_callback_for_two_trainings(tmp_path):
    callback = backup(f"{tmp_path}/")
    model = make()
    assert fit(model, 2, callback) == [0, 1]
    assert fit(model, 3, callback) == [2]
    assert callback.backup_dir == f"{tmp_path}/"


@pytest.mark.full
def test_a_full_disk_leaves_the_backup_before(tmp_path, expected):
    fit(make(), 2, backup(tmp_path))
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with full_disk(8000), pytest.raises(OSError, match="(?i)file too large"):
        fit(make(), 4, backup(tmp_path))
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert not (tmp_path / ".incomplete").exists()
    model = make()
    assert fit(model, 4, backup(tmp_path)) == [2, 3]
    assert_weights(model, expected)


@pytest.mark.full
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5"])
def test_a_full_disk_leaves_the_file_before(tmp_path, name):
    options = {"save_weights_only": name == "model.weights.h5"}
    for folder in ("old", "new"):
        model = make(units=500)
        path = tmp_path / folder / name
        callback = keras.callbacks.ModelCheckpoint(path, **options)
        if folder == "old":
            fit(model, 1, callback)
            before = path.read_bytes()
        with full_disk(8000), pytest.raises(OSError, match="(?i)file too large"):
            fit(model, 2, callback)
    assert files(tmp_path) == [f"old/{name}"]
    assert (tmp_path / "old" / name).read_bytes() == before
    path = str(tmp_path / "mine.weights.h5")
    with full_disk(8000), pytest.raises(OSError, match="(?i)file too large"):
        model.save_weights(path)
    assert files(tmp_path) == [f"old/{name}"]


@pytest.mark.full
@pytest.mark.parametrize("compression", [None, tfdist.compression.TopK(0.1, min_bytes=0)])
def test_room_is_asked_for_for_what_replicas_keep(tmp_path, compression):
    """HDF5 would end the process where the disk is full before the file is whole."""
    options = {"compression": compression, "accumulation_steps": 3}
    model = make(units=500, strategy=tfdist.MirroredStrategy(DEVICES[:2], **options))
    fit(model, 1)  # eight batches: two wait
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    size = path.stat().st_size
    with full_disk(size - 1), pytest.raises(OSError, match=r"\d+ bytes are needed"):
        model.save_weights(tmp_path / "other.weights.h5")
    assert files(tmp_path) == ["model.weights.h5"]
    with full_disk(size * 2):
        model.save_weights(path)


@pytest.mark.full
def test_a_link_to_a_file_stays_one(tmp_path):
    model = make()
    (tmp_path / "far").mkdir()
    link = tmp_path / "model.keras"
    link.symlink_to(tmp_path / "far" / "model.keras")
    for _ in range(2):
        model.save(link)
        assert link.is_symlink()
        assert files(tmp_path) == ["far/model.keras", "model.keras"]
    link.chmod(0o640)
    model.save(link)
    assert link.stat().st_mode & 0o777 == 0o640
    assert keras.saving.load_model(link).count_params() == model.count_params()


@pytest.mark.full
def test_weights_in_several_files_load(tmp_path):
    model = make(units=50)
    model.save_weights(str(tmp_path / "model.weights.json"), max_shard_size=1e-6)
    assert len(files(tmp_path)) > 1
    other = make(units=50)
    other.set_weights([np.zeros_like(w) for w in model.get_weights()])
    other.load_weights(str(tmp_path / "model.weights.json"))
    assert_weights(other, model.get_weights())


def test_checkpoints_of_tensorflow_are_left_alone(tmp_path):
    model = make()
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    assert pathlib.Path(f"{path}.index").exists()
