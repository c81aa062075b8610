"""Which checkpoints an evaluator finds, what it takes from them, and what it refuses."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.processes.checkpoint_folder import checkpoints

X, Y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
DATA = tf.data.Dataset.from_tensors((X, Y))


def make(optimizer="adam", units=1, **options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return model


def trained(value, updates, optimizer="adam"):
    """A model with equal weights, after so many updates."""
    model = make(optimizer)
    model.optimizer.build(model.trainable_variables)
    mark(model, value, updates)
    return model


def mark(model, value, updates):
    for weight in model.weights:
        weight.assign(tf.fill(weight.shape, float(value)))
    model.optimizer.iterations.assign(updates)


class Noted(keras.callbacks.Callback):
    """Notes for each evaluation the updates, the loss, and all values of weights."""

    def __init__(self, then=None):
        super().__init__()
        self.found, self.then = [], then

    def on_test_end(self, logs=None):
        values = set(np.concatenate([np.ravel(w) for w in self.model.get_weights()]).tolist())
        self.found.append((int(self.model.optimizer.iterations), values, logs["loss"]))
        if self.then is not None:
            self.then(len(self.found))


def loss(value):
    return float((3 * value) ** 2)


@pytest.mark.parametrize(
    ("optimizer", "suffix"),
    [
        ("adam", ".keras"),
        ("scaled", ".weights.h5"),
        pytest.param("adam", ".weights.h5", marks=pytest.mark.full),
        pytest.param("scaled", ".keras", marks=pytest.mark.full),
    ],
)
def test_each_new_file_is_evaluated_once(tmp_path, suffix, optimizer):
    def optimizer_():
        adam = keras.optimizers.Adam()
        return adam if optimizer == "adam" else keras.optimizers.LossScaleOptimizer(adam)

    def write(number):
        model = trained(number, 10 * number, optimizer_())
        path = tmp_path / f"ckpt-{number}{suffix}"
        (model.save_weights if suffix == ".weights.h5" else model.save)(path)

    write(1)
    noted = Noted(then=lambda count: write(count + 1))
    tfdist.SidecarEvaluator(
        make(optimizer_()), DATA, tmp_path, max_evaluations=3, callbacks=[noted]
    ).start()
    assert noted.found == [(10 * n, {float(n)}, pytest.approx(loss(n))) for n in (1, 2, 3)]


@pytest.mark.parametrize("wrapped", ["before", "after", "neither"])
def test_the_checkpoints_of_a_manager_are_evaluated(tmp_path, wrapped):
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    with strategy.scope() if wrapped == "before" else tf.distribute.get_strategy().scope():
        model = trained(1, 10)
    with strategy.scope() if wrapped == "after" else tf.distribute.get_strategy().scope():
        own = make()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=1)

    def write(number):
        mark(model, number, 10 * number)
        manager.save()

    write(1)
    noted = Noted(then=lambda count: write(count + 1))
    tfdist.SidecarEvaluator(own, DATA, tmp_path, max_evaluations=2, callbacks=[noted]).start()
    assert noted.found == [(10 * n, {float(n)}, pytest.approx(loss(n))) for n in (1, 2)]


def test_the_newest_counts_and_those_passed_over_are_counted(tmp_path):
    for number in (1, 2, 10):  # as text, 10 comes before 2
        trained(number, number).save_weights(tmp_path / f"w{number}.weights.h5")
        os.utime(tmp_path / f"w{number}.weights.h5", ns=(7, 7))
    noted = Noted()
    tfdist.SidecarEvaluator(make(), DATA, tmp_path, max_evaluations=3, callbacks=[noted]).start()
    assert [updates for updates, _, _ in noted.found] == [10]


def test_a_file_that_is_written_again_is_a_new_checkpoint(tmp_path):
    path = tmp_path / "best.weights.h5"
    trained(1, 1).save_weights(path)
    noted = Noted(then=lambda count: trained(2, 2).save_weights(path))
    tfdist.SidecarEvaluator(make(), DATA, tmp_path, max_evaluations=2, callbacks=[noted]).start()
    assert [updates for updates, _, _ in noted.found] == [1, 2]


def test_files_that_are_being_written_are_no_checkpoints(tmp_path):
    assert checkpoints(str(tmp_path / "later")) == []
    (tmp_path / ".best.incomplete.weights.h5").write_bytes(b"half")
    (tmp_path / "notes.txt").write_bytes(b"")
    assert checkpoints(str(tmp_path)) == []


def _another_optimizer(folder):
    trained(1, 1, "sgd").save_weights(folder / "a.weights.h5")


def _no_optimizer(folder):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    tf.train.Checkpoint(model=model).save(str(folder / "ckpt"))


def _another_name(folder):
    model = trained(1, 1)
    tf.train.Checkpoint(net=model, optimizer=model.optimizer).save(str(folder / "ckpt"))


def _fewer_layers(folder):
    model = keras.Sequential([keras.Input((2,))])
    model.compile("adam", "mse")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "ckpt"))


def _damaged(folder):
    (folder / "a.weights.h5").write_bytes(b"no HDF5")


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
@pytest.mark.parametrize(
    ("write", "error", "match"),
    [
        (_another_optimizer, ValueError, "same optimizer.*Received: .*a.weights.h5"),
        (_no_optimizer, ValueError, "Received: .*ckpt-1, which lacks the optimizer"),
        (_another_name, ValueError, "Received: .*ckpt-1, which lacks .*/kernel, .*/bias"),
        (_fewer_layers, ValueError, "Received: .*ckpt-1, which lacks .*/kernel, .*/bias"),
        (_damaged, OSError, "a.weights.h5|file signature"),
    ],
)
def test_checkpoints_that_would_be_evaluated_wrongly_are_refused(tmp_path, write, error, match):
    write(tmp_path)
    with pytest.raises(error, match=match):
        tfdist.SidecarEvaluator(make(), DATA, tmp_path, max_evaluations=1).start()


def test_metrics_that_training_does_not_have_are_no_obstacle(tmp_path):
    model = trained(1, 5)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "ckpt"))
    noted, own = Noted(), make()
    own.compile("adam", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    tfdist.SidecarEvaluator(own, DATA, tmp_path, max_evaluations=1, callbacks=[noted]).start()
    assert noted.found == [(5, {1.0}, pytest.approx(9.0))]


def test_a_model_must_be_ready(tmp_path):
    for model in (keras.Sequential([keras.layers.Dense(1)]), keras.Sequential([keras.Input((2,))])):
        with pytest.raises(ValueError, match="must be built.*Received: model="):
            tfdist.SidecarEvaluator(model, DATA, tmp_path)
    with pytest.raises(ValueError, match="`max_evaluations` must be an integer >= 1"):
        tfdist.SidecarEvaluator(make(), DATA, tmp_path, max_evaluations=0)


def test_an_evaluator_that_finds_no_chief_says_so(tmp_path, monkeypatch):
    config = '{"cluster": {"chief": ["localhost:1"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", config)
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", "0.3")
    with pytest.raises(TimeoutError, match=r"The chief \(localhost:1: connection refused\)"):
        tfdist.SidecarEvaluator(make(), DATA, tmp_path).start()


def test_a_file_that_is_written_again_within_a_second_is_another_one(tmp_path):
    path = tmp_path / "newest.weights.h5"
    path.write_bytes(b"first")
    os.utime(path, ns=(10**18, 10**18))
    (first,) = checkpoints(str(tmp_path))
    assert first.is_current()
    path.write_bytes(b"again")
    os.utime(path, ns=(10**18, 10**18 + 1))
    (again,) = checkpoints(str(tmp_path))
    assert first < again
    assert not first.is_current()
