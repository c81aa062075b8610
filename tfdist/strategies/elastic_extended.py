"""What `tf.distribute` asks of an elastic strategy: no variable needs another rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.elastic.state import Made
from tfdist.engines.contract import Engine
from tfdist.step import sums
from tfdist.strategies.engine_extended import EngineExtended


class ElasticExtended(EngineExtended):
    """As its base class, but no variable needs another rank.

    Args:
        strategy: the strategy.
        device: the device of this process.
        engine: connects the processes.
        made: notes the variables that are made.
    """

    def __init__(self, strategy: tf.distribute.Strategy, device: str, engine: Engine, made: Made):
        self._made = made
        super().__init__(strategy, device, engine)

    def take_place(self, rank: int, size: int) -> None:
        """Notes that the group has changed."""
        self._rank, self._size = rank, size

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        counts = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        if counts:
            kwargs["synchronization"] = tf.VariableSynchronization.ON_WRITE
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        variable = super()._create_variable(next_creator, **kwargs)
        self._made.note(variable.values[0])
        if counts:
            sums.note(variable)
        return variable

    def is_summed(self, variable: tf.Variable) -> bool:
        """Whether a variable counts a replica's own samples."""
        return sums.is_sum(variable)
