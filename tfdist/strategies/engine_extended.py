"""What `tf.distribute` asks of a strategy with one replica per process, done by an engine."""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Engine


class EngineExtended(compat.OneReplicaExtended):
    """One replica per process; the processes meet in the operations of an engine.

    Args:
        strategy: the strategy.
        device: the device of this process.
        engine: connects the processes.
    """

    def __init__(self, strategy: tf.distribute.Strategy, device: str, engine: Engine):
        self._engine = engine
        super().__init__(strategy, device, engine.processes.rank, engine.processes.size)

    def all_reduce(self, values: list) -> list:
        """The sums over the ranks."""
        return self._engine.all_reduce(values)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all ranks, one after the other."""
        return self._engine.all_gather(tensor)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor of rank 0."""
        return self._engine.broadcast(tensor)
