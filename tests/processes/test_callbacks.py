"""What several processes take from the classes of callbacks."""

import keras
import pytest

from tfdist.processes.callback_kinds import may_save_alone


class _Prints(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(logs)


class _SaysSo(_Prints):
    saves_alone = False


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
