"""Callbacks in the middle of a round, on the devices of one process."""

import keras
import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand, callback_checks
from tests.local_steps.test_by_hand import check_equal_copies
from tests.local_steps.test_mirrored import Here
from tests.multi_process.scenarios import local_callbacks
from tests.multi_process.scenarios.local_callbacks import Acts, halve
from tfdist.processes.callback_kinds import may_set_in_batches


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["refused", pytest.param("allowed", marks=pytest.mark.full)])
def test_in_one_process(name, replicas, tmp_path):
    found = getattr(local_callbacks, name)(Here(tmp_path, replicas))
    getattr(callback_checks, name)([found])


def _fit(*callbacks, local, **options):
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local)
    with strategy.scope():
        model = by_hand.CASES["sgd"].model()
        optimizer = keras.optimizers.SGD(0.1, **options)
        model.compile(optimizer, by_hand.loss())
    x, y = by_hand.CASES["sgd"].data()
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[*callbacks], validation_data=(x, y))
    check_equal_copies(model.weights)
    return model


def test_weights_may_be_set_between_synchronous_updates():
    _fit(Acts(halve), local=tfdist.LocalSGD(3, after=4))
    with pytest.raises(ValueError, match="a callback cannot set weights"):
        _fit(Acts(halve, at=4), local=tfdist.LocalSGD(3, after=4))


def test_statistics_that_a_callback_keeps_are_weights_too():
    def follow(model):
        model.average.assign(0.9 * model.average.value + 0.1 * model.layers[0].bias.value)

    class Follows(Acts):
        def set_model(self, model):
            super().set_model(model)
            with model.distribute_strategy.scope():
                model.average = keras.Variable(
                    np.zeros(16, "float32"), trainable=False, name="average"
                )

    with pytest.raises(ValueError, match=r"Received: \['average'\]"):
        _fit(Follows(follow), local=tfdist.LocalSGD(100))


@pytest.mark.parametrize("each_epoch", [False, True])
def test_averages_are_swapped_where_the_weights_are_whole(each_epoch):
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=each_epoch)
    _fit(swaps, local=tfdist.LocalSGD(3), use_ema=True, ema_momentum=0.5)


def test_a_users_own_error_is_the_one_that_is_raised():
    def fails(model):
        halve(model)
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        _fit(Acts(fails), local=tfdist.LocalSGD(100))


class _Reads(keras.callbacks.Callback):
    changes_variables = False

    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "phases"),
    [
        (Acts(halve), {"begin", "end"}),
        (_Reads(), set()),
        (keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None), {"end"}),
        (keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None), {"begin"}),
        (keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None), set()),
        (keras.callbacks.TerminateOnNaN(), set()),
    ],
)
def test_only_what_may_set_weights_costs_a_look_at_them(callback, phases):
    assert {p for p in ("begin", "end") if may_set_in_batches(callback, p)} == phases
