"""From synchronous training to local steps and back, and to other numbers of replicas."""

import dataclasses

import keras
import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand
from tests.local_steps.by_hand import CASES

# Eight batches in an epoch, of which two wait for an update at its end.
CASE = dataclasses.replace(CASES["accumulation"], epochs=1)


def mirrored(replicas, local=None, steps=3, **options):
    devices = [f"CPU:{number}" for number in range(replicas)]
    return tfdist.MirroredStrategy(devices, local=local, accumulation_steps=steps, **options)


def loaded(path, strategy):
    with strategy.scope():
        return keras.models.load_model(path)


def warned(caplog):
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("tfdist:")]


@pytest.mark.parametrize("first", [None, tfdist.LocalSGD(2)])
def test_gradients_that_wait_are_not_used_by_the_other_kind(first, tmp_path, caplog):
    second = tfdist.LocalSGD(2) if first is None else None
    model, _ = by_hand.fit(CASE, mirrored(2, first))
    assert int(model.optimizer.accumulator.micro_step.numpy()) == 2
    model.save(tmp_path / "model.keras")
    again = loaded(tmp_path / "model.keras", mirrored(2, second))
    assert int(again.optimizer.accumulator.micro_step.numpy()) == 0
    assert any("2 micro-batches wait for an update, and are dropped" in m for m in warned(caplog))
    by_hand.fit_on(CASE, again)


def test_gradients_that_wait_where_rounds_begin_are_dropped(caplog):
    """With several steps per execution the last synchronous update may be in the middle of one."""
    case = dataclasses.replace(CASE, compiled={"steps_per_execution": 3})
    strategy = mirrored(2, tfdist.LocalSGD(2, after=1), steps=2)
    by_hand.fit(case, strategy)
    assert any("1 micro-batches wait for an update" in message for message in warned(caplog))


def _waiting(model):
    """The sums of what waits over the replicas, by bucket."""
    local = model.distribute_strategy.experimental_local_results
    return [sum(own.numpy() for own in local(v)) for v in model.optimizer.accumulator.sums]


LATER = tfdist.LocalSGD(2, after=100)


@pytest.mark.parametrize(
    ("first", "second", "factor"),
    [
        (LATER, LATER, 1.0),
        (tfdist.LocalSGD(2, after=1), LATER, 1.5),  # its rounds have begun
        pytest.param(tfdist.LocalSGD(2), LATER, 1.5, marks=pytest.mark.full),
        pytest.param(LATER, None, 1.0, marks=pytest.mark.full),
        pytest.param(None, LATER, 1.0, marks=pytest.mark.full),
    ],
)
def test_gradients_that_wait_are_read_as_they_were_weighted(first, second, factor, tmp_path):
    """Of a synchronous step they are parts of a sum; else each replica has means of its own."""
    model, _ = by_hand.fit(CASE, mirrored(2, first))
    model.save(tmp_path / "model.keras")
    again = loaded(tmp_path / "model.keras", mirrored(3, second))
    assert int(again.optimizer.accumulator.micro_step.numpy()) == 2
    for ours, theirs in zip(_waiting(again), _waiting(model), strict=True):
        np.testing.assert_allclose(ours, factor * theirs, rtol=1e-5, atol=1e-7)


def test_synchronous_updates_go_on_with_more_replicas(tmp_path):
    found = []
    for local in (None, LATER):
        model, _ = by_hand.fit(CASE, mirrored(2, local))
        model.save(tmp_path / "model.keras")
        again = loaded(tmp_path / "model.keras", mirrored(3, local))
        by_hand.fit_on(CASE, again)
        found.append(again.get_weights())
    for plain, before_rounds in zip(*found, strict=True):
        np.testing.assert_allclose(plain, before_rounds, rtol=0, atol=1e-6)


def test_another_number_of_replicas_begins_with_the_mean(tmp_path, caplog):
    case = dataclasses.replace(CASES["momentum"], epochs=1)
    local = tfdist.DiLoCo(3)
    model, _ = by_hand.fit(case, mirrored(2, local, steps=1))
    model.save(tmp_path / "model.keras")
    again = loaded(tmp_path / "model.keras", mirrored(3, local, steps=1))
    assert any("saved by 2 replicas" in message for message in warned(caplog))
    state, other = model.optimizer.local_state, again.optimizer.local_state
    for old, new in zip(state.owned, other.owned, strict=True):
        own = [copy.numpy() for copy in old.values]
        expected = np.mean(own, axis=0) if old.dtype.is_floating else own[0]
        for copy in new.values:
            np.testing.assert_allclose(copy.numpy(), expected, rtol=1e-6)
    for old, new in zip(state.momentum, other.momentum, strict=True):
        assert np.abs(old.numpy()).max() > 0
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_without_tfdist_a_file_has_the_first_replicas_state(tmp_path):
    model, _ = by_hand.fit(
        dataclasses.replace(CASES["adam"], epochs=1), mirrored(2, tfdist.LocalSGD(3), steps=1)
    )
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain.optimizer) is keras.optimizers.Adam
    for old, new in zip(model.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())


def test_after_counts_the_updates_of_optimizers_that_steps_apply():
    local = tfdist.LocalSGD(3, after=2)
    with mirrored(2, local, steps=1).scope():
        model = CASES["sgd"].model()
        model.compile(keras.optimizers.SGD(0.1), by_hand.loss())
        model.other = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.other.build(model.trainable_variables)
    by_hand.fit_on(CASES["sgd"], model, epochs=1)
    assert model.optimizer.rounds.state.has_rows()


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
@pytest.mark.parametrize("local", [tfdist.LocalSGD(2), tfdist.DiLoCo(2)])
def test_a_file_of_weights_alone_leaves_what_the_optimizer_has(local, tmp_path):
    case = dataclasses.replace(CASES["momentum"], epochs=1)
    model, _ = by_hand.fit(case, mirrored(2, local, steps=1))
    case.model().save_weights(tmp_path / "alone.weights.h5")
    state = model.optimizer.local_state

    def values():
        of = [*state.owned, *state.momentum]
        return [v.numpy() for one in of for v in state._local(one)], state.position()

    before, position = values()
    model.load_weights(tmp_path / "alone.weights.h5")
    after, now = values()
    assert now == position and state.has_rows()
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("accumulates", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "local",
    [
        tfdist.LocalSGD(2),
        pytest.param(tfdist.DiLoCo(2), marks=pytest.mark.full),
        pytest.param(tfdist.DiLoCo(3), marks=pytest.mark.full),
        tfdist.DiLoCo(4, fragments=2, overlap=1),
    ],
)
def test_a_layer_that_is_frozen_by_now_stays_as_it_is(local, accumulates):
    model, _ = by_hand.fit(CASES["momentum"], mirrored(2, local, steps=accumulates))
    layer = model.layers[0]
    layer.trainable = False
    model.compile(model.optimizer, model.loss)
    before = [weight.numpy() for weight in layer.weights]
    other = model.layers[-1].weights[0].numpy()
    by_hand.fit_on(CASES["momentum"], model)
    for weight, old in zip(
        layer.weights, before, strict=True
    ):  # a mean of equal numbers is rounded
        np.testing.assert_allclose(weight.numpy(), old, rtol=0, atol=1e-6)
    assert np.abs(model.layers[-1].weights[0].numpy() - other).max() > 0
