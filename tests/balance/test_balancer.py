"""The shares of a strategy: from options, over what is measured, to what is cut."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.balance import callback
from tfdist.balance.policy import STEPS


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
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((32, 4)), np.ones((32, 1))

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for _ in range(STEPS):
                strategy.balancer.note(np.array([30, 10], "float32"))

    model.fit(x, y, batch_size=16, epochs=3, verbose=verbose, callbacks=[Slow()])
    return capsys.readouterr().out


def test_new_shares_are_shown_once(capsys):
    strategy = _strategy(balance=True)
    out = _fit(strategy, capsys, verbose=2)
    assert strategy.balancer.shares.tolist() == [0.75, 0.25]
    assert out.count("Replica 1 takes 3.0x as long") == 1
    assert "Replica" not in _fit(_strategy(balance=True), capsys, verbose=0)


def test_steps_are_measured_while_keras_trains_and_not_while_it_evaluates():
    strategy = _strategy(balance=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((32, 4)), np.ones((32, 1))
    model.evaluate(x, y, batch_size=8, verbose=0)
    model.predict(x, batch_size=8, verbose=0)
    assert not strategy.balancer.speeds_of_last_steps().any()
    model.fit(x, y, batch_size=8, verbose=0)
    assert (strategy.balancer.speeds_of_last_steps() > 0).all()
