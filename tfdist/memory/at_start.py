"""What is said when `fit` starts and the memory will not do."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdist.cluster.environments import ranks_of_this_host
from tfdist.control_groups import free_memory
from tfdist.memory.estimate import Estimate, nbytes, of_step, text_of
from tfdist.memory.inputs import spec_of
from tfdist.memory.tracing import TracedStep, trace
from tfdist.options import SHARDINGS, Options
from tfdist.structures import Structure

_BATCH_OF_FIT = 32  # Keras' own
_MARGIN = 1.25  # by which the measured memory may be more
# No optimizer keeps more than four values for each weight; then there are gradients and sums.
_COPIES_AT_MOST = 8
# A layer makes some tensors for each of its outputs, forward and backward. No model that was tried
# had as many bytes as this for each element of the batch and output channel of its variables.
_BYTES_AT_MOST = 64


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
    on_host = min(strategy.num_replicas_in_sync, len(devices) * ranks_of_this_host(environ))
    return Place(Options.of(strategy), strategy.num_replicas_in_sync, on_host, free)


def batch_of(arguments: Mapping[str, object]) -> Structure:
    """What the model is called with in a batch of `fit`, before any data are read.

    Args:
        arguments: of `fit`, by their names.

    Returns:
        `tf.TensorSpec`s; None where the data do not tell all sizes.
    """
    data = arguments.get("x")
    if isinstance(data, tf.data.Dataset):
        spec = data.element_spec
        given = spec[0] if isinstance(spec, tuple) else spec
        is_known = all(
            isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
            for leaf in tf.nest.flatten(given)
        )
        return given if is_known else None
    leaves = tf.nest.flatten(data)
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return None
    given = arguments.get("batch_size")
    size = min(given if isinstance(given, int) else _BATCH_OF_FIT, len(leaves[0]))
    return tf.nest.map_structure(lambda leaf: spec_of(leaf, size), data)


def what_does_not_fit(model: keras.Model, batch: Structure, place: Place) -> str | None:
    """A sentence for the user if the memory will not do for a step of `model`.

    Args:
        model: a built and compiled model.
        batch: the global batch; None if it is not known. Then activations do not count.
        place: where the replicas run.

    Returns:
        None if the memory will do.
    """
    own = _of_replica(batch, place.replicas)
    if _at_most(model, own) * place.on_host < place.free:
        return None
    gradients = sum(map(nbytes, model.trainable_variables))
    step = TracedStep(gradients) if own is None else trace(model, own)

    def estimated(sharding: str | None) -> Estimate:
        steps = place.options.accumulation_steps
        return of_step(step, model, sharding, place.replicas, steps)

    estimate = estimated(place.options.sharding)
    there = estimate.parameters + (estimate.slots if model.optimizer.built else 0)

    def needed(estimate: Estimate) -> int:
        return place.on_host * max(0, estimate.total - there)

    more = needed(estimate)
    if more * _MARGIN <= place.free:
        return None
    verdict = "do not fit" if more > place.free else "may not fit"
    advice = ["a smaller batch"]
    if place.options.sharding is None and place.replicas > 1:
        fitting = [s for s in SHARDINGS if needed(estimated(s)) * _MARGIN <= place.free]
        advice += [f'`sharding="{sharding}"`, with which they fit' for sharding in fitting[:1]]
    who = "1 replica needs" if place.on_host == 1 else f"{place.on_host} replicas need"
    return (
        f"The tensors of a training step {verdict} the memory of this host: {who} {text_of(more)} "
        f"more, and {text_of(place.free)} are free. A replica needs {estimate}. "
        f"Try {' or '.join(advice)}. Received: model={model.name!r}"
    )


def _of_replica(batch: Structure, replicas: int) -> Structure:
    if batch is None:
        return None
    return tf.nest.map_structure(
        lambda spec: spec_of(spec, math.ceil(spec.shape[0] / replicas)), batch
    )


def _at_most(model: keras.Model, batch: Structure) -> int:
    """More bytes than a step needs, found without a trace, which takes some tenths of a second."""
    weights = sum(map(nbytes, model.trainable_variables))
    leaves = [] if batch is None else tf.nest.flatten(batch)
    elements = sum(spec.shape.num_elements() for spec in leaves)
    channels = sum(variable.shape[-1] for variable in model.trainable_variables if variable.shape)
    return _COPIES_AT_MOST * weights + _BYTES_AT_MOST * elements * channels
