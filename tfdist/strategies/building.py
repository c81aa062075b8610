"""Losses and metrics that only the step can build, as it decides what the targets are."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import keras
import tensorflow as tf

from tfdist import replica
from tfdist.stages import collection
from tfdist.stages.weighting import Share

_OWN = ("train_step", "test_step")


def build_by_step(strategy: tf.distribute.Strategy, model: keras.Model, spec: Any) -> None:
    """Traces a model's own step once, for the variables that it makes.

    Without it they would be made while the replicas trace it, where processes cannot agree on them.

    Args:
        strategy: where the variables are made.
        model: the model, whose layers are built.
        spec: the type of a batch.
    """
    own = [name for name in _OWN if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        # A thread of its own is in no strategy's scope: its context is that of one replica.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(_trace, strategy, getattr(model, own[0]), spec).result()


def _trace(strategy: tf.distribute.Strategy, step: Any, spec: Any) -> None:
    running = replica.ReplicaStep(0, 1, Share(1.0), share_in_loss=False, exchanges=False)

    def trace(batch: Any) -> None:
        with collection.collect(), replica.publish(running):
            step(batch)

    variables = keras.StatelessScope()
    variables.__enter__()
    try:
        tf.function(trace, autograph=False).get_concrete_function(spec)
    finally:
        with strategy.scope():
            variables.__exit__(None, None, None)
