"""Several kinds of steps of a loop: each round ends with all that its optimizer has trained."""

import gc

import keras
import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps import several
from tests.local_steps.several import ORDER, STEPS, Loop
from tests.local_steps.test_by_hand import check_equal_copies

LOCAL = [
    tfdist.LocalSGD(STEPS),
    tfdist.DiLoCo(STEPS),
    pytest.param(tfdist.DiLoCo(STEPS, outer_momentum=0.0), marks=pytest.mark.full),
]
STREAMED = tfdist.DiLoCo(4, fragments=2, overlap=1)
SHARED = {"a": "first", "b": "second"}  # both train the first layer


def check_equal(model, expected, tolerance=1e-6):
    check_equal_copies(model.weights)
    for actual, variable in zip(model.weights, expected.weights, strict=True):
        assert np.abs(actual.numpy() - variable.numpy()).max() <= tolerance, actual.path


@pytest.mark.full
@pytest.mark.parametrize("local", LOCAL)
def test_a_round_may_end_with_a_step_that_knows_less(local):
    """Steps "a" were traced before any "b", so they know nothing of what these train."""
    model = Loop(local).train(ORDER).finish()
    check_equal(model, several.by_hand(ORDER, local))
    untrained = several.made().heads["d"]  # neither averaged nor constrained
    for actual, before in zip(model.heads["d"].weights, untrained.weights, strict=True):
        np.testing.assert_array_equal(actual.numpy(), before.numpy())


@pytest.mark.parametrize("local", [STREAMED, pytest.param(LOCAL[1], marks=pytest.mark.full)])
def test_steps_in_graphs_equal_eager_ones(local):
    """Those that are traced once know less than eager steps, but do the same."""
    expected = Loop(local, eager=True).train(ORDER).finish()
    check_equal(Loop(local).train(ORDER).finish(), expected)


@pytest.mark.parametrize(
    "compressor",
    [
        tfdist.compression.Int8(min_bytes=0),
        pytest.param(tfdist.compression.PowerSGD(rank=1, min_bytes=0), marks=pytest.mark.full),
    ],
    ids=["int8", "powersgd"],
)
def test_coded_differences_of_all_that_is_trained_leave_the_replicas_equal(compressor):
    local = tfdist.LocalSGD(STEPS)
    model = Loop(local, compression=compressor).train(ORDER).finish()
    check_equal_copies(model.weights)
    expected = several.by_hand(ORDER, local)
    for actual, variable in zip(model.weights, expected.weights, strict=True):
        assert np.abs(actual.numpy() - variable.numpy()).max() <= 0.1, actual.path


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("local", "options"),
    [
        (tfdist.DiLoCo(STEPS), {}),
        (tfdist.LocalSGD(STEPS), {"compression": tfdist.compression.Int8(min_bytes=0)}),
    ],
)
def test_optimizers_of_different_steps_that_share_weights_are_refused(local, options, eager):
    loop = Loop(local, SHARED, eager, **options)
    with pytest.raises(ValueError, match="the same weights in different steps"):
        loop.train("ab")


def test_a_finished_round_does_not_make_it_right():
    """The other step may follow in the middle of a round."""
    loop = Loop(tfdist.DiLoCo(2), SHARED)
    loop.train("aa").finish()
    with pytest.raises(ValueError, match="the same weights in different steps"):
        loop.train("b")


def test_an_optimizer_that_is_needed_no_longer_is_deleted():
    loop = Loop(tfdist.DiLoCo(2), SHARED)
    loop.train("aa").finish()
    loop.forget("first")
    gc.collect()  # what was traced is in cycles
    check_equal_copies(loop.train("bbb").finish().weights)


def test_means_may_have_shared_weights():
    check_equal_copies(Loop(tfdist.LocalSGD(STEPS), SHARED).train("abab").finish().weights)


def test_fit_goes_on_with_another_optimizer():
    """All rounds of the first one have ended by then."""
    with tfdist.MirroredStrategy(["CPU:0", "CPU:1"], local=tfdist.DiLoCo(4)).scope():
        model = keras.Sequential([keras.Input((several.FEATURES,)), keras.layers.Dense(1)])
        used = []
        for rate in (0.1, 0.05):
            model.compile(keras.optimizers.SGD(rate), "mse")
            model.fit(*several.data(7), batch_size=several.BATCH, verbose=0)
            used.append(model.optimizer)
    first, second = (optimizer.rounds for optimizer in used)
    assert first.trained == second.trained != set()
    check_equal_copies(model.weights)
