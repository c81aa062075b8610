"""Streaming DiLoCo with error feedback: what a replica has moved is sent once."""

import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.local_steps.given_gradients import Loop

_TOPK = tfdist.compression.TopK(0.25, min_bytes=0)
_QSGD = tfdist.compression.QSGD(1, norm="max", error_feedback=True, min_bytes=0)
# Fragments are sent after 2 and 4 of 4 updates, and merged one later. What is under way where the
# weights must be whole: fragment 0 is sent by the last update; fragment 1 is merged by the last
# one, which has no samples; nothing.
_STREAMS = (18, 17, 19)


def _run(mixing, compression):
    """Trains some streams, and returns what the weights and the residuals come to in each."""
    outer = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    local = tfdist.DiLoCo(4, **outer, fragments=2, overlap=1, mixing_factor=mixing)
    loop, random, found = Loop(local, compression), np.random.default_rng(0), []
    for updates in _STREAMS:
        for update in range(updates):
            loop.train(random, 0 if update == 16 and updates == 17 else 1)
        loop.optimizer.finish_round()
        found.append(([-w.numpy() for w in loop.weights], loop.residuals()))
    return found


@pytest.mark.parametrize(
    "mixing",
    [0.5, pytest.param(0.0, marks=pytest.mark.full), pytest.param(0.9, marks=pytest.mark.full)],
)
def test_each_move_is_sent_once(mixing):
    """With the outer rate 1, what is sent and what is left come to what is sent without codes."""
    expected = _run(mixing, None)
    for compression in (_TOPK, _QSGD):
        for (sums, _), (moved, left) in zip(expected, _run(mixing, compression), strict=True):
            assert max(np.abs(part).max() for part in left) > 0.01, "something is left"
            for whole, sent, rest in zip(sums, moved, left, strict=True):
                np.testing.assert_allclose(sent + rest, whole, atol=2e-5)
