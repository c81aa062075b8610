"""What a step sets besides its weights is one model's where replicas meet; interruptions."""

import dataclasses
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand, own_steps
from tests.local_steps.by_hand import CASES
from tests.local_steps.test_by_hand import check_equal_copies, copies_of, mirrored
from tfdist.step import local_means
from tfdist.step.all_rounds import AllRounds


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", [own_steps.MEAN, own_steps.OUTER], ids=["mean", "outer"])
def test_all_that_a_step_sets_equals_the_same_by_hand(case, eager):
    """Moving statistics after a second pass, a frozen teacher, and a weight set by hand."""
    case = dataclasses.replace(case, compiled={"run_eagerly": eager})
    expected = own_steps.trained(case, 2)
    model, _ = by_hand.fit(case, mirrored(case, 2))
    for actual, variable in zip(model.weights, expected.models[0].weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(actual.numpy() - variable.numpy()).max() <= case.tolerance, actual.path
    check_equal_copies(model.weights)
    np.testing.assert_array_equal(model.frozen.numpy(), expected.models[0].frozen.numpy())
    assert int(model.steps.numpy()) == case.epochs * 5


def test_a_step_that_sets_something_unknown_is_refused():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(2))
    with strategy.scope():
        outside = keras.Variable(0.0, name="outside")

        class Model(keras.Sequential):
            def train_step(self, data):
                outside.assign(tf.reduce_mean(data[0]))
                return super().train_step(data)

        model = Model([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Make it a weight of the model .* \['outside"):
        model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)


def _loop(strategy, model_of_step, graph=True, inside=False):
    """A loop of the user's own with BatchNormalization."""
    case = dataclasses.replace(CASES["BatchNormalization"], local=("LocalSGD", {"steps": 3}))
    with strategy.scope():
        model = case.model()
        optimizer = tfdist.DistributedOptimizer(case.optimizer())
        optimizer.build(model.trainable_variables)
        loss = by_hand.loss()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)

    if inside:
        step = tf.function(step)
    marked = tfdist.local_step(step, model if model_of_step else None)

    def train_step(x, y):
        strategy.run(marked, args=(x, y))

    train_step = tf.function(train_step) if graph else train_step
    data = tf.data.Dataset.from_tensor_slices(case.data()).batch(case.batch)
    for _ in range(case.epochs):
        for x, y in strategy.experimental_distribute_dataset(data):
            train_step(x, y)
        optimizer.finish_round()
    expected = by_hand.trained(case, 2)
    check_equal_copies(model.weights)
    for actual, variable in zip(model.weights, expected.models[0].weights, strict=True):
        assert np.abs(actual.numpy() - variable.numpy()).max() <= case.tolerance, actual.path


def test_a_loop_says_whose_variables_a_step_sets():
    local = tfdist.LocalSGD(3)
    _loop(tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local), True)
    _loop(tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local), True, False, inside=True)
    with pytest.raises(ValueError, match=r"local_step\(step, model\)"):
        _loop(tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local), False)
    with pytest.raises(ValueError, match="an eager local step without a model"):
        _loop(tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local), False, graph=False)


def test_a_function_takes_a_model_that_is_given_later():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(2))
    with strategy.scope():
        model = CASES["BatchNormalization"].model()
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = by_hand.loss()(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)

    data = tf.data.Dataset.from_tensor_slices(CASES["sgd"].data()).batch(16)
    batch = next(iter(strategy.experimental_distribute_dataset(data)))
    with pytest.raises(ValueError, match="Say whose variables a step may set"):
        strategy.run(tfdist.local_step(step), args=batch)
    strategy.run(tfdist.local_step(step, model), args=batch)


def test_with_accumulation_weights_without_a_gradient_stay():
    case = own_steps.UNUSED
    model, _ = by_hand.fit(case, mirrored(case, 2))
    for copy in copies_of([model.layers[0].beside])[0]:
        np.testing.assert_array_equal(copy, np.ones(4))
    assert np.abs(model.layers[1].kernel.numpy() - case.model().layers[1].kernel).max() > 0.01


def test_an_interrupted_round_ends():
    case = dataclasses.replace(CASES["adam"], local=("LocalSGD", {"steps": 100}))
    strategy = mirrored(case, 2)
    with strategy.scope():
        model = case.model()
        model.compile(case.optimizer(), by_hand.loss(), metrics=["accuracy"])
    own_steps.interrupted(case, model, 2)
    check_equal_copies(model.weights)
    expected = by_hand.Replicas(case, 2)
    x, y = case.data()
    for start in range(0, 48, 16):
        expected.step(x[start : start + 16], y[start : start + 16])
    expected.meet()
    assert own_steps.largest_difference(model.get_weights(), expected.weights()) <= 1e-6
    by_hand.fit_on(case, model)
    check_equal_copies(model.weights)


LONG = dataclasses.replace(CASES["adam"], local=("LocalSGD", {"steps": 100}))


class _InMidRound(keras.callbacks.Callback):
    """Acts in the middle of a round, and notes whether replicas are equal before and after."""

    def __init__(self, act):
        super().__init__()
        self._act, self.equal = act, []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self._note()
            self._act()
            self._note()

    def _note(self):
        first, second = copies_of([self.model.layers[0].kernel])[0]
        self.equal.append(bool((first == second).all()))


def test_a_round_ends_though_its_optimizer_is_gone():
    strategy = mirrored(LONG, 2)
    with strategy.scope():
        model = LONG.model()

    def train():
        with strategy.scope():
            optimizer = tfdist.DistributedOptimizer(LONG.optimizer())
            optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                value = by_hand.loss()(y, model(x, training=True))
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(value, variables), variables)

        train_step = tf.function(
            lambda x, y: strategy.run(tfdist.local_step(step, model), args=(x, y))
        )
        data = tf.data.Dataset.from_tensor_slices(LONG.data()).batch(LONG.batch)
        for x, y in strategy.experimental_distribute_dataset(data):
            train_step(x, y)

    train()
    for _ in range(3):  # what was traced is in several cycles
        gc.collect()
    first, second = copies_of([model.layers[0].kernel])[0]
    assert (first != second).any()
    model.predict(LONG.data()[0], verbose=0)
    check_equal_copies(model.weights)


class _Rounds:
    """Stands for the rounds of an optimizer."""

    under_way = (1, 1, 0)

    def finish(self):
        self.under_way = (0, 0, 0)


def test_rounds_are_kept_until_they_have_ended():
    all_rounds, rounds = AllRounds(), _Rounds()
    all_rounds.add(rounds)
    all_rounds.hold(rounds)
    reference = weakref.ref(rounds)
    del rounds
    gc.collect()
    assert len(all_rounds.under_way()) == 1
    all_rounds.finish()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("act", ["compile", "predict"])
def test_a_round_ends_where_the_model_is_compiled_or_used(act):
    strategy = mirrored(LONG, 2)
    with strategy.scope():
        model = LONG.model()
        model.compile(LONG.optimizer(), by_hand.loss(), metrics=["accuracy"])

    def go_on():
        if act == "compile":
            with strategy.scope():
                model.compile(LONG.optimizer(), by_hand.loss(), metrics=["accuracy"])
            return
        model.predict(LONG.data()[0], verbose=0)

    callback = _InMidRound(go_on)
    with pytest.raises(KeyboardInterrupt):
        by_hand.fit_on(LONG, model, epochs=1, callbacks=[callback, own_steps.Stops(2)])
    assert callback.equal == [False, True]


@pytest.mark.parametrize("trains", [False, True])
def test_models_that_share_layers_end_each_others_round(trains):
    first, second = own_steps.two_models(mirrored(LONG, 2))

    def use_second():
        if trains:
            by_hand.fit_on(LONG, second, epochs=1)
        else:
            second.predict(LONG.data()[0], verbose=0)

    callback = _InMidRound(use_second)
    by_hand.fit_on(LONG, first, epochs=1, callbacks=[callback])
    assert callback.equal == [False, True]
    check_equal_copies([*first.weights, *second.weights])


def test_a_step_without_an_update_that_sets_something_is_refused():
    class Model(keras.Sequential):
        def train_step(self, data):
            self(data[0], training=True)
            return {}

    with tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(2)).scope():
        model = Model([keras.Input((2,)), keras.layers.BatchNormalization()])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="applies no optimizer cannot set variables"):
        model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)


@pytest.mark.parametrize(
    "local", [tfdist.LocalSGD(100), tfdist.DiLoCo(100, outer_learning_rate=1.0)]
)
def test_drift_with_compression_is_that_from_the_weights_that_all_take(local):
    case = dataclasses.replace(CASES["sgd"], epochs=1, local=("LocalSGD", {"steps": 100}))
    compression = tfdist.compression.TopK(0.2, min_bytes=0)
    if isinstance(local, tfdist.DiLoCo):
        compression = tfdist.compression.Int8(min_bytes=0)
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=local, compression=compression)
    model, history = by_hand.fit(case, strategy, callbacks=strategy.callbacks())
    expected = by_hand.Replicas(case, 2)
    x, y = case.data()
    for start in range(0, len(x), case.batch):
        expected.step(x[start : start + case.batch], y[start : start + case.batch])

    def flat(variables):
        return np.concatenate([np.asarray(v).ravel() for v in variables])

    share = expected.samples / expected.samples.sum()
    own = [flat([v.numpy() for v in m.trainable_variables]) for m in expected.models]
    anchor = flat(expected.anchor)
    moved = flat(model.get_weights()) - anchor
    if isinstance(local, tfdist.DiLoCo):
        moved = moved / 1.9  # Nesterov's first step with momentum 0.9
    squares = sum(p * np.sum((w - anchor - moved) ** 2) for p, w in zip(share, own))
    drift = np.sqrt(squares) / np.linalg.norm(moved)
    np.testing.assert_allclose(history.history["drift"], [drift], rtol=1e-3)


def test_synchronous_updates_end_with_an_execution():
    """`after` is reached in the middle of an execution of three steps."""
    case = dataclasses.replace(CASES["momentum"], compiled={"steps_per_execution": 3})
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(3, after=7))
    model, _ = by_hand.fit(case, strategy)
    expected = by_hand.Replicas(case, 2).train(synchronous=8)  # executions of 3, 2, 3, 2, ...
    assert own_steps.largest_difference(model.get_weights(), expected.weights()) <= 1e-6


def test_an_outer_step_needs_one_owner_of_a_weight():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.DiLoCo(2))
    with strategy.scope():
        model = CASES["sgd"].model()
        optimizers = [tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1)) for _ in range(2)]
        for optimizer in optimizers:
            optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        def step(x, y):
            for optimizer in optimizers:
                with tf.GradientTape() as tape:
                    value = by_hand.loss()(y, model(x, training=True))
                variables = model.trainable_variables
                optimizer.apply(tape.gradient(value, variables), variables)

        strategy.run(tfdist.local_step(step), args=(x, y))

    x, y = CASES["sgd"].data()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    with pytest.raises(ValueError, match="Two optimizers of one step train the same weights"):
        train_step(*next(iter(strategy.experimental_distribute_dataset(data))))


def test_what_a_replica_without_samples_has_does_not_count():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(2))
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)
        (bias,) = [v for v in model.variables if v.name == "bias"]

    @tf.function
    def average():
        def of_replica():
            first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
            bias.value.assign(tf.where(first, [2.0], [np.nan]))
            samples = tf.where(first, 3.0, 0.0)
            local_means.average([bias], samples, tf.constant(3.0), bucket_bytes=1024)

        strategy.run(of_replica)

    average()
    assert [float(copy[0]) for copy in copies_of([bias])[0]] == [2.0, 2.0]


def test_all_steps_of_an_optimizer_set_the_same():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.LocalSGD(2))
    with strategy.scope():
        model = CASES["BatchNormalization"].model()
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y, training):
        def step(x, y):
            with tf.GradientTape() as tape:
                value = by_hand.loss()(y, model(x, training=training))
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(value, variables), variables)

        strategy.run(tfdist.local_step(step, model), args=(x, y))

    data = tf.data.Dataset.from_tensor_slices(CASES["sgd"].data()).batch(16)
    x, y = next(iter(strategy.experimental_distribute_dataset(data)))
    train_step(x, y, True)
    with pytest.raises(ValueError, match="must set the same variables besides the weights"):
        train_step(x, y, False)
