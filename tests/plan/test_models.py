"""Models are read, traced and measured, or refused in one line."""

import keras
import pytest
import tensorflow as tf

from tfdist.plan import device, models, tracing

layers = keras.layers
HUGE = 10**9  # samples; of a million numbers they are larger than what addresses reach


@pytest.fixture
def saved(tmp_path):
    def save(*stack):
        model = keras.Sequential(list(stack))
        model.compile("sgd", "mse")
        model.save(tmp_path / "model.keras")
        return str(tmp_path / "model.keras")

    return save


@pytest.mark.parametrize(("module", "name"), [(tracing, "random_inputs"), (device, "measured")])
def test_a_batch_that_does_not_fit_is_refused_in_one_line(saved, monkeypatch, module, name):
    def too_large(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when\nallocating")

    monkeypatch.setattr(module, name, too_large)
    path = saved(keras.Input((20,)), layers.Dense(3))
    expected = "A step with 8 samples failed.*OOM when allocating. Give a.*Received: a batch of 8"
    with pytest.raises(ValueError, match=expected) as error:
        models.read(path, (), 8, step=None)
    assert "\n" not in str(error.value)


def test_with_a_known_step_nothing_of_the_batch_is_allocated(saved, tmp_path):
    found = models.read(saved(keras.Input((10**6,)), layers.Dense(3)), (), HUGE, step=1.0)
    assert (found.device.batch, found.workload.batch) == (HUGE, HUGE)
    script = tmp_path / "train.py"
    # Repeated so often, the samples would take 400 GB.
    script.write_text(
        "import keras, numpy as np\n"
        "model = keras.Sequential([keras.layers.Dense(2)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(np.zeros((8, 100)), np.zeros((8, 2)))\n"
    )
    found = models.read(str(script), (), HUGE, step=1.0)
    assert found.workload.batch == HUGE
    (note,) = [note for note in models.read(str(script), (), None, None).notes if "steps" in note]
    assert "on the script's first batch" in note and "random" not in note


def test_a_model_with_a_fixed_batch_is_planned_without_a_fixed_part(saved):
    stateful = layers.LSTM(4, stateful=True), layers.Dense(2)
    path = saved(keras.Input(batch_shape=(8, 5, 3)), *stateful)
    found = models.read(path, (), 8, step=None)
    assert (found.device.batch, found.device.fixed) == (8, 0.0)
    assert any("takes 8 samples and not 4" in note for note in found.notes)


def test_inputs_of_a_saved_model_are_random(saved):
    found = models.read(saved(keras.Input((20,)), layers.Dense(3)), (), 4, step=None)
    assert any("on random data of the model's input shape" in note for note in found.notes)
    drawn = tracing.random_inputs(tf.TensorSpec((4, 20), tf.float32))
    assert tf.math.reduce_std(drawn) > 0.5


class Unregistered(layers.Layer):
    def call(self, x):
        return x


def unregistered_function(x):
    return x


@pytest.mark.parametrize(
    ("layer", "missing"),
    [
        (Unregistered(name="own"), "class 'Unregistered'"),
        (layers.Dense(4, unregistered_function, name="own"), "function 'unregistered_function'"),
    ],
)
def test_what_keras_does_not_know_is_named(saved, layer, missing):
    path = saved(keras.Input((20,)), *(layers.Dense(4) for _ in range(4)), layer)
    with pytest.raises(ValueError, match=f"read the model: Could not locate {missing}, which is"):
        models.read(path, (), 4, step=1.0)


def test_other_reasons_of_keras_are_not_cut(monkeypatch, saved):
    def fail(path):
        raise TypeError(f"outer {'x' * 400}. Exception encountered: inner {'y' * 400} end.")

    path = saved(keras.Input((20,)), layers.Dense(4))
    monkeypatch.setattr(keras.saving, "load_model", fail)
    with pytest.raises(ValueError, match="Keras cannot read the model: inner y{400} end. Give a"):
        models.read(path, (), 4, step=1.0)
