"""The file of Timeline: whole or not there, and it says which steps it has."""

import json
import os
import re
import shutil

import keras
import numpy as np
import pytest

from tests.callbacks.test_timeline import batches, model_of, spans_of, trace
from tests.log_messages import log_messages
from tfdist.callbacks import Timeline


def test_a_file_that_cannot_be_written_at_the_end_is_warned_of(two_replicas, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()

    class Remove(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            shutil.rmtree(folder)

    callbacks = [Timeline(folder / "trace.json", (1, 3)), Remove()]
    with log_messages() as messages:
        model = model_of(two_replicas)
        history = model.fit(batches(), verbose=0, shuffle=False, callbacks=callbacks).history
    assert len(history["loss"]) == 1
    assert len([text for text in messages if "trace.json could not be written" in text]) == 1


def test_a_write_that_fails_leaves_the_old_file(two_replicas, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(source, target):
        raise OSError("no space left")

    with log_messages() as messages:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            callbacks = [Timeline(path, (1, 3))]
            model_of(two_replicas).fit(batches(), verbose=0, shuffle=False, callbacks=callbacks)
    assert any("no space left" in text for text in messages)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["trace.json"]


def test_a_second_fit_says_that_it_replaces_the_file(two_replicas, tmp_path):
    path = tmp_path / "trace.json"
    model, timeline = model_of(two_replicas), Timeline(path, (np.int64(1), 3))
    for earlier in (0, 1):
        with log_messages() as messages:
            model.fit(batches(), verbose=0, shuffle=False, callbacks=[timeline])
        told = [text for text in messages if "give each `fit` a Timeline" in text]
        metadata = json.loads(path.read_text())["metadata"]
        assert len(told) == metadata.get("earlier_fits", 0) == earlier
        assert metadata["steps"] == [1, 3]


@pytest.mark.parametrize(
    ("steps", "there", "words"),
    [
        ((4, 9), [4, 6], "training ended before step 6, .* has only the steps from 4 to 5"),
        ((5, 9), [5, 6], "training ended before step 6, .* has only step 5"),
        ((6, 9), [6, 6], "training ended before step 6, .* is empty"),
        ((2, 6), [2, 6], ""),
    ],
)
def test_steps_that_training_did_not_reach_are_told(steps, there, words, two_replicas, tmp_path):
    with log_messages() as messages:
        found = trace(model_of(two_replicas), batches(), tmp_path / "trace.json", steps)
    assert found["metadata"]["steps"] == there
    assert {step for _, step in spans_of(found, "step")} == set(range(*there))
    told = [text for text in messages if "timeline" in text]
    assert len(told) == bool(words)
    if words:
        assert re.search(words, told[0])
