"""A script runs up to its first `fit`, whatever it gives to it; the model's step is measured."""

import keras
import pytest
import tensorflow as tf

from tfdist.plan import device, models, scripts

BEGINNING = """\
import sys
import keras, numpy as np, tensorflow as tf

model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(), "mse")
x, y = np.zeros((40, 3)), np.zeros((40, 2))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return x[:10], y[:10]


def endless():
    while True:
        yield x[:7], y[:7]


"""
AFTER = "\nraise RuntimeError('this must not run')\n"


def first_fit(tmp_path, text, *arguments):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + text + AFTER)
    return scripts.first_fit(str(path), arguments)


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ("model.fit(x, y)", 32),
        ("model.fit(x, y, batch_size=8, epochs=3, verbose=0)", 8),
        ("model.fit(x, y, 8, 3)", 8),
        ("model.fit(x, y, batch_size=int(sys.argv[1]))", 5),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(16))", 16),
        ("model.fit(Batches())", 10),
        ("model.fit(endless(), steps_per_epoch=2)", 7),
        ("try:\n    model.fit(x, y)\nexcept Exception:\n    pass", 32),
    ],
)
def test_the_first_batch_is_taken(tmp_path, call, batch):
    model, inputs = first_fit(tmp_path, call, "5")
    assert inputs.shape == (batch, 3)
    assert model.built and model.optimizer.iterations == 0


def test_fit_is_keras_own_afterwards(tmp_path):
    before = keras.Model.fit
    first_fit(tmp_path, "model.fit(x, y)")
    assert keras.Model.fit is before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit(3)", "ended with the status 3 before it called `fit`"),
        ("model.fit(3)", "Received: x=3"),
    ],
)
def test_scripts_without_a_fit_are_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        first_fit(tmp_path, text)


SUBCLASSED = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError("no config")


import tfdist
with tfdist.MirroredStrategy().scope():
    model = Own()
    model(x[:1])
    model.compile("sgd", "mse")
model.fit(x, y)
"""


def test_a_model_that_cannot_be_copied_is_traced_but_not_measured(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + SUBCLASSED)
    found = models.read(str(path), (), None, step=0.1)
    assert found.workload.trained_bytes == 4 * (3 * 2 + 2)
    with pytest.raises(ValueError, match="no config. Give --device-step"):
        models.read(str(path), (), None, step=None)


def test_a_batch_of_another_size_repeats_samples(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BEGINNING + "model.fit(x, y)")
    found = models.read(str(path), (), 100, step=0.1)
    assert (found.device.batch, found.workload.batch) == (100, 100)


def test_a_step_is_measured_with_the_batch_and_with_half_of_it():
    model = keras.Sequential([keras.Input((256,)), *(keras.layers.Dense(512) for _ in range(3))])
    before = [tf.identity(variable.value) for variable in model.variables]
    optimizer = keras.optimizers.SGD(0.1)
    found = device.measured(model, tf.random.normal((256, 256)), 256, optimizer)
    assert 0 <= found.fixed <= found.step < 10
    assert found.seconds(256) == found.step
    assert not optimizer.built
    moved = [tf.reduce_any(a != b.value) for a, b in zip(before, model.variables)]
    assert all(moved)
