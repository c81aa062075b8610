"""Accumulation: one exchange per k micro-batches, and no gradient is lost on the way to a file."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def _model(strategy, **compile_options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", **compile_options)
    return model


def _fit(model, samples):
    model.fit(X[:samples], Y[:samples], batch_size=8, shuffle=False, verbose=0)


def test_iterations_count_updates_and_weights_rest_in_between():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    model = _model(strategy)
    before = model.get_weights()
    _fit(model, 16)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert model.optimizer.iterations.numpy() == 0
    _fit(model, 8)
    assert model.optimizer.iterations.numpy() == 1
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_the_gradients_are_exchanged_once_per_update(monkeypatch):
    """Counted where values are reduced between replicas, while the steps run eagerly."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4)
    model = _model(strategy, run_eagerly=True)
    exchanges = []
    original = tfdist.step.exchange.all_reduce

    def counting(values, *bound):
        if any(value.shape.rank for value in values):
            exchanges.append(len(values))
        return original(values, *bound)

    monkeypatch.setattr(tfdist.step.exchange, "all_reduce", counting)
    _fit(model, 40)
    assert model.optimizer.iterations.numpy() == 1
    assert exchanges == [1, 1]  # one bucket, on each of two replicas


def _origins(operation):
    """The types of the operations without inputs that an operation is computed from."""
    inputs = [tensor.op for tensor in operation.inputs]
    return {operation.type} if not inputs else set().union(*map(_origins, inputs))


def test_sums_begin_anew_with_zeros_that_no_graph_keeps():
    """TensorFlow computes what it knows once, and would keep such zeros in memory for good."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    model = _model(strategy)
    _fit(model, 8)
    accumulator = model.optimizer.accumulator

    @tf.function
    def take(micro_batches):
        strategy.run(accumulator.take, args=(micro_batches,))

    graph = take.get_concrete_function(tf.TensorSpec([], tf.int64)).graph
    assigned = [o.inputs[1].op for o in graph.get_operations() if o.type == "AssignVariableOp"]
    assert len(assigned) == 2
    assert all("Placeholder" in _origins(operation) for operation in assigned)


def test_sums_begin_anew_after_no_micro_batch():
    """As where the gradients of each have overflowed."""
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    model = _model(strategy)
    _fit(model, 8)
    accumulator = model.optimizer.accumulator
    strategy.run(accumulator.take, args=(tf.constant(0, tf.int64),))
    for total in accumulator.sums:
        for value in strategy.experimental_local_results(total):
            assert not value.numpy().any()


@pytest.mark.parametrize("replicas_after", [1, 2, pytest.param(4, marks=pytest.mark.full)])
def test_a_file_keeps_the_gradients_of_an_unfinished_update(replicas_after, tmp_path):
    model = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4))
    _fit(model, 24)
    path = tmp_path / "model.keras"
    model.save(path)
    _fit(model, 8)

    strategy = tfdist.MirroredStrategy(DEVICES[:replicas_after], accumulation_steps=4)
    with strategy.scope():
        loaded = keras.saving.load_model(path)
    _fit(loaded, 8)
    assert loaded.optimizer.iterations.numpy() == 1
    for ours, theirs in zip(loaded.get_weights(), model.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "steps_after", [*(pytest.param(n, marks=pytest.mark.full) for n in (2, 3)), 5]
)
@pytest.mark.parametrize("kind", ["weights", pytest.param("checkpoint", marks=pytest.mark.full)])
def test_with_another_number_of_steps_the_unfinished_update_is_a_mean_too(
    kind, steps_after, tmp_path
):
    """3 micro-batches are in the file; the update comes as soon as there are enough."""
    model = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4))
    _fit(model, 24)
    path = str(tmp_path / "model.weights.h5")
    if kind == "weights":
        model.save_weights(path)
    else:
        path = tf.train.Checkpoint(optimizer=model.optimizer).save(path)

    other = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=steps_after))
    other.optimizer.build(other.trainable_variables)
    if kind == "weights":
        other.load_weights(path)
    else:
        tf.train.Checkpoint(optimizer=other.optimizer).restore(path).expect_partial()
    needed = max(steps_after - 3, 1)
    _fit(other, 8 * needed)
    assert other.optimizer.iterations.numpy() == 1

    expected = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3 + needed))
    if needed == 2:
        expected.fit(
            np.concatenate([X[:24], X[:16]]),
            np.concatenate([Y[:24], Y[:16]]),
            batch_size=8,
            shuffle=False,
            verbose=0,
        )
    else:
        _fit(expected, 24)
        _fit(expected, 8)
    for ours, theirs in zip(other.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)
    _fit(other, 8 * steps_after)
    assert other.optimizer.iterations.numpy() == 2


def test_a_checkpoint_holds_the_accumulated_gradients(tmp_path):
    model = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4))
    _fit(model, 24)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "point")
    _fit(model, 8)
    expected = model.get_weights()

    again = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=4))
    again.optimizer.build(again.trainable_variables)
    status = tf.train.Checkpoint(model=again, optimizer=again.optimizer).restore(path)
    status.expect_partial()
    _fit(again, 8)
    for ours, theirs in zip(again.get_weights(), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


def test_no_warning_where_accumulation_starts_fresh(tmp_path):
    model = _model(tfdist.MirroredStrategy(DEVICES[:2]))
    _fit(model, 8)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    other = _model(tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=2))
    _fit(other, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_weights(path)


def test_steps_that_train_different_variables_are_warned_of_and_equal_keras(caplog):
    """An update of one step clears what another one has gathered, on one device as well."""

    def train(strategy, optimizer):
        with strategy.scope():
            weights = [keras.Variable(np.ones(2, "float32")) for _ in range(2)]
            optimizer = optimizer()
            optimizer.build(weights)

        @tf.function
        def step(index, factor):
            def of_replica():
                gradient = tf.ones(2) * factor / strategy.num_replicas_in_sync
                optimizer.apply([gradient], [weights[index]])

            strategy.run(of_replica)

        for number, index in enumerate([0, 1, 0, 0, 1, 1]):
            step(index, tf.constant(number + 1.0))
        return [weight.numpy() for weight in weights]

    def sgd(**options):
        return keras.optimizers.SGD(0.1, **options)

    alone = train(tf.distribute.get_strategy(), lambda: sgd(gradient_accumulation_steps=2))
    assert "counted together" not in caplog.text
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=2)
    together = train(strategy, lambda: tfdist.DistributedOptimizer(sgd()))
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert caplog.text.count("counted together") == 1
