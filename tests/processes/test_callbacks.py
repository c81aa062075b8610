"""What several processes take from the classes of callbacks."""

import keras
import pytest

from tfdist.processes.callback_kinds import (
    acts_in_predict_batches,
    acts_in_test_batches,
    may_save_alone,
)


class _Prints(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(logs)


class _SaysSo(_Prints):
    saves_alone = False


class _PrintsTests(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        print(logs)


class _PrintsPredictions(keras.callbacks.Callback):
    def on_predict_batch_begin(self, batch, logs=None):
        print(batch)


class _DecidesNothing(_PrintsPredictions):
    decides_in_batches = False


class _DecidesAlike(_PrintsTests):
    decides_in_batches = False


@pytest.mark.parametrize(
    ("callback", "may"),
    [
        (_Prints(), True),
        (_SaysSo(), False),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), True),
        (keras.callbacks.ModelCheckpoint("{epoch}.keras"), False),
    ],
)
def test_a_callback_may_save_alone_unless_it_says_otherwise(callback, may):
    assert may_save_alone(callback, "on_epoch_end") == may


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        (_PrintsTests(), True),
        (_DecidesAlike(), False),
        (_Prints(), False),
        (keras.callbacks.LambdaCallback(on_test_batch_begin=print), True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), False),
        (keras.callbacks.ProgbarLogger(), False),
        (keras.callbacks.TensorBoard(), False),
        (keras.callbacks.EarlyStopping(), False),
    ],
)
def test_a_callback_acts_in_test_batches_if_it_has_methods_for_them(callback, acts):
    assert acts_in_test_batches(callback) == acts


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        (_PrintsPredictions(), True),
        (_DecidesNothing(), False),
        (_PrintsTests(), False),
        (keras.callbacks.ProgbarLogger(), False),
    ],
)
def test_the_same_for_the_batches_of_predict(callback, acts):
    assert acts_in_predict_batches(callback) == acts
