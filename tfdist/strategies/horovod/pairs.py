"""Pairs of ranks, by Horovod's all-to-all exchange in which only a pair gets something."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.engines.pairs import Pairs
from tfdist.strategies.horovod.engine import HorovodEngine


class PairsOfRanks(Pairs):
    """All ranks take part in the negotiation of each exchange, as in each of Horovod's operations.

    Args:
        engine: carries tensors between all ranks.
    """

    def __init__(self, engine: HorovodEngine):
        self._engine = engine
        # A function, as Horovod ignores the name of an operation that runs eagerly.
        vector, counts = tf.TensorSpec([None]), tf.TensorSpec([engine.replicas], tf.int32)
        self._exchange = tf.function(
            engine.all_to_some, input_signature=[vector, counts], autograph=False
        )

    def swap(self, vector: tf.Tensor, pair: tuple[int, int] | None) -> tf.Tensor:
        """What the other rank gives."""
        counts = np.zeros(self._engine.replicas, np.int32)
        if pair is None:
            return self._exchange(vector[:0], tf.constant(counts))
        other = pair[1 - pair.index(self._engine.processes.rank)]
        counts[other] = int(vector.shape[0])
        return self._exchange(vector, tf.constant(counts))
