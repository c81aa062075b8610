"""Which shares follow from measured speeds."""

import numpy as np
import pytest

from tfdist.balance.policy import STEPS, new_shares


def _steps(*speeds, steps=STEPS):
    return np.tile(np.array(speeds, float), (steps, 1))


def test_shares_are_in_proportion_to_speeds():
    shares = new_shares(_steps(30, 30, 10), np.full(3, 1 / 3))
    np.testing.assert_allclose(shares, [3 / 7, 3 / 7, 1 / 7])


def test_what_a_replica_may_not_take_goes_to_the_others():
    shares = new_shares(_steps(80, 10, 10, 20), np.full(4, 1 / 4), max_share=0.4)
    np.testing.assert_allclose(shares, [0.4, 0.15, 0.15, 0.3])


def test_several_replicas_may_be_at_the_bound():
    shares = new_shares(_steps(100, 60, 10, 10), np.full(4, 1 / 4), max_share=0.3)
    np.testing.assert_allclose(shares, [0.3, 0.3, 0.2, 0.2])


def test_a_bound_of_even_parts_leaves_even_parts():
    assert new_shares(_steps(3, 1, 1), np.full(3, 1 / 3), max_share=1 / 3) is None


def test_little_to_gain_moves_nothing():
    even = np.full(2, 1 / 2)
    assert new_shares(_steps(100, 95), even) is None
    assert new_shares(_steps(100, 80), even) is not None


def test_single_slow_steps_move_nothing():
    speeds = _steps(100, 100)
    speeds[[1, 4, 6], 1] = 10
    assert new_shares(speeds, np.full(2, 1 / 2)) is None


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_noise_moves_nothing(replicas):
    """One step in ten takes half as long again, and all of them differ by up to a tenth."""
    random = np.random.default_rng(replicas)
    seconds = random.uniform(0.9, 1.1, (500, replicas)) * np.where(
        random.random((500, replicas)) < 0.1, 1.5, 1
    )
    even = np.full(replicas, 1 / replicas)
    windows = [1 / seconds[n : n + STEPS] for n in range(500 - STEPS)]
    moved = [speeds for speeds in windows if new_shares(speeds, even) is not None]
    assert len(moved) <= len(windows) / 50


def test_shares_come_to_rest_though_a_step_has_a_fixed_cost():
    """Seconds are 0.01, and so many more for each sample: speeds depend on the shares."""
    per_sample = np.array([0.001, 0.001, 0.003])
    shares, moves = np.full(3, 1 / 3), 0
    for _ in range(20):
        samples = 64 * shares
        seconds = 0.01 + per_sample * samples
        new = new_shares(np.tile(samples / seconds, (STEPS, 1)), shares)
        if new is not None:
            shares, moves = new, moves + 1
    seconds = 0.01 + per_sample * 64 * shares
    best = 0.01 + 64 / (1 / per_sample).sum()
    assert seconds.max() <= 1.1 * best
    assert moves <= 4


def test_a_replica_of_unknown_speed_moves_nothing():
    speeds = _steps(3, 0, 1)
    assert new_shares(speeds, np.full(3, 1 / 3)) is None


def test_steps_without_samples_do_not_count():
    speeds = _steps(30, 10)
    speeds[: STEPS - 3, 1] = 0
    np.testing.assert_allclose(new_shares(speeds, np.full(2, 1 / 2)), [3 / 4, 1 / 4])
