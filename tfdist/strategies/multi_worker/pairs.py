"""Pairs of workers, by TensorFlow's collective operations in groups of two."""

from __future__ import annotations

import collections
import itertools

import tensorflow as tf

from tfdist.engines.pairs import Pairs
from tfdist.engines.processes import Processes

# Those of `strategy.py` begin at 2**30, those of reducers above these.
_FIRST_KEY = 2**30 + 2**29

# Both workers of a pair count its operations, of all strategies of the process.
_numbers: dict[tuple[int, int], itertools.count] = collections.defaultdict(itertools.count)


class PairsOfWorkers(Pairs):
    """Each pair is a group of its own, of which the other workers know nothing.

    Args:
        processes: the workers.
    """

    def __init__(self, processes: Processes):
        self._processes = processes

    def swap(self, vector: tf.Tensor, pair: tuple[int, int] | None) -> tf.Tensor:
        """What the other worker gives, from CPU to CPU."""
        if pair is None:
            return vector[:0]
        with tf.device("CPU:0"):
            rows = tf.raw_ops.CollectiveAllToAllV2(
                input=tf.stack([vector, vector]),
                group_size=2,
                group_key=_FIRST_KEY + pair[0] * self._processes.size + pair[1],
                instance_key=next(_numbers[pair]),
                ordering_token=[],
            )
            return rows[1 - pair.index(self._processes.rank)]
