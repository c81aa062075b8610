"""The shares of a strategy: from options, over what is measured, to what is cut."""

import time
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.balance import callback
from tfdist.balance.policy import STEPS
from tfdist.balance.whole_batches import WholeBatch


def _strategy(replicas=2, **options):
    return tfdist.MirroredStrategy([f"CPU:{n}" for n in range(replicas)], **options)


def test_without_the_option_nothing_is_measured_or_moved():
    assert _strategy().balancer is None
    assert _strategy(1, balance=True).balancer is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": 1}, "`balance` must be True or False. Received: balance=1"),
        ({"balance": True, "balance_max_share": 0}, "`balance_max_share` must be a number > 0"),
        ({"balance": True, "balance_max_share": 1.5}, "must be a number from .* to 1"),
        ({"balance_max_share": 0.7}, "give both, or none. Received: balance_max_share=0.7"),
        (
            {"balance": True, "balance_max_share": 0.4},
            "must be at least 1 / the number of replicas: .* with 2 replicas",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        _strategy(**options)


def test_a_parameter_server_refuses_to_balance():
    with pytest.raises(ValueError, match='take `input="dynamic"`.* Received: balance=True'):
        tfdist.ParameterServerStrategy(balance=True)


def _model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


X, Y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")


def test_batches_of_named_tuples_are_what_they_are_without():
    class Sample(typing.NamedTuple):
        x: tf.Tensor
        y: tf.Tensor

    class Model(keras.Sequential):
        def train_step(self, data):
            assert isinstance(data, Sample)
            return super().train_step(tuple(data))

    for options in ({}, {"balance": True}):
        strategy = _strategy(**options)
        with strategy.scope():
            model = Model([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices(Sample(X, Y)).batch(8)
        model.fit(data, verbose=0)


def test_data_that_a_callback_distributes_are_cut_evenly():
    strategy = _strategy(balance=True)
    model, seen = _model(strategy), []

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
            for x, _ in strategy.experimental_distribute_dataset(data):
                seen.append([len(part) for part in strategy.experimental_local_results(x)])

    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Own()])
    assert seen == [[4, 4]] * 4


def test_a_batch_that_is_whole_is_refused_by_a_strategy_that_does_not_cut():
    with pytest.raises(ValueError, match="such a batch in MirroredStrategy.run"):
        _strategy().run(lambda batch: None, args=(WholeBatch((X, Y)),))


def test_a_step_whose_loss_must_be_weighted_and_is_not_is_refused():
    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    strategy = _strategy(balance=True)
    with strategy.scope():
        norm = keras.layers.BatchNormalization(synchronized=True)
        model = Model([keras.Input((4,)), norm, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"scale_loss\(loss\)` in the train_step"):
        model.fit(X, Y, batch_size=8, verbose=0)


def test_only_what_all_steps_since_the_last_move_say_counts():
    balancer = _strategy(balance=True).balancer
    balancer.move(np.array([0.25, 0.75]))
    for _ in range(STEPS - 1):
        balancer.note(np.array([10, 10], "float32"))
        balancer.adjust()
    assert balancer.shares.tolist() == [0.25, 0.75]
    balancer.note(np.array([10, 10], "float32"))
    balancer.adjust()
    assert balancer.shares.tolist() == [0.5, 0.5]


def _move_after(steps, speeds, max_share=None):
    balancer = _strategy(balance=True, balance_max_share=max_share).balancer
    for _ in range(steps):
        balancer.note(np.array(speeds, "float32"))
        balancer.adjust()
    return balancer.shares.tolist()


def test_shares_move_when_enough_steps_are_measured():
    assert _move_after(STEPS - 1, [30, 10]) == [0.5, 0.5]
    assert _move_after(STEPS, [30, 10]) == [0.75, 0.25]
    assert _move_after(STEPS, [30, 10], max_share=0.6) == [0.6, 0.4]


def test_a_speed_that_changes_is_followed_within_twenty_steps():
    balancer = _strategy(balance=True).balancer
    for steps, speeds in ((50, [10, 10]), (20, [30, 10]), (20, [10, 10])):
        for _ in range(steps):
            balancer.note(np.array(speeds, "float32"))
            balancer.adjust()
        wanted = np.array(speeds) / sum(speeds)
        np.testing.assert_allclose(balancer.shares, wanted, atol=0.03)


def test_the_slowest_replica_and_what_it_costs_are_named():
    text = callback.described(np.array([31.0, 31.0, 10.0]), np.array([0.43, 0.43, 0.14]))
    assert text == (
        "Replica 2 takes 3.1x as long for a sample as the fastest one; with even parts the others "
        "would wait 68% of the step. Shares of a batch: 43%, 43%, 14%"
    )


def _fit(strategy, capsys, verbose):
    model = _model(strategy)

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for _ in range(STEPS):
                strategy.balancer.note(np.array([30, 10], "float32"))

    model.fit(X, Y, batch_size=16, epochs=3, verbose=verbose, callbacks=[Slow()])
    return capsys.readouterr().out


def test_new_shares_are_shown_once(capsys):
    strategy = _strategy(balance=True)
    out = _fit(strategy, capsys, verbose=2)
    assert strategy.balancer.shares.tolist() == [0.75, 0.25]
    assert out.count("Replica 1 takes 3.0x as long") == 1
    assert "Replica" not in _fit(_strategy(balance=True), capsys, verbose=0)


def test_steps_are_measured_while_keras_trains_and_not_while_it_evaluates():
    strategy = _strategy(balance=True)
    model = _model(strategy)
    model.evaluate(X, Y, batch_size=8, verbose=0)
    model.predict(X, batch_size=8, verbose=0)
    assert not strategy.balancer.speeds_of_last_steps().any()
    model.fit(X, Y, batch_size=8, verbose=0)
    assert (strategy.balancer.speeds_of_last_steps() > 0).all()


class Slow(keras.layers.Layer):
    """The second replica sleeps."""

    def call(self, inputs):
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.replica_id_in_sync_group == 1:
            time.sleep(0.2)
        return inputs


def test_eager_steps_measure_who_is_slow_and_not_who_waits():
    strategy = _strategy(balance=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Slow(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, Y, batch_size=8, verbose=0)
    fast, slow = strategy.balancer.speeds_of_last_steps()
    assert fast > 2 * slow > 0
