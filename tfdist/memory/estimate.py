"""`tfdist.memory.estimate`: the memory of each replica in a training step."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence

import keras

from tfdist.arguments import check_instance
from tfdist.memory.checks import check_divisible, check_rows
from tfdist.memory.inputs import inputs_of
from tfdist.memory.sizes import Sizes, Weight
from tfdist.memory.tracing import innermost, sizes_of, slot_bytes, trace
from tfdist.options import Options
from tfdist.step.sharding.owners import largest_share
from tfdist.structures import Structure
from tfdist.validation import check_integer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The most memory that a replica needs in a training step, in bytes.

    TensorFlow itself is not in it: a process takes about 0.5 GB before it has a model.

    Attributes:
        parameters: of all the model's variables, also those that are not trained; of those in
            parts, the parts.
        gradients: of one step, and of those that are accumulated; of weights in parts, the parts.
        slots: of what the optimizer keeps.
        exchange: of the sums over the replicas, beside the gradients; of weights in parts, what is
            whole at a time. That is an estimate.
        activations: of what the forward pass leaves for the backward pass, and of what both have
            under way, at the moment when all together is the most. This one is an estimate. On CPUs
            `total` and the graphs of the step are within 25 % of what was measured, for the models
            in the table of the docs.
    """

    parameters: int
    gradients: int
    slots: int
    exchange: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(dataclasses.astuple(self))

    def __str__(self) -> str:
        """One line; a GB has 10^9 bytes."""
        parts = ", ".join(
            f"{name} {text_of(size)}" for name, size in dataclasses.asdict(self).items() if size
        )
        return f"{text_of(self.total)}: {parts}"


def estimate(
    model: keras.Model,
    batch_size: int,
    sharding: str | None = None,
    replicas: int = 1,
    *,
    accumulation_steps: int = 1,
    inputs: Structure = None,
    offload: str | None = None,
) -> Estimate:
    """The memory that each replica needs to train `model`. Nothing is trained.

    Parameters, gradients and slots are exact. Activations come from the graph of a step: a tensor
    counts from when it is computed to when the last operation has read it.

    Args:
        model: a built and compiled model.
        batch_size: samples of the global batch, which the replicas divide. With
            `accumulation_steps` this is one micro-batch, as in `fit`.
        sharding: as for `tfdist.Strategy`.
        replicas: how many replicas there are.
        accumulation_steps: as for `tfdist.Strategy`.
        inputs: for a model that does not state the shapes of its inputs: what it is called with,
            as tensors, arrays or `tf.TensorSpec`. The first axis may have any size.
        offload: as for `tfdist.Strategy`. Slots in the memory of the host do not count.

    Raises:
        TypeError: for what is no model, and for inputs without shapes.
        ValueError: for a model that is not built or not compiled, whose inputs have unknown sizes,
            whose outputs no loss can train, or that trains nothing; for other values of the
            arguments; for an optimizer, or a table with few rows, that does not go with `sharding`.

    Sources: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models" (SC 2020), section 3, for what there is to count, and section 5 for what is divided.

    Example:

    >>> import keras, tfdist
    >>> model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(1000)])
    >>> model.compile("adam", "mse")
    >>> alone = tfdist.memory.estimate(model, 64)
    >>> alone.parameters, alone.gradients, alone.slots
    (404000, 404000, 808000)
    >>> tfdist.memory.estimate(model, 64, sharding="optimizer", replicas=2).slots
    404000
    """
    check_integer("batch_size", batch_size, 1)
    check_integer("replicas", replicas, 1)
    check_integer("accumulation_steps", accumulation_steps, 1)
    Options(sharding=sharding, offload=offload)  # which checks them
    _check(model)
    if replicas > 1:
        check_divisible(innermost(model.optimizer), sharding)
    passes = trace(model, inputs_of(model, math.ceil(batch_size / replicas), inputs))
    if passes.unknown:
        warnings.warn(
            f"{passes.unknown} tensors of a step have sizes that depend on the data, such as how "
            "many rows are looked up. They count nothing, so the estimate is too low. "
            f"Received: model={model.name!r}",
            stacklevel=2,
        )
    sizes = sizes_of(model, passes, slot_bytes(model) if offload is None else 0)
    if replicas > 1 and sharding is not None and offload is None and not sizes.updates_whole:
        sizes = dataclasses.replace(sizes, slots_in_parts=slot_bytes(model, replicas))
    check_rows(sizes, sharding, replicas, accumulation_steps)
    return of_sizes(sizes, sharding, replicas, accumulation_steps)


def of_sizes(
    sizes: Sizes, sharding: str | None, replicas: int, accumulation_steps: int = 1
) -> Estimate:
    """The estimate for what a replica keeps and computes; the rest is as for `estimate`."""
    accumulated = 0
    if accumulation_steps > 1:
        accumulated = sum(weight.nbytes for weight in sizes.weights)
        # The rows of a part are accumulated as a whole part, after they have travelled as rows.
        sizes = sizes if sharding == "parameters" and replicas > 1 else sizes.dense()
    slots = sizes.slots
    if sharding in ("optimizer", "gradients") and sizes.updates_whole:
        share = largest_share([weight.nbytes for weight in sizes.weights], replicas)
        slots = math.ceil(slots * share)
    elif sharding is not None:
        slots = _part(slots, replicas) if sizes.slots_in_parts is None else sizes.slots_in_parts
        if accumulated and sharding != "optimizer":
            accumulated = sum(weight.part(replicas) for weight in sizes.weights)
    if sharding == "parameters" and replicas > 1:
        return _of_weights_in_parts(sizes, slots, replicas, accumulated)
    # While a bucket is summed there are its gradients and its sums.
    sums = 0.0 if replicas == 1 else 1.0 if sharding is None else 1.0 / replicas
    return Estimate(
        parameters=sizes.parameters,
        gradients=sizes.gradients + accumulated,
        slots=slots,
        exchange=round(sums * sizes.gradients),
        activations=sizes.activations(sums, 1.0 if sharding is None else 1.0 / replicas),
    )


def _of_weights_in_parts(sizes: Sizes, slots: int, replicas: int, accumulated: int) -> Estimate:
    """The estimate where each replica keeps parts of weights, and of their gradients."""
    divided = [*sizes.frozen, *(weight for weight in sizes.weights if weight.is_divided)]
    whole = sum(weight.nbytes for weight in divided)
    # A replica has as many rows of a table after the exchange as before.
    summed = sum(weight.gradient for weight in divided if not weight.is_sparse)
    others = sizes.gradients - summed
    in_parts = [w for w in divided if (accumulated if w.is_sparse else w.gradient)]
    if sizes.is_eager:  # then whole weights stay from the forward to the backward pass
        under_way = whole + summed
    else:
        # Weights that are read outside of their layers stay too, and so do their gradients.
        regularized = sum(weight.nbytes for weight in divided if weight.is_regularized)
        under_way = _under_way(divided) + 2 * regularized
    return Estimate(
        parameters=sizes.parameters - whole + sum(weight.part(replicas) for weight in divided),
        gradients=others + sum(weight.part(replicas) for weight in in_parts) + accumulated,
        slots=slots,
        exchange=under_way + _part(others, replicas),
        activations=sizes.activations(1.0 / replicas - 1.0, 0.0),
    )


def _under_way(weights: Sequence[Weight]) -> int:
    """The most bytes of whole weights, and of their whole gradients, that exist at a time.

    There are whole weights of two layers. A layer begins when the layer three before it has its
    sum. So there may be the gradients of three layers, and what the sum of one of them receives.
    """
    layers: dict[str, list[Weight]] = {}
    for weight in weights:
        layers.setdefault(weight.layer, []).append(weight)
    whole = [sum(weight.nbytes for weight in layer) for layer in layers.values()]
    gradients = [sum(w.gradient for w in layer if not w.is_sparse) for layer in layers.values()]
    windows = (slice(first, first + 3) for first in range(len(layers)))
    return max(
        (
            sum(gradients[three]) + 2 * max(whole[three]) + max(gradients[three])
            for three in windows
        ),
        default=0,
    )


def _part(size: int, replicas: int) -> int:
    return math.ceil(size / replicas)


def text_of(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _check(model: keras.Model) -> None:
    check_instance("model", model, keras.Model, "keras.Model")
    if not model.built:
        raise ValueError(
            "The model must be built, so that its variables exist: call it once, or give its first "
            f"layer a `keras.Input`. Received: model={model.name!r}, which is not built"
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The optimizer decides what is kept for each variable: call `model.compile` before. "
            f"Received: model={model.name!r}, which is not compiled"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"The model has no variable that is trained. Received: model={model.name!r}"
        )
