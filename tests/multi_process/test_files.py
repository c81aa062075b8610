"""One rank writes and shows progress; what is read is the same everywhere."""

import csv
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.multi_process import checks
from tests.multi_process.jobs import scenario
from tests.multi_process.reference import BATCHES, OneDevice, X, Y
from tests.multi_process.scenarios import files
from tests.multi_process.scenarios.common import state

WRITTEN = [
    "backup/SHA256SUMS",
    "backup/latest.weights.h5",
    "backup/previous/SHA256SUMS",
    "backup/previous/latest.weights.h5",
    "backup/previous/training_metadata.json",
    "backup/training_metadata.json",
    "best.weights.h5",
    "board/events",
    "log.csv",
    "models/1.keras",
    "models/2.keras",
]


# One update of two batches; the gradient of the third waits.
HALF = OneDevice(accumulation_steps=2).train(1, BATCHES[:3])


def ones(epochs):
    """One device that starts with all weights 1."""
    device = OneDevice()
    device.weights = list(files.ONES)
    return device.train(epochs)


def assert_weights(model, expected):
    for ours, theirs in zip(model.get_weights(), expected.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, **checks.WEIGHTS)


def assert_loads(path):
    """The model of `HALF`, without tfdist."""
    model = keras.saving.load_model(path)
    assert type(model.optimizer) is keras.optimizers.SGD
    assert model.optimizer.iterations.numpy() == 1
    assert_weights(model, HALF)


@scenario(files.callbacks)
def test_callbacks_write_in_the_chief_only_and_keep_their_paths(found):
    assert [rank["files"] for rank in found] == [WRITTEN, []]
    assert all(rank["paths kept"] for rank in found)
    expected = OneDevice().train(2)
    checks.trained(found, expected)
    checks.history(found, expected)


@scenario(files.callbacks)
def test_checkpoints_load_in_one_process_without_tfdist(found):
    folder = pathlib.Path(found[0]["folder"])
    for epoch in (1, 2):
        model = keras.saving.load_model(folder / "models" / f"{epoch}.keras")
        assert type(model.optimizer) is keras.optimizers.SGD
        expected = OneDevice().train(epoch)
        assert_weights(model, expected)
        assert model.optimizer.iterations.numpy() == expected.iterations
        for ours, theirs in zip(model.optimizer.variables[2:], expected.velocity, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, **checks.WEIGHTS)
    model.set_weights(files.ONES)
    model.load_weights(folder / "best.weights.h5")
    assert_weights(model, expected)


@pytest.mark.full
@scenario(files.backups_in_other_spellings)
def test_backups_are_found_however_their_folder_is_written(found):
    names = ("SHA256SUMS", "latest.weights.h5", "training_metadata.json")
    expected = [f"{folder}/{name}" for folder in ("path", "slash") for name in names]
    assert [rank["files"] for rank in found] == [expected, []]
    assert all(all(rank["paths kept"]) for rank in found)


@pytest.mark.full
@scenario(files.damaged_backups)
def test_the_backup_before_a_damaged_one_is_used_everywhere(found):
    warned = [[text for text in rank["warned"] if "backup" in text] for rank in found]
    assert len(warned[0]) == 1
    assert "latest.weights.h5 has the SHA-256 checksum" in warned[0][0]
    assert warned[1] == []
    checks.trained(found, OneDevice().train(3))


@scenario(files.damaged_backups)
def test_all_ranks_raise_where_no_backup_is_whole(found):
    first, second = (rank["error"] for rank in found)
    assert first.startswith("ValueError: There is no whole backup")
    assert second.startswith("RuntimeError: Rank 0 could not go on from a backup")
    for error in (first, second):
        assert "training_metadata.json has the SHA-256 checksum" in error
        assert "previous/latest.weights.h5 has no checksum" in error
    assert all(rank["paths kept"] for rank in found)
    checks.trained(found, OneDevice().train(3), "state after")


@scenario(files.callbacks)
def test_the_log_has_the_metrics_of_all_ranks(found):
    with open(pathlib.Path(found[0]["folder"]) / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    expected = OneDevice().train(2).history
    checks.metrics({name: [float(row[name]) for row in rows] for name in expected}, expected)


@pytest.mark.full
@scenario(files.callbacks_in_one_folder)
def test_ranks_do_not_collide_in_one_folder(found):
    assert [rank["files"] for rank in found] == [WRITTEN, WRITTEN]
    checks.trained(found, OneDevice().train(2))


@scenario(files.saving)
def test_models_are_saved_by_the_chief_only(found):
    written = ["batch.weights.h5", "model.keras", "model.weights.h5"]
    assert [rank["files"] for rank in found] == [written, []]
    checks.trained(found, HALF)


@scenario(files.saving)
def test_a_saved_model_loads_without_tfdist(found):
    assert_loads(pathlib.Path(found[0]["folder"]) / "model.keras")


@pytest.mark.full
@scenario(files.saving_in_other_formats)
def test_other_formats_are_written_by_the_chief_only(found):
    checks.trained(found, HALF)
    assert {"model.h5", "exported/saved_model.pb"} <= set(found[0]["files"])
    assert found[1]["files"] == []
    folder = pathlib.Path(found[0]["folder"])
    assert keras.saving.load_model(folder / "model.h5", compile=False).count_params()
    served = tf.saved_model.load(str(folder / "exported"))
    np.testing.assert_allclose(served.serve(X), HALF.errors(range(67)) + Y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "model.keras",
        pytest.param("model.weights.h5", marks=pytest.mark.full),
        pytest.param("batch.weights.h5", marks=pytest.mark.full),
    ],
)
@scenario(files.saving)
def test_a_file_has_the_gradients_that_wait_in_all_ranks(found, name):
    """The fourth batch completes the second update, here on another number of replicas."""
    folder = pathlib.Path(found[0]["folder"])
    with tfdist.MirroredStrategy(DEVICES[:1], accumulation_steps=2).scope():
        model = keras.saving.load_model(folder / "model.keras")
    if name != "model.keras":
        model.set_weights(files.ONES)
        model.optimizer.accumulator.micro_step.assign(0)
        model.load_weights(folder / name)
    model.fit(X[48:64], Y[48:64], 16, verbose=0, shuffle=False)
    expected = OneDevice(accumulation_steps=2).train(1, BATCHES[:4])
    checks.trained([{"state": state(model)}], expected)


@pytest.mark.parametrize("name", ["ones.weights.h5", "ones.keras"])
@scenario(files.loading)
def test_weights_are_loaded_from_a_file_of_the_chief(found, name):
    checks.trained(found, ones(1), "saved")
    checks.trained(found, ones(1), name)
    assert found[0][name]["bits"] == found[0]["saved"]["bits"]


@scenario(files.loading)
def test_a_missing_file_is_an_error_everywhere(found):
    first, second = (rank["missing"] for rank in found)
    assert "missing.weights.h5" in first
    assert second.startswith("RuntimeError: Rank 0 could not load the weights")
    assert "missing.weights.h5" in second
    checks.trained(found, ones(1), "after")
    assert found[0]["history"] == found[1]["history"]


@pytest.mark.full
@scenario(files.loading_a_whole_model)
def test_a_whole_model_is_loaded_in_a_scope(found):
    checks.trained(found, ones(1), "loaded")
    checks.trained(found, ones(2), "trained")


@pytest.mark.full
@scenario(files.resumed_accumulation)
def test_gradients_that_wait_survive_saving_and_loading(found):
    checks.trained(found, OneDevice(accumulation_steps=2).train(1, BATCHES[:4]))


@scenario(files.horovods_habit)
def test_callbacks_and_saving_in_rank_0_alone(found):
    saved = ["model.keras", "model.weights.h5"]
    assert [rank["files"] for rank in found] == [sorted([*WRITTEN, *saved]), []]
    checks.trained(found, OneDevice().train(2))


@pytest.mark.full
@scenario(files.horovods_habit_with_accumulation)
def test_callbacks_and_saving_in_rank_0_alone_while_gradients_wait(found):
    saved = ["1.weights.h5", "2.weights.h5", "model.keras"]
    assert [rank["files"] for rank in found] == [saved, []]
    checks.trained(found, OneDevice(accumulation_steps=2).train(2))


@pytest.mark.full
@scenario(files.best_of_each_rank)
def test_the_best_epoch_of_rank_0_counts_while_gradients_wait(found):
    saved = [f"{epoch}.weights.h5" for epoch in (1, 2, 3)]
    assert [rank["files"] for rank in found] == [saved, []]
    checks.trained(found, OneDevice(accumulation_steps=2).train(3))


@scenario(files.progress)
def test_progress_is_shown_by_the_chief_or_by_all(found):
    chief, other = (rank["chief"] for rank in found)
    assert other == ""
    for output in (chief, found[0]["all"], found[1]["all"]):
        assert output.count("loss:") >= 3
        for part in ("Epoch 1: saving model to", "early stopping", "5/5", "mae:", "3/3"):
            assert part in output


@scenario(files.saved_by_another_rank_than_the_chief)
def test_a_callback_that_saves_in_another_rank_than_the_first_is_refused(found):
    for rank in found:
        assert "ModelCheckpoint callbacks by rank: [0, 1]" in rank["checkpoint"]
        assert "BackupAndRestore callbacks by rank: [0, 1]" in rank["backup"]


@scenario(files.running_what_a_callback_has_loaded)
def test_what_a_callback_has_loaded_is_run_everywhere(found):
    outputs = [X @ (scale * files.ONES[0]) + scale for scale in (0.5, 1)]
    half, ones = (np.square(output - Y).mean() for output in outputs)
    for rank in found:
        np.testing.assert_allclose(rank["losses"], [half, ones] * 2, rtol=1e-5)
        for output in rank["outputs"]:
            np.testing.assert_allclose(output, outputs[0], atol=1e-6)


@scenario(files.another_model_that_a_callback_loads)
def test_another_model_that_a_callback_loads_is_the_same_everywhere(found):
    for rank in found:
        for ours, one in zip(rank["weights"], files.ONES, strict=True):
            np.testing.assert_array_equal(ours, 0.5 * one)
