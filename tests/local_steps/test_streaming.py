"""Streaming DiLoCo: fragments of the weights are exchanged in turns, while replicas go on."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import by_hand, checks, streamed
from tests.local_steps.by_hand import CASES
from tests.local_steps.streamed import STREAMED
from tests.local_steps.test_by_hand import check_equal_copies, mirrored
from tests.local_steps.test_mirrored import Here
from tests.multi_process.scenarios import streaming
from tfdist.local.choices import LocalSteps
from tfdist.local.fragments import plan_fragments
from tfdist.step.local_turns import AllAtOnce, Streamed

# Each with something of its own; the rest takes minutes.
_USUAL = (
    "both",
    "sent before the last update",
    "everything",
)


def _param(name):
    return pytest.param(name, marks=() if name in _USUAL else pytest.mark.full)


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", [_param(name) for name in STREAMED])
def test_fit_equals_the_same_by_hand(name, replicas):
    case = STREAMED[name]
    expected = streamed.trained(case, replicas)
    model, _ = by_hand.fit(case, mirrored(case, replicas))
    for actual, variable in zip(model.weights, expected.models[0].weights, strict=True):
        if "float" in variable.dtype:
            assert np.abs(actual.numpy() - variable.numpy()).max() <= case.tolerance, actual.path
    check_equal_copies(model.weights)


def test_one_fragment_without_overlap_is_not_streamed(monkeypatch):
    """All weights meet at once; one fragment in turns would come to the same bits."""
    case = CASES["outer momentum"]
    found = {}
    for streams, kind in ((False, AllAtOnce), (True, Streamed)):
        if streams:
            monkeypatch.setattr(LocalSteps, "streams", True)
        model, _ = by_hand.fit(case, mirrored(case, 2))
        assert type(model.optimizer.rounds._turns) is kind
        found[kind] = model.get_weights()
    for ours, theirs in zip(found[AllAtOnce], found[Streamed], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_fragments_are_balanced_by_bytes():
    sizes = [128, 16, 48, 3]
    assert plan_fragments(sizes, 1) == [[0, 1, 2, 3]]
    assert plan_fragments(sizes, 2) == [[0], [1, 2, 3]]
    assert plan_fragments(sizes, 3) == [[0], [2], [1, 3]]
    assert plan_fragments([4, 4, 4, 4], 2) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 2, "fragments": 3}, "at most as many `fragments` as `steps`"),
        ({"steps": 6, "fragments": 3, "overlap": 2}, "must be less than `steps` / `fragments`"),
        ({"steps": 3, "overlap": 3}, "must be less than `steps` / `fragments`"),
        ({"steps": 3, "overlap": -1}, "overlap"),
        ({"steps": 3, "fragments": 0}, "fragments"),
        ({"steps": 3, "overlap": 1, "mixing_factor": 1.0}, "mixing_factor"),
        ({"steps": 3, "overlap": 1, "mixing_factor": -0.5}, "mixing_factor"),
        ({"steps": 3, "mixing_factor": 0.9}, "Give an `overlap` of 1 or more"),
        ({"steps": 3, "fragments": 3, "mixing_factor": 0.0}, "Give an `overlap` of 1 or more"),
    ],
)
def test_choices_that_are_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfdist.DiLoCo(**arguments)


def test_more_fragments_than_variables():
    with mirrored(
        dataclasses.replace(STREAMED["both"], local=("DiLoCo", {"steps": 8, "fragments": 5})), 2
    ).scope():
        model = STREAMED["both"].model()
        model.compile("sgd", by_hand.loss())
    with pytest.raises(ValueError, match="fragments=5 with 4 trainable variables"):
        by_hand.fit_on(STREAMED["both"], model)


def test_fragments_have_rounds_of_their_own():
    model, _ = by_hand.fit(
        dataclasses.replace(STREAMED["both"], epochs=1), mirrored(STREAMED["both"], 2)
    )
    state = model.optimizer.local_state
    # After 3, 9 and 15 of 19 updates, and at the end; after 6, 12 and 18, and at the end.
    assert state.rounds.numpy().tolist() == [4, 4]
    assert int(state.updates.numpy()) == 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["resumed", "lossless", "coded"])
def test_in_one_process(name, tmp_path):
    found = getattr(streaming, name)(Here(tmp_path))
    getattr(checks, name)([found])


def test_replicas_are_one_after_an_update_without_samples():
    """What was sent is merged by an update of no replica, and the round ends then."""
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.DiLoCo(2, overlap=1))
    with strategy.scope():
        weight = keras.Variable([1.0])
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x * weight.value)
        optimizer.apply([tape.gradient(loss, weight.value)], [weight])

    train_step = tf.function(lambda x: strategy.run(tfdist.local_step(step), args=(x,)))
    for samples in (2, 2, 0):
        parts = [tf.fill([samples], value) for value in (1.0, 2.0)]
        train_step(
            strategy.experimental_distribute_values_from_function(
                lambda context, parts=parts: parts[context.replica_id_in_sync_group]
            )
        )
    first, second = (copy.numpy() for copy in weight.value.values)
    assert (first != second).any(), "replicas differ by what was mixed"
    optimizer.finish_round()
    first, second = (copy.numpy() for copy in weight.value.values)
    np.testing.assert_array_equal(first, second)
    # Of gradients of 1 and 2 in each of two steps: one outer step with their mean.
    np.testing.assert_allclose(first, 1.0 - 0.7 * 1.9 * 0.3, rtol=1e-6)
