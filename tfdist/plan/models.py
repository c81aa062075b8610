"""Reads what is to be planned: a saved model, or the model of a script; needs TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.compression.choice import Choice
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.plan import assumptions, device, scripts, tracing
from tfdist.plan.machine import CPU_COSTS, GPU_COSTS, Costs
from tfdist.plan.messages import messages_of
from tfdist.plan.workload import Device, Message, Workload
from tfdist.structures import Structure


@dataclasses.dataclass(frozen=True)
class Found:
    """What the planner needs to know of a model.

    Attributes:
        workload: the model's trace.
        device: how long a device computes.
        costs: of the cores, for the device on which the step was measured.
        notes: what was done and assumed, for people.
        refused: the strategies and options that refuse the model, each with the reason.
    """

    workload: Workload
    device: Device
    costs: Costs
    notes: list[str]
    refused: dict[str, str] = dataclasses.field(default_factory=dict)

    def messages(self, compression: str | None, ranks: int) -> list[Message]:
        """What travels in a step."""
        return _messages(self.workload, compression, ranks)


@functools.cache
def _messages(workload: Workload, compression: str | None, ranks: int) -> list[Message]:
    if ranks > 2 and all(variable.rows is None for variable in workload.variables):
        return _messages(workload, compression, 2)  # only rows depend on the number of ranks
    return messages_of(workload, Choice.of(compression), ranks)


def read(path: str, arguments: Sequence[str], batch_size: int | None, step: float | None) -> Found:
    """Reads and traces a model.

    Args:
        path: a `.keras` file, or a Python script, which runs up to its first `fit`.
        arguments: of the script.
        batch_size: samples of a step; None for the script's own.
        step: seconds of a step on one device; None to run some steps here.

    Raises:
        ValueError: when there is no model to be had, or nothing says how large a batch is.
    """
    if not os.path.isfile(path):
        raise ValueError(f"There is no such file. Received: {path!r}")
    notes: list[str] = []
    if path.endswith(".py"):
        model, inputs = scripts.first_fit(path, arguments)
        inputs = _resized(inputs, batch_size)
        notes.append(f"{path} ran up to its first fit, and trained nothing.")
    else:
        model, inputs = _loaded(path, arguments, batch_size)
    batch = int(tf.nest.flatten(inputs)[0].shape[0])
    optimizer = _optimizer(model)
    notes += assumptions.of(model, optimizer)
    try:
        with tf.device("CPU"):
            workload = tracing.trace(model, inputs, batch, optimizer)
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(
            "tfdist plan calls the model with a batch of inputs, which failed with "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}. "
            f"Received: model={model.name!r}"
        ) from error
    refused = assumptions.refusals(model, optimizer)
    notes += [f"Left out: {kind}, as {reason}." for kind, reason in refused.items()]
    if step is not None:
        known = Device(step, batch)
    else:
        known = device.measured(model, inputs, batch, optimizer)
        notes.append(
            "Some steps ran on this machine, on random data of the model's input shape "
            f"({'a GPU' if _has_gpu() else f'CPU, {os.cpu_count()} cores'}): give --device-step "
            "for another device."
        )
    if _has_gpu():
        notes.append("Compressors were not measured on GPUs: 20 times as fast as two cores, say.")
    return Found(workload, known, GPU_COSTS if _has_gpu() else CPU_COSTS, notes, refused)


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _loaded(
    path: str, arguments: Sequence[str], batch_size: int | None
) -> tuple[keras.Model, Structure]:
    if arguments:
        raise ValueError(f"Only scripts have arguments. Received: {list(arguments)} for {path!r}")
    if batch_size is None:
        raise ValueError(f"A saved model needs --batch-size. Received: {path!r} without")
    try:
        model = keras.saving.load_model(path)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise ValueError(
            f"Keras cannot read the model: {text}. Give a script that makes it, or a model.keras. "
            f"Received: {path!r}"
        ) from None
    return model, tracing.random_inputs(model, batch_size)


def _resized(inputs: Structure, batch: int | None) -> Structure:
    """A batch with so many samples: the first ones, repeated as often as needed."""
    if batch is None:
        return inputs

    def of(tensor: tf.Tensor) -> tf.Tensor:
        return tf.gather(tensor, tf.range(batch) % tensor.shape[0])

    return tf.nest.map_structure(of, inputs)


def _optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """The model's own optimizer, without what tfdist or a loss scale puts around it."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, DistributedOptimizer):
        optimizer = optimizer.unwrap()
    return getattr(optimizer, "inner_optimizer", optimizer)
