"""The engine of the strategy that runs."""

from __future__ import annotations

import tensorflow as tf

from tfdist.engines.contract import Engine
from tfdist.engines.replica_context import ReplicaContextEngine

_OF_OTHERS = ReplicaContextEngine()


def current() -> Engine:
    """The engine of the current strategy; the replica context if the strategy is not tfdist's."""
    return getattr(tf.distribute.get_strategy(), "engine", _OF_OTHERS)
