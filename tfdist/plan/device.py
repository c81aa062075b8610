"""Measures how long a training step of a model takes here, on one device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.memory.tracing import maker_of_copies
from tfdist.plan.tracing import loss_and_gradients
from tfdist.plan.workload import Device
from tfdist.structures import Structure

# Steps that do not count: tracing, allocating, and caches.
_FIRST, _STEPS = 2, 7
# No more steps than fit in so many seconds, but three.
_SECONDS, _LEAST = 20.0, 3


def measured(
    model: keras.Model,
    inputs: Structure,
    batch: int,
    optimizer: keras.optimizers.Optimizer | None,
) -> tuple[Device, list[str]]:
    """The time of a step with these inputs, and the part that does not depend on their number.

    The weights of the model are changed, or those of a copy where a strategy has mirrored them.

    Args:
        model: a built model. With `run_eagerly=True` steps are no functions of TensorFlow.
        inputs: tensors, a batch.
        batch: the number of samples in them.
        optimizer: of the model; None for SGD with momentum. A copy of it makes the updates.

    Returns:
        The times, and what people should know about them.

    Raises:
        ValueError: when a strategy has mirrored the weights, and the model cannot be copied.
    """
    is_eager = bool(getattr(model, "run_eagerly", False))
    model = _on_one_device(model)
    chosen = keras.optimizers.SGD(0.0, momentum=0.9)
    if optimizer is not None:
        chosen = maker_of_copies(optimizer)()
    chosen.build(model.trainable_variables)

    def computed(given: Structure) -> tf.Tensor:
        loss, gradients = loss_and_gradients(model, given)
        chosen.apply(gradients, model.trainable_variables)
        return loss

    step = computed if is_eager else tf.function(computed, autograph=False)
    whole = _median(lambda: step(inputs).numpy())
    if batch < 2:
        return Device(whole, batch), []
    part = tf.nest.map_structure(lambda tensor: tensor[: batch // 2], inputs)
    try:
        half = _median(lambda: step(part).numpy())
    except Exception as error:  # such as that of a model whose batch has a fixed size
        return Device(whole, batch), [
            f"The model takes {batch} samples and not {batch // 2} ({type(error).__name__}): the "
            "time of a step is taken to grow with the batch from 0 on."
        ]
    per_sample = max(0.0, whole - half) / (batch - batch // 2)
    return Device(whole, batch, max(0.0, whole - per_sample * batch)), []


def _on_one_device(model: keras.Model) -> keras.Model:
    values = [variable.value for variable in model.variables]
    if not any(isinstance(value, tf.distribute.DistributedValues) for value in values):
        return model
    try:
        return keras.models.clone_model(model)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(
            "The model was made in the scope of a strategy, and a step on one device needs a copy, "
            f"which Keras cannot make: {text}. Give --device-step, or let the script make no "
            f"strategy. Received: model={model.name!r}"
        ) from None


def _median(run: Callable[[], object]) -> float:
    for _ in range(_FIRST):
        run()
    times: list[float] = []
    while len(times) < _STEPS and (len(times) < _LEAST or sum(times) < _SECONDS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)
