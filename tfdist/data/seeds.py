"""The global random seed, which decides the order of shuffled data."""

from __future__ import annotations

import tensorflow as tf

# What tf.compat.v1.random.get_seed answers for the global seed as long as nobody has set it.
_UNSET = 87654321


def global_seed() -> int | None:
    """The global seed; None where the user has not set one."""
    seed, _ = tf.compat.v1.random.get_seed(0)
    return None if seed == _UNSET else seed
