"""Reads what is to be planned: a saved model, or the model of a script; needs TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist.compression.choice import Choice
from tfdist.memory.inputs import spec_of
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.plan import assumptions, device, refusals, scripts, tracing
from tfdist.plan.candidate import Compression
from tfdist.plan.machine import COSTS, Costs
from tfdist.plan.messages import messages_of
from tfdist.plan.workload import Device, Message, Workload
from tfdist.structures import Structure


@dataclasses.dataclass(frozen=True)
class Found:
    """What the planner needs to know of a model.

    Attributes:
        workload: the model's trace.
        device: how long a device computes.
        costs: of the cores, for the device on which a step takes so long.
        notes: what was done and assumed, for people.
        refused: the strategies and options that refuse the model, each with the reason.
        uses_cores: whether the step was measured on all cores of this machine.
        on_gpus: whether the devices are GPUs.
        samples: of an epoch of the script's `fit`; None if they are not known.
    """

    workload: Workload
    device: Device
    costs: Costs
    notes: list[str]
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    uses_cores: bool = False
    on_gpus: bool = False
    samples: scripts.Samples | None = None

    def messages(self, compression: Compression, ranks: int, workload: Workload) -> list[Message]:
        """What travels in a step of this model, or of one that differs in what travels."""
        return _messages(workload, compression, ranks)


@functools.cache
def _messages(workload: Workload, compression: Compression, ranks: int) -> list[Message]:
    if ranks > 2 and all(variable.rows is None for variable in workload.variables):
        return _messages(workload, compression, 2)  # only rows depend on the number of ranks
    return messages_of(workload, Choice.of(compression), ranks)


def read(
    path: str,
    arguments: Sequence[str],
    batch_size: int | None,
    step: float | None,
    kind: str | None = None,
) -> Found:
    """Reads and traces a model.

    Args:
        path: a `.keras` file, or a Python script, which runs up to its first `fit`.
        arguments: of the script.
        batch_size: samples of a step; None for the script's own.
        step: seconds of a step on one device; None to run some steps here. Otherwise only shapes
            are needed, so the batch may be larger than this machine's memory.
        kind: "cpu" or "gpu", which the devices are; None for what this machine has.

    Raises:
        ValueError: when there is no model to be had, or nothing says how large a batch is; when
            no step can run here, or none on a device of this kind.
    """
    if not os.path.isfile(path):
        raise ValueError(f"There is no such file. Received: {path!r}")
    notes: list[str] = []
    samples: scripts.Samples | None = None
    if path.endswith(".py"):
        model, first, samples = scripts.first_fit(path, arguments)
        specs = tf.nest.map_structure(lambda one: spec_of(one, batch_size or one.shape[0]), first)
        inputs, data = functools.partial(_resized, first, batch_size), "the script's first batch"
        notes.append(f"{path} ran up to its first fit, and trained nothing.")
    else:
        model, specs = _loaded(path, arguments, batch_size)
        inputs = functools.partial(tracing.random_inputs, specs)
        data = "random data of the model's input shape"
    batch = int(tf.nest.flatten(specs)[0].shape[0])
    kind = _kind(kind, step)
    optimizer = _optimizer(model)
    notes += assumptions.of(model, optimizer)
    try:
        with tf.device("CPU"):
            workload = tracing.trace(model, specs, batch, optimizer)
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(
            f"tfdist plan calls the model with a batch of {batch} samples, which failed with "
            f"{_described(error)}. Received: model={model.name!r}"
        ) from error
    steps = assumptions.accumulation_steps(model)
    workload = dataclasses.replace(workload, accumulation_steps=steps)
    notes += assumptions.of_sizes(workload)
    if reason := assumptions.at_once(model):
        workload = workload.at_once()
        notes.append(f"No exchange is beside the backward pass: {reason}.")
    refused = refusals.of_model(model, optimizer)
    notes += [f"Left out: {option}, as {reason}." for option, reason in refused.items()]
    if step is not None:
        known = Device(step, batch)
        other = "CPU" if kind == "gpu" else "GPU"
        notes.append(
            f"What exchanges, compressors and updates cost is that of {kind.upper()}s: give "
            f"--device {other.lower()} for {other}s."
        )
    else:
        known, told = _measured(model, inputs, batch, optimizer)
        notes += told
        notes.append(
            f"Some steps ran on this machine, on {data} "
            f"({'a GPU' if kind == 'gpu' else f'CPU, {os.cpu_count()} cores'}): give --device-step "
            "for another device."
        )
    if kind == "gpu":
        notes.append("Compressors were not measured on GPUs: 20 times as fast as two cores, say.")
    uses_cores = step is None and kind == "cpu"
    costs, on_gpus = COSTS[kind], kind == "gpu"
    return Found(workload, known, costs, notes, refused, uses_cores, on_gpus, samples)


def _kind(asked: str | None, step: float | None) -> str:
    """What the devices are. A script may choose what this process sees, so it comes first."""
    here = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
    if step is None and asked not in (None, here):
        raise ValueError(
            f"The steps that run on this machine are those of a {here.upper()}: give --device-step "
            f"too. Received: --device {asked} without --device-step"
        )
    return asked or here


def _measured(
    model: keras.Model,
    inputs: Callable[[], Structure],
    batch: int,
    optimizer: keras.optimizers.Optimizer | None,
) -> tuple[Device, list[str]]:
    try:
        return device.measured(model, inputs(), batch, optimizer)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"A step with {batch} samples failed on this machine with {_described(error)}. Give a "
            "smaller --batch-size, or --device-step, with which no step runs here. "
            f"Received: a batch of {batch} samples"
        ) from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


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
        raise ValueError(
            f"Keras cannot read the model: {_what_keras_misses(error)}. Give a script that makes "
            f"it, or a model.keras. Received: {path!r}"
        ) from None
    return model, tracing.specs_of(model, batch_size)


def _what_keras_misses(error: Exception) -> str:
    """The class or function that Keras does not know, else the innermost reason, uncut."""
    text = " ".join(str(error).split())
    if unknown := re.search(r"Could not locate (class|function) '[^']+'", text):
        return f"{unknown[0]}, which is not registered here"
    return text.rpartition("Exception encountered: ")[2].rstrip(".")


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
