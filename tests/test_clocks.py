"""The offset of two clocks, from when operations began and ended by both."""

import random

from tfdist.engines.clocks import clock_of

_MS = 1_000_000


def operations(offset, count=20, seed=0):
    """Operations of two processes, as both clocks see them: none ends before both have begun."""
    chance = random.Random(seed)
    own, others, now = [], [], 10_000 * _MS
    for _ in range(count):
        begun = [now + chance.randrange(3 * _MS) for _ in range(2)]
        ended = [max(begun) + 100_000 + chance.randrange(2 * _MS) for _ in range(2)]
        own.append((begun[0], ended[0]))
        others.append((begun[1] + offset, ended[1] + offset))
        now = max(ended)
    return own, others


def test_the_true_offset_is_within_the_error():
    for seed, offset in enumerate((0, 5 * _MS, -3_000 * _MS, 86_400_000 * _MS)):
        clock = clock_of(*operations(offset, seed=seed))
        assert abs(clock.offset_seconds - offset / 1e9) <= clock.error_seconds < 0.003


def test_more_operations_leave_a_smaller_error():
    few, many = (clock_of(*operations(0, count)).error_seconds for count in (1, 50))
    assert many < few / 2
