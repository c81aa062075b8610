"""What a strategy adds to the steps that Keras' trainer runs on each replica."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _compat, replica
from tfdist.stages import moving_statistics
from tfdist.stages.weighting import weigh


def complete(fn: Callable, model: keras.Model, name: str) -> Callable:
    """Returns `fn` with what must follow it in the same replica.

    After a training step the statistics that layers took from their local batch are averaged.
    Logs that are no metrics are weighted, so that Keras' mean over the replicas is the global one.
    """

    def step(*args: Any, **kwargs: Any) -> Any:
        logs = fn(*args, **kwargs)
        running = replica.current()
        if running is None or name == "predict_step":
            return logs
        if name == "train_step":
            statistics = moving_statistics.local_statistics(model)
            if statistics:
                moving_statistics.average(statistics, running.share)
        return _weigh_logs(logs, model, running)

    return step


def _weigh_logs(logs: Any, model: keras.Model, running: replica.ReplicaStep) -> Any:
    if not isinstance(logs, dict):
        return logs
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    metrics = {metric.name for metric in model.metrics} | set(model.get_metrics_result())
    weight = running.share.fraction * replicas

    def weigh_log(value: Any) -> Any:
        if not (tf.is_tensor(value) and value.dtype.is_floating):
            return value
        return weigh(value, weight)

    return {
        name: value if name in metrics else tf.nest.map_structure(weigh_log, value)
        for name, value in logs.items()
    }


def warn_of_unsynchronized_layers(model: keras.Model) -> None:
    """Warns when training cannot equal one device's because of BatchNormalization."""
    names = [
        layer.name
        for layer in _compat.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    if names:
        warnings.warn(
            "BatchNormalization without `synchronized=True` normalizes each replica's part of the "
            "batch by itself, so training will not equal that on one device; its moving statistics "
            "are averaged over the replicas. Pass `synchronized=True` for equal results. "
            f"Received: layers {names}",
            stacklevel=2,
        )
