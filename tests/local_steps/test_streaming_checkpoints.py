"""A `tf.train.Checkpoint` that is read, or was saved, while fragments are under way."""

import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps.given_gradients import SHAPES, Loop

_QSGD = tfdist.compression.QSGD(1, norm="max", error_feedback=True, min_bytes=0)


def _weights_after(loop, updates):
    random = np.random.default_rng(1)
    for _ in range(updates):
        loop.train(random)
    loop.optimizer.finish_round()
    return [weight.numpy() for weight in loop.weights]


@pytest.mark.parametrize(
    ("local", "compression"),
    [
        (tfdist.DiLoCo(4, fragments=2), None),
        (tfdist.DiLoCo(4, fragments=2, overlap=1), None),
        (tfdist.DiLoCo(4, fragments=2, overlap=1), _QSGD),
        pytest.param(tfdist.DiLoCo(4), None, marks=pytest.mark.full),
    ],
)
def test_the_checkpoint_of_a_model_is_read_in_mid_stream(local, compression, tmp_path):
    """What is under way is dropped: training goes on as from the checkpoint."""
    loop = Loop(local, compression)
    _weights_after(loop, 5)
    path = loop.checkpoint.save(str(tmp_path / "whole"))
    loop.checkpoint.restore(path)  # all replicas take equal parts of what is left to be sent
    expected = _weights_after(loop, 12)
    random = np.random.default_rng(2)
    for _ in range(6):  # fragment 0 is sent by the last one, fragment 1 was merged by the fifth
        loop.train(random)
    loop.checkpoint.restore(path).assert_consumed()
    for ours, theirs in zip(_weights_after(loop, 12), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_file_is_read_in_mid_stream():
    """As with a checkpoint; read where Keras reads the optimizer's state."""
    loop = Loop(tfdist.DiLoCo(4, fragments=2, overlap=1), _QSGD)
    states = [loop.optimizer.local_state, loop.optimizer.compression_state]
    _weights_after(loop, 5)
    stores = [{}, {}]
    for state, store in zip(states, stores):
        state.save_own_variables(store)
    weights = [weight.numpy() for weight in loop.weights]
    expected = _weights_after(loop, 12)
    random = np.random.default_rng(2)
    for _ in range(6):
        loop.train(random)
    for state, store in zip(states, stores):
        state.load_own_variables({key: np.array(value) for key, value in store.items()})
    for weight, value in zip(loop.weights, weights):
        weight.assign(value)
    for ours, theirs in zip(_weights_after(loop, 12), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_checkpoint_of_mid_stream_is_read_elsewhere(tmp_path):
    """All replicas go on as the first one, with what is under way: it is merged when it is due."""
    local = tfdist.DiLoCo(
        4, outer_learning_rate=1.0, outer_momentum=0.0, fragments=2, overlap=1, mixing_factor=0.75
    )
    first = Loop(local)
    random = np.random.default_rng(2)
    for _ in range(6):  # fragment 0 is sent by the last one
        first.train(random)
    path = first.checkpoint.save(str(tmp_path / "mid"))
    again = Loop(local)
    again.checkpoint.restore(path).assert_consumed()
    saved = [own for own, _ in first.copies()]
    for of_first, copies in zip(saved, again.copies(), strict=True):
        for copy in copies:
            np.testing.assert_array_equal(copy, of_first)
    again.train_on(np.ones((2, 1, sum(int(np.prod(shape)) for shape in SHAPES))))
    again.optimizer.finish_round()
    # What the last update has moved is mixed in fragment 0, which was sent before.
    for copies, of_first, moved in zip(again.copies(), saved, (0.75, 1.0), strict=True):
        for copy in copies:
            np.testing.assert_allclose(copy, of_first - moved, atol=1e-5)
