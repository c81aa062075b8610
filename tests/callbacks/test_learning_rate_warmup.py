"""LearningRateWarmup in one process; see test_ranks for several."""

import types

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tfdist.callbacks import LearningRateWarmup

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


class _Rates(keras.callbacks.Callback):
    """The learning rate of every call of the train function, as a list per epoch."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append(float(self.model.optimizer.learning_rate.value.numpy()))


def _model(strategy=None, optimizer=None, **options):
    """A linear model with fixed weights; plain Keras without a strategy."""

    def build():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(optimizer or keras.optimizers.SGD(0.8), "mse", **options)
        model.set_weights([np.array([[0.1], [0.2], [0.3]])])
        return model

    if strategy is None:
        return build()
    with strategy.scope():
        optimizer = optimizer and optimizer()
        return build()


def _fit(model, warmup, *callbacks, **options):
    options = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0, **options}
    rates = _Rates()
    history = model.fit(X, Y, callbacks=[warmup, rates, *callbacks], **options).history
    return rates.epochs, history


def _assert_rates(epochs, expected):
    assert [len(rates) for rates in epochs] == [len(rates) for rates in expected]
    np.testing.assert_allclose(sum(epochs, []), sum(expected, []), rtol=1e-6)


def test_rates_of_two_replicas_by_hand(two_replicas):
    epochs, history = _fit(_model(two_replicas), LearningRateWarmup(0.8, warmup_epochs=2))
    _assert_rates(epochs, [[0.45, 0.5, 0.55, 0.6], [0.65, 0.7, 0.75, 0.8], [0.8] * 4])
    np.testing.assert_allclose(history["learning_rate"], [0.6, 0.8, 0.8], rtol=1e-6)


@pytest.mark.full
def test_four_replicas_begin_at_a_quarter():
    strategy = tfdist.MirroredStrategy(DEVICES[:4])
    epochs, _ = _fit(_model(strategy), LearningRateWarmup(0.8, warmup_epochs=1), epochs=2)
    _assert_rates(epochs, [[0.35, 0.5, 0.65, 0.8], [0.8] * 4])


@pytest.mark.full
@pytest.mark.parametrize("replicas", [2, 3])
def test_rates_are_those_of_horovod(replicas, monkeypatch):
    """Horovod's own code, driven as Keras 2 would."""
    import horovod._keras.callbacks as horovod

    monkeypatch.setattr(horovod.hvd, "size", lambda: replicas)
    backend = types.SimpleNamespace(
        get_value=lambda reference: reference["value"],
        set_value=lambda reference, value: reference.update(value=value),
    )
    theirs = horovod.LearningRateWarmupCallbackImpl(
        backend, 0.8, warmup_epochs=2, momentum_correction=False, steps_per_epoch=4
    )
    theirs.model = types.SimpleNamespace(optimizer=types.SimpleNamespace(lr={"value": 0.8}))
    theirs.on_train_begin()
    expected = []
    for epoch in range(3):
        theirs.on_epoch_begin(epoch)
        expected.append([])
        for batch in range(4):
            theirs.on_batch_begin(batch)
            expected[-1].append(theirs.model.optimizer.lr["value"])
            theirs.on_batch_end(batch)
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    epochs, _ = _fit(_model(strategy), LearningRateWarmup(0.8, warmup_epochs=2))
    _assert_rates(epochs, expected)


def _weights_of_equation_10(momentum, correct):
    """SGD in NumPy as in equations (9) and (10) of the paper, with factors by hand."""
    weights, velocity, old = np.array([[0.1], [0.2], [0.3]]), 0.0, 0.08
    for step in range(12):
        x, y = X[16 * (step % 4) :][:16], Y[16 * (step % 4) :][:16]
        rate = 0.04 * (1 + min((step + 1) / 8, 1))
        factor = momentum * rate / old if correct else momentum
        velocity = factor * velocity + rate * 2 * x.T @ (x @ weights - y) / 16
        weights, old = weights - velocity, rate
    return weights


@pytest.mark.parametrize("correct", [True, pytest.param(False, marks=pytest.mark.full)])
def test_momentum_correction_is_that_of_the_paper(correct, two_replicas):
    model = _model(two_replicas, lambda: keras.optimizers.SGD(0.08, momentum=0.9))
    _fit(model, LearningRateWarmup(0.08, warmup_epochs=2, momentum_correction=correct))
    right = _weights_of_equation_10(0.9, correct)
    np.testing.assert_allclose(model.get_weights()[0], right, atol=1e-6)
    assert np.abs(right - _weights_of_equation_10(0.9, not correct)).max() > 1e-3


class _Double(keras.callbacks.Callback):
    """Doubles the rate by a warmup's own means; notes the state before and after."""

    def on_epoch_end(self, epoch, logs=None):
        warmup = LearningRateWarmup(0.8)
        warmup.set_model(self.model)
        warmup.set_params(self.params)
        warmup.on_train_begin()
        variables = self.model.optimizer.variables
        before = {v.name: v.value.numpy() for v in variables}
        warmup._set(2 * before["learning_rate"])
        self.factors = {v.name: np.mean(v.value.numpy() / before[v.name]) for v in variables}


@pytest.mark.full
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed_float16"])
@pytest.mark.parametrize(
    ("optimizer", "scaled"),
    [
        (lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), ["momentum"]),
        (lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True), ["momentum"]),
        (lambda: keras.optimizers.RMSprop(0.01), []),
        (lambda: keras.optimizers.Adam(0.01), []),
    ],
    ids=["SGD", "RMSprop with momentum", "RMSprop", "Adam"],
)
@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(True, id="plain Keras", marks=pytest.mark.full),
        pytest.param(False, id="two replicas"),
    ],
)
def test_only_momentum_that_is_proportional_to_the_rate_is_scaled(plain, optimizer, scaled, mixed):
    if mixed:
        keras.config.set_dtype_policy("mixed_float16")
    model = (
        _model(None, optimizer())
        if plain
        else _model(tfdist.MirroredStrategy(DEVICES[:2]), optimizer)
    )
    double = _Double()
    # So small that no gradient overflows, which would leave the momentum at zero.
    model.fit(X / 50, Y / 50, batch_size=16, shuffle=False, verbose=0, callbacks=[double])
    factors = {name: round(float(factor), 5) for name, factor in double.factors.items()}
    doubled = {name.rsplit("_")[-1] for name, factor in factors.items() if factor == 2}
    assert doubled == {"rate", *scaled}
    assert {factor for factor in factors.values()} == {1, 2}


@pytest.mark.full
def test_all_replicas_have_the_same_momentum(strategy):
    model = _model(strategy, lambda: keras.optimizers.SGD(0.08, momentum=0.9))
    _fit(model, LearningRateWarmup(0.08, warmup_epochs=2))
    (momentum,) = (v for v in model.optimizer.variables if v.name.endswith("_momentum"))
    first, *others = strategy.experimental_local_results(momentum.value)
    for other in others:
        np.testing.assert_array_equal(other.numpy(), first.numpy())


@pytest.mark.full
def test_accumulated_micro_batches_equal_a_large_batch():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4)
    model = _model(strategy, lambda: keras.optimizers.SGD(0.08, momentum=0.9))
    epochs, _ = _fit(model, LearningRateWarmup(0.08, warmup_epochs=2), batch_size=4)
    large = _model(None, keras.optimizers.SGD(0.08, momentum=0.9))
    expected, _ = _fit(large, LearningRateWarmup(0.08, warmup_epochs=2, multiplier=8))
    _assert_rates([rates[3::4] for rates in epochs], expected)
    assert epochs[0][0] == pytest.approx(0.01 * (1 + 7 / 32))
    np.testing.assert_allclose(model.get_weights()[0], large.get_weights()[0], atol=1e-6)


def test_accumulation_of_the_optimizer_itself_counts():
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    model = _model(
        strategy,
        lambda: tfdist.DistributedOptimizer(keras.optimizers.SGD(0.8), accumulation_steps=2),
    )
    epochs, _ = _fit(model, LearningRateWarmup(0.8, warmup_epochs=1), epochs=1)
    _assert_rates(epochs, [[0.5, 0.6, 0.7, 0.8]])


def test_several_steps_at_once_share_the_rate_of_the_last(two_replicas):
    model = _model(two_replicas, steps_per_execution=3)
    epochs, _ = _fit(model, LearningRateWarmup(0.8, warmup_epochs=2))
    _assert_rates(epochs, [[0.55, 0.6], [0.75, 0.8], [0.8, 0.8]])


def test_on_one_device_the_rate_is_the_full_one_unless_asked():
    epochs, _ = _fit(_model(), LearningRateWarmup(0.8, warmup_epochs=1), epochs=1)
    _assert_rates(epochs, [[0.8] * 4])
    epochs, _ = _fit(_model(), LearningRateWarmup(0.8, warmup_epochs=1, multiplier=2), epochs=1)
    _assert_rates(epochs, [[0.5, 0.6, 0.7, 0.8]])


def test_a_later_epoch_continues_the_warmup(two_replicas):
    warmup = LearningRateWarmup(0.8, warmup_epochs=2)
    epochs, _ = _fit(_model(two_replicas), warmup, initial_epoch=1)
    _assert_rates(epochs, [[0.65, 0.7, 0.75, 0.8], [0.8] * 4])


def test_after_the_warmup_the_rate_belongs_to_others(two_replicas):
    model = _model(two_replicas)
    lower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 if epoch == 2 else rate)
    epochs, _ = _fit(model, LearningRateWarmup(0.8, warmup_epochs=2), lower, epochs=4)
    _assert_rates(epochs[2:], [[0.1] * 4] * 2)
    epochs, _ = _fit(model, LearningRateWarmup(0.8, warmup_epochs=2), initial_epoch=2)
    _assert_rates(epochs, [[0.1] * 4])


@pytest.mark.full
@pytest.mark.parametrize(
    ("warmup_epochs", "expected"),
    [
        (0, [[0.3] * 4, [0.3] * 4]),
        (0.5, [[0.6, 0.8, 0.8, 0.8], [0.8] * 4]),
        (1.5, [[7 / 15, 8 / 15, 0.6, 2 / 3], [11 / 15, 0.8, 0.8, 0.8]]),
    ],
)
def test_any_length_of_the_warmup(warmup_epochs, expected, two_replicas):
    model = _model(two_replicas, lambda: keras.optimizers.SGD(0.3))
    epochs, _ = _fit(model, LearningRateWarmup(0.8, warmup_epochs), epochs=2)
    _assert_rates(epochs, expected)


@pytest.mark.full
def test_shorter_and_longer_epochs_than_told_end_at_the_full_rate(two_replicas):
    shorter = LearningRateWarmup(0.8, warmup_epochs=1, steps_per_epoch=8)
    epochs, _ = _fit(_model(two_replicas), shorter, epochs=2)
    _assert_rates(epochs, [[0.45, 0.5, 0.55, 0.6], [0.8] * 4])
    longer = LearningRateWarmup(0.8, warmup_epochs=2, steps_per_epoch=2)
    epochs, _ = _fit(_model(two_replicas), longer)
    _assert_rates(epochs, [[0.5, 0.6, 0.6, 0.6], [0.7, 0.8, 0.8, 0.8], [0.8] * 4])


def test_verbose_says_when_it_is_over(capsys):
    _fit(_model(), LearningRateWarmup(0.8, warmup_epochs=2, multiplier=2))
    assert capsys.readouterr().out == ""
    _fit(_model(), LearningRateWarmup(0.8, warmup_epochs=2, multiplier=2, verbose=1))
    assert capsys.readouterr().out == "\nEpoch 2: the learning rate has warmed up to 0.8.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_lr": 0}, "`initial_lr` must be a number > 0. Received: initial_lr=0"),
        ({"initial_lr": None}, "`initial_lr` must be a number > 0. Received: initial_lr=None"),
        ({"initial_lr": float("nan")}, "`initial_lr` must be .* Received: initial_lr=nan"),
        ({"initial_lr": float("inf")}, "`initial_lr` must be .* Received: initial_lr=inf"),
        ({"warmup_epochs": -1}, "`warmup_epochs` must be a number >= 0"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be a number >= 1"),
        ({"multiplier": 0.5}, "`multiplier` must be a number >= 1"),
        ({"multiplier": True}, "`multiplier` must be a number >= 1. Received: multiplier=True"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LearningRateWarmup(**{"initial_lr": 0.1, **arguments})


def test_a_schedule_is_refused(two_replicas):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = _model(two_replicas, lambda: keras.optimizers.SGD(schedule))
    with pytest.raises(ValueError, match="must be a number, no schedule.*Received: optimizer="):
        _fit(model, LearningRateWarmup(0.1))


def test_data_of_unknown_length_need_the_number_of_steps(two_replicas):
    def batches():
        for start in range(0, 64, 16):
            yield X[start : start + 16], Y[start : start + 16]

    def fit(warmup):
        rates = _Rates()
        _model(two_replicas).fit(batches(), verbose=0, callbacks=[warmup, rates])
        return rates.epochs

    with pytest.raises(ValueError, match="Pass `steps_per_epoch`.*Received: steps_per_epoch=None"):
        fit(LearningRateWarmup(0.8))
    with pytest.warns(UserWarning, match="ran out of data"):
        epochs = fit(LearningRateWarmup(0.8, warmup_epochs=1, steps_per_epoch=4))
    np.testing.assert_allclose(epochs[0][:4], [0.5, 0.6, 0.7, 0.8], rtol=1e-6)
