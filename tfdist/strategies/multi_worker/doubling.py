"""Sums by recursive doubling: in each round two replicas add what both have.

The partners are 1, 2, 4, ... away. After log2(N) rounds each of N replicas has the sum, where a
ring takes 2(N - 1) rounds; N is a power of two. Each replica sends its whole vector in each round:
more bytes than in a ring, from four replicas on. See Thakur, Rabenseifner and Gropp, "Optimization
of collective communication operations in MPICH" (2005), section 4.4.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat
from tfdist.engines.halves import sum_of_rows

# With so many replicas, doubling takes less time than a ring for tensors of up to so many bytes, on
# links from 100 Mbit/s on (benchmarks/small_sums.py). With 4 replicas it sometimes takes more.
_REPLICAS, _BYTES = 8, 32 * 1024


def most_bytes(replicas: int) -> int:
    """The size of a tensor up to which doubling is faster than a ring; 0 where it is not."""
    is_power_of_two = not replicas & (replicas - 1)
    return _BYTES if replicas >= _REPLICAS and is_power_of_two else 0


def sum_by_doubling(
    strategy: tf.distribute.Strategy, replica_id: int, value: tf.Tensor
) -> tf.Tensor:
    """The sum over all replicas, which has the same bits on all: lower replicas come first.

    Args:
        strategy: whose replicas have a process each; as many as a power of two.
        replica_id: the number of this replica.
        value: of the same shape and dtype on all replicas.
    """
    for bit in range(strategy.num_replicas_in_sync.bit_length() - 1):
        rows = compat.gather_in_pair(strategy, replica_id, bit, value[None])
        value = sum_of_rows(tf.ensure_shape(rows, [2, *value.shape]))
    return value
