"""What is said when `fit` starts and the memory will not do."""

from __future__ import annotations

import dataclasses
import math
import os
import weakref
from collections.abc import Mapping

import keras
import tensorflow as tf

from tfdist.cluster.environments import ranks_of_this_host
from tfdist.compat import flatten_layers
from tfdist.control_groups import free_memory
from tfdist.memory.batches import bytes_of_outputs
from tfdist.memory.checks import check_divisible, check_rows
from tfdist.memory.estimate import Estimate, of_sizes, text_of
from tfdist.memory.gpus import free_of_gpus
from tfdist.memory.inputs import inputs_of
from tfdist.memory.kept import kept_by
from tfdist.memory.sizes import Passes, nbytes, weight_of
from tfdist.memory.tracing import innermost, sizes_of, slot_bytes, trace
from tfdist.options import SHARDINGS, Options
from tfdist.structures import Structure

# Gradients and their sums; no optimizer keeps more than four values for each weight, and no options
# more than five.
_COPIES_AT_MOST = 12
# The models of the table in docs/memory.md have at most 12 times the outputs of their layers as
# activations. A layer may keep more, as attention does for long texts.
_ACTIVATIONS_AT_MOST = 20
# The size of the batch and the bytes of the weights for which a model was traced last.
_traced: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a replica runs.

    Attributes:
        options: of the strategy.
        replicas: of the job.
        on_host: the replicas that share the memory of this one.
        free: the bytes of memory that are free for these.
        is_elastic: whether processes may leave or join the job.
        on_gpu: whether this memory is that of a GPU, not of the host.
    """

    options: Options
    replicas: int
    on_host: int
    free: int
    is_elastic: bool = False
    on_gpu: bool = False


def place_of(
    strategy: tf.distribute.Strategy, environ: Mapping[str, str] = os.environ
) -> Place | None:
    """Where the replicas of this process run.

    Returns:
        None if free memory is not known, as that of most GPUs.
    """
    devices, replicas = strategy.extended.worker_devices, strategy.num_replicas_in_sync
    gpus = [device for device in devices if "GPU" in device]
    free = free_of_gpus(gpus) if gpus else free_memory()
    if free is None:
        return None
    ranks = ranks_of_this_host(environ) if strategy.is_multi_process else 1
    sharing = 1 if gpus else min(replicas, len(devices) * ranks)
    may_change = strategy.processes.may_change
    return Place(Options.of(strategy), replicas, sharing, free, may_change, bool(gpus))


def what_does_not_fit(model: keras.Model, place: Place, samples: int | None = None) -> str | None:
    """A sentence for the user if the memory will not do for a step of `model`.

    First what is exact: gradients, their sums, slots and what options keep. If these fit, and the
    batch is large for the memory, a step is traced for its activations too, once for each size of
    the batch.

    Args:
        model: a built and compiled model.
        place: where the replicas run.
        samples: of a global batch; None where it is not known. Then activations do not count.

    Returns:
        None if the memory will do.

    Raises:
        ValueError: when Keras cannot make a copy of the optimizer, or compressors do not go with
            the model.
    """
    weights = sum(map(nbytes, model.trainable_variables))
    inputs = _inputs(model, place, weights, samples)
    if _traced.get(model) == (samples, weights):
        inputs = None
    if inputs is None and _COPIES_AT_MOST * weights * place.on_host < place.free:
        return None
    slots = kept_by(place.options, model.trainable_variables, place.replicas)
    if not (place.on_gpu and place.options.offload):
        slots += slot_bytes(model)
    said = _said(_without_activations(model), model, place, slots)
    if said or inputs is None:
        return said
    _traced[model] = samples, weights
    try:
        passes = trace(model, inputs)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return (
            f"Whether the activations of a batch fit the memory of {_owner(place)} is not known, "
            f"as a trace of the model fails. Received: {type(error).__name__}: {text}"
        )
    return _said(passes, model, place, slots)


def _inputs(
    model: keras.Model, place: Place, weights: int, samples: int | None
) -> Structure | None:
    """The inputs of a replica, if their activations may be too much for the memory."""
    if samples is None:
        return None
    samples = math.ceil(samples / place.replicas)
    try:
        inputs = inputs_of(model, samples)
    except (TypeError, ValueError):  # where the model does not state the shapes
        return None
    most = _COPIES_AT_MOST * weights + _ACTIVATIONS_AT_MOST * bytes_of_outputs(model, samples)
    return inputs if most * place.on_host > place.free else None


def _said(passes: Passes, model: keras.Model, place: Place, slots: int) -> str | None:
    sizes = sizes_of(model, passes, slots)

    def estimated(sharding: str | None) -> Estimate:
        return of_sizes(sizes, sharding, place.replicas, place.options.accumulation_steps)

    estimate = estimated(place.options.sharding)
    there = estimate.parameters + (estimate.slots if model.optimizer.built else 0)

    def needed(estimate: Estimate) -> int:
        return place.on_host * max(0, estimate.total - there)

    more = needed(estimate)
    if more <= place.free:
        return None
    advice = ["a machine with more memory"]
    if place.options.sharding is None and place.replicas > 1:
        fitting = [s for s in _possible(model, place) if needed(estimated(s)) <= place.free]
        advice = [f'`sharding="{name}"`, with which they fit' for name in fitting[:1]] or advice
    who = "1 replica needs" if place.on_host == 1 else f"{place.on_host} replicas need"
    what, rest = "The gradients and the optimizer's state", "activations come on top"
    if passes.moments:
        what = "The gradients, the optimizer's state and the activations of a batch"
        rest = "activations are an estimate, which may be off by a quarter"
        advice.insert(0, "a smaller batch")
    return (
        f"{what} do not fit the memory of {_owner(place)}: {who} {text_of(more)} more, and "
        f"{text_of(place.free)} are free. A replica needs {estimate}; {rest}. "
        f"Try {' or '.join(advice)}. Received: model={model.name!r}"
    )


def _owner(place: Place) -> str:
    return "a GPU" if place.on_gpu else "this host"


def _possible(model: keras.Model, place: Place) -> list[str]:
    """The kinds of `sharding` that go with the model and the other options."""
    return [kind for kind in SHARDINGS if _goes_with(kind, model, place)]


def _goes_with(sharding: str, model: keras.Model, place: Place) -> bool:
    if place.is_elastic or (sharding == "parameters" and model.jit_compile):
        return False
    try:
        dataclasses.replace(place.options, sharding=sharding)  # which checks them
        check_divisible(innermost(model.optimizer), sharding)
        sizes = sizes_of(model, _without_activations(model), 0)
        check_rows(sizes, sharding, place.replicas, place.options.accumulation_steps)
    except ValueError:
        return False
    return True


def _without_activations(model: keras.Model) -> Passes:
    """The passes, where the gradients of embeddings count nothing.

    They are those of the rows that a batch names.
    """
    tables = {
        id(variable)
        for layer in flatten_layers(model)
        if isinstance(layer, keras.layers.Embedding)
        for variable in layer.trainable_variables
    }
    return Passes(
        tuple(
            weight_of(variable, 0, is_sparse=True)
            if id(variable) in tables
            else weight_of(variable, nbytes(variable))
            for variable in model.trainable_variables
        )
    )
