"""The global random seed, which decides the order of shuffled data."""

from __future__ import annotations

import tensorflow as tf

# tf.compat.v1.random.get_seed returns this global seed as long as nobody has set one.
_UNSET = 87654321


def global_seed() -> int | None:
    """The global seed; None if the user has not set one."""
    seed, _ = tf.compat.v1.random.get_seed(0)
    return None if seed == _UNSET else seed
