"""What is said when `fit` starts and the memory will not do, whatever the batch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdist.cluster.environments import ranks_of_this_host
from tfdist.compat import flatten_layers
from tfdist.control_groups import free_memory
from tfdist.memory.estimate import Estimate, of_step, text_of
from tfdist.memory.tracing import TracedStep, nbytes, slot_bytes
from tfdist.options import SHARDINGS, Options

# No optimizer keeps more than four values for each weight; then there are gradients and sums.
_COPIES_AT_MOST = 8


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a replica runs.

    Attributes:
        options: of the strategy.
        replicas: of the job.
        on_host: the replicas that share the memory of this one.
        free: the bytes of memory that are free for these.
    """

    options: Options
    replicas: int
    on_host: int
    free: int


def place_of(
    strategy: tf.distribute.Strategy, environ: Mapping[str, str] = os.environ
) -> Place | None:
    """Where the replicas of this process run.

    Returns:
        None if free memory is not known, as that of GPUs.
    """
    devices, free = strategy.extended.worker_devices, free_memory()
    if free is None or any("GPU" in device for device in devices):
        return None
    replicas = strategy.num_replicas_in_sync
    ranks = ranks_of_this_host(environ) if strategy.is_multi_process else 1
    return Place(Options.of(strategy), replicas, min(replicas, len(devices) * ranks), free)


def what_does_not_fit(model: keras.Model, place: Place) -> str | None:
    """A sentence for the user if the memory will not do for a step of `model`.

    Activations do not count, as that takes a trace of the step, and the sizes of the batches.

    Args:
        model: a built and compiled model.
        place: where the replicas run.

    Returns:
        None if the memory will do.

    Raises:
        ValueError: when Keras cannot make a copy of the optimizer.
    """
    weights = sum(map(nbytes, model.trainable_variables))
    if _COPIES_AT_MOST * weights * place.on_host < place.free:
        return None
    step, slots = TracedStep(weights - _bytes_of_tables(model)), slot_bytes(model)

    def estimated(sharding: str | None) -> Estimate:
        steps = place.options.accumulation_steps
        return of_step(step, model, slots, sharding, place.replicas, steps)

    estimate = estimated(place.options.sharding)
    there = estimate.parameters + (estimate.slots if model.optimizer.built else 0)

    def needed(estimate: Estimate) -> int:
        return place.on_host * max(0, estimate.total - there)

    more = needed(estimate)
    if more <= place.free:
        return None
    advice = ["a machine with more memory"]
    if place.options.sharding is None and place.replicas > 1:
        fitting = [s for s in SHARDINGS if needed(estimated(s)) <= place.free]
        advice = [f'`sharding="{name}"`, with which they fit' for name in fitting[:1]] or advice
    who = "1 replica needs" if place.on_host == 1 else f"{place.on_host} replicas need"
    return (
        f"The gradients and the optimizer's state do not fit the memory of this host: {who} "
        f"{text_of(more)} more, and {text_of(place.free)} are free. A replica needs {estimate}; "
        f"activations come on top. Try {advice[0]}. Received: model={model.name!r}"
    )


def _bytes_of_tables(model: keras.Model) -> int:
    """The bytes of embeddings, whose gradients are those of the rows that a batch names."""
    tables = {
        id(variable): nbytes(variable)
        for layer in flatten_layers(model)
        if isinstance(layer, keras.layers.Embedding)
        for variable in layer.trainable_variables
    }
    return sum(tables.values())
